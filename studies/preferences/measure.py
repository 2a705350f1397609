"""One job: the answers of a policy to the held-out prompts of its file; verdicts are counted later."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from data.collate import collate_responses
from data.files.read import read_preferences, read_prompts
from data.records import PromptRecord, key_of, split_of
from gpt.folder import open_model
from gpt.generate import SamplingParams
from gpt.model import GPT
from gpt.ranks import score_in_micro_batches
from harness.device import has_fast_bfloat16, open_device, precision
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


def tested(config: PreferencesConfig, pairs: str) -> list[PromptRecord]:
    """The held-out prompts of a file, one of each, those that validate among them."""
    records = [
        r for r in read_prompts(file_of(config, pairs)).records if split_of(key_of(r)) != "train"
    ]
    prompts = list({record.prompt: record for record in records}.values())
    return prompts[:FEW] if config.quick else prompts


def usual_precision() -> str:
    return "bfloat16" if has_fast_bfloat16() else "float32"


def do(config: PreferencesConfig, job: Job, folder: Path) -> None:
    """measured.json: a policy, or of the start also what best of 8 and drawing again make of it."""
    out, dtype = config.out, usual_precision()
    device = open_device("auto", dtype)
    start, tokenizer = open_model(str(config.model_folder), device)
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


def scored(config: PreferencesConfig, judge: str, pairs: str, path: Path) -> dict[str, list[float]]:
    """A judge's scores of all answers in a measured.json, by policy; kept in a file.

    It reads the text of an answer and its end, if there was one: all of its pairs have ended.
    """
    out = config.out
    kept = out / "judged" / f"{judge} {path.parent.name}.json"
    by = [digest(out / f"{judge}.json"), digest(path)]
    if not kept.exists() or read_json(kept)["by"] != by:
        dtype = usual_precision()
        model, tokenizer = load_reward_model(str(out / judge), open_device("auto", dtype))
        prompts = [tokenizer.encode_prompt(r.prompt) for r in tested(config, pairs)]
        found = {}
        for name, about in read_json(path).items():
            both = zip(about["answers"], about["ended"], strict=True)
            read = [tokenizer.encode(text) + [tokenizer.eos_id] * end for text, end in both]
            batch = collate_responses(prompts, read, tokenizer.eos_id).to(model.device)
            with torch.no_grad(), precision(model.device, dtype):
                found[name] = score_in_micro_batches(model, batch, 32).tolist()
        write_json(kept, {"by": by, "scores": found})
    scores: dict[str, list[float]] = read_json(kept)["scores"]
    return scores


def margins(config: PreferencesConfig, judge: str, pairs: str) -> list[float]:
    """A reward model's scores of chosen less rejected for the held-out pairs of a file; kept in a file."""
    out = config.out
    kept = out / "judged" / f"{judge} on {pairs}.json"
    by = [digest(out / f"{judge}.json"), digest(file_of(config, pairs))]
    if not kept.exists() or read_json(kept)["by"] != by:
        dtype = usual_precision()
        model, tokenizer = load_reward_model(str(out / judge), open_device("auto", dtype))
        held_out = [
            r
            for r in read_preferences(file_of(config, pairs)).records
            if split_of(key_of(r)) != "train"
        ]
        with torch.no_grad(), precision(model.device, dtype):
            chosen, rejected, _ = score_pairs(
                model, encode_pairs(held_out, tokenizer), tokenizer.eos_id, 32
            )
        write_json(kept, {"by": by, "margins": (chosen - rejected).tolist()})
    found: list[float] = read_json(kept)["margins"]
    return found
