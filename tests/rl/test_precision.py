"""Precisions and devices: every forward in the flags' precision, none that waits for its device."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest
import torch
import torch.nn as nn
from engines import ENGINES, SHARE_OF_A, Engine, Texts, small_gpt, some_rollout
from torch import Tensor
from toys import LETTERS, PROMPTS, seeded

from data.collate import ResponseBatch, collate_responses
from gpt import finetuning, pretraining
from gpt.generate import SamplingParams
from gpt.log_probs import forward_kl, full_kl, token_log_probs, token_scores, token_scores_and_kl
from gpt.model import GPT
from gpt.pretraining import language_model_loss
from harness.metric_log import MetricLog
from reward_model.scalar_head import RewardModel
from rl.actor_critic import ValueModel
from rl.batches.rollout import micro_batches, select_rows
from rl.equations.losses import clipped_surrogate, sequence_mean, token_mean, value_loss
from rl.rewards.model import EnsembleReward, RewardModelReward
from rl.rewards.step_rewards import RewardModelSteps
from rl.run.evaluation import Conditions, Validation
from rl.run.metrics import UpdateMeter, clip_mask

PARAMS = SamplingParams(max_new_tokens=4)
# The single-model engine says so of every run with one update a batch.
pytestmark = pytest.mark.filterwarnings("ignore:with one update a batch")


@pytest.fixture
def products() -> Iterator[Counter[torch.dtype]]:
    """How many linear layers of a trunk have computed in which dtype since the test began."""
    seen: Counter[torch.dtype] = Counter()

    def note(layer: nn.Module, inputs: object, output: torch.Tensor) -> None:
        if isinstance(layer, nn.Linear):
            seen[output.dtype] += 1

    handle = nn.modules.module.register_module_forward_hook(note)
    yield seen
    handle.remove()


def reward_model(seed: int = 3) -> RewardModel:
    return RewardModel.from_policy(small_gpt(seed, sharpness=4.0), "mean_score", seeded(seed))


@pytest.mark.parametrize("engine", ENGINES, ids=lambda engine: engine.name)
def test_every_forward_of_an_engine_runs_in_the_flags_precision(engine: Engine, products):
    """Sampling, scoring, reward, critic, teacher, update and validation with its KL."""
    model = reward_model()
    for precision, dtype in (("bfloat16", torch.bfloat16), ("float32", torch.float32)):
        reward = RewardModelReward(model, dtype=precision) if engine.rule else None
        options = dict(steps=1, eval_every=1, precision=precision) | engine.everything
        config = engine.configured(**{k: v for k, v in options.items() if engine.has(k)})
        judged = reward or SHARE_OF_A
        if engine.taught_by is not None:
            judged = engine.taught_by(config, engine.teacher)
        given = dict(start=small_gpt(1), conditions=Conditions.of(config))
        validate = Validation(LETTERS, PROMPTS, PARAMS, judged, **given)
        products.clear()
        engine.run(small_gpt(), reward, validate=validate, **options)
        assert products.keys() == {dtype}


def test_rewards_by_models_run_in_their_precision(products):
    rollout = some_rollout(small_gpt(), max_new_tokens=4, group_size=2)
    model, reference = reward_model(), select_rows(rollout, torch.arange(4))
    exact = RewardModelReward(model)(rollout)
    products.clear()
    rewards = RewardModelReward(model, dtype="bfloat16")(rollout)
    ensemble = EnsembleReward([model, reward_model(4)], reference=reference, dtype="bfloat16")
    ensemble(rollout)
    RewardModelSteps(model, LETTERS, dtype="bfloat16")(rollout, rewards)
    assert products.keys() == {torch.bfloat16}
    torch.testing.assert_close(rewards, exact, rtol=0.02, atol=0.02)
    assert not torch.equal(rewards, exact)


def test_pretraining_and_finetuning_with_their_held_out_losses(products):
    config = pretraining.PretrainingConfig(steps=1, precision="bfloat16")
    rows = [*pretraining.train(config, small_gpt(), Texts(), MetricLog(1))]
    examples = [([1, 2], [3, 8]), ([4], [5, 6, 8])]
    config = finetuning.FinetuningConfig(precision="bfloat16")
    rows += finetuning.train(config, small_gpt(), examples, examples, MetricLog(1), eos_id=8)
    assert all("held_out_loss" in row for row in rows) and products.keys() == {torch.bfloat16}


EOS, V = 8, 10
N, T = 4, 4
ASKED, SAID = [[1], [2, 3, 4], [5, 6], [7]], [[1, 2, 8], [3, 8], [4, 5, 6, 7], [8]]
META = torch.device("meta")
ALL = torch.arange(N)


def on_meta() -> tuple[GPT, ResponseBatch]:
    """A model and a batch; the batch knows its sizes, as one of a rollout does."""
    return small_gpt().to(META), collate_responses(ASKED, SAID, EOS).to(META)


def is_there(*tensors: Tensor, shape: tuple[int, ...] = (N, T)) -> None:
    for tensor in tensors:
        assert tensor.device == META and tensor.shape == shape and tensor.dtype == torch.float32


@pytest.mark.parametrize("chunk_elements", [3 * V, 10**9])
def test_scores_and_divergences(chunk_elements, monkeypatch):
    monkeypatch.setattr("gpt.log_probs.CHUNK_ELEMENTS", chunk_elements)
    policy, batch = on_meta()
    other = small_gpt().to(META)
    is_there(token_log_probs(policy, batch, 0.7))
    is_there(*token_scores(policy, batch, entropy_gradient=True))
    is_there(full_kl(policy, other, batch))
    scores, kl = token_scores_and_kl(policy, other, batch)
    is_there(*scores, kl, forward_kl(policy, other, batch))
    language_model_loss(policy, batch, denominator=9).backward()
    assert all(p.grad is not None and p.grad.device == META for p in policy.parameters())


def test_an_update_of_actor_and_critic_with_its_meter():
    """All that a micro-batch of PPO does; the numbers are read when the step is over."""
    policy, whole = on_meta()
    critic, meter = ValueModel(policy).to(META), UpdateMeter(clip_mask(0.2))
    old = torch.zeros(N, T, device=META)
    sizes = []
    for part, batch in micro_batches(whole, ALL, 3):
        scores, values = token_scores(policy, batch), critic(batch)
        surrogate = clipped_surrogate(scores.log_probs, old[part], old[part], 0.2, 0.2)
        squared = value_loss(values, old[part], old[part], 0.2)
        mask = batch.response_mask
        loss = sequence_mean(surrogate, mask, denominator=N)
        loss = loss + token_mean(squared, mask, denominator=whole.sizes[:, 1].sum().item())
        loss.backward()
        meter.add_tokens(scores, old[part], old[part], batch, value_loss=squared)
        meter.add_update(loss.detach(), loss.detach())
        sizes.append(len(part))
    assert sizes == [3, 1] and meter.tokens == 10
    with pytest.raises((RuntimeError, NotImplementedError), match="meta"):
        meter.metrics()
