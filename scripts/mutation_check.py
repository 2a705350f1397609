"""Do the tests notice? Plants one known bug at a time into a copy of the repository and runs them.

    python scripts/mutation_check.py                    every mutation, some 10 minutes on 2 cores
    python scripts/mutation_check.py --list             their names
    python scripts/mutation_check.py --only k1-sign     one or several of them
    python scripts/mutation_check.py --write-docs       put the table into docs/mutation_check.md

A mutation is an exact replacement of text that must occur once. The copy holds what git tracks and
new files that it does not ignore; the working tree is never touched. A mutation is caught when a
test fails (exit status 1 of pytest) and survives when all of them pass; the script then ends with
status 1. First the same tests run without a mutation: they must pass.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from harness.command_line import run_script
from trials import ROOT, TIMED_OUT, TIMEOUT, TestRunners, repository_copy, repository_files

from harness.errors import UserError
from harness.flag_ranges import check_ranges

DOCS = ROOT / "docs" / "mutation_check.md"


@dataclass(frozen=True)
class Edit:
    """Replace `old`, which occurs exactly once in the file, by `new`."""

    path: str
    old: str
    new: str


@dataclass(frozen=True)
class Mutation:
    """A known bug: what goes wrong, how to plant it, and who must notice.

    That is a list of test files, or of tests in one, as pytest names them: file.py::test_x[case].
    """

    name: str
    what: str
    edits: tuple[Edit, ...]
    tests: tuple[str, ...]


@dataclass(frozen=True)
class Outcome:
    """What the tests said."""

    mutation: Mutation
    result: str  # caught, survived or broken
    test: str  # the first test that failed, or the end of the output
    seconds: float


# --- the bugs -------------------------------------------------------------------------------------

BORDER = "harness/equation_checks.py"
TOKEN_REWARDS = "rl/equations/token_rewards.py"
PREFERENCE_LOSSES = "rl/equations/preferences.py"
ADAPTER = "gpt/lora.py"
ADVANTAGES = "rl/equations/advantages.py"
COLLATE = "data/collate.py"
COMMON = "gpt/common.py"
CONFIG = "rl/training/config.py"
CONTINUAL = "reward_model/continual.py"
DPO = "rl/dpo_engine.py"
DECODE_STATIC = "gpt/decode_static.py"
DISTILLATION = "gpt/distillation.py"
DYNAMIC_SAMPLING = "rl/batches/dynamic_sampling.py"
ENGINE = "rl/grpo_engine.py"
ENSEMBLE = "rl/rewards/ensemble.py"
ENSEMBLES = "rl/equations/ensembles.py"
FINETUNING = "gpt/finetuning.py"
FROZEN = "harness/frozen_copy.py"
FUNCTION = "rl/rewards/function.py"
GENERATE = "gpt/generate.py"
ITERATIVE = "rl/grpo_iterative_engine.py"
KD_GRPO = "rl/kd_grpo_engine.py"
KD_PPO = "rl/kd_ppo_engine.py"
KL = "rl/equations/kl.py"
LOG_PROBS = "gpt/log_probs.py"
LORA = "gpt/lora.py"
LOSSES = "rl/equations/losses.py"
METRICS = "rl/training/metrics.py"
MINILLM = "rl/minillm_engine.py"
MODEL = "gpt/model.py"
OPEN_REWARD = "rl/training/open_reward.py"
OPTIMIZER = "harness/optimizer.py"
PAIRS = "reward_model/pairs.py"
PG_GRPO = "rl/pg_grpo_engine.py"
PPO = "rl/ppo_engine.py"
ACTOR_CRITIC = "rl/training/actor_critic.py"
PREFERENCE = "reward_model/loss.py"
PREFERENCES = "rl/batches/preferences.py"
PRETRAINING = "gpt/pretraining.py"
PROCESS = "rl/grpo_process_engine.py"
RANKS = "harness/ranks/collectives.py"
REFERENCE = "rl/training/reference.py"
REINFORCE_PP = "rl/reinforce_pp_engine.py"
REWARD_MODEL = "reward_model/model.py"
REWARD_TRAINING = "reward_model/reward_model_training.py"
REWARDS = "rl/rewards/sources.py"
RLOO = "rl/rloo_engine.py"
REPORT = "reward_model/accuracy_report.py"
RL_RUN = "rl/training/run.py"
RUNS = "harness/run_folder.py"
STOP = "harness/signals.py"
ROLLOUT = "rl/batches/rollout.py"
SINGLE_MODEL = "rl/grpo_single_model_engine.py"
STEP_REWARDS = "rl/rewards/step_rewards.py"
TEACHER = "rl/rewards/teacher.py"
VALUE_MODEL = "rl/training/value_model.py"
VARIANTS = "rl/grpo_variants_engine.py"
VERIFIABLE = "rl/rewards/verifiable.py"
BEST_OF_N = "rl/equations/best_of_n.py"
DOCTOR = "harness/report/rules.py"
IMDB = "scripts/imdb.py"
KEPT = "notebooks/course/saved_models.py"
LABELLED = "data/labelled.py"
NGRAMS = "reward_model/ngrams.py"
OUTCOMES = "reward_model/outcomes.py"
OUTCOME_TRAINING = "reward_model/outcome_training.py"
OVEROPT_FITS = "scripts/overopt/fits.py"
OVEROPT_INTERVALS = "scripts/overopt/intervals.py"
OVEROPT_RESULTS = "scripts/overopt/results.py"
TOKENIZER_TRAINING = "gpt/tokenizer_training.py"
TOKEN_LOG = "rl/training/token_log.py"
TOKEN_ROWS = "gpt/token_rows.py"

TEST_ACTOR_CRITIC = "tests/rl/training/test_actor_critic.py"
TEST_ADAPTER = "tests/gpt/test_adapter.py"
TEST_ADVANTAGES = "tests/rl/equations/test_advantages.py"
TEST_BRADLEY_TERRY = "tests/reward_model/test_bradley_terry_loss.py"
TEST_CONTRACT = "tests/rl/test_engine_contract.py"
TEST_COLLATE = "tests/data/test_collate.py"
TEST_CONFIG = "tests/rl/training/test_config.py"
TEST_DPO = "tests/rl/test_dpo_engine.py"
TEST_DISTILLATION = "tests/gpt/test_distillation.py"
TEST_ENGINE = "tests/rl/test_grpo_engine.py"
TEST_ENSEMBLE = "tests/rl/rewards/test_ensemble.py"
TEST_ENSEMBLES = "tests/rl/equations/test_ensembles.py"
TEST_FUNCTION = "tests/rl/rewards/test_function.py"
TEST_GDPO = "tests/rl/test_gdpo.py"
TEST_GAPS = "tests/rl/equations/test_mutation_gaps.py"
TEST_GENERATE = "tests/gpt/test_generate.py"
TEST_ITERATIVE = "tests/rl/test_grpo_iterative_engine.py"
TEST_JUDGE = "tests/rl/training/test_ensemble_and_judge.py"
TEST_GRADIENTS = "tests/rl/equations/test_gradients.py"
TEST_KD_GRPO = "tests/rl/test_kd_grpo_engine.py"
TEST_KD_PPO = "tests/rl/test_kd_ppo_engine.py"
TEST_KL = "tests/rl/equations/test_kl.py"
TEST_LOG_PROBS = "tests/gpt/test_log_probs.py"
TEST_LORA = "tests/gpt/test_lora.py"
TEST_LOSSES = "tests/rl/equations/test_losses.py"
TEST_METRICS = "tests/rl/training/test_metrics.py"
TEST_MINILLM = "tests/rl/test_minillm_engine.py"
TEST_MODEL = "tests/gpt/test_model.py"
TEST_OPTIMIZER = "tests/harness/test_optimizer.py"
TEST_PAIRS = "tests/reward_model/test_pairs.py"
TEST_PROCESS = "tests/rl/test_grpo_process_engine.py"
TEST_PG_GRPO = "tests/rl/test_pg_grpo_engine.py"
TEST_PPO = "tests/rl/test_ppo_engine.py"
TEST_RANKS = "tests/rl/test_ranks.py"
TEST_REINFORCE_PP = "tests/rl/test_reinforce_pp_engine.py"
TEST_REWARD_MODEL = "tests/reward_model/test_reward_model.py"
TEST_REWARD_TRAINING = "tests/reward_model/test_reward_model_training.py"
TEST_REWARDS = "tests/rl/equations/test_reward_arithmetic.py"
TEST_RLOO = "tests/rl/test_rloo_engine.py"
TEST_ROLLOUT = "tests/rl/batches/test_rollout.py"
TEST_LET_IN = "tests/test_nothing_let_in.py"
TEST_PIPELINE = "tests/test_pipeline.py"
TEST_REPORT = "tests/reward_model/test_accuracy_report.py"
TEST_RUNS = "tests/harness/test_run_folder.py"
TEST_STOP = "tests/harness/test_signals.py"
TEST_SINGLE_MODEL = "tests/rl/test_grpo_single_model_engine.py"
TEST_DECODE_STATIC = "tests/gpt/test_decode_static.py"
TEST_STEP_REWARDS = "tests/rl/rewards/test_step_rewards.py"
TEST_VALUE_MODEL = "tests/rl/training/test_value_model.py"
TEST_VARIANTS = "tests/rl/test_grpo_variants_engine.py"
TEST_VERIFIABLE = "tests/rl/rewards/test_verifiable.py"
TEST_WORKED = "tests/rl/equations/test_worked_numbers.py"
TEST_BEST_OF_N = "tests/rl/equations/test_best_of_n.py"
TEST_DOCTOR = "tests/rl/training/test_run_rules.py"
TEST_IMDB = "tests/test_imdb.py"
TEST_KEPT = "tests/test_saved_models.py"
TEST_LABELLED = "tests/data/test_labelled.py"
TEST_NGRAMS = "tests/reward_model/test_ngrams.py"
TEST_OUTCOMES = "tests/reward_model/test_outcomes.py"
TEST_OUTCOME_LOSS = "tests/reward_model/test_outcome_loss.py"
TEST_OVEROPT = "tests/test_overopt_statistics.py"
TEST_TOKENIZER = "tests/gpt/test_tokenizer.py"
TEST_TOKEN_LOG = "tests/rl/test_token_log.py"
TEST_TOKEN_ROWS = "tests/gpt/test_token_rows.py"


def bug(name: str, what: str, path: str, old: str, new: str, *tests: str) -> Mutation:
    """A mutation of one place."""
    return Mutation(name, what, (Edit(path, old, new),), tests)


MUTATIONS = (
    # memory
    bug(
        "checkpoint-never",
        "checkpoint_blocks is ignored: every activation is kept",
        MODEL,
        "if self.checkpoint_blocks and cache is None",
        "if False and cache is None",
        TEST_MODEL,
    ),
    bug(
        "lora-scale-missing",
        "the adapter is not scaled by alpha / r",
        LORA,
        "return super().forward(x) + self.scale * change",
        "return super().forward(x) + change",
        TEST_LORA,
    ),
    bug(
        "lora-merged-unscaled",
        "the adapter is merged without alpha / r",
        LORA,
        "return self.weight + self.scale * self.lora_B @ self.lora_A",
        "return self.weight + self.lora_B @ self.lora_A",
        TEST_LORA,
    ),
    bug(
        "lora-trains-the-base",
        "the weights under the adapters are trained, too",
        LORA,
        "    model.requires_grad_(False)\n    for block",
        "    for block",
        TEST_LORA,
        TEST_CONTRACT,
    ),
    bug(
        "lora-reference-adapted",
        "the reference shares the adapter that is trained: it moves with the policy",
        FROZEN,
        "for tensor in model.parameters() if not tensor.requires_grad}",
        "for tensor in model.parameters()}",
        TEST_LORA,
        TEST_CONTRACT,
    ),
    bug(
        "lora-checkpoint-without-a",
        "a checkpoint holds B alone",
        LORA,
        'if not name.endswith(("lora_A", "lora_B")))',
        'if not name.endswith("lora_B"))',
        TEST_LORA,
        TEST_CONTRACT,
    ),
    bug(
        "peft-transposed",
        "the matrices are written as (in, out), as transformers stores weights",
        ADAPTER,
        "getattr(layer, matrix).detach().float().cpu()",
        "getattr(layer, matrix).detach().float().cpu().t().contiguous()",
        TEST_ADAPTER,
    ),
    # masks and columns
    bug(
        "mask-by-padding-id",
        "the mask is `ids != pad`, and pad is the EOS: no response ever learns to stop",
        COLLATE,
        "    mask = before == 0\n",
        "    mask = response_tokens != eos_id\n",
        TEST_COLLATE,
    ),
    bug(
        "eos-left-out",
        "the mask ends before the first EOS instead of with it",
        COLLATE,
        "before = is_eos.cumsum(1) - is_eos.long()",
        "before = is_eos.cumsum(1)",
        TEST_COLLATE,
    ),
    bug(
        "column-off-by-one",
        "the column of a token scores it, not the one before",
        COLLATE,
        "columns = self.prompt_lengths[:, None] - 1 + steps[None, :]",
        "columns = self.prompt_lengths[:, None] + steps[None, :]",
        TEST_LOG_PROBS,
    ),
    bug(
        "reward-model-column",
        "the reward model scores a token before it has read it",
        REWARD_MODEL,
        "response_hidden(self.gpt, batch, batch.response_columns)",
        "response_hidden(self.gpt, batch, batch.predicting_columns)",
        TEST_REWARD_MODEL,
    ),
    bug(
        "positions-count-padding",
        "left-padded prompts get the positions of their columns",
        MODEL,
        "positions = (attention_mask.cumsum(1) - 1).clamp(min=0)[:, past:]",
        "positions = torch.arange(past, past + S, device=tokens.device)",
        TEST_MODEL,
    ),
    bug(
        "groups-interleaved",
        "the responses are paired with prompts in `repeat` order, not `repeat_interleave`",
        ROLLOUT,
        "rows = [index for index in range(len(records)) for _ in range(group_size)]",
        "rows = [index for _ in range(group_size) for index in range(len(records))]",
        TEST_ROLLOUT,
    ),
    # the sampler and the scorer
    bug(
        "scoring-temperature",
        "log-probs are scored at temperature 1",
        LOG_PROBS,
        "    return logits if temperature == 1 else logits / temperature\n",
        "    return logits\n",
        TEST_LOG_PROBS,
    ),
    bug(
        "sampler-temperature",
        "the sampler reports the log-probs of temperature 1",
        GENERATE,
        "    return tokens.squeeze(1), probs.gather(1, tokens).log().squeeze(1)\n",
        "    probs = (logits * params.temperature).softmax(-1)\n"
        "    return tokens.squeeze(1), probs.gather(1, tokens).log().squeeze(1)\n",
        TEST_GENERATE,
    ),
    bug(
        "static-positions-by-column",
        "the static decoding step gives left-padded rows the positions of their columns",
        MODEL,
        "positions = seen.sum(1) - 1  # (N,)",
        "positions = cache.at.expand(len(seen))",
        TEST_DECODE_STATIC,
    ),
    bug(
        "static-cache-not-zeroed",
        "the columns to come hold what stood in memory by chance, NaN too",
        MODEL,
        "            store[..., self.length :, :] = 0\n",
        "            store.abs()\n",
        TEST_DECODE_STATIC,
    ),
    bug(
        "static-sees-columns-to-come",
        "the static decoding step attends to columns that are not filled yet",
        DECODE_STATIC,
        "self.seen[:, filled:] = False",
        "self.seen[:, filled:] = True",
        TEST_DECODE_STATIC,
    ),
    bug(
        "static-records-one-window",
        "the recording of the first window is replayed when the columns have grown",
        DECODE_STATIC,
        "        self.recorded = False\n        for reader",
        "        for reader",
        TEST_DECODE_STATIC,
    ),
    bug(
        "rollout-temperature",
        "the reference scores the rollout at temperature 1",
        ROLLOUT,
        "lambda batch: token_log_probs(model, batch, config.temperature)",
        "lambda batch: token_log_probs(model, batch)",
        TEST_ROLLOUT,
    ),
    bug(
        "entropy-sign",
        "the entropy comes out negative",
        LOG_PROBS,
        "return -(log_probs.exp() * log_probs.clamp(min=-1e4)).sum(-1)",
        "return (log_probs.exp() * log_probs.clamp(min=-1e4)).sum(-1)",
        TEST_LOG_PROBS,
    ),
    # KL
    bug(
        "k1-sign",
        "k1 is log pi_ref - log pi: the penalty pays for drifting away",
        KL,
        "    return log_probs - ref_log_probs\n",
        "    return ref_log_probs - log_probs\n",
        TEST_KL,
    ),
    bug(
        "k3-turned-over",
        "k3 uses pi / pi_ref instead of pi_ref / pi",
        KL,
        "return delta.expm1() - delta",
        "return (-delta).expm1() + delta",
        TEST_KL,
    ),
    bug(
        "k3-clamped",
        "the result of k3 is clamped to 10: no gradient where the policy is furthest away",
        KL,
        "return delta.expm1() - delta",
        "return (delta.expm1() - delta).clamp(max=10)",
        TEST_KL,
    ),
    bug(
        "kl-controller-sign",
        "too much KL lowers the coefficient",
        KL,
        "error = min(max(kl_per_response / self.target - 1, -0.2), 0.2)",
        "error = min(max(1 - kl_per_response / self.target, -0.2), 0.2)",
        TEST_KL,
    ),
    bug(
        "doubling-turned-over",
        "PPO's rule halves the coefficient where the KL is too large and doubles it where it is small",
        KL,
        "            self.coef *= 2\n        elif kl_per_response < self.target / 1.5:\n"
        "            self.coef /= 2",
        "            self.coef /= 2\n        elif kl_per_response < self.target / 1.5:\n"
        "            self.coef *= 2",
        TEST_KL,
    ),
    bug(
        "doubling-flag-unheard",
        "--kl-controller doubling runs the adaptive controller",
        CONFIG,
        "        return DoublingKL(config.kl_coef, config.kl_target)\n",
        "        return AdaptiveKL(config.kl_coef, config.kl_target, 10**9)\n",
        TEST_CONFIG,
    ),
    # rewards
    bug(
        "reward-after-eos",
        "the score stands one position behind the EOS where there is room",
        TOKEN_REWARDS,
        "    return torch.where(tokens_from_here == 1, scores.unsqueeze(1), 0.0)\n",
        "    last = tokens_from_here == 1\n"
        "    last = torch.where(last[:, -1:], last, last.roll(1, 1))\n"
        "    return torch.where(last, scores.unsqueeze(1), 0.0)\n",
        TEST_REWARDS,
    ),
    bug(
        "reward-before-mask",
        "the score stands in the last column, and the mask then removes it",
        TOKEN_REWARDS,
        "    return torch.where(tokens_from_here == 1, scores.unsqueeze(1), 0.0)\n",
        "    last = torch.arange(response_mask.shape[1]) == response_mask.shape[1] - 1\n"
        "    return torch.where(last, scores.unsqueeze(1), 0.0)\n",
        TEST_REWARDS,
    ),
    bug(
        "penalty-at-padding",
        "the KL penalty is not masked",
        TOKEN_REWARDS,
        "@constant_equation\ndef token_level_rewards(",
        "@torch.no_grad()\ndef token_level_rewards(",
        TEST_REWARDS,
    ),
    bug(
        "kl-mean-per-token",
        "a reward's KL is divided by the length: R - beta * mean(k1)",
        TOKEN_REWARDS,
        "return -kl_coef * kl_t +",
        "return -kl_coef * kl_t / response_mask.sum(1, keepdim=True) +",
        TEST_WORKED,
    ),
    bug(
        "margin-sign",
        "the margin of the preference loss has the wrong sign",
        PREFERENCE,
        "chosen - rejected - margin",
        "chosen - rejected + margin",
        TEST_BRADLEY_TERRY,
    ),
    bug(
        "margin-without-strength",
        "the margin is the same for all pairs, though it was to follow their strength",
        REWARD_TRAINING,
        "    return config.margin * torch.tensor(known, device=device)\n",
        "    return torch.full((len(known),), config.margin, device=device)\n",
        TEST_REWARD_TRAINING,
    ),
    bug(
        "weights-of-the-batch",
        "a prompt's pairs are weighed by the pairs of the batch, all alike",
        REWARD_TRAINING,
        "1 / len(group) for group in groups",
        "1 / len(groups) for group in groups",
        TEST_REWARD_TRAINING,
    ),
    bug(
        "pair-weights-ignored",
        "a prompt that lost pairs weighs less, though the paper's weighting was asked for",
        PREFERENCE,
        "return (weights * loss).sum() / (denominator or weights.sum())",
        "return loss.mean()",
        TEST_BRADLEY_TERRY,
    ),
    # advantages
    Mutation(
        "gae-reads-padding",
        "the value after the EOS is that of the padding",
        (
            Edit(
                ADVANTAGES,
                "@constant_equation\ndef gae(",
                "@torch.no_grad()\ndef gae(",
            ),
            Edit(
                ADVANTAGES,
                "V = torch.where(response_mask[:, t], values[:, t], V)",
                "V = values[:, t]",
            ),
        ),
        (TEST_ADVANTAGES,),
    ),
    bug(
        "whitening-per-response",
        "advantages are whitened inside each response: differences between responses vanish",
        ADVANTAGES,
        "    mean = mean_within(x[mask])\n"
        "    variance = (x[mask] - mean).square().sum() / max(int(mask.sum()) - "
        "int(unbiased), 1)\n",
        "    count = mask.sum(1, keepdim=True)\n"
        "    mean = x.sum(1, keepdim=True) / count\n"
        "    variance = torch.where(mask, x - mean, 0.0).square().sum(1, keepdim=True)\n"
        "    variance = variance / (count - int(unbiased)).clamp(min=1)\n",
        TEST_ADVANTAGES,
    ),
    bug(
        "leave-one-out-twice",
        "the factor G / (G - 1) is applied twice",
        ADVANTAGES,
        "* (group_size / (group_size - 1))",
        "* (group_size / (group_size - 1)) ** 2",
        TEST_ADVANTAGES,
    ),
    bug(
        "std-of-the-batch",
        "a group's advantages are divided by the std of the whole batch",
        ADVANTAGES,
        "rewards.std(1, keepdim=True, correction=int(unbiased))",
        "rewards.std(correction=int(unbiased))",
        TEST_ADVANTAGES,
    ),
    bug(
        "mean-of-the-batch",
        "the baseline is the mean over all prompts",
        ADVANTAGES,
        "centred = rewards - rewards.mean(1, keepdim=True)",
        "centred = rewards - rewards.mean()",
        TEST_ADVANTAGES,
    ),
    # losses
    bug(
        "max-for-negative-advantages",
        "the clipped surrogate takes the maximum where the advantage is negative",
        LOSSES,
        "    ratio = likelihood_ratio(log_probs, old_log_probs)\n"
        "    clipped = ratio.clamp(1 - clip_low, 1 + clip_high)\n"
        "    return -torch.minimum(ratio * advantages, clipped * advantages)\n",
        "    ratio = likelihood_ratio(log_probs, old_log_probs)\n"
        "    a, b = ratio * advantages, ratio.clamp(1 - clip_low, 1 + clip_high) * "
        "advantages\n"
        "    return -torch.where(advantages < 0, torch.maximum(a, b), torch.minimum(a, "
        "b))\n",
        TEST_LOSSES,
    ),
    bug(
        "advantages-broadcast",
        "advantages of shape (N,) run along time where N = T",
        BORDER,
        '"advantages": (("N", "T"), ("N", "1")),',
        '"advantages": (("N", "T"), ("N", "1"), ("T",)),',
        TEST_LOSSES,
    ),
    bug(
        "gspo-unnormalised",
        "GSPO's ratio is the product over the tokens, without the root of the length",
        LOSSES,
        "log_ratio = row_means(log_probs - old_log_probs, mask)",
        "log_ratio = row_sums(log_probs - old_log_probs, mask)",
        TEST_GAPS,
    ),
    bug(
        "gspo-token-gradient",
        "GSPO-token differentiates the ratio of the sequence as well",
        LOSSES,
        "ratio = mean_ratio(log_probs, old_log_probs, mask).detach()",
        "ratio = mean_ratio(log_probs, old_log_probs, mask)",
        TEST_GRADIENTS,
    ),
    bug(
        "cispo-gradient",
        "CISPO differentiates its weight",
        LOSSES,
        ".clamp(max=1 + clip_high).detach()",
        ".clamp(max=1 + clip_high)",
        TEST_GRADIENTS,
    ),
    bug(
        "value-loss-doubled",
        "the value loss lacks its half",
        LOSSES,
        "    return squared / 2\n",
        "    return squared\n",
        TEST_LOSSES,
    ),
    bug(
        "dpo-sign",
        "DPO prefers the rejected response",
        PREFERENCE_LOSSES,
        "return (policy_chosen - ref_chosen) - (policy_rejected - ref_rejected)",
        "return (policy_rejected - ref_rejected) - (policy_chosen - ref_chosen)",
        TEST_LOSSES,
    ),
    bug(
        "response-log-prob-averaged",
        "the log-prob of a response (DPO, RLOO) is averaged over its tokens",
        LOSSES,
        "    return x.sum(1)\n",
        "    return x.sum(1) / at_least_one(mask.sum(1))\n",
        TEST_LOSSES,
    ),
    bug(
        "mean-of-means",
        "a micro-batch is averaged over its own tokens, not those of the whole batch",
        LOSSES,
        "mask.sum() if denominator is None else denominator",
        "mask.sum()",
        TEST_WORKED,
    ),
    # the update
    Mutation(
        "clip-after-step",
        "gradients are clipped after the step that used them",
        (
            Edit(
                OPTIMIZER,
                "    norm = torch.nn.utils.clip_grad_norm_(",
                "    optimizer.step()\n    norm = torch.nn.utils.clip_grad_norm_(",
            ),
            Edit(OPTIMIZER, "    optimizer.step()\n    return norm\n", "    return norm\n"),
        ),
        (TEST_OPTIMIZER,),
    ),
    bug(
        "gradients-accumulate",
        "the gradient of one minibatch stays for the next",
        ENGINE,
        "                    optimizer.zero_grad(set_to_none=True)\n",
        "",
        TEST_GAPS,
        TEST_ENGINE,
    ),
    bug(
        "micro-batch-denominator",
        "each micro-batch is averaged over its own rows, so their number changes the gradient",
        ENGINE,
        "rows=len(rows),",
        "rows=len(part),",
        TEST_GAPS,
        TEST_ENGINE,
    ),
    bug(
        "advantages-misaligned",
        "micro-batches are sorted by length, their advantages are not",
        ENGINE,
        "                            advantages[part],\n"
        "                            batch.response_mask,\n",
        "                            advantages[rows[: len(part)]],\n"
        "                            batch.response_mask,\n",
        TEST_GAPS,
        TEST_ENGINE,
    ),
    bug(
        "ratio-always-one",
        "the old log-probs are recomputed inside the update loop",
        ENGINE,
        "                            old_log_probs[part],\n"
        "                            None if ref_log_probs",
        "                            scores.log_probs.detach(),\n"
        "                            None if ref_log_probs",
        TEST_GAPS,
        TEST_ENGINE,
    ),
    bug(
        "reference-moves",
        "the reference is the policy itself, not a frozen copy",
        ENGINE,
        "reference = reference or frozen_copy(policy)",
        "reference = policy",
        TEST_GAPS,
        TEST_ENGINE,
    ),
    bug(
        "dropout-on",
        "dropout is on in the updates: old and new log-probs differ before the first step",
        ENGINE,
        "    policy.eval()  # dropout",
        "    policy.train()  # dropout",
        TEST_GAPS,
        TEST_ENGINE,
    ),
    bug(
        "update-temperature",
        "the update scores at temperature 1, whatever the sampler used",
        ENGINE,
        "scores = token_scores(policy, batch, config.temperature)",
        "scores = token_scores(policy, batch)",
        TEST_GAPS,
        TEST_ENGINE,
    ),
    bug(
        "k1-as-loss",
        "the KL in the loss is k1, whose expected gradient is 0",
        ENGINE,
        "kl_coef * kl_penalty(log_probs, ref_log_probs)",
        "kl_coef * (log_probs - ref_log_probs)",
        TEST_GAPS,
        TEST_ENGINE,
    ),
    bug(
        "kl-rewarded",
        "the KL in the loss is subtracted",
        ENGINE,
        "token_loss = token_loss + kl_coef",
        "token_loss = token_loss - kl_coef",
        TEST_GAPS,
        TEST_ENGINE,
    ),
    # the GRPO family
    bug(
        "tokens-of-the-micro-batch",
        "the token mean of a micro-batch is over its own tokens",
        VARIANTS,
        "token_mean(loss, m, whole.sum())",
        "token_mean(loss, m)",
        TEST_VARIANTS,
    ),
    bug(
        "dynamic-sampling-off",
        "dynamic sampling keeps groups whose rewards are all equal",
        DYNAMIC_SAMPLING,
        "groups.amax(1) > groups.amin(1)",
        "groups.amax(1) >= groups.amin(1)",
        TEST_VARIANTS,
    ),
    bug(
        "cursor-not-saved",
        "a resumed run asks the prompts from the beginning",
        DYNAMIC_SAMPLING,
        'self.position = state["position"]',
        'self.position = 0 * state["position"]',
        TEST_VARIANTS,
    ),
    bug(
        "filter-on-the-shaped-reward",
        "the filter sees the overlong penalty: equal rewards of different lengths pass as a spread",
        VARIANTS,
        "groups = keep(rewards.view(-1, config.group_size))",
        "groups = keep((rewards - rollout.lengths).view(-1, config.group_size))",
        TEST_VARIANTS,
    ),
    bug(
        "off-policy-mask-drops-the-kl",
        "a response that was left behind loses its KL penalty too",
        VARIANTS,
        "loss = loss + kl_coef * KL_FORMS",
        "loss = loss + chosen * kl_coef * KL_FORMS",
        TEST_VARIANTS,
    ),
    bug(
        "truncated-rows-stay",
        "responses that were cut off stay in the loss",
        VARIANTS,
        "mask = mask & rollout.has_eos[:, None]\n",
        "mask = mask & (rollout.has_eos[:, None] | True)\n",
        TEST_VARIANTS,
    ),
    bug(
        "variant-over-flags",
        "a variant's choices win over what is given by hand",
        VARIANTS,
        "variant_presets(variant), preset, **overrides)",
        "variant_presets(variant), preset, **(overrides | VARIANTS[variant]))",
        TEST_VARIANTS,
    ),
    # a teacher's reward
    bug(
        "teacher-reward-sign",
        "the reverse KL is turned over: the student is paid for leaving the teacher",
        TOKEN_REWARDS,
        "return teacher_log_probs - old_log_probs if reverse_kl",
        "return old_log_probs - teacher_log_probs if reverse_kl",
        TEST_KD_GRPO,
    ),
    bug(
        "teacher-reward-at-padding",
        "what the teacher says about padding is part of the reward",
        TOKEN_REWARDS,
        "@constant_equation\ndef teacher_rewards(",
        "@torch.no_grad()\ndef teacher_rewards(",
        TEST_KD_GRPO,
    ),
    bug(
        "teacher-without-a-floor",
        "a token that the teacher never writes costs infinity",
        TEACHER,
        ".clamp(min=LOG_PROB_FLOOR)",
        ".clamp(max=0.0)",
        TEST_KD_GRPO,
    ),
    bug(
        "text-without-a-gradient",
        "the loss on pre-training text is a number: it is logged and protects nothing",
        PRETRAINING,
        "        (weight * loss).backward()\n",
        "        (weight * loss).detach()\n",
        TEST_KD_GRPO,
        TEST_KD_PPO,
    ),
    bug(
        "text-not-fresh",
        "every optimizer step of a batch sees the same text",
        KD_GRPO,
        "index = step * config.updates + update",
        "index = step * config.updates",
        TEST_KD_GRPO,
    ),
    bug(
        "reinforce-mean-per-token",
        "log pi of a response is divided by its length",
        KD_GRPO,
        "loss = sequence_sum(policy_loss, response_mask, denominator=rows)",
        "loss = sequence_mean(policy_loss, response_mask, denominator=rows)",
        TEST_KD_GRPO,
    ),
    bug(
        "reference-mixed-backwards",
        "alpha is the share of the old reference, not of the policy",
        REFERENCE,
        "mix_into(reference, policy, alpha)",
        "mix_into(reference, policy, 1 - alpha)",
        TEST_KD_GRPO,
        TEST_KD_PPO,
    ),
    bug(
        "bonus-at-every-token",
        "the bonus stands at every token: it pays for short responses instead of doing nothing",
        KD_PPO,
        "    return others + torch.where(usable,",
        "    return others + bonus * response_mask + torch.where(usable,",
        TEST_KD_PPO,
    ),
    bug(
        "dense-counted-twice",
        "the sum stands at the last token beside the tokens' own rewards",
        KD_PPO,
        "at_the_end(torch.full_like(rewards, bonus))",
        "at_the_end(rewards + bonus)",
        TEST_KD_PPO,
    ),
    bug(
        "text-loss-for-the-bonus-too",
        "reward_bonus adds the gradient of the text as well",
        KD_PPO,
        'if text is not None and config.pt_mode == "loss":',
        "if text is not None:",
        TEST_KD_PPO,
    ),
    bug(
        "kd-ppo-reference-stays",
        "the reference of KD-PPO never moves, whatever reference_update says",
        KD_PPO,
        "        moved_reference(config, state.step, reference, policy)  # line 12\n",
        "",
        TEST_KD_PPO,
    ),
    bug(
        "kd-ppo-penalty-always-k1",
        "KD-PPO takes k1 off the rewards, whatever kl_penalty says",
        KD_PPO,
        "penalty=reward_penalty(config.kl_penalty),",
        'penalty=reward_penalty("k1"),',
        TEST_KD_PPO,
    ),
    # PPO
    bug(
        "penalty-rewarded",
        "the KL in the token rewards is added: drifting away from the reference pays",
        TOKEN_REWARDS,
        "return -kl_coef * kl_t +",
        "return kl_coef * kl_t +",
        TEST_REWARDS,
        TEST_PPO,
    ),
    bug(
        "ppo-value-after-the-token",
        "a value is read one column late, after the token that it should judge",
        VALUE_MODEL,
        "return self._at(batch, batch.predicting_columns)",
        "return self._at(batch, batch.response_columns)",
        TEST_VALUE_MODEL,
    ),
    bug(
        "ppo-shared-trunk",
        "the critic's trunk is the policy itself, not a copy",
        VALUE_MODEL,
        "model = cls(copy_to_train(policy))",
        "model = cls(policy)",
        TEST_VALUE_MODEL,
        TEST_PPO,
    ),
    bug(
        "ppo-returns-whitened",
        "the critic learns whitened advantages plus values instead of returns",
        ACTOR_CRITIC,
        "whiten(advantages, mask), returns, ref_log_probs)",
        "whiten(advantages, mask), whiten(advantages, mask) + old_values, ref_log_probs)",
        TEST_PPO,
    ),
    bug(
        "ppo-whitened-per-response",
        "advantages are whitened within each response: good and bad ones look alike",
        ACTOR_CRITIC,
        "    return Targets(old_log_probs, old_values, whiten(advantages, mask), returns, ref_log_probs)",
        "    for i in range(len(mask)):\n"
        "        advantages[i] = whiten(advantages[i : i + 1], mask[i : i + 1])[0]\n"
        "    return Targets(old_log_probs, old_values, advantages, returns, ref_log_probs)",
        TEST_PPO,
    ),
    bug(
        "ppo-scores-as-they-are",
        "the rule for responses without EOS and the clip of the scores reach no reward",
        PPO,
        "                shaped_scores(config, rewards, rollout.has_eos),\n",
        "                rewards,\n",
        TEST_PPO,
    ),
    bug(
        "ppo-first-minibatch-only",
        "an epoch ends after its first minibatch",
        ROLLOUT,
        "in minibatches(rows, config.minibatches, generator, group_size)\n",
        "in minibatches(rows, config.minibatches, generator, group_size)[:1]\n",
        TEST_PPO,
    ),
    bug(
        "ppo-epochs-go-on",
        "a minibatch that is too far from the old policy is left out, and the epochs go on",
        PPO,
        "break  # without the step",
        "continue  # without the step",
        TEST_PPO,
    ),
    bug(
        "ppo-value-clip-moves-along",
        "the value clip is centred on the value in training, so it never acts",
        ACTOR_CRITIC,
        "value_loss(values, targets.old_values, targets.returns, config.value_clip)",
        "value_loss(values, values.detach(), targets.returns, config.value_clip)",
        TEST_PPO,
    ),
    bug(
        "ppo-critic-never-steps",
        "the critic has gradients and no step",
        ACTOR_CRITIC,
        "clip_and_step(self.critic_optimizer, self.value_model.parameters(), max_norm)",
        "norm",
        TEST_ACTOR_CRITIC,
        TEST_PPO,
    ),
    bug(
        "critic-gradient-accumulates",
        "only the policy's gradient is cleared between minibatches",
        ACTOR_CRITIC,
        "        self.critic_optimizer.zero_grad(set_to_none=True)\n",
        "",
        TEST_ACTOR_CRITIC,
    ),
    bug(
        "critic-norm-is-the-policys",
        "the policy's gradient norm is logged as the critic's",
        PPO,
        "critic_grad_norm=critic_norm",
        "critic_grad_norm=norm",
        TEST_PPO,
    ),
    bug(
        "policy-loss-with-the-critic",
        "policy_loss is logged with the value loss and the entropy bonus in it",
        ACTOR_CRITIC,
        "Losses(total, policy_loss,",
        "Losses(total, token_loss,",
        TEST_PPO,
    ),
    bug(
        "ppo-critic-lambda-unread",
        "the critic learns from the policy's lambda, whatever critic_lambda says",
        ACTOR_CRITIC,
        "_, returns = advantages_and_returns(config.critic_lambda)",
        "_, returns = advantages_and_returns(config.gae_lambda)",
        TEST_PPO,
        TEST_KD_PPO,
    ),
    bug(
        "ppo-critic-lambda-for-both",
        "critic_lambda makes the policy's advantages too",
        ACTOR_CRITIC,
        "_, returns = advantages_and_returns(config.critic_lambda)",
        "advantages, returns = advantages_and_returns(config.critic_lambda)",
        TEST_PPO,
    ),
    bug(
        "ppo-kl-loss-from-the-old",
        "the KL in the loss is measured from the policy that sampled, not from the reference",
        ACTOR_CRITIC,
        "(scores.log_probs, targets.ref_log_probs)",
        "(scores.log_probs, targets.old_log_probs)",
        TEST_PPO,
        TEST_KD_PPO,
    ),
    bug(
        "ppo-kl-loss-rewarded",
        "the KL in the loss is subtracted: leaving the reference pays",
        ACTOR_CRITIC,
        "token_loss + config.kl_loss_coef * kl",
        "token_loss - config.kl_loss_coef * kl",
        TEST_PPO,
    ),
    bug(
        "ppo-kl-counted-twice",
        "a KL in the reward and one in the loss are accepted together",
        ACTOR_CRITIC,
        "if self.kl_loss_coef and self.kl_coef:",
        "if self.kl_loss_coef and not self.kl_coef:",
        TEST_PPO,
        TEST_KD_PPO,
    ),
    bug(
        "ppo-penalty-always-k1",
        "PPO takes k1 off the rewards, whatever kl_penalty says",
        PPO,
        "penalty=reward_penalty(config.kl_penalty),",
        'penalty=reward_penalty("k1"),',
        TEST_PPO,
    ),
    bug(
        "squared-penalty-is-absolute",
        "the squared penalty in the reward is the absolute one",
        KL,
        '"squared": k2}',
        '"squared": absolute}',
        TEST_PPO,
        TEST_RLOO,
    ),
    bug(
        "approx-kl-overflows",
        "a log-ratio above 88 makes the measured KL inf - inf, which no limit stops",
        METRICS,
        "valid(rho_minus_log(scores.log_probs, old_log_probs), batch)",
        "valid((scores.log_probs - old_log_probs).exp(), batch) - 1 "
        "- valid((scores.log_probs - old_log_probs).exp(), batch).log()",
        TEST_METRICS,
    ),
    bug(
        "kl-stop-lets-nan-pass",
        "a KL that is NaN is below every limit",
        METRICS,
        "return math.isnan(kl) or kl > limit",
        "return kl > limit",
        TEST_METRICS,
    ),
    bug(
        "ppo-same-text",
        "PPO-ptx reads the same text at every update of a batch",
        PPO,
        "number = step * config.updates + update\n",
        "number = step\n",
        TEST_PPO,
    ),
    # RLOO
    bug(
        "rloo-stop-needs-a-penalty",
        "with kl_coef 0 the KL is not measured, and stop_kl never stops the run",
        RLOO,
        "if kl.coef or config.stop_kl is not None:",
        "if kl.coef:",
        f"{TEST_CONTRACT}::test_stop_kl_ends_the_run_with_a_validation[rloo]",
    ),
    bug(
        "rloo-kl-after-the-baseline",
        "the KL is taken off the advantage, after the baseline: no other response's KL balances it",
        RLOO,
        "    advantages = leave_one_out_advantages(penalised.sum(1), config.group_size)  # line 3\n",
        "    advantages = leave_one_out_advantages(rewards, config.group_size)\n"
        "    advantages = advantages + (penalised.sum(1) - rewards)[:, None]\n",
        TEST_RLOO,
    ),
    bug(
        "rloo-group-mean",
        "the baseline contains the response's own reward",
        RLOO,
        "leave_one_out_advantages(penalised.sum(1), config.group_size)",
        "leave_one_out_advantages(penalised.sum(1), config.group_size) * (1 - 1 / config.group_size)",
        TEST_RLOO,
    ),
    bug(
        "rloo-length-divided",
        "the log-prob of a response is averaged over its tokens",
        RLOO,
        "    return sequence_sum(policy_gradient",
        "    return sequence_mean(policy_gradient",
        TEST_RLOO,
    ),
    bug(
        "rloo-tokens-of-the-micro-batch",
        "the token loss is divided by the tokens of each micro-batch",
        RLOO,
        "token_mean(loss, response_mask, denominator=tokens)",
        "token_mean(loss, response_mask)",
        TEST_RLOO,
    ),
    bug(
        "rloo-always-normalised",
        "advantages are divided by the standard deviation of the batch in every case",
        RLOO,
        "if config.normalize_advantages:",
        "if config.normalize_advantages is not None:",
        TEST_RLOO,
    ),
    bug(
        "rloo-penalty-always-k1",
        "RLOO takes k1 off the rewards, whatever kl_penalty says",
        RLOO,
        "penalty = reward_penalty(config.kl_penalty)",
        'penalty = reward_penalty("k1")',
        TEST_RLOO,
    ),
    # REINFORCE++
    bug(
        "rpp-penalty-always-k1",
        "REINFORCE++ takes k1 off the rewards, whatever kl_penalty says",
        REINFORCE_PP,
        "penalty = reward_penalty(config.kl_penalty)",
        'penalty = reward_penalty("k1")',
        TEST_REINFORCE_PP,
    ),
    bug(
        "rpp-return-of-the-response",
        "every token gets the KL of the earlier tokens too, not the reward to go",
        REINFORCE_PP,
        "return discounted_returns(token_rewards, response_mask, config.gamma)",
        "return token_rewards.sum(1, keepdim=True).expand(response_mask.shape)",
        TEST_REINFORCE_PP,
    ),
    bug(
        "rpp-kl-twice",
        "the plain variant has the KL in the reward and in the loss",
        REINFORCE_PP,
        'if config.variant == "baseline" and ref_log_probs is not None:',
        "if ref_log_probs is not None:",
        TEST_REINFORCE_PP,
    ),
    bug(
        "rpp-k1-as-a-loss",
        "the KL of the baseline variant is k1, whose expected gradient is 0",
        REINFORCE_PP,
        "kl_coef * k2(log_probs, ref_log_probs)",
        "kl_coef * (log_probs - ref_log_probs)",
        TEST_REINFORCE_PP,
    ),
    bug(
        "rpp-std-of-the-group",
        "the baseline variant divides by the standard deviation of the group first",
        REINFORCE_PP,
        'config.group_size, scale="none")',
        'config.group_size, scale="group")',
        TEST_REINFORCE_PP,
    ),
    bug(
        "rpp-whitened-in-parts",
        "advantages are normalised within each micro-batch, not over the rollout",
        REINFORCE_PP,
        "                            advantages[part],\n                            batch.response_mask,\n",
        "                            whiten(\n"
        "                                advantages[part],\n"
        "                                batch.response_mask[:, : advantages.shape[1]],\n"
        "                            ),\n"
        "                            batch.response_mask,\n",
        TEST_REINFORCE_PP,
    ),
    # GRPO with a single model
    bug(
        "single-drift-rewarded",
        "the penalty on leaving the policy of the batch is subtracted",
        SINGLE_MODEL,
        "token_loss = token_loss + kl_coef * PENALTIES",
        "token_loss = token_loss - kl_coef * PENALTIES",
        TEST_SINGLE_MODEL,
    ),
    bug(
        "single-penalties-exchanged",
        "k3 is given where rho - 1 - log rho is asked for",
        SINGLE_MODEL,
        '    "rho_minus_log": rho_minus_log,\n',
        '    "rho_minus_log": k3,\n',
        TEST_SINGLE_MODEL,
    ),
    bug(
        "single-keeps-a-copy",
        "a second copy of the weights is kept all the same",
        SINGLE_MODEL,
        "    policy.eval()  # dropout",
        "    import copy\n\n    reference = copy.deepcopy(policy)  # noqa: F841\n"
        "    policy.eval()  # dropout",
        TEST_SINGLE_MODEL,
    ),
    bug(
        "single-distances-exchanged",
        "the distance of a batch is taken from the new policy to the old one",
        SINGLE_MODEL,
        "row |= batch_kl(new_log_probs, old_log_probs, rollout)",
        "row |= batch_kl(old_log_probs, new_log_probs, rollout)",
        TEST_SINGLE_MODEL,
    ),
    bug(
        "single-controller-per-token",
        "the adaptive controller is given a KL per token",
        SINGLE_MODEL,
        'kl.update(row["kl_old_new"], len(rollout))',
        'kl.update(row["approx_kl"], len(rollout))',
        TEST_SINGLE_MODEL,
    ),
    bug(
        "rho-minus-log-constant",
        "the policy in training is the constant in rho - 1 - log rho",
        KL,
        "log_rho = (log_probs - old_log_probs)",
        "log_rho = (log_probs.detach() - old_log_probs)",
        TEST_SINGLE_MODEL,
    ),
    # GRPO with process supervision
    bug(
        "process-outcome-only",
        "the steps are cut and scored, but the outcome is what is learned from",
        PROCESS,
        "                step_reward_fn, rollout, rewards, config.non_finite_reward\n",
        "                OutcomeSteps(), rollout, rewards, config.non_finite_reward\n",
        TEST_PROCESS,
    ),
    bug(
        "process-blames-later-tokens",
        "a step's reward goes to the tokens after it, not to those that led to it",
        ADVANTAGES,
        "(step_ends[:, :, None] >= tokens)",
        "(step_ends[:, :, None] <= tokens)",
        TEST_PROCESS,
        TEST_ADVANTAGES,
    ),
    Mutation(
        "process-response-statistics",
        "steps are compared within their response, not within the group",
        (
            Edit(
                ADVANTAGES,
                "rewards = rewards.unflatten(0, (-1, group_size))",
                "rewards = rewards.unflatten(0, (-1, 1))",
            ),
            Edit(
                ADVANTAGES,
                "valid = step_mask.unflatten(0, (-1, group_size))",
                "valid = step_mask.unflatten(0, (-1, 1))",
            ),
        ),
        (
            TEST_PROCESS,
            TEST_ADVANTAGES,
        ),
    ),
    bug(
        "step-ends-in-characters",
        "a step's end is counted in characters where tokens are meant",
        STEP_REWARDS,
        "end = token_of(min(check.end, len(text) - 1), counts)",
        "end = min(check.end, len(text) - 1)",
        TEST_STEP_REWARDS,
    ),
    bug(
        "step-without-its-separator",
        "the comma behind a step belongs to the next one",
        STEP_REWARDS,
        "token_of(min(check.end, len(text) - 1), counts)",
        "token_of(max(check.end - 1, 0), counts)",
        TEST_STEP_REWARDS,
    ),
    bug(
        "step-score-one-token-early",
        "the reward model's score is read before the last token of the step",
        STEP_REWARDS,
        "scores.gather(1, ends_of)",
        "scores.gather(1, (ends_of - 1).clamp(min=0))",
        TEST_STEP_REWARDS,
    ),
    # DPO and PG-GRPO
    bug(
        "dpo-averages-tokens",
        "the log-prob of a response in DPO is the mean over its tokens, and their sum on request",
        PREFERENCES,
        "if row.length_normalised or config.length_norm:",
        "if not (row.length_normalised or config.length_norm):",
        TEST_DPO,
    ),
    bug(
        "dpo-pairs-mixed-up",
        "responses that were never compared become a pair",
        PREFERENCES,
        ".view(2, -1).T",
        ".view(-1, 2)",
        TEST_DPO,
    ),
    bug(
        "dpo-split-leaks",
        "DPO trains on held-out pairs too",
        PREFERENCES,
        'parts = splits["train"], splits["validation"]',
        'parts = result.records, splits["validation"]',
        TEST_DPO,
    ),
    bug(
        "dpo-micro-batch-denominator",
        "each forward of DPO is averaged over its own pairs, not those of the whole batch",
        DPO,
        "return pair_losses(config.loss, compared, config).sum() / pairs",
        "return pair_losses(config.loss, compared, config).mean()",
        TEST_DPO,
    ),
    bug(
        "dpo-smoothing-ignored",
        "conservative DPO trusts every label",
        PREFERENCES,
        '{"beta": "beta", "label_smoothing": "label_smoothing"}',
        '{"beta": "beta"}',
        TEST_DPO,
    ),
    bug(
        "pg-worst-first",
        "the worst response of a group is the preferred one",
        ADVANTAGES,
        "[groups.argmax(1), groups.argmin(1)]",
        "[groups.argmin(1), groups.argmax(1)]",
        TEST_ADVANTAGES,
    ),
    bug(
        "pg-measured-from-old-policy",
        "the preference loss compares with the policy that sampled, not with the reference",
        PG_GRPO,
        "compared_rows(scores.log_probs, ref, batch.response_mask, here)",
        "compared_rows(scores.log_probs, old_log_probs[part], batch.response_mask, here)",
        TEST_PG_GRPO,
    ),
    bug(
        "pg-groups-split",
        "micro-batches by length tear pairs apart, which then drop out",
        PG_GRPO,
        "rollout.sequences, rows, config.rows_of_loss, config.rows_together",
        "rollout.sequences, rows, config.micro_batch_size",
        f"{TEST_CONTRACT}::test_micro_batches_do_not_change_the_update[pg_grpo-all]",
    ),
    bug(
        "pg-no-reference-without-kl",
        "with kl_coef 0 the preference loss silently disappears",
        PG_GRPO,
        "if reference is not None and config.scores_rollouts:",
        "if reference is not None and config.measures_kl:",
        TEST_PG_GRPO,
    ),
    bug(
        "pg-power-outside-the-ratio",
        "the power of the ratio is left out of the policy that sampled",
        PG_GRPO,
        "b * log_probs, b * old_log_probs,",
        "b * log_probs, old_log_probs,",
        TEST_PG_GRPO,
    ),
    bug(
        "pg-weights-ignored",
        "of several preference losses each counts the same",
        PG_GRPO,
        "[weight * pair_losses(name, compared, config)",
        "[pair_losses(name, compared, config)",
        TEST_PG_GRPO,
    ),
    bug(
        "pg-mean-ratio-clip",
        "where the clip of the mean ratio acted is read off the ratios of the tokens",
        PG_GRPO,
        "return UpdateMeter(clip, mean_ratio)",
        "return UpdateMeter(clip)",
        TEST_PG_GRPO,
    ),
    bug(
        "pg-mean-ratio-without-the-mean",
        "the mean ratio is the product over the tokens",
        LOSSES,
        "log_ratio = row_means(log_probs - old_log_probs, mask).unsqueeze(1)",
        "log_ratio = row_sums(log_probs - old_log_probs, mask).unsqueeze(1)",
        TEST_PG_GRPO,
    ),
    bug(
        "simpo-margin-sign",
        "SimPO's target margin is given to the chosen response for nothing",
        PREFERENCE_LOSSES,
        "beta * (policy_chosen - policy_rejected) - target_margin",
        "beta * (policy_chosen - policy_rejected) + target_margin",
        TEST_WORKED,
    ),
    bug(
        "simpo-with-the-reference",
        "SimPO opens and scores a reference that it does not need",
        PREFERENCES,
        "simpo_loss, False, True,",
        "simpo_loss, True, True,",
        TEST_DPO,
    ),
    bug(
        "hinge-sign",
        "the hinge rests on pairs in the wrong order and pushes right ones apart",
        PREFERENCE_LOSSES,
        "torch.relu(1 - beta * h)",
        "torch.relu(1 + beta * h)",
        TEST_WORKED,
    ),
    bug(
        "ipo-mean-is-the-sum",
        "IPO of means per token reads summed log-probs",
        PREFERENCES,
        'PreferenceLoss(ipo_loss, True, True, {"beta": "beta"})',
        'PreferenceLoss(ipo_loss, True, False, {"beta": "beta"})',
        TEST_DPO,
    ),
    bug(
        "own-text-penalty-sign",
        "the student is paid for the loss on its own text: for noise",
        TOKEN_REWARDS,
        "return token_rewards + coef * old_log_probs",
        "return token_rewards - coef * old_log_probs",
        TEST_KD_GRPO,
    ),
    # iterative GRPO
    bug(
        "reference-never-reset",
        "a new iteration keeps the reference of the first",
        ITERATIVE,
        "reference.load_state_dict(policy.state_dict())",
        "reference.eval()",
        TEST_ITERATIVE,
    ),
    bug(
        "refresh-after-the-reset-only",
        "the reward model is refreshed at every step",
        ITERATIVE,
        "if step > 0 and step % per_iteration == 0:",
        "if step > 0:",
        TEST_ITERATIVE,
    ),
    bug(
        "replay-of-the-new",
        "a tenth of the new pairs is added, which is no tenth of the mix",
        CONTINUAL,
        "wanted = new * fraction / (1 - fraction)",
        "wanted = new * fraction",
        TEST_ITERATIVE,
    ),
    bug(
        "reward-optimizer-reset",
        "each refresh starts the reward model's optimizer anew",
        CONTINUAL,
        "optimizer=self.optimizer,",
        "optimizer=None,",
        TEST_ITERATIVE,
    ),
    bug(
        "reward-not-centred-again",
        "the scores keep the mean and spread of the old reward model",
        CONTINUAL,
        "self.model.normalize_on(reference.to(self.model.device), config.scored_at_once)",
        "reference.to(self.model.device)",
        TEST_ITERATIVE,
    ),
    bug(
        "resumed-pairs-twice",
        "a resumed run keeps the pairs that were written after its checkpoint, and draws them again",
        CONTINUAL,
        "visits_of(keep_until(self.path, step))",
        "visits_of(keep_until(self.path, step + 1))",
        TEST_ITERATIVE,
    ),
    bug(
        "recorded-tokens-lost",
        "recorded pairs are encoded from their text again, and cut-off answers gain an EOS",
        PAIRS,
        "        return list(recorded)\n",
        "        return tokenizer.encode(text) + [tokenizer.eos_id]\n",
        TEST_PAIRS,
    ),
    bug(
        "cut-off-text-ends",
        "text that was recorded as cut off gets an EOS under another tokenizer",
        PAIRS,
        'ended = record.meta.get(f"{name}_ended", True)',
        "ended = True",
        TEST_PAIRS,
    ),
    # ensembles
    bug(
        "ensemble-variance-pays",
        "disagreement between reward models is rewarded",
        ENSEMBLES,
        "scores.mean(0) - coef * scores.var(0)",
        "scores.mean(0) + coef * scores.var(0)",
        TEST_ENSEMBLES,
    ),
    bug(
        "ensemble-variance-over-k",
        "the variance between members is divided by K instead of K - 1",
        ENSEMBLES,
        "coef * scores.var(0)",
        "coef * scores.var(0, correction=0)",
        TEST_ENSEMBLES,
    ),
    bug(
        "ensemble-best-case",
        "the member that likes a response most decides",
        ENSEMBLES,
        "return scores.amin(0)",
        "return scores.amax(0)",
        TEST_ENSEMBLES,
    ),
    bug(
        "ensemble-own-scales",
        "members are combined on scales of their own, though a reference was given",
        ENSEMBLE,
        "        if reference is not None:",
        "        if False:",
        TEST_ENSEMBLE,
    ),
    bug(
        "ensemble-flag-unheard",
        "the least of the reward models pays whatever --ensemble says",
        OPEN_REWARD,
        "models, combine=choice.ensemble, uwo_coef",
        'models, combine="min", uwo_coef',
        TEST_JUDGE,
    ),
    bug(
        "ensemble-coefficient-lost",
        "--uwo-coef never reaches the ensemble",
        OPEN_REWARD,
        "            uwo_coef=config.uwo_coef,\n",
        "            uwo_coef=0.5,\n",
        TEST_JUDGE,
    ),
    bug(
        "judge-is-the-reward",
        "the judge of a file is the reward model that the policy is trained on",
        OPEN_REWARD,
        "    model = open_reward_model(judge, tokenizer",
        "    model = open_reward_model(used[0], tokenizer",
        TEST_JUDGE,
    ),
    bug(
        "own-reward-arguments-swapped",
        "a user's reward function gets the response as the prompt and the prompt as the response",
        FUNCTION,
        "self.function(record.prompt, response, **more)",
        "self.function(response, record.prompt, **more)",
        TEST_FUNCTION,
    ),
    # GDPO
    bug(
        "gdpo-divides-by-the-group",
        "the sum of the parts' z-scores is divided by the group's deviation again",
        ADVANTAGES,
        "    return (total - total.mean()) / (total.std() + eps)\n",
        "    return group_advantages(total[:, 0], group_size, eps=eps)\n",
        TEST_ADVANTAGES,
        TEST_GDPO,
    ),
    bug(
        "gdpo-parts-not-normalised",
        "the parts are centred and not divided by their deviation in the group",
        ADVANTAGES,
        "w * group_advantages(part, group_size, eps=eps) for w, part in parts.values()",
        'w * group_advantages(part, group_size, eps=eps, scale="none") for w, part in parts.values()',
        TEST_ADVANTAGES,
    ),
    bug(
        "gdpo-without-weights",
        "every part of the reward counts the same",
        ADVANTAGES,
        "w * group_advantages(part, group_size, eps=eps) for w, part in parts.values()",
        "group_advantages(part, group_size, eps=eps) for _, part in parts.values()",
        TEST_ADVANTAGES,
    ),
    bug(
        "gdpo-flag-unread",
        "--normalize-parts changes nothing",
        ENGINE,
        "        if config.normalize_parts:\n",
        "        if config.normalize_parts is None:\n",
        TEST_GDPO,
    ),
    bug(
        "gdpo-parts-of-dropped-groups",
        "dropped groups leave their parts in the batch that is trained on",
        ROLLOUT,
        "name: (weight, part[rows.to(part.device)])",
        "name: (weight, part[: len(rows)])",
        TEST_GDPO,
    ),
    bug(
        "overlong-penalty-is-no-part",
        "with --normalize-parts long responses are punished in the log alone",
        REWARDS,
        '        rollout.reward_parts["overlong"] = (1.0, penalty)\n',
        '        rollout.reward_parts["overlong"] = (0.0, penalty)\n',
        TEST_GDPO,
    ),
    # verifiable rewards
    bug(
        "answer-from-the-prompt",
        "the answer is looked for in prompt and response",
        VERIFIABLE,
        "final_answer(without_echo(record.prompt, response), numeric=numeric)",
        "final_answer(record.prompt + response, numeric=numeric)",
        TEST_VERIFIABLE,
    ),
    bug(
        "truncated-answer-counts",
        "a response that was cut off earns what its text does",
        VERIFIABLE,
        "value if end and math.isfinite(value) else 0.0",
        "value if math.isfinite(value) else 0.0",
        TEST_VERIFIABLE,
    ),
    bug(
        "failed-rule-leaves-a-gap",
        "a rule that fails gives no reward at all: later rows get their neighbour's",
        VERIFIABLE,
        "        values.append(value if end and math.isfinite(value) else 0.0)\n",
        "        if math.isfinite(value):\n            values.append(value if end else 0.0)\n",
        TEST_VERIFIABLE,
    ),
    bug(
        "answers-compared-as-text",
        "1,000 and 1000 are different answers",
        VERIFIABLE,
        "        return a == b\n",
        "        return given == truth\n",
        TEST_VERIFIABLE,
    ),
    bug(
        "one-of-two-answers",
        "of two announced numbers, 7 or 8, the first one is the answer",
        VERIFIABLE,
        "        if number and not JOINED.match(part, number.end()):",
        "        if number:",
        TEST_VERIFIABLE,
    ),
    bug(
        "either-answer",
        "x = 7 or x = 8 is the answer 8",
        VERIFIABLE,
        "    if EITHER.search(marked):\n        return None\n",
        "",
        TEST_VERIFIABLE,
    ),
    bug(
        "left-of-the-equation",
        "x = 7 has no number, for it does not begin with one",
        VERIFIABLE,
        "EQUALS.split(marked)[-1].lstrip(MARKS)",
        "EQUALS.split(marked)[0].lstrip(MARKS)",
        TEST_VERIFIABLE,
    ),
    bug(
        "latex-is-another-answer",
        "text and fractions are compared with LaTeX's commands around them",
        VERIFIABLE,
        '    text = WRAPPED.sub(r"\\1", FRACTION.sub(r"\\1/\\2", text))\n',
        "",
        TEST_VERIFIABLE,
    ),
    bug(
        "digits-of-every-script",
        "numbers are whatever Decimal reads: nan, inf, 1_000 and digits of every script",
        VERIFIABLE,
        'if not NUMBER.fullmatch(text) or "/" in text:',
        "if not text:",
        TEST_VERIFIABLE,
    ),
    bug(
        "pass-at-k-biased",
        "pass@k is 1 - (1 - c/n)^k, as if samples were put back",
        VERIFIABLE,
        "math.comb(n - c, k) / math.comb(n, k)",
        "((n - c) / n) ** k",
        TEST_VERIFIABLE,
    ),
    # distillation
    bug(
        "mixture-shares-swapped",
        "the student gets the teacher's share of the mixture",
        GENERATE,
        "student + math.log(1 - teacher_share), teacher + math.log(teacher_share)",
        "student + math.log(teacher_share), teacher + math.log(1 - teacher_share)",
        TEST_GENERATE,
    ),
    bug(
        "mixture-as-old-policy",
        "the old log-probs are those of the mixture, and the ratio starts away from 1",
        ROLLOUT,
        "log_probs=sampled.model_log_probs,",
        "log_probs=sampled.log_probs,",
        TEST_MINILLM,
    ),
    bug(
        "minillm-kl-turned-over",
        "the single-step term is the KL of the teacher from the student",
        LOG_PROBS,
        "torch.stack([chosen, entropy, kl_from_logits(logits, other_logits)], dim=1)",
        "torch.stack([chosen, entropy, kl_from_logits(other_logits, logits)], dim=1)",
        TEST_MINILLM,
    ),
    bug(
        "minillm-long-part-unweighted",
        "tokens that the teacher drew count in full in the long part",
        MINILLM,
        "targets.weights * targets.returns,",
        "targets.returns,",
        TEST_MINILLM,
    ),
    bug(
        "minillm-kl-unweighted",
        "tokens that the teacher drew count in full in the single-step part",
        MINILLM,
        "token_loss = targets.weights * token_kl + surrogate",
        "token_loss = token_kl + surrogate",
        TEST_MINILLM,
    ),
    bug(
        "minillm-reward-counted-twice",
        "the return of a token includes its own reward, which the single-step part has already",
        MINILLM,
        "returns = length_normalized_returns(token_rewards, response_mask)",
        "returns = length_normalized_returns(token_rewards, response_mask) + token_rewards",
        TEST_MINILLM,
    ),
    bug(
        "minillm-one-text",
        "every update of a step reads the same pre-training text",
        MINILLM,
        "index = step * config.updates + update",
        "index = step",
        TEST_MINILLM,
    ),
    bug(
        "forward-kl-turned-over",
        "the forward KL of distillation is the reverse KL",
        DISTILLATION,
        "return kl_from_logits(teacher_logits, logits)[:, None]",
        "return kl_from_logits(logits, teacher_logits)[:, None]",
        TEST_DISTILLATION,
    ),
    bug(
        "sampled-targets-unnormalised",
        "the sampled ids keep their probability, which no longer adds up to 1",
        DISTILLATION,
        "return kept / kept.sum(1, keepdim=True)",
        "return kept",
        TEST_DISTILLATION,
    ),
    bug(
        "topk-without-the-vocabulary",
        "log q of the sampled ids is normalised over them alone: the others are not pushed down",
        DISTILLATION,
        "logits.log_softmax(-1).gather(1, ids)",
        "logits.gather(1, ids).log_softmax(-1)",
        TEST_DISTILLATION,
    ),
    # ranks
    bug(
        "ranks-gradients-not-summed",
        "every rank steps along the gradient of its own rows",
        OPTIMIZER,
        "    sum_gradients(parameters)\n",
        "",
        TEST_RANKS,
    ),
    bug(
        "ranks-gradients-averaged",
        "the summed gradient is divided by the number of ranks, though losses have the whole count",
        RANKS,
        "gradient.copy_(whole.view_as(gradient))",
        "gradient.copy_(whole.view_as(gradient) / world())",
        TEST_RANKS,
    ),
    bug(
        "ranks-mean-of-rank-means",
        "each rank's loss is the mean over its own tokens, and the ranks' means are averaged",
        FINETUNING,
        "part = language_model_loss(model, rows, denominator=tokens)",
        "part = language_model_loss(model, rows) / own_part.__globals__['world']()",
        TEST_RANKS,
    ),
    bug(
        "ranks-one-seed-each",
        "each rank draws random numbers of its own",
        COMMON,
        "torch.Generator().manual_seed(derive_seed(seed, concern))",
        'torch.Generator().manual_seed(derive_seed(seed, concern) + int(os.getenv("LOCAL_RANK", "0")))',
        TEST_RANKS,
    ),
    bug(
        "ranks-stop-alone",
        "each rank compares the KL of its own rows with target_kl and leaves the batch alone",
        METRICS,
        'both = total({"kl": kl, "tokens": self.minibatch_tokens})',
        'both = {"kl": kl, "tokens": self.minibatch_tokens}',
        TEST_RANKS,
    ),
    bug(
        "ranks-log-their-own-rows",
        "the logged means are those of the first rank's rows",
        METRICS,
        "        sums = total(sums)\n",
        "",
        TEST_RANKS,
    ),
    bug(
        "ranks-text-read-by-all",
        "every rank adds the gradient of the whole pre-training text",
        PRETRAINING,
        "for rows in own_chunks(text.prompt_lengths + text.lengths, micro_batch_size):",
        "for rows in torch.arange(len(text)).split(micro_batch_size):",
        TEST_RANKS,
    ),
    bug(
        "trust-two-runs-in-one-folder",
        "the lock on a run's folder is not taken",
        RUNS,
        "        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)\n",
        "        pass\n",
        TEST_RUNS,
    ),
    bug(
        "trust-any-folder-is-moved",
        "whatever --out names is moved aside, be it a run or not",
        RUNS,
        "    if earlier != script:\n",
        "    if False:\n",
        TEST_RUNS,
    ),
    bug(
        "trust-another-engine-resumes",
        "a run goes on under another script",
        RUNS,
        "    if started[SCRIPT] != now[SCRIPT]:\n",
        "    if False:\n",
        TEST_RUNS,
    ),
    bug(
        "trust-changed-inputs",
        "a resumed run does not look whether its data is what it was",
        RUNS,
        "        if now[INPUTS].get(name) != digests:\n",
        "        if False:\n",
        TEST_RUNS,
    ),
    bug(
        "trust-state-before-report",
        "the state is deleted when the weights are written, before figure and report",
        RL_RUN,
        "    report(name, config, task, start, rows, folder)\n",
        "    finish_run(folder)\n    report(name, config, task, start, rows, folder)\n",
        TEST_PIPELINE,
    ),
    bug(
        "trust-early-stop-goes-on",
        "a run that stopped early, resumed for its report, trains on",
        RL_RUN,
        "    state.stopped = last and state.step < config.steps\n",
        "    state.stopped = False\n",
        TEST_PIPELINE,
    ),
    bug(
        "trust-checksums-unread",
        "zeroed bytes inside state.pt are loaded",
        COMMON,
        "        if damaged:\n",
        "        if False:\n",
        TEST_LET_IN,
    ),
    bug(
        "trust-diverged-weights-saved",
        "a state with NaN weights replaces the last good one",
        COMMON,
        "                check_weights(name, part, self.step)\n",
        "                pass\n",
        TEST_RUNS,
    ),
    bug(
        "trust-signals-never-insist",
        "a second signal waits for the end of the step too",
        STOP,
        "    if _asked or not _in_steps:\n",
        "    if not _in_steps:\n",
        TEST_STOP,
    ),
    bug(
        "trust-interval-by-rounding",
        "the interval of n in n ends below 1 for some n",
        REPORT,
        "    return max(min(centre - half, p), 0.0), min(max(centre + half, p), 1.0)\n",
        "    return centre - half, centre + half\n",
        TEST_REPORT,
    ),
    bug(
        "ranks-numbers-of-the-first-rows",
        "each rank draws its tokens with the random numbers of the first rows",
        GENERATE,
        "models, prompts[mine], uniforms[rows], params,",
        "models, prompts[mine], uniforms[: rows.stop - rows.start], params,",
        TEST_RANKS,
    ),
    # labelled texts and the models that learn from them
    bug(
        "labelled-sides-swapped",
        "the texts of pos/ are labelled bad",
        LABELLED,
        '(("pos", True), ("neg", False))',
        '(("pos", False), ("neg", True))',
        TEST_LABELLED,
    ),
    bug(
        "labelled-one-side-first",
        "a limit keeps texts of one side alone",
        LABELLED,
        "for index in reversed(range(len(sides))):",
        "for index in [0]:",
        TEST_LABELLED,
    ),
    bug(
        "labelled-limit-counts-dropped",
        "a limit counts the texts that were dropped",
        LABELLED,
        "if len(records) == limit:",
        "if len(records) + sum(dropped.values()) == limit:",
        TEST_LABELLED,
    ),
    Mutation(
        "labelled-twice-with-both-labels",
        "a text that stands there as good and as bad is kept twice",
        (
            Edit(LABELLED, "elif record.text in seen:", "elif record in seen:"),
            Edit(LABELLED, "seen.add(record.text)", "seen.add(record)"),
        ),
        (TEST_LABELLED,),
    ),
    bug(
        "outcome-split-leaks",
        "the held-out texts are among those that are trained on",
        OUTCOME_TRAINING,
        'for split in ("train", "validation")\n        )\n',
        'for split in ("train", "validation")\n        )\n        train = result.records\n',
        f"{TEST_OUTCOMES}::test_no_text_that_is_reported_on_is_trained_on",
    ),
    bug(
        "outcome-known-texts-held-out",
        "a held-out source keeps the texts that were trained on",
        OUTCOME_TRAINING,
        "known=known, limit=config.held_out_texts",
        "limit=config.held_out_texts",
        f"{TEST_OUTCOMES}::test_no_text_that_is_reported_on_is_trained_on",
    ),
    bug(
        "outcome-labels-flipped",
        "a good text has the label 0",
        OUTCOMES,
        "[float(text.label) for text in texts]",
        "[float(not text.label) for text in texts]",
        f"{TEST_OUTCOMES}::test_a_batch_gives_the_first_token_and_scores_the_rest",
    ),
    bug(
        "outcome-cross-entropy-sign",
        "a bad text costs -log sigmoid(R), as a good one",
        PREFERENCE,
        "(1 - labels) * F.logsigmoid(-outcome_scores)",
        "(1 - labels) * F.logsigmoid(outcome_scores)",
        TEST_OUTCOME_LOSS,
    ),
    bug(
        "outcome-micro-batch-denominator",
        "each micro-batch of labelled texts is averaged over its own",
        OUTCOME_TRAINING,
        "outcome_loss(scores, wanted, denominator=len(texts))",
        "outcome_loss(scores, wanted)",
        f"{TEST_OUTCOMES}::test_micro_batches_change_no_gradient",
    ),
    bug(
        "outcome-threshold-of-one-half",
        "log-odds are compared with 0.5, as if they were probabilities",
        OUTCOME_TRAINING,
        "((scores > 0) == (wanted > 0))",
        "((scores > 0.5) == (wanted > 0))",
        f"{TEST_OUTCOMES}::test_loss_and_accuracy_of_a_step_by_hand",
    ),
    bug(
        "outcome-one-piece-a-text",
        "every epoch reads the same piece of a text",
        OUTCOME_TRAINING,
        'derive_seed(config.seed, f"pieces {step}")',
        'derive_seed(config.seed, f"pieces {step % max(len(texts) // config.batch_size, 1)}")',
        f"{TEST_OUTCOMES}::test_it_learns_a_word",
    ),
    bug(
        "outcome-end-never-read",
        "no piece from the middle holds the last token",
        OUTCOMES,
        "last = max(len(tokens) - length, 0)",
        "last = max(len(tokens) - length - 1, 0)",
        f"{TEST_OUTCOMES}::test_pieces_are_neighbouring_tokens_of_every_length_half_from_the_start",
    ),
    bug(
        "outcome-majority-of-the-good",
        "the majority's accuracy is the share of good texts, also below a half",
        OUTCOMES,
        "max(good, count - good) / count",
        "good / count",
        f"{TEST_OUTCOMES}::test_the_majority_may_be_bad",
    ),
    bug(
        "outcome-rival-reads-answers",
        "the n-gram baseline learns from the texts that it is measured on",
        OUTCOMES,
        "NgramRegression().fit(ours, [text.label for text in train])",
        "NgramRegression().fit(theirs, [text.label for text in held_out])",
        f"{TEST_OUTCOMES}::test_the_rival_learns_from_the_training_texts_alone",
    ),
    bug(
        "ngrams-mean",
        "an n-gram score is divided by the number of n-grams, not by its root",
        NGRAMS,
        ".clamp(min=1).sqrt()",
        ".clamp(min=1)",
        TEST_NGRAMS,
    ),
    bug(
        "ngrams-labels-in-file-order",
        "n-gram batches are shuffled, their labels are not",
        NGRAMS,
        "wanted[rows])",
        "wanted[: len(rows)])",
        TEST_NGRAMS,
    ),
    # the tokenizer's training
    bug(
        "bpe-words-counted-once",
        "a merge takes its old pairs away once, however often their word stands there",
        TOKENIZER_TRAINING,
        "changed[old] -= count",
        "changed[old] -= 1",
        TEST_TOKENIZER,
    ),
    bug(
        "bpe-new-pairs-forgotten",
        "words that hold a new pair are not looked at when it is merged",
        TOKENIZER_TRAINING,
        "                holders[new].add(index)\n",
        "",
        TEST_TOKENIZER,
    ),
    bug(
        "bpe-stale-counts",
        "a pair is merged by a count that an earlier merge has lowered",
        TOKENIZER_TRAINING,
        "if count and -count == pairs[pair]:",
        "if count:",
        TEST_TOKENIZER,
    ),
    # best of n, and the study of over-optimisation
    bug(
        "best-of-n-kl-without-its-rest",
        "the KL of the best of n is log n",
        BEST_OF_N,
        "return math.log(n) - (n - 1) / n",
        "return math.log(n)",
        TEST_BEST_OF_N,
    ),
    bug(
        "best-of-n-with-replacement",
        "the n answers are drawn with replacement: biased where n is near N",
        BEST_OF_N,
        "return torch.exp(_log_choose(below, n - 1) - _log_choose(torch.tensor(float(answers)), n))",
        "return ((below + 1) / answers) ** n - (below / answers) ** n",
        TEST_BEST_OF_N,
    ),
    bug(
        "best-of-n-by-gold",
        "the best of n is chosen by the gold reward",
        BEST_OF_N,
        "values.double().gather(1, proxy.argsort(dim=1, stable=True))",
        "values.double().sort(dim=1).values",
        TEST_BEST_OF_N,
    ),
    bug(
        "overopt-d-is-the-kl",
        "the fitted forms take the KL in the place of its root",
        OVEROPT_FITS,
        "d, gain = np.sqrt(kl[far]), gain[far]",
        "d, gain = kl[far], gain[far]",
        TEST_OVEROPT,
    ),
    bug(
        "overopt-gold-not-from-the-start",
        "the forms are fitted to gold itself, which is not 0 at d = 0",
        OVEROPT_RESULTS,
        'runs.append([points["kl"], points["gold"] - points["gold"][:1]])',
        'runs.append([points["kl"], points["gold"]])',
        TEST_OVEROPT,
    ),
    bug(
        "overopt-interpolated-backwards",
        "gold at equal KL weighs the two points the wrong way round",
        OVEROPT_INTERVALS,
        "return (1 - share) * values[after - 1] + share * values[after]",
        "return share * values[after - 1] + (1 - share) * values[after]",
        TEST_OVEROPT,
    ),
    bug(
        "overopt-extrapolated",
        "a run that never got so far has its last gold there",
        OVEROPT_INTERVALS,
        "    if not len(reached):\n        return None\n",
        "    if not len(reached):\n        return values[-1]\n",
        TEST_OVEROPT,
    ),
    bug(
        "bootstrap-without-the-seeds",
        "starts and prompts are drawn again, the seeds are not",
        OVEROPT_INTERVALS,
        "within = rng.integers(seeds, size=(starts, seeds))",
        "within = np.tile(np.arange(seeds), (starts, 1))",
        TEST_OVEROPT,
    ),
    Mutation(
        "bootstrap-prompts-of-each-run",
        "prompts are drawn for each run, as if no two had answered the same",
        (
            Edit(
                OVEROPT_INTERVALS,
                "        asked = rng.integers(prompts, size=prompts)\n        picked",
                "        asked = rng.integers(prompts, size=values.shape)\n        picked",
            ),
            Edit(
                OVEROPT_INTERVALS,
                "values[np.expand_dims(chosen, 1), within][:, :, asked]",
                "np.take_along_axis(values[np.expand_dims(chosen, 1), within], asked, axis=2)",
            ),
        ),
        (TEST_OVEROPT,),
    ),
    bug(
        "bootstrap-fits-of-the-same-runs",
        "a fit's interval knows the prompts and not the runs",
        OVEROPT_INTERVALS,
        "for index in rng.integers(len(runs), size=len(runs)):",
        "for index in range(len(runs)):",
        TEST_OVEROPT,
    ),
    bug(
        "p-value-one-sided",
        "a difference in either direction is looked for, and one counted",
        OVEROPT_INTERVALS,
        "p = min(2 * (beyond + 1) / (len(means) + 1), 1.0)",
        "p = min((beyond + 1) / (len(means) + 1), 1.0)",
        TEST_OVEROPT,
    ),
    bug(
        "holm-falls-again",
        "a larger p-value is corrected to a smaller one",
        OVEROPT_INTERVALS,
        "largest = max(largest, min((len(order) - place) * p_values[name], 1.0))",
        "largest = min((len(order) - place) * p_values[name], 1.0)",
        TEST_OVEROPT,
    ),
    bug(
        "overopt-best-at-windows-edge",
        "the best step is the first of the running mean's window",
        OVEROPT_RESULTS,
        "return int(means.argmax()) + width // 2",
        "return int(means.argmax())",
        TEST_OVEROPT,
    ),
    # film reviews
    bug(
        "imdb-distinct-loses-the-last",
        "distinct-n leaves out the last n-gram of each answer",
        IMDB,
        "range(len(words) - n + 1)",
        "range(len(words) - n)",
        TEST_IMDB,
    ),
    bug(
        "imdb-perplexity-over-padding",
        "the perplexity under the base counts the padding",
        IMDB,
        'row["perplexity"] = math.exp(-float(base.sum() / mask.sum()))',
        'row["perplexity"] = math.exp(-float(base.mean()))',
        TEST_IMDB,
    ),
    bug(
        "imdb-positive-above-one-half",
        "an answer is positive above log-odds of 0.5",
        IMDB,
        "float((values > 0).double().mean())",
        "float((values > 0.5).double().mean())",
        TEST_IMDB,
    ),
    bug(
        "imdb-measured-on-training",
        "the table is measured on prompts that policies were trained on",
        IMDB,
        'self.prompts = prompts["test"][: config.measured]',
        'self.prompts = prompts["train"][: config.measured]',
        TEST_IMDB,
    ),
    bug(
        "imdb-judge-learns-the-rewards",
        "the judge B learns from the labels of the reward A",
        IMDB,
        'texts / "b.jsonl", "--tokenizer"',
        'texts / "a.jsonl", "--tokenizer"',
        TEST_IMDB,
    ),
    bug(
        "imdb-ngrams-learn-the-rewards",
        "the third judge learns from the labels of the reward A",
        IMDB,
        'read_labelled(self.folder / "data" / "b.jsonl")',
        'read_labelled(self.folder / "data" / "a.jsonl")',
        TEST_IMDB,
    ),
    # what a run says about itself
    bug(
        "doctor-spread-for-error",
        "a rise is compared with the spread of single steps, not of their mean",
        DOCTOR,
        "(statistics.variance(first) + statistics.variance(last)) / third)",
        "statistics.variance(first) + statistics.variance(last))",
        f"{TEST_DOCTOR}::test_the_error_of_two_thirds_by_hand",
    ),
    bug(
        "doctor-shorter-is-no-baseline",
        "a reward model that learned to like short answers passes",
        DOCTOR,
        "baseline = max(length, 1 - length)",
        "baseline = length",
        f"{TEST_DOCTOR}::test_a_rule_finds_its_example_and_says_what_it_saw",
    ),
    bug(
        "token-log-td-error-summed",
        "the TD error shown is the sum of all that follow",
        TOKEN_LOG,
        "gae(token_rewards, values, mask, self.gamma, 0.0)",
        "gae(token_rewards, values, mask, self.gamma, 1.0)",
        f"{TEST_TOKEN_LOG}::test_td_errors_by_hand",
    ),
    bug(
        "token-log-clip-turned-over",
        "clip flags are those of pi_old / pi",
        TOKEN_LOG,
        "batch.clip.acted(new, old, advantages, mask)",
        "batch.clip.acted(old, new, advantages, mask)",
        f"{TEST_TOKEN_LOG}::test_a_group_is_recorded_as_it_was_trained_on",
    ),
    bug(
        "token-rows-mean-over-padding",
        "nats per token of a text are divided by the width of the batch",
        TOKEN_ROWS,
        '(values["surprise"].sum(1) / batch.lengths.clamp(min=1)).tolist()',
        'values["surprise"].mean(1).tolist()',
        TEST_TOKEN_ROWS,
    ),
    # the kept models
    bug(
        "kept-cut-instead-of-rounded",
        "8-bit changes are cut towards 0, not rounded",
        KEPT,
        "(change / scale).round().to(torch.int8)",
        "(change / scale).to(torch.int8)",
        f"{TEST_KEPT}::test_a_descendant_survives_storing",
    ),
    bug(
        "kept-one-scale-a-matrix",
        "all rows of a matrix share the scale of the largest",
        KEPT,
        "change.abs().amax(1, keepdim=True)",
        "change.abs().amax().reshape(1, 1)",
        f"{TEST_KEPT}::test_a_descendant_survives_storing",
    ),
    bug(
        "kept-difference-from-float32",
        "a descendant is stored against the base before its bfloat16 rounding",
        KEPT,
        'difference(rounded, trained), "gpt_difference", about',
        'difference(model, trained), "gpt_difference", about',
        f"{TEST_KEPT}::test_what_is_kept_of_a_run_is_what_it_trained",
    ),
)


# --- planting -------------------------------------------------------------------------------------


def planting_errors(mutations: Sequence[Mutation], root: Path) -> list[str]:
    """One sentence for every text to replace that is not there exactly once, and missing tests."""
    errors = []
    for mutation in mutations:
        for edit in mutation.edits:
            path = root / edit.path
            count = path.read_text(encoding="utf-8").count(edit.old) if path.is_file() else 0
            if count != 1:
                errors.append(
                    f"mutation {mutation.name}: {edit.path} holds the text to replace {count} times "
                    f"instead of once: {edit.old!r}"
                )
        for test in mutation.tests:
            file, _, function = test.partition("::")
            if not (root / file).is_file():
                errors.append(f"mutation {mutation.name}: its test file {file} does not exist")
            elif function and f"def {function.partition('[')[0]}(" not in (root / file).read_text(
                "utf-8"
            ):
                errors.append(f"mutation {mutation.name}: its test {test} does not exist")
    return errors


def plant(mutation: Mutation, root: Path) -> None:
    """Put the bug into the copy at `root`."""
    for edit in mutation.edits:
        path = root / edit.path
        text = path.read_text(encoding="utf-8")
        if text.count(edit.old) != 1:
            raise UserError(f"mutation {mutation.name}: {edit.old!r} is not there exactly once")
        path.write_text(text.replace(edit.old, edit.new), encoding="utf-8")


# --- running --------------------------------------------------------------------------------------


def judge(status: int, output: str) -> tuple[str, str]:
    """(result, first failing test or last line). Only a failing test counts as caught."""
    last = (output.strip().splitlines() or ["no output"])[-1]
    if status == TIMED_OUT:
        return "broken", f"no end after {TIMEOUT:.0f} seconds"
    if status == 0:
        return "survived", last
    failed = re.search(r"^FAILED (\S+)", output, flags=re.MULTILINE)
    if status == 1 and failed:
        return "caught", re.sub(r"\[.*", "", failed.group(1))
    return "broken", last


def check(mutation: Mutation, files: Sequence[str], runners: TestRunners) -> Outcome:
    """Plant one bug in a fresh copy and ask the tests."""
    start = time.perf_counter()
    with repository_copy(files) as root:
        plant(mutation, root)
        result, test = judge(*runners.run(root, mutation.tests))
    outcome = Outcome(mutation, result, test, time.perf_counter() - start)
    print(f"{result:9}{mutation.name:32}{outcome.seconds:5.1f} s  {test}", flush=True)
    return outcome


def check_baseline(
    mutations: Sequence[Mutation], files: Sequence[str], runners: TestRunners, pool: Executor
) -> None:
    """The tests must pass without any bug, or catching one would mean nothing."""
    tests = sorted({test for mutation in mutations for test in mutation.tests})
    of_a_file = [list(group) for _, group in groupby(tests, lambda test: test.split("::")[0])]
    with repository_copy(files) as root:
        for status, output in pool.map(lambda group: runners.run(root, group), of_a_file):
            if status:
                raise UserError(f"the tests fail without any mutation:\n{output[-2000:]}")
    print(f"without a mutation the {len(of_a_file)} test files pass", flush=True)


# --- reporting ------------------------------------------------------------------------------------

INTRODUCTION = """# Mutation check

Do the tests notice a wrong line? `scripts/mutation_check.py` plants one known bug at a time into a
copy of the repository and runs the tests that should fail. Many of these bugs have been printed or
released somewhere (docs/equations.md, "Mistakes"). The table is written by the script itself
(`--write-docs`).

"""


def table(outcomes: Sequence[Outcome]) -> str:
    """The outcomes as a Markdown table."""
    rows = [
        "| bug | planted in | what goes wrong | result | first test that fails |",
        "|---|---|---|---|---|",
    ]
    for outcome in outcomes:
        mutation = outcome.mutation
        test = f"`{outcome.test}`" if outcome.result == "caught" else ""
        where = f"`{mutation.edits[0].path}`"
        rows.append(f"| {mutation.name} | {where} | {mutation.what} | {outcome.result} | {test} |")
    return "\n".join(rows)


def summary(outcomes: Sequence[Outcome]) -> str:
    caught = sum(outcome.result == "caught" for outcome in outcomes)
    return f"{caught} of {len(outcomes)} planted bugs are caught."


@dataclass(frozen=True)
class MutationCheckConfig:
    """Plant known bugs one at a time in a copy of the repository and report which tests fail."""

    only: tuple[str, ...] = ()
    """Names of the mutations to try; default: all."""
    list: bool = False
    """Print the names and what they do, and run nothing."""
    jobs: int = 2
    """Mutations at a time; each runs one single-threaded pytest."""
    write_docs: bool = False
    """Write the table to docs/mutation_check.md (only with all mutations)."""

    def __post_init__(self) -> None:
        check_ranges(self)


def selected(only: Sequence[str]) -> list[Mutation]:
    """The named mutations in their order here, or all."""
    unknown = sorted(set(only) - {mutation.name for mutation in MUTATIONS})
    if unknown:
        raise UserError(f"there is no mutation {', '.join(unknown)}: --list prints their names")
    return [mutation for mutation in MUTATIONS if not only or mutation.name in only]


def main(config: MutationCheckConfig) -> None:
    """Check the selected mutations; the process ends with status 1 unless all are caught."""
    mutations = selected(config.only)
    if config.list:
        for mutation in mutations:
            print(f"{mutation.name:40}{mutation.edits[0].path:36}{mutation.what}")
        return
    if config.write_docs and config.only:
        raise UserError("--write-docs needs all mutations: leave --only out")
    errors = planting_errors(mutations, ROOT)
    if errors:
        raise UserError("\n".join(errors))
    files, start = repository_files(), time.perf_counter()
    with closing(TestRunners()) as runners, ThreadPoolExecutor(config.jobs) as pool:
        check_baseline(mutations, files, runners, pool)
        outcomes = list(pool.map(lambda mutation: check(mutation, files, runners), mutations))
    print(f"\n{table(outcomes)}\n\n{summary(outcomes)} ({time.perf_counter() - start:.0f} s)")
    if config.write_docs:
        DOCS.write_text(
            f"{INTRODUCTION}{summary(outcomes)}\n\n{table(outcomes)}\n", encoding="utf-8"
        )
    if any(outcome.result != "caught" for outcome in outcomes):
        sys.exit(1)


if __name__ == "__main__":
    import tyro

    run_script(main, tyro.cli(MutationCheckConfig))
