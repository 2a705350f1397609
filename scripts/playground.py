"""One page that holds the base model and its policies and runs them: docs/playground/ and the weights.

    python scripts/playground.py                      with the models that the course keeps
    python scripts/playground.py --run runs/demo      with your own: `make demo` ends with this page

The page needs no server and no network, so it opens from a folder as well. The course's has a slider of
policies (sweep.safetensors, made with revision 6d26a07a) and the reward model of their training.
The base is stored in bfloat16, the others as what training has changed; numbers agree with the Python
models of the same weights within 1e-3 (`make browser`).
"""

from __future__ import annotations

import harness  # isort: skip  # noqa: F401  (before PyTorch is loaded)

import base64
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import jinja2
import saved_models
import torch
from safetensors.torch import save

from data.worlds import reviews
from gpt.checkpoint import load_gpt
from gpt.model import GPT
from gpt.tokenizer import RANKS_FILE
from harness.command_line import run_command
from harness.files import display_path, read_json, write_text
from harness.paths import REPOSITORY
from harness.safetensors_file import load_weights

PARTS = REPOSITORY / "docs" / "playground"
SCRIPTS = ("tokenizer.js", "gpt2.js", "world.js", "page.js")
MAX_NEW_TOKENS = 48
EXAMPLE_PROMPTS = 40


class Models(NamedTuple):
    """What the page runs; policies and judge are what training has changed of the base."""

    base: GPT
    judge: bytes
    pooling: str
    policies: list[tuple[dict[str, str], bytes]]  # name and what is known of each; its weights
    examples: list[dict[str, Any]]


def kept_models() -> Models:
    """The course's: a slider of policies from timid to over-optimised."""
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
    judge = saved_models.FILES["reward_model"]
    pooling = load_weights(judge, "reward_model_difference")[1]["pooling"]
    examples = read_json(PARTS / "examples.json")
    return Models(saved_models.base()[0], judge.read_bytes(), pooling, choices, examples)


def models_of(run: Path) -> Models:
    """Those of a scripts/demo.py that has ended. UserError without its results."""
    results = saved_models.finished_demo(run)
    base, trained, judge, about = saved_models.differences(run)
    table = results["test"]
    said = [f"{key} {table['GRPO'][name]:.2f} (base model {table['base model'][name]:.2f})"
            for key, name in (("gold", "gold"), ("learned", "reward"))]  # fmt: skip
    words = f"on {results['prompts']['test']} test prompts: {', '.join(said)}"
    lesson = "The prompts of the test: neither model has seen one of them."
    prompt = results["samples"][0]["prompt"].strip()
    example = {"name": "Yours", "lesson": lesson, "prompt": prompt, "policy": 0, "seed": 1}
    model, _ = load_gpt(run / "pretraining")
    model.load_state_dict({name: value.float() for name, value in base.items()})
    policy = ({"name": "Your policy", "about": words}, save(trained))
    return Models(model, save(judge), about["pooling"], [policy], [example])


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


def write_playground(
    out: Path, repository: str = "..", suffix: str = "", models: Models | None = None
) -> None:
    """Write the page with the given models, by default those that the course keeps."""
    models = models or kept_models()
    about = {
        "config": asdict(models.base.config),
        "max_new_tokens": MAX_NEW_TOKENS,
        "prompts": [record.prompt.strip() for record in reviews.prompts("test")[:EXAMPLE_PROMPTS]],
        "world": world_lists(),
        "policies": [known for known, _ in models.policies],
        "pooling": models.pooling,
        "examples": models.examples,
    }
    weights = {name: value.to(torch.bfloat16) for name, value in models.base.state_dict().items()}
    files = {"base": save(weights), "judge": models.judge}
    files |= {f"policy-{place}": change for place, (_, change) in enumerate(models.policies)}
    page = jinja2.Template((PARTS / "page.html").read_text(encoding="utf-8")).render(
        weights=f"{models.base.parameter_count():,}",
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
    """Write one page that holds models of the reviews world and runs them in the browser."""

    run: Path | None = None
    """Folder of a scripts/demo.py that has ended; default: the models that the course keeps."""
    out: Path = Path("build/playground.html")
    """The page."""


def main(config: PlaygroundConfig) -> None:
    write_playground(config.out, models=models_of(config.run) if config.run else None)
    print(
        f"{display_path(config.out)}: {config.out.stat().st_size / 1e6:.1f} MB, open it in a browser"
    )


if __name__ == "__main__":
    run_command(main, PlaygroundConfig)
