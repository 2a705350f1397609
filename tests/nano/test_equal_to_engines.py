"""Each file of nano/ computes what its engine computes: tokens, losses, gradient norms, weights.

In float64, for 6 steps from the same weights, on prompts and answers of different lengths. A
difference of one part in 10^10 fails, so each file is evidence for the other: the long one for the
short one's numbers, the short one for what the long one means.
"""

from __future__ import annotations

import copy
import importlib
import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

from data.collate import ResponseBatch, collate_responses
from data.records import PromptRecord
from gpt.model import GPT, GPTConfig
from gpt.tokenizer import Tokenizer, build_tokenizer
from harness.metric_log import MetricLog
from nano import gpt as nano_gpt
from reward_model import reward_model_training
from reward_model.pairs import TokenPair
from reward_model.scalar_head import RewardModel
from rl import loop
from rl.loop import Run
from rl.rewards.reward import RuleReward
from rl.rewards.teacher_reward import TeacherReward

FOLDER = Path(nano_gpt.__file__).parent
STEPS = 6
TOLERANCE = 1e-10
PROMPTS = ["ab:", "c:", "hgfed:", "aaa:", "fa:", "g:", "ce:"]
LETTERS = nano_gpt.LETTERS


def tokenizer() -> Tokenizer:
    """nano's letters, END being the EOS."""
    letters = LETTERS.removesuffix(nano_gpt.END)
    return build_tokenizer("letters", {letter.encode(): i for i, letter in enumerate(letters)})


# --- what both learn from -------------------------------------------------------------------------


def varied(prompt: str, answer: str) -> float:
    """Differs between most answers, and reads the prompt."""
    answer = answer.rstrip(nano_gpt.END)
    return sum((ord(x) - 97) * i for i, x in enumerate(answer, 1)) / 64 + (prompt[0] in answer)


def has_an_a(prompt: str, answer: str) -> float:
    """Equal in many groups, so that some are dropped."""
    return float("a" in answer)


def text(index: int) -> list[tuple[str, str]]:
    """Ragged text whose batches have the same number of tokens, which the engines expect."""
    draw = torch.Generator().manual_seed(index)
    rows = []
    for length in (2, 3, 5, 7):
        letters = torch.randint(0, 8, (length,), generator=draw).tolist()
        rows.append((PROMPTS[letters[0] % 7], "".join(LETTERS[i] for i in letters) + nano_gpt.END))
    return rows


class Text:
    """The same text as the engines read it."""

    description, tokens_per_batch = "letters", 21.0

    def batch(self, index: int) -> ResponseBatch:
        prompts = [tokens_of(prompt) for prompt, _ in text(index)]
        answers = [tokens_of(answer) for _, answer in text(index)]
        return collate_responses(prompts, answers, len(LETTERS) - 1)

    def held_out_batches(self) -> list[ResponseBatch]:
        return []


def tokens_of(string: str) -> list[int]:
    return [LETTERS.index(letter) for letter in string]


PAIRS = [
    ("ab:", "aab.", "ceh."),
    ("c:", "aaaa.", "d."),
    ("hgfed:", "ba.", "gggggg."),
    ("aaa:", "acaa.", "bhb."),
    ("fa:", "a.", "fe."),
    ("g:", "aba", "ffedd."),  # cut off: no END
    ("bc:", "ba.", "ah."),
]


# --- the list -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Twin:
    """A file of nano/, its engine, and the settings with which both are one algorithm."""

    nano: str
    engine: str
    flags: dict[str, Any] = field(default_factory=dict)  # of the engine's config
    options: dict[str, Any] = field(default_factory=dict)  # of nano's train
    reward: Callable[[str, str], float] = varied
    group_size: int | None = 4  # None: one answer per prompt
    label: str = ""
    clips: bool = True  # the ratio's clip is to act in this run

    @property
    def id(self) -> str:
        return f"{self.nano} {self.label}".strip()


FAMILY = "rl.grpo_variants_engine"
TWO_EPOCHS = dict(updates_per_batch=2, minibatches=2)
VARIANTS = importlib.import_module(FAMILY).VARIANTS
REINFORCE = dict(surrogate="cispo", reducer="sequence_sum", reward_scale="none")
TWINS = [
    Twin("reinforce", FAMILY, REINFORCE | dict(minibatches=1, kl_coef=0.0), clips=False),
    Twin("rloo", "rl.rloo_engine", dict(minibatches=2, kl_coef=0.3), dict(kl_coef=0.3), clips=False),
    Twin(
        "reinforce_pp", "rl.reinforce_pp_engine", TWO_EPOCHS | dict(kl_coef=0.3),
        dict(kl_coef=0.3), group_size=None,
    ),
    Twin(
        "ppo", "rl.ppo_engine", TWO_EPOCHS | dict(kl_coef=0.3, critic_lr=3e-3),
        dict(kl_coef=0.3, critic_lr=3e-3), group_size=None,
    ),
    Twin("grpo", "rl.grpo_engine", TWO_EPOCHS | dict(kl_coef=0.3), dict(kl_coef=0.3)),
    Twin(
        "grpo", "rl.grpo_engine", TWO_EPOCHS | dict(kl_coef=0.1), dict(kl_coef=0.1),
        reward=has_an_a, label="equal rewards",
    ),
    Twin("dr_grpo", FAMILY, TWO_EPOCHS | VARIANTS["dr_grpo"]),
    Twin("dapo", FAMILY, TWO_EPOCHS | VARIANTS["dapo"]),
    Twin("dapo", FAMILY, TWO_EPOCHS | VARIANTS["dapo"], reward=has_an_a, label="dropped groups"),
    Twin("gspo", FAMILY, TWO_EPOCHS | VARIANTS["gspo"]),
    Twin("cispo", FAMILY, TWO_EPOCHS | VARIANTS["cispo"]),
    Twin(
        "kd_grpo", "rl.kd_grpo_engine",
        TWO_EPOCHS | dict(kl_coef=0.3, pretraining_coef=0.5),
        dict(kl_coef=0.3, text_coef=0.5),
    ),
    Twin(
        "minillm", "rl.minillm_engine",
        TWO_EPOCHS | dict(teacher_share=0.3, pretraining_coef=0.5),
        dict(teacher_share=0.3, text_coef=0.5), group_size=None,
    ),
    Twin(
        "on_policy_distillation", "rl.on_policy_distillation_engine", TWO_EPOCHS, group_size=None,
        clips=False,
    ),
]  # fmt: skip
OWN_TESTS = (
    *("dpo", "reward_model", "tools", "remax"),  # below; the first two learn from PAIRS
    "async_grpo",  # has no engine: test_async_grpo.py
)


def test_every_file_has_its_case() -> None:
    files = {path.stem for path in FOLDER.glob("*.py")} - {"__init__", "gpt", "rlhf"}
    assert files == {twin.nano for twin in TWINS} | set(OWN_TESTS)


# --- both runs ------------------------------------------------------------------------------------


def two_models(seed: int = 0) -> tuple[nano_gpt.GPT, GPT]:
    """nano's GPT and the repository's with the same weights, float64; no gain is 1, no bias 0."""
    torch.manual_seed(seed)
    short = nano_gpt.GPT(len(LETTERS), context=16, n_embd=32).double()
    with torch.no_grad():
        for weight in short.parameters():
            weight += 0.1 * torch.randn_like(weight)
        short.wte.weight[LETTERS.index(nano_gpt.END)] += 1.5 * short.ln_f.bias  # some end early
    long = GPT(GPTConfig(len(LETTERS), 16, n_layer=2, n_head=2, n_embd=32)).double().eval()
    long.load_state_dict(short.state_dict())
    return short, long


def spied_norms(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The gradient norm of every optimizer step from now on."""
    norms: list[float] = []
    real = torch.nn.utils.clip_grad_norm_

    def spy(*args: Any, **options: Any) -> torch.Tensor:
        norm = real(*args, **options)
        norms.append(float(norm))
        return norm

    monkeypatch.setattr(torch.nn.utils, "clip_grad_norm_", spy)
    return norms


def run_nano(
    twin: Twin, policy: Any, teacher: Any, answers: list[list[int]], monkeypatch: Any
) -> list[dict]:
    """nano's rows of numbers; the tokens of every answer that was sampled go to `answers`."""
    module = importlib.import_module(f"nano.{twin.nano}")
    real = nano_gpt.sample

    def sample(drawn_from: Any, *args: Any) -> Any:
        tokens, mask = real(drawn_from, *args)
        if drawn_from is policy or twin.nano == "minillm":
            answers.extend(row[m].tolist() for row, m in zip(tokens[:, 1:], mask, strict=True))
        return tokens, mask

    monkeypatch.setattr(nano_gpt, "sample", sample)
    wanted = inspect.signature(module.train).parameters
    given = [model for name, model in (("teacher", teacher), ("text", text)) if name in wanted]
    size = dict(prompts_per_step=16) if twin.group_size is None else dict(
        prompts_per_step=4, group_size=twin.group_size
    )  # fmt: skip
    return module.train(
        policy, *(given or (twin.reward,)), PROMPTS,
        steps=STEPS, lr=3e-3, max_grad_norm=1.0, max_new_tokens=8, seed=3, **size, **twin.options,
    )  # fmt: skip


def run_engine(
    twin: Twin, policy: GPT, teacher: GPT, answers: list[list[int]], monkeypatch: Any
) -> list[dict]:
    """The same of the engine."""
    module = importlib.import_module(twin.engine)
    real = loop.sample_rollout

    def sample_rollout(*args: Any, **options: Any) -> Any:
        rollout = real(*args, **options)
        pairs = zip(rollout.response_tokens, rollout.response_mask, strict=True)
        answers.extend(row[m].tolist() for row, m in pairs)
        return rollout

    monkeypatch.setattr(loop, "sample_rollout", sample_rollout)
    size = dict(prompts_per_step=16, group_size=1) if twin.group_size is None else dict(
        prompts_per_step=4, group_size=twin.group_size
    )  # fmt: skip
    config = module.ENGINE.config(
        steps=STEPS, lr=3e-3, max_grad_norm=1.0, max_new_tokens=8, seed=3, warmup_steps=1, stop_kl=None,
        eval_every=1000, save_every=1000, micro_batch_size=64, **size, **twin.flags,
    )  # fmt: skip
    reward: Any = RuleReward(lambda record, answer, ended: twin.reward(record.prompt, answer), "")
    more: dict[str, Any] = {}
    if "teacher" in vars(config):
        more = dict(corpus=Text()) if "corpus" in inspect.signature(module.train).parameters else {}
        reward = TeacherReward(teacher, config, aggregate="sum", reverse_kl=True)
    records = [PromptRecord(prompt) for prompt in PROMPTS]
    return module.train(Run(config, policy, tokenizer(), reward, records), **more)


def assert_equal_runs(
    short: torch.nn.Module, run_short: Callable[[], list[dict]],
    long: torch.nn.Module, run_long: Callable[[], list[dict]],
) -> tuple[list[dict], list[float]]:  # fmt: skip
    """Every number that nano logs, every norm, every weight; the engine's rows and norms."""
    with pytest.MonkeyPatch.context() as patch:
        norms = spied_norms(patch)
        short_rows, long_rows = run_short(), run_long()
    assert len(short_rows) == len(long_rows) >= STEPS
    for ours, theirs in zip(short_rows, long_rows, strict=True):
        assert ours == pytest.approx({k: theirs[k] for k in ours}, rel=TOLERANCE, abs=TOLERANCE)
    half = len(norms) // 2
    assert norms[:half] == pytest.approx(norms[half:], rel=TOLERANCE, abs=TOLERANCE)
    weights = dict(long.named_parameters())
    for name, weight in short.named_parameters():
        assert weight.dtype == weights[name].dtype == torch.float64
        torch.testing.assert_close(
            weight, weights[name], rtol=0, atol=TOLERANCE, msg=lambda m, name=name: f"{name}: {m}"
        )
    return long_rows, norms[half:]


@pytest.mark.parametrize("twin", TWINS, ids=lambda twin: twin.id)
def test_nano_is_the_engine(twin: Twin, monkeypatch: pytest.MonkeyPatch) -> None:
    short, long = two_models()
    start = copy.deepcopy(short)
    short_teacher, long_teacher = (model.requires_grad_(False) for model in two_models(seed=1))
    short_answers: list[list[int]] = []
    long_answers: list[list[int]] = []
    long_rows, norms = assert_equal_runs(
        short, lambda: run_nano(twin, short, short_teacher, short_answers, monkeypatch),
        long, lambda: run_engine(twin, long, long_teacher, long_answers, monkeypatch),
    )  # fmt: skip
    assert short_answers == long_answers
    # The run was one in which a mistake would show.
    lengths = {len(answer) for answer in long_answers}
    ended = {answer[-1] == len(LETTERS) - 1 for answer in long_answers}
    assert len(lengths) > 4 and ended == {True, False}
    moved = [
        (p - q).abs().max() for p, q in zip(start.parameters(), short.parameters(), strict=True)
    ]
    assert max(moved) > 1e-2
    assert any(norm > 1.0 for norm in norms)
    if twin.clips:
        assert sum(row.get("clip_high_fraction", 0) for row in long_rows) > 0
        assert sum(row.get("clip_low_fraction", 0) for row in long_rows) > 0 or twin.nano == "cispo"


def test_remax_is_its_equation(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which has no engine: every step once more by loops over single rows that are not padded."""
    from nano import remax

    policy, slow = two_models()
    reference = copy.deepcopy(slow)
    optimizer = torch.optim.Adam(slow.parameters(), lr=3e-3, betas=(0.9, 0.95))
    batches: list[list[tuple[str, str]]] = []
    sample = nano_gpt.sample

    def noted(drawn_from: Any, prompts: list[str], *args: Any) -> Any:
        drawn = sample(drawn_from, prompts, *args)
        if drawn_from is policy:  # and not its greedy form
            batches.append(list(zip(prompts, nano_gpt.decode(*drawn), strict=True)))
        return drawn

    monkeypatch.setattr(nano_gpt, "sample", noted)
    numbers = remax.train(
        policy, varied, PROMPTS, steps=STEPS, prompts_per_step=16, kl_coef=0.3, lr=3e-3, seed=3
    )
    likeliest = set()
    for batch, row in zip(batches, numbers, strict=True):
        loss = torch.zeros((), dtype=torch.float64)
        for prompt, answer in batch:
            greedy = likeliest_answer(slow, prompt)
            likeliest.add(greedy)
            ours, theirs = (row_log_probs(model, prompt, answer) for model in (slow, reference))
            k1 = [(our - their).item() for our, their in zip(ours, theirs, strict=True)]
            for t, log_prob in enumerate(ours):
                earned = varied(prompt, answer) - varied(prompt, greedy) - 0.3 * sum(k1[t:])
                loss = loss - earned * log_prob / len(batch)
        optimizer.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(slow.parameters(), 1.0)
        optimizer.step()
        expected = {"loss": loss.item(), "grad_norm": norm.item()}
        found = {name: row[name] for name in expected}
        assert found == pytest.approx(expected, rel=TOLERANCE, abs=TOLERANCE)
    assert len(likeliest) > 3 and row["kl"] > 0.01  # a run in which a mistake would show
    weights = dict(slow.named_parameters())
    for name, weight in policy.named_parameters():
        torch.testing.assert_close(weight, weights[name], rtol=0, atol=TOLERANCE)


def row_log_probs(model: GPT, prompt: str, answer: str) -> list[torch.Tensor]:
    """log pi of every letter of an answer, from one forward of prompt and answer."""
    tokens = tokens_of(prompt + answer)
    log_probs = model(torch.tensor([tokens]))[0].log_softmax(-1)
    return [log_probs[i - 1, tokens[i]] for i in range(len(prompt), len(tokens))]


def likeliest_answer(model: GPT, prompt: str) -> str:
    """The likeliest letter after every prefix, up to END or to 8 letters."""
    text = prompt
    while len(text) < len(prompt) + 8 and not text.endswith(nano_gpt.END):
        text += LETTERS[int(model(torch.tensor([tokens_of(text)]))[0, -1].argmax())]
    return text.removeprefix(prompt)


def test_dpo_is_the_engine() -> None:
    from nano import dpo
    from rl import dpo_engine

    short, long = two_models()
    options = dict(steps=STEPS, batch_size=4, beta=0.3, lr=3e-3, max_grad_norm=1.0, seed=3)
    config = dpo_engine.DPOConfig(
        **options, warmup_steps=0, eval_every=1000, save_every=1000, max_new_tokens=8
    )
    run = Run(config, long, tokenizer())
    assert_equal_runs(
        short, lambda: dpo.train(short, PAIRS, **options),
        long, lambda: dpo_engine.train(run, pairs=token_pairs()),
    )  # fmt: skip


def token_pairs() -> list[TokenPair]:
    return [TokenPair(*(tokens_of(part) for part in pair)) for pair in PAIRS]


def test_the_reward_model_is_the_engine() -> None:
    from nano import reward_model

    policy, gpt = two_models()
    torch.manual_seed(5)
    short = reward_model.RewardModel(policy).double()
    long = RewardModel(gpt, "last_token").double()
    long.load_state_dict(short.state_dict(), strict=False)  # it also holds a mean and a deviation
    options = dict(batch_size=4, lr=3e-3, max_grad_norm=1.0, seed=3)
    config = reward_model_training.RewardModelConfig(
        **options, warmup_steps=0, weight_decay=0.0, pooling="last_token"
    )
    pairs, log, eos = token_pairs(), MetricLog(STEPS), len(LETTERS) - 1
    assert_equal_runs(
        short, lambda: reward_model.train(short, PAIRS, steps=STEPS, **options),
        long, lambda: reward_model_training.train(long, pairs, config, log, eos_id=eos),
    )  # fmt: skip
