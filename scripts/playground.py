"""One page that holds the base model and its policies and runs them: docs/playground/ and the weights.

    python scripts/playground.py                      with the models that the course keeps

The page needs no server and no network, so it opens from a folder as well. It has a slider of policies
(sweep.safetensors, made with revision 6d26a07a) and the reward model that they were trained against.
The base is stored in bfloat16, the others as what training has changed; numbers agree with the Python
models of the same weights within 1e-3 (`make browser`).
"""

from __future__ import annotations

import harness  # isort: skip  # noqa: F401  (before PyTorch is loaded)

import base64
import json
from dataclasses import asdict, dataclass
from pathlib import Path

import jinja2
import saved_models
import torch
from safetensors.torch import save

from data.worlds import reviews
from gpt.tokenizer import RANKS_FILE
from harness.command_line import run_command
from harness.files import display_path, read_json, write_text
from harness.paths import REPOSITORY
from harness.safetensors_file import load_weights

PARTS = REPOSITORY / "docs" / "playground"
SCRIPTS = ("tokenizer.js", "gpt2.js", "world.js", "page.js")
MAX_NEW_TOKENS = 48
EXAMPLE_PROMPTS = 40


def policies_of_the_slider() -> list[tuple[dict[str, str], bytes]]:
    """The sweep's, from timid to over-optimised: name and what is known of each, its change of weights."""
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
        choices.append(({"name": name, "about": words}, save(change)))
    return choices


def world_lists() -> dict[str, list[str]]:
    """The words of the reviews that the gold reward counts, as data/worlds/reviews.py has them."""
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


def write_playground(out: Path, repository: str = "..", suffix: str = "") -> None:
    """Write the page with the models that the course keeps."""
    base, _ = saved_models.base()
    policies, judge = policies_of_the_slider(), saved_models.FILES["reward_model"]
    about = {
        "config": asdict(base.config),
        "max_new_tokens": MAX_NEW_TOKENS,
        "prompts": [record.prompt.strip() for record in reviews.prompts("test")[:EXAMPLE_PROMPTS]],
        "world": world_lists(),
        "policies": [known for known, _ in policies],
        "pooling": load_weights(judge, "reward_model_difference")[1]["pooling"],
        "examples": read_json(PARTS / "examples.json"),
    }
    weights = {name: value.to(torch.bfloat16) for name, value in base.state_dict().items()}
    files = {"base": save(weights), "judge": judge.read_bytes()}
    files |= {f"policy-{place}": change for place, (_, change) in enumerate(policies)}
    page = jinja2.Template((PARTS / "page.html").read_text(encoding="utf-8")).render(
        weights=f"{base.parameter_count():,}",
        repository=repository.rstrip("/"),
        suffix=suffix,
        ranks=RANKS_FILE.read_text(encoding="ascii"),
        about=json.dumps(about).replace("<", "\\u003c"),
        weight_files={name: base64.b64encode(file).decode("ascii") for name, file in files.items()},
        scripts="\n".join((PARTS / name).read_text(encoding="utf-8") for name in SCRIPTS),
    )
    write_text(out, page)


@dataclass(frozen=True)
class PlaygroundConfig:
    """Write one page that holds the course's models and runs them in the browser."""

    out: Path = Path("build/playground.html")
    """The page."""


def main(config: PlaygroundConfig) -> None:
    write_playground(config.out)
    print(
        f"{display_path(config.out)}: {config.out.stat().st_size / 1e6:.1f} MB, open it in a browser"
    )


if __name__ == "__main__":
    run_command(main, PlaygroundConfig)
