"""The over-optimisation study: what is run (plan), how (stages, jobs), and what it says (the rest)."""
