"""Lets waiting CPU threads sleep instead of spin, unless the user has chosen otherwise.

Imported by every package before PyTorch is: OpenMP reads the setting when it is loaded. Spinning
threads are no faster on a quiet machine, and on a busy one they slow training down tenfold.
"""

import os

os.environ.setdefault("OMP_WAIT_POLICY", "passive")
