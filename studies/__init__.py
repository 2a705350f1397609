"""Studies, and what they share: runner.py plans and goes on, bootstrap.py reduces, pages.py writes."""

import harness as harness  # before PyTorch is loaded
