"""Says so where another package of the same name hides one of this project's.

`python -m` and scripts look into the working folder first, and `data` or `gpt` are names that a
project of one's own has too. Without this check the first sign is an attribute that is missing.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def require_ours(*names: str) -> None:
    """Raise ImportError, with both places and what to do, where a name leads to another package."""
    for name in names:
        spec = importlib.util.find_spec(name)
        found = Path(spec.origin) if spec is not None and spec.origin else None
        if found is None or found.resolve().parents[1] != ROOT:
            raise ImportError(
                f"{found or 'something else'} hides Glassbox's package {name!r} in {ROOT}: start "
                "Python from another folder, or rename that one"
            )
