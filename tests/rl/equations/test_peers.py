"""The same inputs, the same numbers as TRL, verl, OpenRLHF and the DPO reference code.

peer_golden.json holds what they compute at a named commit, in float64, for ragged batches whose
padding is garbage; how each number was made stands in its header and entries. A case of this file
is our side of one kind of entry.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from data.collate import first_eos_mask, join_responses
from gpt.log_probs import kl_from_logits, token_log_probs, token_scores
from harness.tensors import masked_mean, masked_sum
from reward_model.loss import bradley_terry_loss
from rl.equations import kl as kl_module
from rl.equations import losses
from rl.equations.advantages import (
    discounted_returns,
    gae,
    group_advantages,
    leave_one_out_advantages,
    maxrl_advantages,
    score_missing_eos,
    whiten,
)
from rl.equations.kl import AdaptiveKL
from rl.equations.losses import (
    cispo,
    clip_acted,
    clip_cov_tokens,
    clipped_surrogate,
    gmpo,
    gspo,
    kl_cov_tokens,
    length_normalized_returns,
    likelihood_ratio,
    policy_gradient,
    sapo,
    sequence_clipped_surrogate,
    sequence_mean,
    token_covariances,
    token_mean,
    value_loss,
)
from rl.equations.preference_losses import dpo_loss, ipo_loss, kto_loss, orpo_loss
from rl.equations.token_rewards import at_last_token, overlong_penalty, token_level_rewards

GOLDEN = json.loads((Path(__file__).parent / "peer_golden.json").read_text(encoding="utf-8"))
ENTRIES = {entry["name"]: entry for entry in GOLDEN["entries"]}


class Inputs:
    """One input set of the file as tensors: bool masks, int64 tokens, float64 otherwise."""

    DTYPES = {"mask": torch.bool, "response_tokens": torch.int64, "tokens": torch.int64}

    def __init__(self, name: str) -> None:
        self.raw = GOLDEN["inputs"][name]

    def __getattr__(self, name: str) -> Tensor:
        return torch.tensor(self.raw[name], dtype=self.DTYPES.get(name, torch.float64))

    def leaf(self, name: str) -> Tensor:
        return getattr(self, name).requires_grad_(True)

    @property
    def group_size(self) -> int:
        return self.raw["group_size"]


Result = dict[str, Tensor]


def reduced(loss: Tensor, mask: Tensor, reducer: str, **options: Any) -> Tensor:
    return getattr(losses, reducer)(loss, mask, **options)


def with_gradient(loss: Tensor, source: Tensor, **more: Tensor) -> Result:
    """The loss, its gradient, and the fraction of valid tokens that were clipped, if asked for."""
    loss.backward()
    assert source.grad is not None
    return {"loss": loss, "gradient": source.grad} | more


def fraction(clipped: Tensor, mask: Tensor) -> Tensor:
    return clipped[mask].double().mean()


# --- tokens ---------------------------------------------------------------------------------------


def given_logits(logits: Tensor) -> Any:
    """A model whose logits are given: its hidden states, under an identity head."""
    head = torch.eye(logits.shape[-1], dtype=logits.dtype)
    return SimpleNamespace(hidden=lambda tokens: logits[:, : tokens.shape[1]], head_weight=head)


def logit_rows(x: Inputs) -> Any:
    """The rows of the `logits` inputs as the batch that a model is asked to score."""
    prompts, lengths = x.raw["prompt_lengths"], x.raw["response_lengths"]
    rows = [row[: p + n] for row, p, n in zip(x.raw["tokens"], prompts, lengths, strict=True)]
    mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    tokens = torch.zeros(mask.shape, dtype=torch.long)
    for index, (row, p) in enumerate(zip(rows, prompts, strict=True)):
        tokens[index, : len(row) - p] = torch.tensor(row[p:])
    given = [row[:p] for row, p in zip(rows, prompts, strict=True)]
    return join_responses(given, tokens, mask, torch.ones(len(rows), dtype=torch.bool))


def log_probs_and_entropy(x: Inputs, temperature: float) -> Result:
    batch, model = logit_rows(x), given_logits(x.logits)
    return {
        "log_probs": token_log_probs(model, batch, temperature),
        "entropy": token_scores(model, batch, temperature).entropy,
    }


def response_log_probs(x: Inputs, temperature: float) -> Result:
    batch = logit_rows(x)
    log_probs = token_log_probs(given_logits(x.logits), batch, temperature)
    mask = batch.response_mask
    return {"sum": masked_sum(log_probs, mask), "mean": masked_mean(log_probs, mask)}


def kl_over_the_vocabulary(x: Inputs) -> Result:
    """The columns that predict a response, without their padding."""
    batch, logits = logit_rows(x), x.leaf("logits")
    columns = batch.predicting_columns
    mine, theirs = (
        source.gather(1, columns[:, :, None].expand(-1, -1, source.shape[-1]))
        for source in (logits, x.ref_logits)
    )
    total = kl_from_logits(mine, theirs)[batch.response_mask].sum()
    result = with_gradient(total, logits)
    return {"sum": result["loss"], "gradient": result["gradient"]}


# --- rewards and advantages -----------------------------------------------------------------------


def generalised_advantages(x: Inputs, gamma: float, gae_lambda: float) -> Result:
    advantages, returns = gae(x.token_rewards, x.values, x.mask, gamma, gae_lambda)
    return {"advantages": advantages, "returns": returns, "whitened": whiten(advantages, x.mask)}


def reinforce_pp(x: Inputs, gamma: float) -> Result:
    returns = discounted_returns(x.token_rewards, x.mask, gamma)
    return {"returns": returns, "advantages": whiten(returns, x.mask)}


def reinforce_pp_baseline(x: Inputs) -> Result:
    centred = group_advantages(x.scores, x.group_size, scale="none").expand(x.mask.shape)
    return {"advantages": whiten(centred, x.mask)}


def group_relative(x: Inputs, scale: Any, eps: float) -> Result:
    return {"advantages": group_advantages(x.scores, x.group_size, scale=scale, eps=eps)[:, 0]}


def penalised(x: Inputs, kl_coef: float) -> Tensor:
    return token_level_rewards(x.scores, x.old_log_probs, x.ref_log_probs, x.mask, kl_coef)


def rloo_with_kl(x: Inputs, kl_coef: float) -> Result:
    rewards = masked_sum(penalised(x, kl_coef), x.mask)
    return {"advantages": leave_one_out_advantages(rewards, x.group_size)[:, 0]}


def rlhf_reinforce_pp(x: Inputs, kl_coef: float) -> Result:
    returns = discounted_returns(penalised(x, kl_coef), x.mask, 1.0)
    return {"returns": returns, "advantages": whiten(returns, x.mask, unbiased=False)}


def rlhf_gae(x: Inputs, kl_coef: float, gae_lambda: float) -> Result:
    advantages, returns = gae(penalised(x, kl_coef), x.values, x.mask, 1.0, gae_lambda)
    return {"returns": returns, "advantages": whiten(advantages, x.mask, unbiased=False)}


def minillm_return(x: Inputs) -> Result:
    """The peer averages the current reward too: its number at t + 1 is ours at t."""
    ours = length_normalized_returns(x.ref_log_probs - x.old_log_probs, x.mask)
    first = (x.ref_log_probs - x.old_log_probs).mean(1, keepdim=True)
    return {"including_now": torch.cat([first, ours[:, :-1]], 1)}


def missing_eos(x: Inputs, value: float) -> Result:
    has_eos = first_eos_mask(x.tokens, 0)[1]
    return {"scores": score_missing_eos(x.scores, has_eos, value)}


# --- losses ---------------------------------------------------------------------------------------


def clipped(
    x: Inputs, clip_low: float, clip_high: float, dual_clip: float | None, reducer: str
) -> Result:
    log_probs = x.leaf("log_probs")
    loss = clipped_surrogate(log_probs, x.old_log_probs, x.advantages, clip_low, clip_high)
    if dual_clip is not None:
        loss = losses.dual_clip(loss, x.advantages, dual_clip)
    ratio = likelihood_ratio(log_probs, x.old_log_probs)
    clip = clip_acted(ratio, x.advantages, clip_low, clip_high)
    result = with_gradient(reduced(loss, x.mask, reducer), log_probs)
    return result | {"clip_fraction": fraction(clip, x.mask)}


def grpo(
    x: Inputs,
    clip_low: float,
    clip_high: float,
    kl_coef: float,
    kl: str,
    reducer: str,
    **options: Any,
) -> Result:
    log_probs, advantages = x.leaf("log_probs"), x.row_advantages[:, None]
    loss = clipped_surrogate(log_probs, x.old_log_probs, advantages, clip_low, clip_high)
    old = [x.old_log_probs] if kl == "k3_importance" else []
    loss = loss + kl_coef * getattr(kl_module, kl)(log_probs, *old, x.ref_log_probs)
    return with_gradient(reduced(loss, x.mask, reducer, **options), log_probs)


def sequence_ratio(function: Callable[..., Any], x: Inputs, clip_low: float, clip_high: float):
    log_probs, advantages = x.leaf("log_probs"), x.row_advantages[:, None]
    loss = function(log_probs, x.old_log_probs, advantages, x.mask, clip_low, clip_high)
    return with_gradient(sequence_mean(loss, x.mask), log_probs)


def truncated_weights(x: Inputs, clip_high: float) -> Result:
    log_probs = x.leaf("log_probs")
    loss = cispo(log_probs, x.old_log_probs, x.advantages, clip_high)
    cut = likelihood_ratio(log_probs, x.old_log_probs) > 1 + clip_high
    result = with_gradient(token_mean(loss, x.mask), log_probs)
    return result | {"clip_fraction": fraction(cut, x.mask)}


def soft_gate(x: Inputs, **temperatures: float) -> Result:
    log_probs = x.leaf("log_probs")
    loss = sapo(log_probs, x.old_log_probs, x.advantages, **temperatures)
    return with_gradient(sequence_mean(loss, x.mask), log_probs)


def kl_cov(x: Inputs, share: float, coef: float) -> Result:
    log_probs = x.leaf("log_probs")
    covariances = token_covariances(log_probs, x.advantages, x.mask)
    held = kl_cov_tokens(covariances, x.mask, share)
    penalty = torch.where(held, kl_module.absolute(log_probs, x.old_log_probs), 0.0)
    loss = clipped_surrogate(log_probs, x.old_log_probs, x.advantages, 1.0, 1e9) + coef * penalty
    return with_gradient(token_mean(loss, x.mask), log_probs)


def clip_cov(
    x: Inputs, share: float, low: float, high: float, clip_low: float, clip_high: float
) -> Result:
    log_probs = x.leaf("log_probs")
    loss = clipped_surrogate(log_probs, x.old_log_probs, x.advantages, clip_low, clip_high)
    ratio = likelihood_ratio(log_probs, x.old_log_probs)
    acted = clip_acted(ratio, x.advantages, clip_low, clip_high)
    covariances = token_covariances(log_probs, x.advantages, x.mask)
    covariances = covariances.masked_fill(acted, -torch.inf)
    dropped = clip_cov_tokens(covariances, torch.rand(x.mask.shape), x.mask, share, low, high)
    return with_gradient(token_mean(torch.where(dropped, 0.0, loss), x.mask), log_probs)


def reinforce(x: Inputs, reducer: str) -> Result:
    log_probs = x.leaf("log_probs")
    loss = policy_gradient(log_probs, x.advantages)
    return with_gradient(reduced(loss, x.mask, reducer), log_probs)


def squared_error(x: Inputs, clip_range: float | None) -> Result:
    values = x.leaf("values")
    loss = value_loss(values, x.old_values, x.returns, clip_range)
    return with_gradient(token_mean(loss, x.mask), values)


def kl_estimate(x: Inputs, estimator: str) -> Result:
    log_probs = x.leaf("log_probs")
    kl = getattr(kl_module, estimator)(log_probs, x.ref_log_probs)
    gradient = with_gradient(masked_sum(kl, x.mask).sum(), log_probs)["gradient"]
    return {"kl": kl, "gradient": gradient}


def reducer(x: Inputs, reducer: str, **options: Any) -> Result:
    loss = x.leaf("loss")
    return with_gradient(reduced(loss, x.mask, reducer, **options), loss)


def preference(x: Inputs, beta: float, label_smoothing: float, ipo: bool) -> Result:
    chosen, rejected = x.leaf("policy_chosen"), x.leaf("policy_rejected")
    arguments = (chosen, rejected, x.ref_chosen, x.ref_rejected, beta)
    if ipo:
        each = ipo_loss(*arguments)
    else:
        each = dpo_loss(*arguments, label_smoothing=label_smoothing)
    return of_pairs(each, chosen, rejected)


def of_pairs(each: Tensor, chosen: Tensor, rejected: Tensor) -> Result:
    gradients = torch.autograd.grad(each.sum(), (chosen, rejected))
    names = ("gradient_chosen", "gradient_rejected")
    return {"losses": each, "mean": each.mean(), **dict(zip(names, gradients, strict=True))}


def kto(x: Inputs, beta: float, reference_point: float) -> Result:
    chosen, rejected = x.leaf("policy_chosen"), x.leaf("policy_rejected")
    both, refs = torch.cat([chosen, rejected]), torch.cat([x.ref_chosen, x.ref_rejected])
    good = torch.arange(len(both)) < len(chosen)
    each = kto_loss(both, refs, good, beta, reference_point).view(2, -1).mean(0)
    return of_pairs(each, chosen, rejected)


def odds_ratio(x: Inputs, beta: float) -> Result:
    """ORPO without its first part, log-probs a tenth of the input's, as means per token."""
    chosen = (x.policy_chosen / 10).requires_grad_()
    rejected = (x.policy_rejected / 10).requires_grad_()
    return of_pairs(orpo_loss(chosen, rejected, beta) + chosen, chosen, rejected)


def pairwise(x: Inputs, margin: bool, centering: float) -> Result:
    chosen, rejected = x.leaf("chosen_scores"), x.leaf("rejected_scores")
    gap = x.margin if margin else None
    loss = bradley_terry_loss(chosen, rejected, margin=gap, centering=centering)
    return {"loss": loss, **of_pairs(loss, chosen, rejected)}


def adaptive_coefficient(x: Inputs, coef: float, target: float, horizon: int) -> Result:
    controller, seen = AdaptiveKL(coef, target, horizon), []
    for kl, responses in zip(x.raw["kl"], x.raw["responses"], strict=True):
        controller.update(kl, responses)
        seen.append(controller.coef)
    return {"coef": torch.tensor(seen, dtype=torch.float64)}


CASES: dict[str, Callable[..., Result]] = {
    "adaptive_kl": adaptive_coefficient,
    "at_last_token": lambda x: {"rewards": at_last_token(x.scores, x.mask)},
    "bradley_terry": pairwise,
    "cispo": truncated_weights,
    "clip_cov": clip_cov,
    "clipped_surrogate": clipped,
    "discounted_returns": lambda x, gamma: {
        "returns": discounted_returns(x.token_rewards, x.mask, gamma)
    },
    "full_kl": kl_over_the_vocabulary,
    "gae": generalised_advantages,
    "group_advantages": group_relative,
    "grpo": grpo,
    "gmpo": functools.partial(sequence_ratio, gmpo),
    "gspo": functools.partial(sequence_ratio, gspo),
    "kl": kl_estimate,
    "kl_cov": kl_cov,
    "kto": kto,
    "leave_one_out": lambda x: {
        "advantages": leave_one_out_advantages(x.scores, x.group_size)[:, 0]
    },
    "maxrl": lambda x: {
        "advantages": maxrl_advantages((x.scores > 0).double(), x.group_size)[:, 0]
    },
    "minillm_return": minillm_return,
    "missing_eos": missing_eos,
    "orpo": odds_ratio,
    "overlong": lambda x, **flags: {"penalty": overlong_penalty(x.lengths, **flags)},
    "policy_gradient": reinforce,
    "preference": preference,
    "reducer": reducer,
    "reinforce_pp": reinforce_pp,
    "reinforce_pp_baseline": reinforce_pp_baseline,
    "response_log_probs": response_log_probs,
    "response_mask": lambda x: {"mask": first_eos_mask(x.response_tokens, 0)[0]},
    "rlhf_gae": rlhf_gae,
    "rlhf_reinforce_pp": rlhf_reinforce_pp,
    "rloo_with_kl": rloo_with_kl,
    "sapo": soft_gate,
    "sequence_clipped": functools.partial(sequence_ratio, sequence_clipped_surrogate),
    "token_log_probs": log_probs_and_entropy,
    "token_rewards": lambda x, kl_coef: {"rewards": penalised(x, kl_coef)},
    "value_loss": squared_error,
    "whiten": lambda x, **flags: {"whitened": whiten(x.token_rewards, x.mask, **flags)},
}


def valid_positions(name: str) -> Tensor | None:
    """Where the (N, T) results of an input set are compared; None where they have no padding."""
    raw = GOLDEN["inputs"][name]
    if name == "logits":
        lengths = torch.tensor(raw["response_lengths"])
        return torch.arange(int(lengths.max())) < lengths[:, None]
    return torch.tensor(raw["mask"], dtype=torch.bool) if "mask" in raw else None


@pytest.mark.parametrize("name", ENTRIES)
def test_our_numbers_are_the_peers(name: str) -> None:
    """To 1e-6 at the valid positions; a mask or a gradient also where the padding is."""
    entry = ENTRIES[name]
    ours = CASES[entry["case"]](Inputs(entry["inputs"]), **entry["parameters"])
    mask = valid_positions(entry["inputs"])
    for key, numbers in entry["expected"].items():
        actual = ours[key].detach().double()
        expected = torch.tensor(numbers, dtype=torch.float64)
        assert actual.shape == expected.shape, key
        if key not in ("mask", "gradient") and mask is not None and mask.shape == actual.shape:
            actual, expected = actual[mask], expected[mask]
        torch.testing.assert_close(actual, expected, atol=1e-6, rtol=0, msg=f"{name}: {key}")


# --- the file itself ------------------------------------------------------------------------------


def test_every_entry_says_what_it_is() -> None:
    commits = {name: peer["commit"] for name, peer in GOLDEN["peers"].items()}
    assert all(len(commit) == 40 for commit in commits.values())
    for entry in GOLDEN["entries"]:
        assert entry["commit"] == commits[entry["peer"]], entry["name"]
        assert entry["callable"] and entry["arguments"] and entry["quirk"] and entry["proves"]
        assert entry["inputs"] in GOLDEN["inputs"] and entry["expected"]
    assert len(ENTRIES) == len(GOLDEN["entries"]), "two entries have one name"
