"""One job: the answers of a policy to the held-out prompts of its file; verdicts are counted later."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from data.collate import collate_responses
from data.files.read import read_preferences, read_prompts
from data.records import PreferenceRecord, PromptRecord, key_of, split_of
from gpt.folder import open_model
from gpt.generate import SamplingParams
from gpt.model import GPT
from gpt.ranks import score_in_micro_batches
from harness.device import fast_precision, open_device, precision
from harness.files import read_json, write_json
from reward_model.accuracy_report import score_pairs
from reward_model.pairs import encode_pairs
from reward_model.scalar_head import load_reward_model
from rl.batches.rollout import Rollout
from rl.rewards.model import RewardModelReward
from studies.bench import Bench, kl_of_best, one_each
from studies.preferences.plan import PreferencesConfig, file_of
from studies.runner import Job, digest

TEMPERATURE, ROOM = 0.7, 128  # as its makers advise; tokens
DRAWS = 8
FEW = 8  # prompts of a quick look
MEASURED = "measured.json"


def is_trained_on(record: PromptRecord | PreferenceRecord) -> bool:
    return split_of(key_of(record)) == "train"


def tested(config: PreferencesConfig, pairs: str) -> list[PromptRecord]:
    """The held-out prompts of a file, one of each, those that validate among them."""
    records = read_prompts(file_of(config, pairs)).records
    prompts = list({r.prompt: r for r in records if not is_trained_on(r)}.values())
    return prompts[:FEW] if config.quick else prompts


def pairs_of(config: PreferencesConfig, pairs: str, *, train: bool) -> list[PreferenceRecord]:
    """Those of a file that are trained on, or the held-out ones."""
    records = read_preferences(file_of(config, pairs)).records
    return [record for record in records if is_trained_on(record) == train]


def do(config: PreferencesConfig, job: Job, folder: Path) -> None:
    """measured.json: a policy, or of the start also what best of 8 and drawing again make of it."""
    out, dtype = config.out, fast_precision()
    device = open_device("auto", dtype)
    start, tokenizer = open_model(str(config.model.resolve()), device)
    prompts = tested(config, job.arguments["pairs"])
    bench = Bench(
        start, tokenizer, prompts, SamplingParams(TEMPERATURE, max_new_tokens=ROOM), dtype
    )
    model, _ = load_reward_model(str(out / job.arguments["payer"]), device)
    payer = RewardModelReward(model, bench.rows, dtype)

    def measured(policy: GPT, rollouts: list[Rollout]) -> dict[str, Any]:
        with torch.no_grad():
            scores = torch.cat([payer(rollout) for rollout in rollouts])
        return bench.measure(policy, rollouts) | {"payer": scores.tolist()}

    if job.needs[1:]:
        policy = open_model(str(out / job.needs[1]), device)[0]
        found = {job.needs[1]: measured(policy, bench.answers(policy))}
    else:
        found = {"start": measured(start, bench.answers(start))}
        drawn = bench.answers(start, DRAWS)
        with torch.no_grad():
            best = [one_each(rollout, payer(rollout)) for rollout in drawn]
        again = [one_each(rollout, rollout.has_eos.float()) for rollout in drawn]
        found["best"] = measured(start, best) | {"kl": kl_of_best(DRAWS)}
        found["again"] = measured(start, again) | {"kl": None}
    write_json(folder / MEASURED, found)


def kept_while_same(path: Path, made_of: list[Path], make: Callable[[], Any]) -> Any:
    """What `make()` returns, kept in a file for as long as what it is made of stays the same."""
    by = [digest(each) for each in made_of]
    if not path.exists() or read_json(path)["by"] != by:
        write_json(path, {"by": by, "found": make()})
    return read_json(path)["found"]


def scored(config: PreferencesConfig, judge: str, pairs: str, path: Path) -> dict[str, list[float]]:
    """A judge's scores of all answers in a measured.json, by policy; kept in a file.

    It reads the text of an answer and its end, if there was one: all of its pairs have ended.
    """

    def score() -> dict[str, list[float]]:
        model, tokenizer = load_reward_model(str(config.out / judge), open_device("auto", dtype))
        prompts = [tokenizer.encode_prompt(r.prompt) for r in tested(config, pairs)]
        found = {}
        for name, about in read_json(path).items():
            both = zip(about["answers"], about["ended"], strict=True)
            read = [tokenizer.encode(text) + [tokenizer.eos_id] * end for text, end in both]
            batch = collate_responses(prompts, read, tokenizer.eos_id).to(model.device)
            with torch.no_grad(), precision(model.device, dtype):
                found[name] = score_in_micro_batches(model, batch, 32).tolist()
        return found

    dtype, kept = fast_precision(), config.out / "judged" / f"{judge} {path.parent.name}.json"
    scores: dict[str, list[float]] = kept_while_same(
        kept, [config.out / f"{judge}.json", path], score
    )
    return scores


def margins(config: PreferencesConfig, judge: str, pairs: str) -> list[float]:
    """A reward model's scores of chosen less rejected for the held-out pairs of a file; kept in a file."""

    def score() -> list[float]:
        model, tokenizer = load_reward_model(str(config.out / judge), open_device("auto", dtype))
        encoded = encode_pairs(pairs_of(config, pairs, train=False), tokenizer)
        with torch.no_grad(), precision(model.device, dtype):
            chosen, rejected, _ = score_pairs(model, encoded, tokenizer.eos_id, 32)
        return (chosen - rejected).tolist()

    dtype, kept = fast_precision(), config.out / "judged" / f"{judge} on {pairs}.json"
    made_of = [config.out / f"{judge}.json", file_of(config, pairs)]
    found: list[float] = kept_while_same(kept, made_of, score)
    return found
