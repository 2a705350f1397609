"""Claims of recent papers, each an experiment of minutes: one file a claim.

    rules.py    what a claim is, and the rule that gives its verdict
    worlds.py   the policies that every run starts from, and what is measured of one
    arms.py     the runs: how each is trained from a seed; claims share them by name

Every other file holds one `CLAIM`. scripts/claims.py runs them and writes docs/claims.md.
"""
