"""A run's model as a folder that transformers opens: weights, tokenizer, model card.

    python -m rl.export runs/grpo-reviews-tiny --hf exported

Policies and reward models alike, without a network; an adapter is merged.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from harness.command_line import command_name, explained
from rl.commands.hub_export import export_hub


@dataclass(frozen=True)
class ExportConfig:
    """Write a run's model for transformers."""

    hf: Path
    """A new folder for the model, in Hugging Face's layout."""


def main(run: Path, /, config: ExportConfig) -> None:
    """Write a run's model for transformers.

    Args:
        run: A run folder.
    """
    print(f"open it with\n    {export_hub(run, config.hf)}")


if __name__ == "__main__":
    import tyro

    with explained():
        tyro.cli(main, prog=command_name(), config=(tyro.conf.OmitArgPrefixes,))
