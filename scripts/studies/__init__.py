"""What every study shares: runner.py plans, runs and goes on; bootstrap.py reduces; pages.py writes tables.

A study is one command of scripts/ that lists its jobs and says what is particular to it:

    jobs = {f"grpo-{seed}": Job(f"grpo-{seed}", "rl.grpo_engine", {"steps": 100, "seed": seed}) ...}
    if go(config, jobs, parts):                     # config: a StudyFlags with the study's own flags
        ...                                         # finished jobs -> one JSON -> tables and figures

Its page holds tables between marks, written from the JSON alone.
"""
