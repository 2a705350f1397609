"""Stories and recorded runs of the bug zoo. scripts/bug_stories.py tells them and reads them."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2] / "scripts"))

from bug_stories import RECORDINGS as RECORDINGS
from bug_stories import STORIES as STORIES
from bug_stories import choices as choices
from bug_stories import control as control
from bug_stories import recording as recording
from bug_stories import table as table
