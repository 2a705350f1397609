"""Every engine and every other loop, a few steps each, on some ranks; what they measured goes to a file.

    python tests/rl/ranks_worker.py RANKS OUT [CHECKPOINT]

test_ranks.py starts it with 1, 2 and 4 ranks and compares. In float64, where only the order of sums
differs. With a checkpoint of another number of ranks GRPO goes on from that, too.
"""

from __future__ import annotations

import random
import shutil
import sys
import warnings
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from engines import (
    DIVERSE,
    ENGINES,
    HELD_OUT,
    OFFLINE,
    PAIRS,
    SHARE_OF_A,
    Engine,
    Texts,
    engine_named,
    small_gpt,
)
from toys import LETTERS, PROMPTS, weights
from watched import numbers, seen_gradients

from gpt import finetuning, pretraining
from gpt.generate import Mixture, SamplingParams
from gpt.llama import Llama, LlamaConfig
from gpt.lora import add_adapters
from gpt.ranks import sample
from harness.command_line import errors_as_sentences
from harness.metric_log import MetricLog
from harness.ranks import collectives
from harness.ranks.launch import RankRequest, run_on_ranks
from harness.seeds import make_generator
from reward_model import reward_model_training
from reward_model.pairs import Labelled, PairSampling, sample_pairs
from reward_model.scalar_head import RewardModel
from rl.actor_critic import ValueModel
from rl.rewards.model import RewardModelReward
from rl.run.evaluation import evaluate
from studies.best_of import best_of_n

# 3 prompts on 4 ranks leave one without rows; 2 rows of one forward.
SHAPE = dict(
    steps=2, prompts_per_step=3, minibatches=2, updates_per_batch=1, micro_batch_size=4,
    eval_every=100,
)  # fmt: skip
ON_FOUR = ("grpo", "ppo", "kd_grpo", "dpo")  # every other engine is compared on two ranks alone
FEW = SamplingParams(max_new_tokens=6)
LATER = LlamaConfig(  # whose critic has a head that is never read
    LETTERS.n_vocab, 16, n_layer=1, n_head=2, n_embd=32, n_key_head=1, n_inner=48, qkv_bias=True,
    qk_norm=True, d_head=8, own_head=True, norms_after=True,
)  # fmt: skip


@dataclass(frozen=True)
class Job:
    """How many ranks, where the results go, and a checkpoint to go on from."""

    ranks: int
    out: Path
    checkpoint: Path | None = None
    device: str = "cpu"


def of_engine(
    engine: Engine, seen: list[torch.Tensor], *, rank: int = 0, llama: bool = False, **changes: Any
) -> dict[str, Any]:
    """Metrics, gradients and weights of a short run; with a `rank` adapters of that are trained."""
    seen.clear()
    policy = Llama(LATER).initialize(make_generator(0, "llama")) if llama else small_gpt(n_layer=1)
    policy = policy.double().eval()
    if rank:
        add_adapters(policy, rank, generator=make_generator(0, "adapters"))
    shape = {name: value for name, value in SHAPE.items() if engine.has(name)}
    shape["steps"] = 1 if engine.has("minibatches") else 2  # two updates
    if not engine.grouped:
        shape["prompts_per_step"] = 7
    rows = engine.run(policy, DIVERSE if engine.rule else None, **shape | changes)
    return {"rows": numbers(rows), "gradients": list(seen), "weights": weights(policy)}


def engine_runs(seen: list[torch.Tensor]) -> dict[str, Any]:
    """Every engine in every form, with the losses that are off by default; on 4 ranks a few in one."""
    done, four = {}, collectives.world() == 4
    for engine in (engine for engine in ENGINES if not four or engine.name in ON_FOUR):
        forms = dict(engine.forms)
        if engine.everything:
            forms["everything"] = engine.everything
        for name in list(forms)[-1:] if four else forms:
            done[f"{engine.name}-{name}"] = of_engine(engine, seen, **forms[name])
    # It stops in the middle of a batch: all ranks at the same minibatch, or nobody goes on.
    stopping = dict(target_kl=0.002, updates_per_batch=4, pretraining_coef=0.0)
    done["ppo-target_kl"] = of_engine(engine_named("ppo"), seen, **stopping)
    for name in ("grpo", "ppo") if collectives.world() < 4 else ():
        done[f"{name}-lora"] = of_engine(engine_named(name), seen, rank=2)
        done[f"{name}-llama"] = of_engine(engine_named(name), seen, llama=True)
    return done


def other_loops(seen: list[torch.Tensor]) -> dict[str, Any]:
    """Pre-training, fine-tuning and the reward model; on several ranks in micro-batches."""
    done: dict[str, Any] = {}
    several = collectives.world() > 1
    parts: dict[str, Any] = dict(micro_batch_size=1 if several else None)

    def keep(name: str, model: torch.nn.Module, rows: Any) -> None:
        done[name] = {"rows": numbers(rows), "gradients": list(seen), "weights": weights(model)}
        seen.clear()

    seen.clear()
    model = small_gpt().double()
    config = pretraining.PretrainingConfig(steps=3, accumulation=2, warmup_steps=1, eval_every=1)
    keep("pretraining", model, pretraining.train(config, model, Texts(), MetricLog(3)))

    model = small_gpt().double()
    examples = [(pair.prompt, pair.chosen) for pair in PAIRS]
    tuning = finetuning.FinetuningConfig(batch_size=3, warmup_steps=1, eval_every=1, **parts)
    held_out = [(pair.prompt, pair.chosen) for pair in HELD_OUT]
    rows = finetuning.train(tuning, model, examples, held_out, MetricLog(3), eos_id=8)
    keep("finetuning", model, rows)

    for weighting in ("pair", "prompt"):
        trunk, head = small_gpt().double(), make_generator(0, "head")
        judge = RewardModel.from_policy(trunk, "mean_score", head).double()
        fitting = reward_model_training.RewardModelConfig(
            batch_size=3,
            warmup_steps=1,
            pair_weighting=weighting,
            micro_batch_size=2 if several else None,
        )
        log = MetricLog(3)
        rows = reward_model_training.train(judge, [*PAIRS, *OFFLINE], fitting, log, eos_id=8)
        keep(f"reward_model-{weighting}", judge, rows)
    return done


def sampled_things() -> dict[str, Any]:
    """Tokens, pairs, evaluations: what is sampled and scored without training."""
    policy, other = small_gpt(noise=0.1).double(), small_gpt(3, noise=0.1).double()
    judge = RewardModel.from_policy(other, "mean_score", make_generator(0, "head")).double()
    reward = RewardModelReward(judge.requires_grad_(False), micro_batch_size=4)
    done: dict[str, Any] = {}
    prompts = [LETTERS.encode(record.prompt) for record in PROMPTS]
    for count in (1, 3, 8):
        for each in (1, 2):
            sampled = sample(
                policy, LETTERS, prompts[:count], FEW, make_generator(0, "tokens"),
                samples_per_prompt=each, mixture=Mixture(other, 0.3),
            )  # fmt: skip
            done[f"generate-{count}-{each}"] = vars(sampled)
    batches = sample_pairs(
        policy, LETTERS, PROMPTS, 9, lambda prompt, a, _, b, __, rng: Labelled(a < b, None),
        PairSampling(FEW, 3, batch_size=2), generator=make_generator(0, "pairs"),
        rng=random.Random(0),
    )  # fmt: skip
    done["pairs"] = [vars(pair) for batch in batches for pair in batch]
    result = evaluate(policy, LETTERS, PROMPTS, FEW, reward, reference=other, gold=SHARE_OF_A)
    done["evaluate"] = {"summary": result.summary(), "responses": result.responses}
    best = best_of_n(policy, LETTERS, PROMPTS, FEW, reward, 3, gold=SHARE_OF_A)
    done["best of n"] = list(best)
    values = ValueModel.from_reward_model(judge).double()
    answers = finetuning.collate_examples([(pair.prompt, pair.chosen) for pair in PAIRS], 8)
    done["values"] = [values.rollout_values(answers, 2)]
    return done


def resumable(job: Job) -> dict[str, Any]:
    """GRPO for 5 steps, and 3 with a checkpoint; and from the checkpoint of another world, if any."""
    engine, done = engine_named("grpo"), {}
    flags = dict(SHAPE, steps=5, kl_target=6.0)
    three = flags | {"steps": 3}
    engine.run(small_gpt().double(), DIVERSE, folder=job.out.parent / f"run{job.ranks}", **three)
    policy = small_gpt().double()
    rows = engine.run(policy, DIVERSE, **flags)
    done["uninterrupted"] = {"rows": numbers(rows), "weights": weights(policy)}
    if job.checkpoint is not None:
        policy = small_gpt(5).double()
        rows = engine.run(policy, DIVERSE, folder=job.checkpoint, resume=True, **flags)
        done["resumed"] = {"rows": numbers(rows), "weights": weights(policy)}
    return done


def in_float32() -> dict[str, Any]:
    """GRPO in float32, where sums of another order round differently."""
    policy = small_gpt()
    rows = engine_named("grpo").run(policy, DIVERSE, **SHAPE)
    return {"rows": numbers(rows), "weights": weights(policy)}


def work(job: Job) -> None:
    """All of it, on one rank of `job.ranks`."""
    warnings.simplefilter("ignore")
    assert collectives.world() == job.ranks
    seen = seen_gradients(pytest.MonkeyPatch())
    results = {
        "engines": engine_runs(seen),
        "loops": other_loops(seen),
        "sampled": sampled_things(),
        "float32": in_float32(),
        "resumed": resumable(job),
    }
    collectives.check_alike(small_gpt())
    if collectives.is_main():
        torch.save(results, job.out)


if __name__ == "__main__":
    torch.set_num_threads(1)
    count, out, *more = sys.argv[1:]
    given = Job(int(count), Path(out))
    if more:  # a copy: resuming writes there
        copied = Path(out).parent / f"resumed{count}"
        shutil.copytree(more[0], copied)
        given = replace(given, checkpoint=copied)
    with errors_as_sentences():
        run_on_ranks(partial(work, given), RankRequest(given.ranks, "cpu"), errors_as_sentences)
