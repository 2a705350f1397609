"""Public code bases, checked: `python scripts/conformance_peers.py --clones FOLDER`.

FOLDER holds your own clones, one folder each, at the commits below. Nothing of them is copied here: an
adapter takes functions by name out of a file of the clone, without importing the rest of the library.
"""

from __future__ import annotations

import ast
import sys
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import torch
import torch.nn.functional as F

from harness.command_line import run_command
from harness.paths import REPOSITORY

sys.path.append(str(REPOSITORY))  # the kit is no package of an installation

from conformance.__main__ import kind_of, text_of
from conformance.checking import Unusable, check


@dataclass(frozen=True)
class Repository:
    where: str
    commit: str


REPOSITORIES = {
    "trl": Repository("huggingface/trl", "f2cd57710ae345ea6428ae95363267fcf38a3dc8"),
    "verl": Repository("volcengine/verl", "b178a3cd56f58b2d502255daba591e92833930a7"),
    "openrlhf": Repository("OpenRLHF/OpenRLHF", "3c3be6234e0cb353e76bb8019947db9dfe99fca7"),
    "rlhf-book": Repository("natolambert/rlhf-book", "a66b0bf1103b590511e0503a2e9d93faea939a49"),
    "prime-rl": Repository(
        "PrimeIntellect-ai/prime-rl", "559b44772e471d1538537b8805cc77f3824a5e64"
    ),
    "slime": Repository("THUDM/slime", "624b824a898ab0ec1fcb4d373004c7f3852bf515"),
    "skyrl": Repository("NovaSky-AI/SkyRL", "a9564572eb8e91076be43c1bd5e4615e3de17265"),
    "nemo-rl": Repository("NVIDIA-NeMo/RL", "7ea279abfbeb698b092856d0dab61e7cf39bc909"),
    "llm-quest": Repository("casinca/LLM-quest", "e7ab4635c5f447ae93bf8f536625d81e9700e485"),
    "reasoning-from-scratch": Repository(
        "rasbt/reasoning-from-scratch", "f79c9cd0ae7d824aa4e9a9bc2ca4a85167f81958"
    ),
    "lm-human-preference-details": Repository(
        "vwxyzjn/lm-human-preference-details", "ccc19538e817e98a60d3253242ac15e2a562cb49"
    ),
    "direct-preference-optimization": Repository(
        "eric-mitchell/direct-preference-optimization", "f8b8c0f49dc92a430bae41585f9d467d3618fe2f"
    ),
}
ADAPTERS: dict[str, tuple[str, str, str, Callable[..., Any]]] = {}


def adapter(
    library: str, file: str, names: str
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """An adapter, whose first argument is what was taken: functions under their own names."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        ADAPTERS[function.__name__] = (library, file, names, function)
        return function

    return register


def taken(path: Path, names: str) -> dict[str, Any]:
    """Functions and classes of a file by name, run with torch alone, without their decorators."""
    wanted = names.split()
    found: dict[str, Any] = {"torch": torch, "F": F, "nn": torch.nn, "defaultdict": defaultdict}
    found |= {"LossFunction": object, "LossType": SimpleNamespace(TOKEN_LEVEL=0), "Optional": None}
    found |= {
        "LossInputType": SimpleNamespace(LOGIT=0),
        "partial": partial,
        "SimpleNamespace": SimpleNamespace,
    }
    flags = annotations.compiler_flag  # annotations stay text
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and node.name in wanted:
            kept = {"staticmethod", "dataclass"} if isinstance(node, ast.ClassDef) else set()
            node.decorator_list = [d for d in node.decorator_list if ast.unparse(d) in kept]
            code = compile(
                ast.Module([node], []), str(path), "exec", flags=flags, dont_inherit=True
            )
            exec(code, found)
    missing = [name for name in wanted if name not in found]
    if missing:
        raise Unusable(f"{path} has no {', '.join(missing)}: is it another commit?")
    return found


@dataclass(frozen=True)
class PeersConfig:
    """Check public code bases."""

    clones: Path | None = None
    """Your clones, one folder each. Without it the commands that make them are printed."""
    only: tuple[str, ...] = ()
    """Libraries, or adapters; all of them where none is named."""


def main(config: PeersConfig) -> None:
    folder, chosen = config.clones, config.only
    if folder is None:
        for name, repository in REPOSITORIES.items():
            print(f"git clone https://github.com/{repository.where} {name}")
            print(f"git -C {name} checkout {repository.commit}")
        return
    for name, (library, file, names, function) in ADAPTERS.items():
        if chosen and not any(c in (name, library) for c in chosen):
            continue
        try:
            paths = [folder / library / part for part in file.split()]
            if not all(path.is_file() for path in paths):
                raise Unusable(f"there is no {paths[0]}: clone {REPOSITORIES[library].where}")
            spaces = [
                taken(path, part) for path, part in zip(paths, names.split(" | "), strict=True)
            ]
            for space in spaces:  # what stands in another file, by name
                for other in spaces:
                    space.update({k: v for k, v in other.items() if k not in space})
            lib = SimpleNamespace(**spaces[0])
            kind = kind_of(function, name)
            print(
                text_of(name, kind, check(partial(function, lib), kind, label=name)).replace(
                    "\n", "\n    "
                )
            )
        except Unusable as error:
            print(f"not checked: {name}: {error}.")


# --- adapters ---------------------------------------------------------------------------------------


@adapter("trl", "trl/trainer/utils.py", "selective_log_softmax")
def trl_log_probs(lib, logits, tokens, temperature):
    return lib.selective_log_softmax(logits[:, :-1] / temperature, tokens[:, 1:])


@adapter("trl", "trl/experimental/ppo/ppo_trainer.py", "masked_mean masked_var masked_whiten")
def trl_whiten(lib, x, mask):
    return lib.masked_whiten(x, mask)


@adapter("trl", "trl/trainer/grpo_trainer.py trl/trainer/utils.py", "_compute_loss | nanmin nanmax")
def trl_policy_loss(lib, log_probs, old_log_probs, advantages, clip_low, clip_high, mask):
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
    return lib._compute_loss(
        trainer, None, {**batch, "advantages": advantages, "old_per_token_logps": old_log_probs}
    )


CORE = "verl/trainer/ppo/core_algos.py verl/utils/torch_functional.py"


@adapter("verl", CORE, "compute_policy_loss_vanilla agg_loss | masked_sum masked_mean")
def verl_policy_loss(lib, log_probs, old_log_probs, advantages, clip_low, clip_high, mask):
    config = Settings(clip_ratio=clip_low, clip_ratio_low=clip_low, clip_ratio_high=clip_high)
    lib.compute_policy_loss_vanilla.__globals__.update(verl_F=lib, AlgoConfig=int)
    return lib.compute_policy_loss_vanilla(
        old_log_probs, log_probs, advantages, mask, config=config
    )


class Settings(SimpleNamespace):
    """Settings by attribute and by `get`, as configuration libraries give them."""

    global_batch_info: dict[str, Any] = {}

    def get(self, name: str, default: Any) -> Any:
        return getattr(self, name, default)


@adapter(
    "verl", CORE, "compute_gae_advantage_return | masked_sum masked_mean masked_var masked_whiten"
)
def verl_gae(lib, rewards, values, mask, gamma, lam):
    lib.compute_gae_advantage_return.__globals__.update(verl_F=lib)
    return lib.compute_gae_advantage_return(rewards, values, mask.long(), gamma, lam)


@adapter(
    "verl", CORE, "compute_gae_advantage_return | masked_sum masked_mean masked_var masked_whiten"
)
def verl_returns(lib, rewards, values, mask, gamma, lam):
    lib.compute_gae_advantage_return.__globals__.update(verl_F=lib)
    return lib.compute_gae_advantage_return(rewards, values, mask.long(), gamma, lam)[1]


@adapter("verl", CORE, "compute_value_loss agg_loss | masked_sum masked_mean clip_by_value")
def verl_value_loss(lib, values, old_values, returns, clip, mask):
    for function in (lib.compute_value_loss, lib.agg_loss):
        function.__globals__.update(verl_F=lib)
    return lib.compute_value_loss(values, returns, old_values, mask, clip)


@adapter("verl", CORE, "agg_loss | masked_sum")
def verl_reducer(lib, loss, mask, batch_num_tokens=None):
    lib.agg_loss.__globals__.update(verl_F=lib)
    return lib.agg_loss(loss, mask, "token-mean", batch_num_tokens=batch_num_tokens)


@adapter("verl", CORE, "agg_loss | masked_sum")
def verl_norm_reducer(lib, loss, mask):
    return lib.agg_loss(loss, mask, "seq-mean-token-sum-norm")


@adapter("verl", "verl/trainer/ppo/core_algos.py", "kl_penalty kl_penalty_forward")
def verl_kl_loss(lib, log_probs, ref_log_probs):
    return lib.kl_penalty(log_probs, ref_log_probs, "low_var_kl")


@adapter("verl", "verl/trainer/ppo/core_algos.py", "compute_grpo_outcome_advantage")
def verl_advantages(lib, rewards, group_size):
    index = [i // group_size for i in range(len(rewards))]
    return lib.compute_grpo_outcome_advantage(
        rewards[:, None].clone(), torch.ones(len(rewards), 1), index
    )[0]


@adapter("verl", "verl/utils/torch_functional.py", "get_response_mask")
def verl_response_mask(lib, tokens, eos_id):
    return lib.get_response_mask(tokens, eos_id)


LOSS = "openrlhf/models/loss.py openrlhf/models/utils.py"


@adapter("openrlhf", LOSS, "PolicyLoss aggregate_loss | masked_mean")
def openrlhf_policy_loss(lib, log_probs, old_log_probs, advantages, clip_low, clip_high, mask):
    return lib.PolicyLoss(clip_low, clip_high)(log_probs, old_log_probs, advantages, mask)


@adapter("openrlhf", LOSS, "ValueLoss aggregate_loss | masked_mean")
def openrlhf_value_loss(lib, values, old_values, returns, clip, mask):
    return lib.ValueLoss(clip)(values, old_values, returns, mask)


@adapter("openrlhf", LOSS, "aggregate_loss | masked_mean")
def openrlhf_reducer(lib, loss, mask, batch_num_tokens=None):
    return lib.aggregate_loss(loss, mask, batch_num_tokens=batch_num_tokens)


@adapter("openrlhf", "openrlhf/models/loss.py", "DPOLoss")
def openrlhf_preference_loss(lib, policy_chosen, policy_rejected, ref_chosen, ref_rejected, beta):
    return lib.DPOLoss(beta)(policy_chosen, policy_rejected, ref_chosen, ref_rejected)


@adapter("openrlhf", "openrlhf/models/utils.py", "compute_approx_kl")
def openrlhf_kl_loss(lib, log_probs, ref_log_probs):
    return lib.compute_approx_kl(log_probs, ref_log_probs, "k3")


@adapter("openrlhf", "openrlhf/models/utils.py", "compute_reward compute_approx_kl")
def openrlhf_token_rewards(lib, scores, log_probs, ref_log_probs, mask, kl_coef):
    return lib.compute_reward(
        scores, kl_coef, lib.compute_approx_kl(log_probs, ref_log_probs), mask
    )


@adapter("openrlhf", "openrlhf/models/utils.py", "log_probs_from_logits _logsumexp_by_chunk")
def openrlhf_log_probs(lib, logits, tokens, temperature):
    return lib.log_probs_from_logits(logits[:, :-1].clone(), tokens[:, 1:], temperature)


@adapter("openrlhf", "openrlhf/trainer/ppo_utils/experience_maker.py", "get_advantages_and_returns")
def openrlhf_gae(lib, rewards, values, mask, gamma, lam):
    return lib.get_advantages_and_returns(None, values, rewards, mask, gamma, lam)


BOOK = "code/policy_gradients/loss.py"


@adapter("rlhf-book", BOOK, "approx_kl3")
def book_kl3_kl_loss(lib, log_probs, ref_log_probs, mask):
    return lib.approx_kl3(log_probs, ref_log_probs, mask)


@adapter("rlhf-book", BOOK, "approx_kl2")
def book_kl2_kl_loss(lib, log_probs, ref_log_probs, mask):
    return lib.approx_kl2(log_probs, ref_log_probs, mask)


@adapter("rlhf-book", BOOK, "approx_kl1")
def book_kl1_kl_reward(lib, log_probs, ref_log_probs, mask):
    return lib.approx_kl1(log_probs, ref_log_probs, mask)


@adapter("rlhf-book", BOOK, "GRPOLoss masked_mean")
def book_policy_loss(lib, log_probs, old_log_probs, advantages, clip_low, clip_high, mask):
    batch = SimpleNamespace(log_probs_old=old_log_probs, advantages=advantages, action_mask=mask)
    return lib.GRPOLoss(clip_low, clip_high, 0.0, "kl3")(log_probs, batch)


@adapter("rlhf-book", "code/policy_gradients/utils.py", "compute_loo_advantages")
def book_advantages(lib, rewards, group_size):
    return lib.compute_loo_advantages(rewards.view(-1, group_size).T).T.reshape(-1)


@adapter(
    "prime-rl",
    "src/prime_rl/trainer/rl/loss.py",
    "default_loss_fn compute_importance_ratio_and_mismatch_kl _safe_mean",
)
def prime_policy_loss(lib, log_probs, old_log_probs, advantages, clip_low, clip_high, mask):
    lib.default_loss_fn.__globals__["LossOutputs"] = SimpleNamespace
    batch = SimpleNamespace(
        trainer_logprobs=log_probs, inference_logprobs=old_log_probs, advantages=advantages
    )
    batch.loss_mask, batch.loss_weights = mask, None
    config = SimpleNamespace(
        dppo_mask_low=clip_low, dppo_mask_high=clip_high, adv_tau=1.0, kl_tau=0.0
    )
    return lib.default_loss_fn(batch, config).loss


@adapter("slime", "slime/utils/ppo_utils.py", "compute_policy_loss")
def slime_policy_loss(lib, log_probs, old_log_probs, advantages, clip_low, clip_high):
    return lib.compute_policy_loss(old_log_probs - log_probs, advantages, clip_low, clip_high)


@adapter("slime", "slime/utils/ppo_utils.py", "compute_cispo_loss")
def slime_cispo_policy_loss(lib, log_probs, old_log_probs, advantages, clip_low, clip_high):
    return lib.compute_cispo_loss(
        old_log_probs - log_probs, log_probs, advantages, clip_low, clip_high
    )


@adapter("slime", "slime/utils/ppo_utils.py", "compute_approx_kl")
def slime_kl_loss(lib, log_probs, ref_log_probs):
    return lib.compute_approx_kl(log_probs, ref_log_probs, "low_var_kl")


@adapter("slime", "slime/utils/ppo_utils.py", "vanilla_gae")
def slime_gae(lib, rewards, values, mask, gamma, lam):
    return lib.vanilla_gae(*(torch.where(mask, x, 0.0) for x in (rewards, values)), gamma, lam)


@adapter("slime", "slime/backends/megatron_utils/loss.py", "vanilla_tis_function")
def slime_correction(lib, old_log_probs, sampler_log_probs, cap):
    args = SimpleNamespace(tis_clip=cap, tis_clip_low=0.0)
    given = dict(
        train_log_probs=list(old_log_probs),
        rollout_log_probs=list(sampler_log_probs),
        loss_masks=[],
    )
    weights, *_ = lib.vanilla_tis_function(args, pg_loss=torch.ones(old_log_probs.numel()), **given)
    return weights.view(old_log_probs.shape)


SKY = (
    "skyrl/backends/skyrl_train/utils/ppo_utils.py skyrl/backends/skyrl_train/utils/torch_utils.py"
)


@adapter("skyrl", SKY, "compute_gae_advantage_return masked_whiten masked_var | masked_mean")
def skyrl_gae(lib, rewards, values, mask, gamma, lam):
    clean = [torch.where(mask, x, 0.0) for x in (rewards, values)]
    return lib.compute_gae_advantage_return(*clean, mask, gamma, lam)


@adapter("skyrl", SKY, "compute_gae_advantage_return masked_whiten masked_var | masked_mean")
def skyrl_as_it_comes_returns(lib, rewards, values, mask, gamma, lam):
    return lib.compute_gae_advantage_return(rewards, values, mask, gamma, lam)[1]


@adapter("skyrl", SKY, "ppo_critic_loss | masked_mean")
def skyrl_value_loss(lib, values, old_values, returns, clip, mask):
    return lib.ppo_critic_loss(values, old_values, returns, SimpleNamespace(value_clip=clip), mask)


@adapter("skyrl", SKY.split()[0], "compute_approx_kl")
def skyrl_kl_loss(lib, log_probs, ref_log_probs, mask):
    return lib.compute_approx_kl(log_probs, ref_log_probs, mask)


@adapter("skyrl", SKY.split()[0], "compute_grpo_outcome_advantage")
def skyrl_advantages(lib, rewards, group_size):
    index = [i // group_size for i in range(len(rewards))]
    return lib.compute_grpo_outcome_advantage(
        rewards[:, None].clone(), torch.ones(len(rewards), 1), index
    )[0]


@adapter(
    "skyrl",
    SKY.replace("ppo_utils", "off_policy_correction_utils"),
    "compute_tis_ratio | safe_exp_delta",
)
def skyrl_correction(lib, old_log_probs, sampler_log_probs, cap, mask):
    config = SimpleNamespace(token_tis_ratio_clip_high=cap)
    return lib.compute_tis_ratio(old_log_probs, sampler_log_probs, mask, "token", config)


NEMO = "nemo_rl/algorithms/"


@adapter("nemo-rl", NEMO + "utils.py", "calculate_kl")
def nemo_kl_loss(lib, log_probs, ref_log_probs):
    return lib.calculate_kl(log_probs, ref_log_probs)


@adapter(
    "nemo-rl", NEMO + "loss/loss_functions.py " + NEMO + "utils.py", "MseValueLossFn | masked_mean"
)
def nemo_value_loss(lib, values, old_values, returns, clip, mask):
    batch = dict(
        token_mask=mask, sample_mask=torch.ones(len(mask)), returns=returns, values=old_values
    )
    function = lib.MseValueLossFn(SimpleNamespace(scale=1.0, cliprange=clip))
    return function(values, batch, mask.any(1).sum(), mask.sum())


@adapter("nemo-rl", NEMO + "advantage_estimator.py", "_compute_gae")
def nemo_gae(lib, rewards, values, mask, gamma, lam):
    return lib._compute_gae(SimpleNamespace(gae_gamma=gamma), rewards, values, mask.long(), lam)


@adapter("llm-quest", "llm_quest/alignment/rlhf_grpo/grpo_engine.py", "GRPOLoss")
def quest_policy_loss(lib, log_probs, old_log_probs, advantages, clip_low, clip_high, mask):
    ratio, zero = (log_probs - old_log_probs).exp(), torch.zeros_like(log_probs)
    surrogate = -lib.GRPOLoss._compute_clipped_surrogate(ratio, advantages, clip_low, clip_high)
    return lib.GRPOLoss._aggregate(torch.where(mask, surrogate, zero), mask, len(mask), 1, "grpo")


@adapter("llm-quest", "llm_quest/alignment/rlhf_grpo/grpo_engine.py", "kl_div_per_token")
def quest_kl_loss(lib, log_probs, ref_log_probs):
    return lib.kl_div_per_token(log_probs, ref_log_probs)


@adapter("llm-quest", "llm_quest/alignment/rlhf_grpo/grpo_engine.py", "z_scores")
def quest_advantages(lib, rewards, group_size):
    lib.z_scores.__globals__["config"] = SimpleNamespace(use_phantom_reward=False)
    return lib.z_scores(rewards, group_size)


@adapter("llm-quest", "llm_quest/alignment/dpo/dpo.py", "compute_loss")
def quest_preference_loss(lib, policy_chosen, policy_rejected, ref_chosen, ref_rejected, beta):
    dpo = SimpleNamespace(beta=beta, label_smoothing=0.0)
    return lib.compute_loss(dpo, policy_chosen, policy_rejected, ref_chosen, ref_rejected)


@adapter("llm-quest", "llm_quest/alignment/dpo/dpo.py", "compute_logprobs")
def quest_log_probs(lib, logits, tokens, mask):
    return lib.compute_logprobs(None, logits, tokens, torch.cat([mask[:, :1] & False, mask], 1))


@adapter("reasoning-from-scratch", "reasoning_from_scratch/ch07.py", "compute_advantage_stats")
def reasoning_advantages(lib, rewards, group_size):
    return torch.cat(
        [lib.compute_advantage_stats(g.tolist())[0] for g in rewards.view(-1, group_size)]
    )


@adapter("reasoning-from-scratch", "reasoning_from_scratch/ch07.py", "sequence_logprob_and_entropy")
def reasoning_log_probs(lib, logits, tokens, mask):
    rows = []
    for row, ids, valid in zip(logits, tokens, mask, strict=True):
        first, count = int(valid.long().argmax()) + 1, int(valid.sum())
        cut = slice(0, first + count)  # prompt and response, without padding
        model = partial(lambda _, logits: logits[None], logits=row[cut])
        rows.append(lib.sequence_logprob_and_entropy(model, ids[cut], first)[0])
    return torch.stack(rows)


@adapter(
    "lm-human-preference-details",
    "lm_human_preference_details/train_policy_accelerate.py",
    "whiten",
)
def details_whiten(lib, x, mask):
    placed = torch.zeros_like(x)
    placed[mask] = lib.whiten(x[mask])
    return placed


@adapter("direct-preference-optimization", "trainers.py", "preference_loss")
def dpo_preference_loss(lib, policy_chosen, policy_rejected, ref_chosen, ref_rejected, beta):
    lib.preference_loss.__globals__["F"] = F
    return lib.preference_loss(policy_chosen, policy_rejected, ref_chosen, ref_rejected, beta)


@adapter("direct-preference-optimization", "trainers.py", "_get_batch_logps")
def dpo_log_probs(lib, logits, tokens, mask):
    labels = torch.where(torch.cat([mask[:, :1] & False, mask], 1), tokens, -100)
    return lib._get_batch_logps(logits, labels)


if __name__ == "__main__":
    run_command(main, PeersConfig)
