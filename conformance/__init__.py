"""Is a loss right? `python -m conformance mine.py:loss` says in one sentence what is wrong. Needs torch."""
