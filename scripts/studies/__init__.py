"""What every study shares. A study is jobs with seeds, a JSON of numbers, and what is drawn from it.

A new study lists its jobs and runs what is left of them (a job is done when its seconds are written):

    jobs = [Job(f"grpo-{seed}", "rl.grpo_engine", {"steps": 100, "seed": seed}) for seed in range(6)]
    run = lambda job: run_stage(root / job.name, job.stage, words(job.arguments), threads=1)
    run_jobs(jobs, run, at_a_time=2)

Then it measures each policy once (`once` keeps the numbers beside it), puts means, intervals and
corrected p-values (bootstrap.py, harness/report/intervals.py) into one JSON file, and writes its page
from that alone.
"""
