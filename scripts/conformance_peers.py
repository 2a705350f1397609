"""Public code bases, checked: `python scripts/conformance_peers.py --clones FOLDER`.

FOLDER holds your own clones, one folder each, at the commits below. Nothing of them is copied here: an
adapter calls functions of a clone's files by name, without importing the rest of the library.
"""

from __future__ import annotations

import ast
import sys
from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from inspect import isfunction
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import torch
import torch.nn.functional as F

from harness.command_line import run_command
from harness.paths import REPOSITORY

sys.path.append(str(REPOSITORY))  # the kit is no package of an installation

from conformance.__main__ import told
from conformance.checking import Unusable


class Library:
    """A public code base. An adapter is a method; what the library's files define are its attributes.

    They are run with torch alone, without decorators and annotations; what needs more is left out. Of
    two definitions of a name the first file's is taken.
    """

    folder: str  # its clone
    where: str
    commit: str
    files: tuple[str, ...]

    def __init__(self, clones: Path) -> None:
        names = SimpleNamespace
        self.found: dict[str, Any] = {"torch": torch, "F": F, "nn": torch.nn, "verl_F": self}
        self.found |= {"defaultdict": defaultdict, "partial": partial, "SimpleNamespace": names}
        self.found |= {"LossFunction": object, "Optional": None, "AlgoConfig": int}
        self.found |= {"LossType": names(TOKEN_LEVEL=0), "LossInputType": names(LOGIT=0)}
        self.found |= {"LossOutputs": names}
        for file in reversed(self.files):
            path = clones / self.folder / file
            if not path.is_file():
                raise Unusable(f"there is no {path}: clone {self.where}")
            top = ast.parse(path.read_text("utf-8")).body
            methods = [node for kind in top if isinstance(kind, ast.ClassDef) for node in kind.body]
            for node in [*methods, *top]:
                if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                    self.define(node)

    def define(self, node: ast.FunctionDef | ast.ClassDef) -> None:
        kept = {"staticmethod", "dataclass"} if isinstance(node, ast.ClassDef) else set()
        node.decorator_list = [d for d in node.decorator_list if ast.unparse(d) in kept]
        module, flags = ast.Module([node], []), annotations.compiler_flag
        with suppress(Exception):
            exec(compile(module, self.folder, "exec", flags, dont_inherit=True), self.found)

    def __getattr__(self, name: str) -> Any:
        if name not in self.found:
            raise AttributeError(f"there is no {name} in its files: is it another commit?")
        return self.found[name]


@dataclass(frozen=True)
class PeersConfig:
    """Check public code bases."""

    clones: Path | None = None
    """Your clones, one folder each. Without it the commands that make them are printed."""
    only: tuple[str, ...] = ()
    """Libraries, or adapters; all of them where none is named."""


def main(config: PeersConfig) -> None:
    for library in Library.__subclasses__():
        if config.clones is None:
            print(f"git clone https://github.com/{library.where} {library.folder}")
            print(f"git -C {library.folder} checkout {library.commit}")
            continue
        for adapter in [name for name, value in vars(library).items() if isfunction(value)]:
            name = f"{library.__name__.lower()}_{adapter}"
            if not config.only or {name, library.folder} & {*config.only}:
                load = lambda: getattr(library(config.clones), adapter)  # noqa: B023,E731
                print(told(name, load)[1].replace("\n", "\n    "))


# --- adapters ---------------------------------------------------------------------------------------


class Settings(SimpleNamespace):
    """Settings by attribute and by `get`, as configuration libraries give them."""

    global_batch_info: dict[str, Any] = {}

    def get(self, name: str, default: Any) -> Any:
        return getattr(self, name, default)


def grouped_by_index(self, rewards, group_size):
    index = [i // group_size for i in range(len(rewards))]
    mask = torch.ones(len(rewards), 1)
    return self.compute_grpo_outcome_advantage(rewards[:, None].clone(), mask, index)[0]


class Trl(Library):
    folder, where, commit = "trl", "huggingface/trl", "f2cd57710ae3"
    files = (
        "trl/trainer/grpo_trainer.py",
        "trl/trainer/utils.py",
        "trl/experimental/ppo/ppo_trainer.py",
    )

    def log_probs(self, logits, tokens, temperature):
        return self.selective_log_softmax(logits[:, :-1] / temperature, tokens[:, 1:])

    def whiten(self, x, mask):
        return self.masked_whiten(x, mask)

    def policy_loss(self, log_probs, old_log_probs, advantages, clip_low, clip_high, mask):
        trainer = MagicMock(top_entropy_quantile=1.0, importance_sampling_level="token", beta=0.0)
        trainer.configure_mock(
            loss_type="grpo", epsilon_low=clip_low, epsilon_high=clip_high, use_vllm=False
        )
        trainer.configure_mock(off_policy_mask_threshold=None, _entropy_bonus_enabled=False)
        trainer.configure_mock(current_gradient_accumulation_steps=1, aux_loss_enabled=False)
        trainer.args.delta = None
        trainer.accelerator.configure_mock(gather=lambda x: x, reduce=lambda x, reduction: x)
        trainer._get_per_token_logps_and_entropies.return_value = (log_probs, 0 * log_probs, None)
        ids = torch.zeros_like(mask, dtype=torch.long)
        batch = dict(prompt_ids=ids, prompt_mask=mask, completion_ids=ids, completion_mask=mask)
        return self._compute_loss(
            trainer, None, {**batch, "advantages": advantages, "old_per_token_logps": old_log_probs}
        )


class Verl(Library):
    folder, where, commit = "verl", "volcengine/verl", "b178a3cd56f5"
    files = (
        "verl/trainer/ppo/core_algos.py",
        "verl/utils/torch_functional.py",
    )

    def policy_loss(self, log_probs, old_log_probs, advantages, clip_low, clip_high, mask):
        config = Settings(clip_ratio=clip_low, clip_ratio_low=clip_low, clip_ratio_high=clip_high)
        return self.compute_policy_loss_vanilla(
            old_log_probs, log_probs, advantages, mask, config=config
        )

    def gae(self, rewards, values, mask, gamma, lam):
        return self.compute_gae_advantage_return(rewards, values, mask.long(), gamma, lam)

    def returns(self, rewards, values, mask, gamma, lam):
        return self.compute_gae_advantage_return(rewards, values, mask.long(), gamma, lam)[1]

    def value_loss(self, values, old_values, returns, clip, mask):
        return self.compute_value_loss(values, returns, old_values, mask, clip)

    def reducer(self, loss, mask, batch_num_tokens=None):
        return self.agg_loss(loss, mask, "token-mean", batch_num_tokens=batch_num_tokens)

    def norm_reducer(self, loss, mask):
        return self.agg_loss(loss, mask, "seq-mean-token-sum-norm")

    def kl_loss(self, log_probs, ref_log_probs):
        return self.kl_penalty(log_probs, ref_log_probs, "low_var_kl")

    advantages = grouped_by_index

    def response_mask(self, tokens, eos_id):
        return self.get_response_mask(tokens, eos_id)


class Openrlhf(Library):
    folder, where, commit = "openrlhf", "OpenRLHF/OpenRLHF", "3c3be6234e0c"
    files = (
        "openrlhf/models/loss.py",
        "openrlhf/models/utils.py",
        "openrlhf/trainer/ppo_utils/experience_maker.py",
    )

    def policy_loss(self, log_probs, old_log_probs, advantages, clip_low, clip_high, mask):
        return self.PolicyLoss(clip_low, clip_high)(log_probs, old_log_probs, advantages, mask)

    def value_loss(self, values, old_values, returns, clip, mask):
        return self.ValueLoss(clip)(values, old_values, returns, mask)

    def reducer(self, loss, mask, batch_num_tokens=None):
        return self.aggregate_loss(loss, mask, batch_num_tokens=batch_num_tokens)

    def preference_loss(self, policy_chosen, policy_rejected, ref_chosen, ref_rejected, beta):
        return self.DPOLoss(beta)(policy_chosen, policy_rejected, ref_chosen, ref_rejected)

    def kl_loss(self, log_probs, ref_log_probs):
        return self.compute_approx_kl(log_probs, ref_log_probs, "k3")

    def token_rewards(self, scores, log_probs, ref_log_probs, mask, kl_coef):
        return self.compute_reward(
            scores, kl_coef, self.compute_approx_kl(log_probs, ref_log_probs), mask
        )

    def log_probs(self, logits, tokens, temperature):
        return self.log_probs_from_logits(logits[:, :-1].clone(), tokens[:, 1:], temperature)

    def gae(self, rewards, values, mask, gamma, lam):
        return self.get_advantages_and_returns(None, values, rewards, mask, gamma, lam)


class Book(Library):
    folder, where, commit = "rlhf-book", "natolambert/rlhf-book", "a66b0bf1103b"
    files = (
        "code/policy_gradients/loss.py",
        "code/policy_gradients/utils.py",
    )

    def kl3_kl_loss(self, log_probs, ref_log_probs, mask):
        return self.approx_kl3(log_probs, ref_log_probs, mask)

    def kl2_kl_loss(self, log_probs, ref_log_probs, mask):
        return self.approx_kl2(log_probs, ref_log_probs, mask)

    def kl1_kl_reward(self, log_probs, ref_log_probs, mask):
        return self.approx_kl1(log_probs, ref_log_probs, mask)

    def policy_loss(self, log_probs, old_log_probs, advantages, clip_low, clip_high, mask):
        batch = SimpleNamespace(
            log_probs_old=old_log_probs, advantages=advantages, action_mask=mask
        )
        return self.GRPOLoss(clip_low, clip_high, 0.0, "kl3")(log_probs, batch)

    def advantages(self, rewards, group_size):
        return self.compute_loo_advantages(rewards.view(-1, group_size).T).T.reshape(-1)


class Prime(Library):
    folder, where, commit = "prime-rl", "PrimeIntellect-ai/prime-rl", "559b44772e47"
    files = ("src/prime_rl/trainer/rl/loss.py",)

    def policy_loss(self, log_probs, old_log_probs, advantages, clip_low, clip_high, mask):
        batch = SimpleNamespace(
            trainer_logprobs=log_probs, inference_logprobs=old_log_probs, advantages=advantages
        )
        batch.loss_mask, batch.loss_weights = mask, None
        config = SimpleNamespace(
            dppo_mask_low=clip_low, dppo_mask_high=clip_high, adv_tau=1.0, kl_tau=0.0
        )
        return self.default_loss_fn(batch, config).loss


class Slime(Library):
    folder, where, commit = "slime", "THUDM/slime", "624b824a898a"
    files = (
        "slime/utils/ppo_utils.py",
        "slime/backends/megatron_utils/loss.py",
    )

    def policy_loss(self, log_probs, old_log_probs, advantages, clip_low, clip_high):
        return self.compute_policy_loss(old_log_probs - log_probs, advantages, clip_low, clip_high)

    def cispo_policy_loss(self, log_probs, old_log_probs, advantages, clip_low, clip_high):
        return self.compute_cispo_loss(
            old_log_probs - log_probs, log_probs, advantages, clip_low, clip_high
        )

    def kl_loss(self, log_probs, ref_log_probs):
        return self.compute_approx_kl(log_probs, ref_log_probs, "low_var_kl")

    def gae(self, rewards, values, mask, gamma, lam):
        return self.vanilla_gae(*(torch.where(mask, x, 0.0) for x in (rewards, values)), gamma, lam)

    def correction(self, old_log_probs, sampler_log_probs, cap):
        args = SimpleNamespace(tis_clip=cap, tis_clip_low=0.0)
        given = dict(
            train_log_probs=list(old_log_probs),
            rollout_log_probs=list(sampler_log_probs),
            loss_masks=[],
        )
        weights, *_ = self.vanilla_tis_function(
            args, pg_loss=torch.ones(old_log_probs.numel()), **given
        )
        return weights.view(old_log_probs.shape)


class Skyrl(Library):
    folder, where, commit = "skyrl", "NovaSky-AI/SkyRL", "a9564572eb8e"
    files = (
        "skyrl/backends/skyrl_train/utils/ppo_utils.py",
        "skyrl/backends/skyrl_train/utils/off_policy_correction_utils.py",
        "skyrl/backends/skyrl_train/utils/torch_utils.py",
    )

    def gae(self, rewards, values, mask, gamma, lam):
        clean = [torch.where(mask, x, 0.0) for x in (rewards, values)]
        return self.compute_gae_advantage_return(*clean, mask, gamma, lam)

    def as_it_comes_returns(self, rewards, values, mask, gamma, lam):
        return self.compute_gae_advantage_return(rewards, values, mask, gamma, lam)[1]

    def value_loss(self, values, old_values, returns, clip, mask):
        return self.ppo_critic_loss(
            values, old_values, returns, SimpleNamespace(value_clip=clip), mask
        )

    def kl_loss(self, log_probs, ref_log_probs, mask):
        return self.compute_approx_kl(log_probs, ref_log_probs, mask)

    advantages = grouped_by_index

    def correction(self, old_log_probs, sampler_log_probs, cap, mask):
        config = SimpleNamespace(token_tis_ratio_clip_high=cap)
        return self.compute_tis_ratio(old_log_probs, sampler_log_probs, mask, "token", config)


class Nemo(Library):
    folder, where, commit = "nemo-rl", "NVIDIA-NeMo/RL", "7ea279abfbeb"
    files = (
        "nemo_rl/algorithms/utils.py",
        "nemo_rl/algorithms/loss/loss_functions.py",
        "nemo_rl/algorithms/advantage_estimator.py",
    )

    def kl_loss(self, log_probs, ref_log_probs):
        return self.calculate_kl(log_probs, ref_log_probs)

    def value_loss(self, values, old_values, returns, clip, mask):
        batch = dict(
            token_mask=mask, sample_mask=torch.ones(len(mask)), returns=returns, values=old_values
        )
        function = self.MseValueLossFn(SimpleNamespace(scale=1.0, cliprange=clip))
        return function(values, batch, mask.any(1).sum(), mask.sum())

    def gae(self, rewards, values, mask, gamma, lam):
        return self._compute_gae(
            SimpleNamespace(gae_gamma=gamma), rewards, values, mask.long(), lam
        )


class Quest(Library):
    folder, where, commit = "llm-quest", "casinca/LLM-quest", "e7ab4635c5f4"
    files = (
        "llm_quest/alignment/rlhf_grpo/grpo_engine.py",
        "llm_quest/alignment/dpo/dpo.py",
    )

    def policy_loss(self, log_probs, old_log_probs, advantages, clip_low, clip_high, mask):
        ratio, zero = (log_probs - old_log_probs).exp(), torch.zeros_like(log_probs)
        surrogate = -self.GRPOLoss._compute_clipped_surrogate(
            ratio, advantages, clip_low, clip_high
        )
        return self.GRPOLoss._aggregate(
            torch.where(mask, surrogate, zero), mask, len(mask), 1, "grpo"
        )

    def kl_loss(self, log_probs, ref_log_probs):
        return self.kl_div_per_token(log_probs, ref_log_probs)

    def advantages(self, rewards, group_size):
        self.z_scores.__globals__["config"] = SimpleNamespace(use_phantom_reward=False)
        return self.z_scores(rewards, group_size)

    def preference_loss(self, policy_chosen, policy_rejected, ref_chosen, ref_rejected, beta):
        dpo = SimpleNamespace(beta=beta, label_smoothing=0.0)
        return self.compute_loss(dpo, policy_chosen, policy_rejected, ref_chosen, ref_rejected)

    def log_probs(self, logits, tokens, mask):
        return self.compute_logprobs(
            None, logits, tokens, torch.cat([mask[:, :1] & False, mask], 1)
        )


class Reasoning(Library):
    folder, where, commit = "reasoning-from-scratch", "rasbt/reasoning-from-scratch", "f79c9cd0ae7d"
    files = ("reasoning_from_scratch/ch07.py",)

    def advantages(self, rewards, group_size):
        return torch.cat(
            [self.compute_advantage_stats(g.tolist())[0] for g in rewards.view(-1, group_size)]
        )

    def log_probs(self, logits, tokens, mask):
        rows = []
        for row, ids, valid in zip(logits, tokens, mask, strict=True):
            first, count = int(valid.long().argmax()) + 1, int(valid.sum())
            cut = slice(0, first + count)  # prompt and response, without padding
            model = partial(lambda _, logits: logits[None], logits=row[cut])
            rows.append(self.sequence_logprob_and_entropy(model, ids[cut], first)[0])
        return torch.stack(rows)


class Details(Library):
    folder, where, commit = (
        "lm-human-preference-details",
        "vwxyzjn/lm-human-preference-details",
        "ccc19538e817",
    )
    files = ("lm_human_preference_details/train_policy_accelerate.py",)

    def whiten(self, x, mask):
        placed = torch.zeros_like(x)
        placed[mask] = self.found["whiten"](x[mask])
        return placed


class Dpo(Library):
    folder, where, commit = (
        "direct-preference-optimization",
        "eric-mitchell/direct-preference-optimization",
        "f8b8c0f49dc9",
    )
    files = ("trainers.py",)

    def preference_loss(self, policy_chosen, policy_rejected, ref_chosen, ref_rejected, beta):
        return self.found["preference_loss"](
            policy_chosen, policy_rejected, ref_chosen, ref_rejected, beta
        )

    def log_probs(self, logits, tokens, mask):
        labels = torch.where(torch.cat([mask[:, :1] & False, mask], 1), tokens, -100)
        return self._get_batch_logps(logits, labels)


if __name__ == "__main__":
    run_command(main, PeersConfig)
