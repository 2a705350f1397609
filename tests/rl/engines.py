"""The list of engines that the contract tests go through, and what they learn from.

Every engine is held to everything in test_engine_contract.py. One without an entry below has the
one that follows from its ENGINE, with what the literal `CONTRACT = {...}` of its own test file
changes. What cannot hold for an engine stands in its `skips`, with the reason.
"""

from __future__ import annotations

import ast
import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from toys import LETTERS, PROMPTS, documented, seeded

from data.collate import ResponseBatch, collate_documents
from gpt.generate import SamplingParams
from gpt.model import GPT, GPTConfig
from harness.metric_log import MetricLog
from reward_model.pairs import TokenPair
from reward_model.scalar_head import RewardModel
from rl import (
    dpo_engine,
    grpo_iterative_engine,
    grpo_process_engine,
    grpo_single_model_engine,
    grpo_variants_engine,
    kd_grpo_engine,
    kd_ppo_engine,
    minillm_engine,
    pg_grpo_engine,
    ppo_engine,
    reinforce_pp_engine,
    rloo_engine,
)
from rl.actor_critic import ValueModel
from rl.batches.rollout import Rollout, sample_rollout
from rl.loop import Run
from rl.rewards.reward import RuleReward
from rl.rewards.step_rewards import RewardModelSteps, StepRewards
from rl.rewards.teacher_reward import TeacherReward
from rl.run.engine import Engine as Entry
from rl.run.engine import every_engine

SHARE_OF_A = RuleReward(lambda record, text, ended: text.count("a") / 8, "share of a")
HAS_A = RuleReward(lambda record, text, ended: float("a" in text), "has an a")
# A reward that separates any two responses.
DIVERSE = RuleReward(lambda record, text, ended: sum(ord(c) * i for i, c in enumerate(text, 1)), "")

# --- a model and what it says ---------------------------------------------------------------------


def small_gpt(
    seed: int = 0,
    *,
    sharpness: float = 1.0,
    noise: float = 0.0,
    dropout: float = 0.0,
    n_vocab: int = LETTERS.n_vocab,
    context: int = 16,
    n_layer: int = 2,
) -> GPT:
    """Nearly uniform; sharpness above 1, or noise, gives every prefix favourites of its own."""
    shape = GPTConfig(n_vocab, context, n_layer=n_layer, n_head=2, n_embd=32, dropout=dropout)
    generator = torch.Generator().manual_seed(seed)
    model = GPT(shape).initialize(generator).eval()
    with torch.no_grad():
        model.wte.weight.mul_(sharpness)
        for parameter in model.parameters():
            parameter += torch.randn(parameter.shape, generator=generator) * noise
    return model


def some_rollout(
    policy: GPT, *, temperature: float = 1.0, max_new_tokens: int = 8, group_size: int = 1
) -> Rollout:
    """Responses to all toy prompts, drawn with the same random numbers every time."""
    params = SamplingParams(temperature, max_new_tokens=max_new_tokens)
    return sample_rollout(policy, LETTERS, PROMPTS, params, group_size, seeded(3))


# --- what the engines learn from ------------------------------------------------------------------


class Texts:
    """Text of the letters a, b and c alone; batch i is a function of i."""

    description, tokens_per_batch = "abc", 28.0

    def __init__(self) -> None:
        self.asked: list[int] = []

    def batch(self, index: int) -> ResponseBatch:
        self.asked.append(index)
        generator = torch.Generator().manual_seed(index)
        rows = torch.randint(0, 3, (4, 11), generator=generator).tolist()
        return collate_documents([row[: 5 + 2 * i] for i, row in enumerate(rows)])

    def held_out_batches(self) -> list[ResponseBatch]:
        return [self.batch(10**6)]


class LetterSteps:
    """A step ends at every "b" and at the last token; `worth(letters of the step)` is its reward."""

    def __init__(self, worth=lambda letters: letters.count("a") - 0.3 * len(letters)) -> None:
        self.worth = worth

    def __call__(self, rollout: Rollout, rewards: torch.Tensor) -> StepRewards:
        T = rollout.response_mask.shape[1]
        values, ends = torch.zeros(len(rollout), T), torch.zeros(len(rollout), T).long()
        mask = torch.zeros(len(rollout), T, dtype=torch.bool)
        for i in range(len(rollout)):
            for j, (end, letters) in enumerate(self.steps_of(rollout, i)):
                values[i, j], ends[i, j], mask[i, j] = self.worth(letters), end, True
        return StepRewards(values, ends, mask)

    def steps_of(self, rollout: Rollout, row: int) -> list[tuple[int, str]]:
        """(last token, letters) of each step of one response; 8 and 9 are no letters."""
        tokens = rollout.response_tokens[row][rollout.response_mask[row]].tolist()
        steps, letters = [], ""
        for t, token in enumerate(tokens):
            letters += "abcdefgh"[token] if token < 8 else ""
            if token == 1 or t == len(tokens) - 1:
                steps.append((t, letters))
                letters = ""
        return steps


def token_pair(prompt: str, better: str, worse: str) -> TokenPair:
    """Two answers to one prompt, each with its EOS."""
    sides = ([*LETTERS.encode(text), LETTERS.eos_id] for text in (better, worse))
    return TokenPair(LETTERS.encode(prompt), *sides)


PAIRS = [
    token_pair("ab", "aab", "ceh"),
    token_pair("c", "aaaa", "d"),
    token_pair("hgfed", "ba", "gggggg"),
    token_pair("aaa", "acaa", "bhb"),
    token_pair("fa", "a", "fe"),
    TokenPair([6, 7], [0, 1, 0], [5, 5, 4, 3]),  # cut off: no EOS
]
HELD_OUT = [
    token_pair("gg", "aa", "hb"), token_pair("e", "aca", "fd"), token_pair("bc", "a", "g"),
]  # fmt: skip
OFFLINE = [
    TokenPair([0, 1], [0, 0, 8], [3, 8]),
    TokenPair([5], [0, 8], [4, 4, 4, 8]),
    TokenPair([7, 6, 2], [1, 0, 0, 8], [5, 8]),
    TokenPair([2], [0, 3], [6, 8]),  # the first one was cut off
]
SHARP_TEACHER = small_gpt(1, sharpness=4.0).requires_grad_(False)
NOISY_TEACHER = small_gpt(1, noise=0.12).requires_grad_(False)


# --- the list -------------------------------------------------------------------------------------

Changes = dict[str, Any]
# What a Run is made of; everything else is given to `train`.
OF_RUN = ("tokenizer", "reward_fn", "prompts", "start", "validate", "folder")


@dataclass(frozen=True)
class Engine:
    """How an engine is run on a toy task, and which contracts cannot hold for it."""

    module: ModuleType
    config: Any
    # Train's arguments besides config, policy, tokenizer and log.
    task: Changes = field(default_factory=lambda: dict(reward_fn=SHARE_OF_A, prompts=PROMPTS))
    teacher: GPT | None = None  # then the reward is `taught_by(config, teacher)`
    taught_by: Callable[[Any, GPT], TeacherReward] | None = None
    # The choices whose losses differ: contracts about the loss are held for each.
    forms: Mapping[str, Changes] = field(default_factory=lambda: {"": {}})
    learners: Mapping[str, Changes] | None = None  # those that the toy reward is learned with
    penalties: Mapping[str, Changes] = field(default_factory=lambda: {"": {}})  # ways of the KL
    everything: Changes = field(default_factory=dict)  # adds the losses that are off in `config`
    alone: Changes = field(default_factory=dict)  # leaves the policy's loss and the KL alone
    resumed: tuple[Changes, ...] = ({},)  # the runs that are cut and resumed
    reference: str | None = "kl"  # asked for a KL, asked "always", or None: there is none
    held: str = "kl"  # what the adaptive controller holds
    grouped: bool = True  # the group is the baseline
    smallest: int = 3  # a micro_batch_size that splits a batch
    headings: tuple[str, ...] = ()  # of docs/metrics.md, besides "Every engine"
    keys: tuple[Changes, ...] = ({},)  # the runs that log all of them
    absent: Mapping[str, str] = field(
        default_factory=dict
    )  # keys in those tables, and why not here
    # What reads a reward model that is not trained, or the signed toy reward, besides the reward.
    around_reward_model: Callable[[RewardModel], Changes] = lambda model: {}
    around_sign: Callable[[float], Changes] = lambda sign: {}
    main_flags: Changes = field(default_factory=dict)
    skips: Mapping[str, str] = field(default_factory=dict)  # contract -> why it cannot hold

    @property
    def name(self) -> str:
        return self.module.__name__.removeprefix("rl.").removesuffix("_engine")

    @property
    def rule(self) -> bool:
        """Whether any reward function can be given."""
        return "reward_fn" in self.task

    def configured(self, **changes: Any) -> Any:
        return replace(self.config, **changes)

    def has(self, flag: str) -> bool:
        return flag in {field.name for field in fields(self.config)}

    def run(self, policy: GPT, reward_fn=None, *, log: MetricLog | None = None, **changes: Any):
        """Train on the toy task and return the metrics rows.

        Keyword arguments are fields of the config, or arguments of `train`. A teacher is given in
        the policy's precision.
        """
        own = {name: changes.pop(name) for name in list(changes) if self.has(name)}
        config = self.configured(**own)
        arguments = dict(tokenizer=LETTERS) | self.task | changes
        if reward_fn is not None:
            arguments["reward_fn"] = reward_fn
        elif self.taught_by is not None and self.teacher is not None:
            teacher, dtype = self.teacher, policy.wte.weight.dtype
            if dtype != teacher.wte.weight.dtype:
                teacher = teacher_in(teacher, dtype)
            arguments["reward_fn"] = self.taught_by(config, teacher)
        of_run = {name: arguments.pop(name) for name in OF_RUN if name in arguments}
        run = Run(config, policy, log=log or MetricLog(config.steps), **of_run)
        return self.module.train(run, **arguments)


def teacher_in(teacher: GPT, dtype: torch.dtype) -> GPT:
    """A copy in another precision."""
    other = GPT(teacher.config).to(dtype).eval().requires_grad_(False)
    other.load_state_dict(teacher.state_dict())
    return other


TOY: Changes = dict(
    steps=20, prompts_per_step=4, group_size=4, minibatches=1, micro_batch_size=64, lr=1e-2,
    warmup_steps=1, kl_coef=0.02, stop_kl=None, max_new_tokens=8, eval_every=100, max_grad_norm=1e9,
    save_every=1000,
)  # fmt: skip
UNGROUPED: Changes = TOY | dict(prompts_per_step=16, group_size=1)
CRITIC: Changes = UNGROUPED | dict(updates_per_batch=1, critic_lr=1e-2)
TAUGHT: Changes = dict(prompts=PROMPTS, corpus=Texts())
CRITIC_FREE: Changes = UNGROUPED | dict(updates_per_batch=1)
ADAPTIVE: Changes = dict(kl_target=0.01)
VARIANTS: dict[str, Changes] = {
    name: choices | dict(variant=name) for name, choices in grpo_variants_engine.VARIANTS.items()
}
# MaxRL refuses a reward that is not 0 or 1, and its loss is Dr. GRPO's: its tests are in its own file.
FORMS_OF_VARIANTS = {name: VARIANTS[name] for name in VARIANTS if name != "maxrl"}
# At its own range of 3e-4 the clip has taken every gradient of a toy after its first update.
FORMS_OF_VARIANTS["gspo"] = VARIANTS["gspo"] | dict(clip_low=0.1, clip_high=0.1)
RESUMED_VARIANTS: tuple[Changes, ...] = (
    VARIANTS["dapo"]
    | dict(kl_coef=0.1, reward_fn=HAS_A),
    dict(
        sampling_filter="dynamic", reward_fn=HAS_A,
        reward_scale="mean", kl_cov_share=0.1, clip_cov_share=0.3, clip_cov_low=-9.0,
    ),
)  # fmt: skip
RATIOS_OF_RLOO = {name: dict(loss=name) for name in ("clipped", "token")}
BASELINE: Changes = dict(variant="baseline", group_size=4, prompts_per_step=4)

OWN_REWARD = dict(
    a_toy_reward_is_learned_and_its_negative_unlearned="the teacher is the reward: the engine's own "
    "file has what is learned from it, and from its negative",
    a_constant_reward_teaches_nothing="a teacher's reward differs between responses",
)
ONE_ITERATION = "one iteration is GRPO bit for bit, as its own file shows: it learns what GRPO does"
NO_GROUPS = "the critic is the baseline: rows are shuffled one by one"
NO_REFERENCE = "there is no reference, and --stop-kl is refused"
RECORDED = "recorded pairs: nothing is sampled, so there is no rollout, ratio or reward"

ENGINES = [
    Engine(
        grpo_iterative_engine,
        grpo_iterative_engine.IterativeGRPOConfig(**TOY, iterations=1),
        headings=("Iterative GRPO",),
        absent=dict.fromkeys(documented("Iterative GRPO") - {"iteration"}, "without a refresh"),
        main_flags=dict(refresh_reward_model=False, iterations=1),
        skips=dict(
            a_toy_reward_is_learned_and_its_negative_unlearned=ONE_ITERATION,
            a_short_run_goes_on_as_the_longer_one_bit_for_bit="its rounds have steps / iterations steps",
            a_resumed_run_is_the_uninterrupted_one_bit_for_bit="its own file cuts the runs whose "
            "reward model is refreshed, before, at and behind an iteration's first step",
        ),
    ),
    Engine(
        grpo_process_engine,
        grpo_process_engine.ProcessGRPOConfig(**TOY),
        task=dict(reward_fn=SHARE_OF_A, prompts=PROMPTS, step_reward_fn=LetterSteps()),
        resumed=(ADAPTIVE,),
        headings=("Process-supervised GRPO",),
        around_reward_model=lambda model: dict(step_reward_fn=RewardModelSteps(model, LETTERS)),
        around_sign=lambda sign: dict(
            step_reward_fn=LetterSteps(lambda text: sign * (text.count("a") - 0.3 * len(text)))
        ),
        skips=dict(
            a_constant_reward_teaches_nothing="the steps teach, whatever the outcome: own file",
        ),
    ),
    Engine(
        grpo_single_model_engine,
        grpo_single_model_engine.SingleModelGRPOConfig(**TOY | dict(kl_coef=0.1)),
        forms={"k3": {}, "rho_minus_log": dict(penalty="rho_minus_log", kl_coef=2.0)},
        learners={"k3": dict(updates_per_batch=2)},
        resumed=(ADAPTIVE,),
        alone=dict(kl_coef=0.0),
        reference=None,
        held="kl_old_new",
        headings=("Single-model GRPO",),
        absent=dict.fromkeys(("kl", "kl_per_token", "kl_k3"), "there is no reference to be far from"),
        main_flags=dict(updates_per_batch=2),
        skips=dict(
            without_a_kl_no_reference_is_asked=NO_REFERENCE,
            stop_kl_ends_the_run_with_a_validation=NO_REFERENCE,
        ),
    ),
    Engine(
        grpo_variants_engine,
        grpo_variants_engine.GRPOVariantsConfig(**TOY),
        forms=FORMS_OF_VARIANTS,
        learners={name: FORMS_OF_VARIANTS[name] for name in FORMS_OF_VARIANTS if name != "grpo"},
        alone=dict(overlong_buffer=None),
        everything=dict(mask_truncated=True, kl_coef=0.3),
        resumed=RESUMED_VARIANTS,
        headings=("The GRPO family",),
        keys=(VARIANTS["dapo"] | dict(mask_truncated=True, stop_kl=8.0),),
    ),
    Engine(
        rloo_engine,
        rloo_engine.RLOOConfig(**TOY),
        forms={"sequence": dict(updates_per_batch=1), **RATIOS_OF_RLOO},
        resumed=(ADAPTIVE | dict(updates_per_batch=1), ADAPTIVE | dict(loss="clipped")),
    ),
    Engine(
        reinforce_pp_engine,
        reinforce_pp_engine.ReinforcePPConfig(**UNGROUPED),
        forms={"plain": {}, "baseline": BASELINE},
        learners={
            f"{name}, {over}": options | dict(norm_over=over)
            for name, options in (("plain", {}), ("baseline", BASELINE))
            for over in ("sequence", "token")
        },
        resumed=(ADAPTIVE, ADAPTIVE | BASELINE),
        penalties={"plain": {}, "baseline": BASELINE},
        keys=({}, BASELINE),
    ),
    Engine(
        ppo_engine,
        ppo_engine.PPOConfig(**CRITIC),
        everything=dict(pretraining_coef=0.5, corpus=Texts(), entropy_coef=0.01),
        resumed=(ADAPTIVE | dict(target_kl=0.02, pretraining_coef=0.3, corpus=Texts()),),
        grouped=False,
        headings=("PPO",),
        keys=tuple(dict(pretraining_coef=1.0, corpus=Texts(), group_size=n) for n in (1, 2)),
        around_reward_model=lambda model: dict(value_model=ValueModel.from_reward_model(model)),
        skips=dict(
            a_constant_reward_teaches_nothing="the critic of zeros has yet to learn the constant",
            minibatches_keep_groups_together=NO_GROUPS,
        ),
    ),
    Engine(
        kd_grpo_engine,
        kd_grpo_engine.KDGRPOConfig(**TOY, pretraining_coef=0.0),
        task=TAUGHT,
        teacher=SHARP_TEACHER,
        taught_by=kd_grpo_engine.teacher_reward,
        forms={
            "clipped": {},
            "full": dict(kl_estimator="full"),
            "reinforce": dict(policy_loss="reinforce", updates_per_batch=1),
        },
        everything=dict(pretraining_coef=0.5, kl_estimator="full"),
        resumed=(
            ADAPTIVE
            | dict(pretraining_coef=0.3, renew_reference=2, kl_target=6.0),
        ),
        penalties={"k3": {}, "full": dict(kl_estimator="full")},
        headings=("With a teacher", "KD-GRPO and KD-PPO"),
        keys=(dict(pretraining_coef=1.0),),
        skips=OWN_REWARD,
    ),
    Engine(
        kd_ppo_engine,
        kd_ppo_engine.KDPPOConfig(**CRITIC, pretraining_coef=0.0),
        task=TAUGHT,
        teacher=SHARP_TEACHER,
        taught_by=kd_ppo_engine.teacher_reward,
        forms={"dense": {}, "terminal": dict(placement="terminal")},
        everything=dict(pretraining_coef=0.5, entropy_coef=0.01),
        resumed=(ADAPTIVE | dict(pretraining_coef=0.3, kl_target=6.0),),
        grouped=False,
        headings=("PPO", "With a teacher", "KD-GRPO and KD-PPO"),
        keys=tuple(dict(pretraining_coef=1.0, group_size=n) for n in (1, 2)),
        skips=OWN_REWARD | dict(minibatches_keep_groups_together=NO_GROUPS),
    ),
    Engine(
        minillm_engine,
        minillm_engine.MiniLLMConfig(
            **CRITIC_FREE | dict(kl_coef=0.0, max_new_tokens=6), pretraining_coef=0.0,
        ),
        task=TAUGHT,
        teacher=NOISY_TEACHER,
        taught_by=minillm_engine.teacher_reward,
        forms={"student": dict(teacher_share=0.0), "mixed": dict(teacher_share=0.3)},
        everything=dict(pretraining_coef=0.5),
        resumed=(dict(pretraining_coef=0.5),),
        reference=None,
        grouped=False,
        headings=("With a teacher", "MiniLLM"),
        keys=tuple(dict(pretraining_coef=1.0, group_size=n) for n in (1, 2)),
        absent=dict.fromkeys(("kl", "kl_per_token", "kl_k3"), "there is no reference"),
        skips=OWN_REWARD
        | dict(
            without_a_kl_no_reference_is_asked=NO_REFERENCE,
            stop_kl_ends_the_run_with_a_validation=NO_REFERENCE,
            the_adaptive_controller_moves_the_penalty=NO_REFERENCE,
            every_prompt_is_asked_once_an_epoch="asks the teacher, and no reward that could look on",
            minibatches_keep_groups_together=NO_GROUPS,
        ),
    ),
    Engine(
        dpo_engine,
        dpo_engine.DPOConfig(
            steps=20, batch_size=4, micro_batch_size=64, lr=1e-2, warmup_steps=1, max_grad_norm=1e9,
            eval_every=100, save_every=1000, max_new_tokens=8,
        ),
        task=dict(pairs=PAIRS),
        forms={"dpo": {}, **{name: dict(loss=name) for name in ("ipo", "orpo", "kto")}},
        everything=dict(held_out=HELD_OUT),
        resumed=(dict(held_out=HELD_OUT, eval_every=3),),
        reference="always",
        smallest=2,
        headings=("Every stage without sampling", "DPO"),
        keys=(dict(held_out=HELD_OUT),),
        skips={
            **dict.fromkeys(
                (
                    "at_the_first_update_ratio_is_one_and_kl_is_zero",
                    "minibatches_keep_groups_together",
                    "every_prompt_is_asked_once_an_epoch",
                    "without_a_kl_no_reference_is_asked",
                    "stop_kl_ends_the_run_with_a_validation",
                    "the_adaptive_controller_moves_the_penalty",
                    "a_broken_reward_is_refused",
                    "the_temperature_is_that_of_sampler_and_scorer",
                    "a_constant_reward_teaches_nothing",
                    "the_old_log_probs_are_scored_in_the_forwards_of_the_first_pass",
                    "a_toy_reward_is_learned_and_its_negative_unlearned",
                ),
                RECORDED,
            ),
            "warm_up_is_linear_and_then_constant": "a cosine follows the warm-up: own file",
            "a_short_run_goes_on_as_the_longer_one_bit_for_bit": "its cosine depends on the steps",
            "main_writes_the_run_folder": "its main needs recorded pairs on disk: own file",
        },
    ),
    Engine(
        pg_grpo_engine,
        pg_grpo_engine.PGGRPOConfig(**TOY, offline_batch_size=3),
        task=dict(reward_fn=SHARE_OF_A, prompts=PROMPTS, offline_pairs=OFFLINE),
        forms={name: dict(pairs=name) for name in ("best_worst", "all", "offline", "both")},
        learners={"best_worst": dict(pairs="best_worst")},
        everything=dict(pairs="both"),
        alone=dict(preference_coef=0.0),
        resumed=tuple(
            dict(pairs=name, kl_coef=0.0, preference_coef=1.0, updates_per_batch=1)
            for name in ("all", "both")
        ),
        reference="always",
        headings=("PG-GRPO",),
        keys=(dict(pairs="both"),),
    ),
]  # fmt: skip


def contract_of(name: str) -> Changes:
    """What an engine's own test file says in its CONTRACT; {} without one.

    It is read and not imported, because that file imports this one.
    """
    path = Path(__file__).with_name(f"test_{name}_engine.py")
    tree = ast.parse(path.read_text(encoding="utf-8"))
    values = (
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "CONTRACT"
    )
    return next(values, {})


WITHOUT_A_REFERENCE = ("minillm", "on_policy_distillation")


def default_entry(engine: Entry) -> Engine:
    """How an engine is run about which no more is known than its ENGINE."""
    module, flags = importlib.import_module(engine.module), {f.name for f in fields(engine.config)}
    toy = (TOY if engine.groups else UNGROUPED) | dict(critic_lr=1e-2, batch_size=4)
    referred = engine.name not in WITHOUT_A_REFERENCE
    toy |= {} if referred else dict(kl_coef=0.0)
    taught = dict(prompts=PROMPTS) | (dict(corpus=Texts()) if "pretraining_coef" in flags else {})
    config = engine.config(**{name: value for name, value in toy.items() if name in flags})
    tasks: dict[str, Changes] = {
        "reward": {},
        "teacher": dict(task=taught, teacher=SHARP_TEACHER),
        "pairs": dict(task=dict(pairs=PAIRS)),
    }
    found: Changes = tasks[engine.learns_from] | dict(
        grouped=engine.groups,
        reference="kl" if referred else None,
        resumed=(ADAPTIVE,) if referred and "kl_target" in flags else ({},),
    )
    if engine.learns_from == "teacher":
        found["taught_by"] = module.teacher_reward
    return Engine(module, config, **found | contract_of(engine.name))


ENGINES += [
    default_entry(engine)
    for engine in every_engine()
    if engine.name not in {entry.name for entry in ENGINES}
]


def engine_named(name: str) -> Engine:
    """The entry of this engine."""
    return next(engine for engine in ENGINES if engine.name == name)
