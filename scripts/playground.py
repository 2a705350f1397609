"""One page that holds the base model and its policies and runs them: docs/playground/ and the weights.

    python scripts/playground.py                      with the models that the course keeps
    python scripts/playground.py --base runs/pretraining-reviews-tiny --policy runs/grpo-reviews-tiny

The page needs no server and no network, so it opens from a folder as well. The course's page has a slider
of policies (sweep.safetensors, made with revision 6d26a07a) and the reward model that they were trained
against. The base is stored in bfloat16, the others as what training has changed; numbers agree with the
Python models of the same weights within 1e-3 (`make browser`).
"""

from __future__ import annotations

import harness  # isort: skip  # noqa: F401  (before PyTorch is loaded)

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import jinja2
import saved_models
import torch
from safetensors.torch import save

from data import reviews
from gpt.model import GPT
from gpt.published import load_policy
from gpt.tokenizer import RANKS_FILE, Tokenizer
from harness.command_line import run_command
from harness.errors import UserError
from harness.files import display_path, read_json, write_atomically
from harness.paths import REPOSITORY
from harness.safetensors_file import load_weights

PARTS = REPOSITORY / "docs" / "playground"
SCRIPTS = ("tokenizer.js", "gpt2.js", "world.js", "page.js")
MAX_NEW_TOKENS = 48
EXAMPLE_PROMPTS = 40
MOST_BYTES = 8_000_000


@dataclass(frozen=True)
class Choice:
    """A policy on the slider: its name, what is known of it, and its weights whole or as changes."""

    name: str
    about: str
    weights: bytes


def of_the_course() -> tuple[list[Choice], bytes, str]:
    """The sweep's policies, from timid to over-optimised; the kept reward model and how it pools scores."""
    tensors, about = saved_models.sweep()
    usual, choices = about["policies"][0]["lr"], []
    for number, row in enumerate(about["policies"]):
        name = f"Policy with beta = {row['beta']:g}"
        if row["lr"] != usual:
            name += f", learning rate {row['lr']:g} instead of {usual:g}"
        words = (
            f"on {about['test_prompts']} test prompts: learned {row['learned']:.2f}, "
            f"gold {row['gold']:.2f}, {row['kl']:.1f} nats from the base (gold {about['base']['gold']:.2f})"
        )
        change = saved_models.change_of_policy(tensors, number)
        choices.append(Choice(name, words, save(change)))
    path = saved_models.FILES["reward_model"]
    return choices, path.read_bytes(), load_weights(path, "reward_model_difference")[1]["pooling"]


def world_lists() -> dict[str, list[str]]:
    """The words of the reviews that the gold reward counts, as data/reviews.py has them."""
    rude = [*reviews.RUDE_OPENERS, *reviews.RUDE_CLOSINGS]
    return {
        "names": list(reviews.NAMES),
        "items": list(reviews.ITEMS),
        "adjectives": list(reviews.ADJECTIVES),
        "positive": list(reviews.POSITIVE),
        "negative": list(reviews.NEGATIVE),
        "neutral": list(reviews.NEUTRAL),
        "templates": list(reviews.TEMPLATES),
        "closings": [text.lower().rstrip(".") for text in reviews.POLITE_CLOSINGS],
        "rude": [text.lower().rstrip(".?") for text in rude],
    }


def playground(
    base: GPT,
    choices: Sequence[Choice],
    tokenizer: Tokenizer,
    repository: str,
    suffix: str = "",
    *,
    judge: bytes | None = None,
    pooling: str | None = None,
    examples: Sequence[Mapping[str, Any]] = (),
) -> str:
    """The whole page. Raises UserError where the tokenizer is not the one that the page holds."""
    if tokenizer.name != "glassbox":
        raise UserError(
            f"these models read {tokenizer.name!r} tokens and the page holds Glassbox's tokenizer "
            "alone: name models that were trained with --tokenizer glassbox"
        )
    about = {
        "config": asdict(base.config),
        "max_new_tokens": MAX_NEW_TOKENS,
        "prompts": [record.prompt.strip() for record in reviews.prompts("test")[:EXAMPLE_PROMPTS]],
        "world": world_lists(),
        "policies": [{"name": choice.name, "about": choice.about} for choice in choices],
        "pooling": pooling,
        "examples": list(examples),
    }
    weights = {name: value.to(torch.bfloat16) for name, value in base.state_dict().items()}
    files = {"base": save(weights)}
    files |= {f"policy-{place}": choice.weights for place, choice in enumerate(choices)}
    files |= {"judge": judge} if judge else {}
    return jinja2.Template((PARTS / "page.html").read_text(encoding="utf-8")).render(
        weights=f"{base.parameter_count():,}",
        repository=repository.rstrip("/"),
        suffix=suffix,
        ranks=RANKS_FILE.read_text(encoding="ascii"),
        about=json.dumps(about).replace("<", "\\u003c"),
        weight_files={name: base64.b64encode(file).decode("ascii") for name, file in files.items()},
        scripts="\n".join((PARTS / name).read_text(encoding="utf-8") for name in SCRIPTS),
    )


def own_policy(base: GPT, folder: Path) -> Choice:
    """The policy of a run folder. Raises UserError where it was not trained from this base model."""
    policy, _ = load_policy(folder, torch.device("cpu"))
    if base.config != policy.config:
        raise UserError(
            f"the two models differ in shape, {base.config} and {policy.config}: "
            "name a policy that was trained from this base model"
        )
    before = {name: value.bfloat16() for name, value in base.state_dict().items()}
    change = saved_models.difference(before, policy.state_dict())
    return Choice("Policy, after GRPO", "", save(change))


def write_playground(
    base: Path | None, policy: Path | None, out: Path, repository: str = "..", suffix: str = ""
) -> None:
    """Write the page of these two run folders to `out`, or the course's.

    Raises UserError where it would pass 8 MB.
    """
    if (base is None) != (policy is None):
        raise UserError("--base and --policy belong together: name both, or neither")
    if base is None or policy is None:
        model, tokenizer = saved_models.base()
        choices, judge, pooling = of_the_course()
        text = playground(
            model, choices, tokenizer, repository, suffix,
            judge=judge, pooling=pooling, examples=read_json(PARTS / "examples.json"),
        )  # fmt: skip
    else:
        model, tokenizer = load_policy(base, torch.device("cpu"))
        text = playground(model, [own_policy(model, policy)], tokenizer, repository, suffix)
    page = text.encode("utf-8")
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
    """Run folder of a policy that was trained from it; default: those that the course keeps."""
    out: Path = Path("build/playground.html")
    """The page."""


def main(config: PlaygroundConfig) -> None:
    write_playground(config.base, config.policy, config.out)
    print(
        f"{display_path(config.out)}: {config.out.stat().st_size / 1e6:.1f} MB, open it in a browser"
    )


if __name__ == "__main__":
    run_command(main, PlaygroundConfig)
