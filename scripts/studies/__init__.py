"""What studies share: runner.py plans, runs and goes on; bootstrap.py reduces; pages.py writes tables."""
