"""Random mutants that no test notices, and why none can or should.

An entry belongs to the changed lines of one function: it holds wherever they stand in it.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Harmless:
    """A mutant (the changed lines before and after, as `mutants.py --list` prints them)."""

    path: str
    function: str  # Class.method
    old: str
    new: str
    reason: str


HARMLESS = (
    Harmless(
        "rl/reinforce_pp_engine.py",
        "train",
        "optimizer.zero_grad(set_to_none=True)",
        "optimizer.zero_grad(set_to_none=False)",
        "harmless: every weight has a gradient in each step; memory alone differs",
    ),
    Harmless(
        "rl/equations/losses.py",
        "token_mean",
        "@masked_equation",
        "",
        "harmless on a reducer: `row_sums`, which it calls, stands at the same border",
    ),
    Harmless(
        "rl/equations/losses.py",
        "high_entropy_mask",
        "@masked_equation",
        "",
        "equivalent: `in_range` checks the inputs at the same border; only valid tokens are compared",
    ),
    Harmless(
        "rl/batches/rollout.py",
        "join_rollouts",
        "for name, (weight, _) in rollouts[0].reward_parts.items()",
        "for name, (weight, _) in rollouts[-1].reward_parts.items()",
        "equivalent: all rollouts of a batch are paid by one reward, with the same parts",
    ),
    Harmless(
        "gpt/generate.py",
        "mixed_logits",
        "(at_least_float32(x) / temperature).log_softmax(-1) for x in (logits, teacher_logits)",
        "(at_least_float32(x) / temperature).log_softmax(1) for x in (logits, teacher_logits)",
        "equivalent: the logits are (N, V), and dimension 1 is their last",
    ),
    Harmless(
        "rl/equations/losses.py",
        "high_entropy_mask",
        "@torch.no_grad()",
        "",
        "harmless: the result is bool, and a bool tensor has no gradient",
    ),
    Harmless(
        "rl/equations/advantages.py",
        "discounted_returns",
        "returns, to_come = torch.zeros_like(token_rewards), torch.zeros_like(token_rewards[:, 0])",
        "returns, to_come = torch.ones_like(token_rewards), torch.zeros_like(token_rewards[:, 0])",
        "equivalent: every column of the result is written",
    ),
    Harmless(
        "data/collate.py",
        "collate_responses",
        "up_to_eos, _ = first_eos_mask(response_tokens, eos_id)",
        "up_to_eos, _ = first_eos_mask(eos_id, response_tokens)",
        "equivalent: the two are only compared, and == has no order",
    ),
    Harmless(
        "gpt/generate.py",
        "truncate_logits",
        'logits = logits.masked_fill(logits.softmax(-1) < floor, float("-inf"))',
        'logits = logits.masked_fill(logits.softmax(1) < floor, float("-inf"))',
        "equivalent: the logits are (N, V), and dimension 1 is their last",
    ),
    Harmless(
        "rl/training/value_model.py",
        "ValueModel._at",
        "values = head_product(hidden, self.head.weight, self.head.bias)[:, 0] # (M,)",
        "values = head_product(hidden, self.head.weight, self.head.bias)[:, -1] # (M,)",
        "equivalent: the head has one output",
    ),
    Harmless(
        "rl/equations/best_of_n.py",
        "_log_choose",
        "ways = torch.lgamma(total + 1) - math.lgamma(k + 1) - torch.lgamma((total - k).clamp(min=0) + 1)",
        "ways = torch.lgamma(total + 1) - math.lgamma(k + 1) - torch.lgamma((total - k).clamp(min=-1) + 1)",
        "equivalent: where total < k the next line puts -inf, whatever stands there",
    ),
    Harmless(
        "gpt/log_probs.py",
        "_score",
        "log_probs = _logits(hidden, weight, temperature).log_softmax(-1) # (M, V)",
        "log_probs = _logits(hidden, weight, temperature).log_softmax(1) # (M, V)",
        "equivalent: the logits are (M, V), and dimension 1 is their last",
    ),
    Harmless(
        "gpt/log_probs.py",
        "ChunkedScore.backward",
        "change = logits.softmax(-1).mul_(-grad[chunk])",
        "change = logits.softmax(1).mul_(-grad[chunk])",
        "equivalent: the logits are (M, V), and dimension 1 is their last",
    ),
    Harmless(
        "rl/grpo_engine.py",
        "train",
        "loss += part_loss.detach()",
        "loss += part_loss",
        "harmless: the part's graph is used up, and the sum is only logged",
    ),
    Harmless(
        "rl/training/metrics.py",
        "UpdateMeter.add_tokens",
        "sums = torch.stack([values.sum().to(kl.dtype) for values in measured.values()])",
        "sums = torch.stack([values.sum() for values in measured.values()])",
        "equivalent: torch.stack gives the counts the floating dtype of the sums beside them",
    ),
)
