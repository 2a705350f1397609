"""One page that holds the base model and the policy and runs both: docs/playground/ and the weights.

    python scripts/playground.py                      with the models that the course keeps
    python scripts/playground.py --base runs/pretraining-reviews-tiny --policy runs/grpo-reviews-tiny

The page needs no server and no network, so it opens from a folder as well. Weights are stored in bfloat16
(1.8 MB for each model, a third more as text) and widened in the page; numbers agree with the Python model
of the same rounded weights within 1e-3 nats per token (`make browser`).
"""

from __future__ import annotations

import harness  # isort: skip  # noqa: F401  (before PyTorch is loaded)

import base64
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import jinja2
import saved_models
import torch
from safetensors.torch import save

from data import reviews
from gpt.checkpoint import load_policy
from gpt.model import GPT
from gpt.tokenizer import RANKS_FILE, Tokenizer
from harness.command_line import run_command
from harness.errors import UserError
from harness.files import display_path, write_atomically

ROOT = Path(__file__).resolve().parents[1]

Opened = tuple[GPT, Tokenizer]
PARTS = ROOT / "docs" / "playground"
SCRIPTS = ("tokenizer.js", "gpt2.js", "page.js")
MAX_NEW_TOKENS = 48
MOST_BYTES = 8_000_000


def embedded_weights(model: GPT) -> str:
    """The weights in bfloat16 as a safetensors file, in base64."""
    halves = {name: value.to(torch.bfloat16) for name, value in model.state_dict().items()}
    return base64.b64encode(save(halves)).decode("ascii")


def example_prompts(count: int = 40) -> list[str]:
    """Prompts of the test split, which no stage was trained on."""
    return [record.prompt.strip() for record in reviews.prompts("test")][:count]


def playground(
    base: GPT, policy: GPT, tokenizer: Tokenizer, repository: str, suffix: str = ""
) -> str:
    """The whole page. Raises UserError where the two models or the tokenizer do not fit together."""
    if base.config != policy.config:
        raise UserError(
            f"the two models differ in shape, {base.config} and {policy.config}: "
            "name a policy that was trained from this base model"
        )
    if tokenizer.name != "glassbox":
        raise UserError(
            f"these models read {tokenizer.name!r} tokens and the page holds Glassbox's tokenizer "
            "alone: name models that were trained with --tokenizer glassbox"
        )
    about = {
        "config": asdict(base.config),
        "max_new_tokens": MAX_NEW_TOKENS,
        "prompts": example_prompts(),
    }
    return jinja2.Template((PARTS / "page.html").read_text(encoding="utf-8")).render(
        weights=f"{base.parameter_count():,}",
        repository=repository.rstrip("/"),
        suffix=suffix,
        ranks=RANKS_FILE.read_text(encoding="ascii"),
        about=json.dumps(about).replace("<", "\\u003c"),
        base=embedded_weights(base),
        policy=embedded_weights(policy),
        scripts="\n".join((PARTS / name).read_text(encoding="utf-8") for name in SCRIPTS),
    )


def opened(folder: Path | None, kept_model: Callable[[], Opened]) -> Opened:
    """The model of a run folder, or without one the model that the course keeps."""
    return kept_model() if folder is None else load_policy(folder, torch.device("cpu"))


def write_playground(
    base: Path | None, policy: Path | None, out: Path, repository: str = "..", suffix: str = ""
) -> None:
    """Write the page of these two run folders to `out`. Raises UserError where it would pass 8 MB."""
    if (base is None) != (policy is None):
        raise UserError("--base and --policy belong together: name both, or neither")
    first, tokenizer = opened(base, saved_models.base)
    second, _ = opened(policy, saved_models.policy)
    page = playground(first, second, tokenizer, repository, suffix).encode("utf-8")
    if len(page) > MOST_BYTES:
        raise UserError(
            f"the page would have {len(page) / 1e6:.1f} MB, above {MOST_BYTES / 1e6:.0f}: "
            "take models of the preset tiny"
        )
    write_atomically(out, lambda path: path.write_bytes(page))


@dataclass(frozen=True)
class PlaygroundConfig:
    """Write one page that holds two models and runs them in the browser."""

    base: Path | None = None
    """Run folder of the base model (gpt.pretraining); default: the model that the course keeps."""
    policy: Path | None = None
    """Run folder of a policy that was trained from it; default: the course's."""
    out: Path = Path("build/playground.html")
    """The page."""


def main(config: PlaygroundConfig) -> None:
    """Write the page and say where it is."""
    write_playground(config.base, config.policy, config.out)
    print(
        f"{display_path(config.out)}: {config.out.stat().st_size / 1e6:.1f} MB, open it in a browser"
    )


if __name__ == "__main__":
    run_command(main, PlaygroundConfig)
