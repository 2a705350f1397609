"""The small models that pages start from. scripts/saved_models.py stores and reads them."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2] / "scripts"))

from saved_models import base as base
from saved_models import policy as policy
from saved_models import reward_model as reward_model
