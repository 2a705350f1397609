"""What the pages share: how things look, exercises that check themselves, and kept small models.

notebooks/README.md says how a page uses them. Importing it also finds the library: a page
runs in a copy of the repository where nothing was installed, so a page imports `course` first.
"""

import sys
from pathlib import Path

REPOSITORY = str(Path(__file__).resolve().parents[2])
if REPOSITORY not in sys.path:
    sys.path.insert(0, REPOSITORY)
