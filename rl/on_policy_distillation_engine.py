"""On-policy distillation: a teacher judges every token that the student has written.

(GKD, Agarwal et al. 2024, arXiv:2306.13649; Thinking Machines 2025, "On-Policy Distillation"; with the
student as its own teacher SDPO, Hübotter et al. 2026, arXiv:2601.20802.)

    line 1   student q <- start; teacher p frozen            policy; reward_fn's teacher
    line 2   for each batch of prompts                       run.prompts
    line 3     y ~ q; with --divergence forward y ~ p        run.sample, teachers_text
    line 4     p reads the same prompt; with --teacher self  right_answers, lessons
               p is q, shown another right answer as well
    line 5     A_t = log p(y_t) - log q(y_t), no discount    teacher_log_probs, teacher_rewards
    line 6     for the inner epochs, in minibatches          updates_per_batch, minibatches
    line 7       L_t = -(q / q_old) A_t                      distillation_loss: clipped_surrogate, unclipped
                 or KL(q(.|s_t) || p(.|s_t))                 token_scores_and_kl (--divergence full)
                 or KL(p(.|s_t) || q(.|s_t))                 forward_kl (--divergence forward)
    line 8       descend the mean over the tokens            token_mean, run.optimizer_step

The expected gradient of line 7 is that of the token KLs at the prefixes as they were drawn. What a
token changes for the tokens after it is left out: no reward is passed back, so there is no credit
to assign and little noise. MiniLLM and KD-GRPO keep that part, and with it the gradient of the KL of
whole responses. `full` sums over the vocabulary what `sampled` draws. `forward` is the control, on the
teacher's text: classical distillation, in which nothing the student writes is ever seen.
With --teacher self no other model is needed: p is the student behind a longer prompt, which holds a
right answer of the same group (`--lesson`). A response without another right answer in its group has
no teacher and is left out. It takes a start that has learned to read one text after another, which
the sums' own has not. What is new next to MiniLLM: no long part, no mixture and no text.

    python scripts/make_teacher.py                          the teacher, once
    python -m rl.on_policy_distillation_engine              reviews
    python -m rl.on_policy_distillation_engine --divergence full      or forward
    python -m rl.on_policy_distillation_engine --data sums --teacher self --group-size 8 --model runs/start
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from data.collate import ResponseBatch, join_responses
from data.records import PromptRecord
from gpt.log_probs import TokenScores, forward_kl, token_scores, token_scores_and_kl
from gpt.model import GPT
from gpt.tokenizer import Tokenizer
from harness.errors import UserError
from harness.flags import AtLeastOne, KLNats
from rl.batches.rollout import Rollout, Update, sample_rollout, select_rows
from rl.equations.losses import clipped_surrogate, token_mean
from rl.equations.token_rewards import teacher_rewards
from rl.loop import Run
from rl.rewards.reward import components
from rl.rewards.teacher_reward import (
    TeacherReward,
    refuse_other_rewards,
    reward_from_teacher,
    teacher_log_probs,
)
from rl.run.config import EngineConfig, refuse_others
from rl.run.engine import Engine
from rl.run.metrics import StepBatch
from rl.run.task import Task

ITSELF = "self"


@dataclass(frozen=True)
class OnPolicyDistillationConfig(EngineConfig):
    """Distil a teacher into a policy on the policy's own samples."""

    teacher: str | None = None
    """Run folder of the teacher; default: the one of this data. self: the policy, which is shown a right
    answer of the same group; then a rule has to check the answers."""
    lesson: str = "{prompt}{answer}\n{prompt}"
    """What the policy as its own teacher reads in the place of a prompt: {answer} is the right answer."""
    divergence: Literal["sampled", "full", "forward"] = "sampled"
    """sampled: log q - log p of the token that was drawn. full: the KL over the whole vocabulary.
    forward: KL(p || q), on responses that the teacher writes."""
    prompts_per_step: AtLeastOne = 128
    """Prompts per rollout batch."""
    group_size: AtLeastOne = 1
    """Responses per prompt; there is no baseline, so one is enough, but not for a teacher self."""
    kl_coef: float = 0.0
    """Must be 0: the KL to the teacher is the whole loss, and there is no reference."""
    stop_kl: KLNats | None = None
    """Must be left out: no KL to a reference is measured in training."""

    @property
    def taught_by_itself(self) -> bool:
        """Whether the policy is its own teacher."""
        return self.teacher == ITSELF

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse_others("on-policy distillation", self)
        if not self.taught_by_itself:
            refuse_other_rewards(self.reward, self.reward_model)
        elif self.divergence == "forward":
            raise ValueError("divergence forward needs a teacher that writes: self is the policy")
        elif self.group_size < 2:
            raise ValueError(
                f"group_size must be at least 2 with the teacher self, which is shown another answer "
                f"of the group: got {self.group_size}; add --group-size 8 --prompts-per-step "
                f"{max(self.prompts_per_step // 8, 1)}"
            )
        try:
            shown = self.lesson.format(prompt="\0", answer="\1")
        except (AttributeError, LookupError, TypeError, ValueError):
            shown = ""
        if "\1" not in shown or not shown.endswith("\0"):
            raise ValueError(
                f"lesson must hold {{answer}}, end with {{prompt}} and name nothing else: {self.lesson!r}"
            )


# --- the policy as its own teacher ----------------------------------------------------------------


def right_answers(right: Tensor, lengths: Tensor, group_size: int) -> list[int | None]:  # line 4
    """For each row the shortest right answer among the others of its group; None without one.

    right (N,) bool, lengths (N,). Of equally short ones the first.
    """
    chosen: list[int | None] = []
    for row in range(len(right)):
        first = row - row % group_size
        others = [i for i in range(first, first + group_size) if i != row and right[i]]
        chosen.append(min(others, key=lambda i: int(lengths[i]), default=None))
    return chosen


class Lessons(NamedTuple):
    """The K responses that have a teacher: their rows (K,), as they were written, and as p reads them."""

    rows: Tensor
    written: Rollout
    judged: Rollout


def lessons(  # line 4
    config: OnPolicyDistillationConfig,
    tokenizer: Tokenizer,
    rollout: Rollout,
    right: Tensor,  # (N,) bool
    context: int,
) -> Lessons:
    """The policy's own lessons: `judged` has a right answer of the group before each response.

    A row whose group has no other right answer is left out, and one that would not fit the context.
    """
    kept: dict[int, list[int]] = {}
    lengths = rollout.sequences.sizes[:, 1].tolist()
    for row, answer in enumerate(right_answers(right, rollout.lengths, rollout.group_size)):
        if answer is None:
            continue
        prompt, answered = rollout.records[row].prompt, rollout.responses[answer]
        lesson = tokenizer.encode_prompt(config.lesson.format(prompt=prompt, answer=answered))
        if len(lesson) + lengths[row] <= context:
            kept[row] = lesson
    rows = torch.tensor(list(kept), dtype=torch.long)
    written = replace(select_rows(rollout, rows), group_size=1)  # groups are no longer whole
    if not kept:
        return Lessons(rows, written, written)
    judged = join_responses(
        list(kept.values()), written.response_tokens, written.response_mask, written.has_eos
    )
    return Lessons(rows, written, replace(written, sequences=judged))


# --- the loss ---------------------------------------------------------------------------------------


def scores_and_kl(
    config: OnPolicyDistillationConfig,
    policy: GPT,
    teacher: GPT,
    batch: ResponseBatch,
    judged: ResponseBatch | None,  # the responses as the teacher reads them, where that differs
) -> tuple[TokenScores, Tensor | None]:
    """The policy's scores and, over the whole vocabulary, full or forward, the KL, (n, T) each."""
    if config.divergence == "sampled":
        return token_scores(policy, batch, config.temperature), None
    if config.divergence == "forward":
        with torch.no_grad():  # for the log
            scores = token_scores(policy, batch, config.temperature)
        return scores, forward_kl(policy, teacher, batch, config.temperature)
    return token_scores_and_kl(policy, teacher, batch, config.temperature, other_batch=judged)


def distillation_loss(  # lines 7 and 8
    log_probs: Tensor,  # (n, T)
    old_log_probs: Tensor,  # (n, T)
    advantages: Tensor,  # (n, T)
    token_kl: Tensor | None,  # (n, T), with --divergence full or forward
    response_mask: Tensor,  # (n, T)
    *,
    tokens: int,
) -> Tensor:
    """-1/tokens sum_{i,t} (q / q_old) A_t, or the mean of the token KLs, of some rows of a minibatch.

    Of KL(q(.|s_t) || p(.|s_t)) both have the gradient at fixed prefixes s_t, the first on average and
    as long as q is q_old. `tokens` are those of the whole minibatch.
    """
    token_loss = token_kl
    if token_loss is None:
        token_loss = clipped_surrogate(log_probs, old_log_probs, advantages, math.inf, math.inf)
    return token_mean(token_loss, response_mask, denominator=tokens)


def teachers_text(run: Run, teacher: GPT, prompts: list[PromptRecord]) -> Rollout:  # line 3
    """One response of the teacher to each prompt, with the policy's log-probs."""
    group_size, generator = run.config.group_size, run.generators["sampling"]
    with run.clock.phase("rollout"), run.precise():
        rollout = sample_rollout(teacher, run.tokenizer, prompts, run.params, group_size, generator)
    return replace(rollout, log_probs=run.log_probs(run.policy, rollout))


def train(run: Run) -> list[dict[str, Any]]:
    """Run on-policy distillation, update `run.policy` in place and return one metrics row a step.

    The reward brings the teacher (`teacher_reward(config, teacher)`), or with --teacher self the
    check of the answers.
    """
    config: OnPolicyDistillationConfig = run.config
    made, policy = components(run.reward_fn), run.policy
    check = made.check if config.taught_by_itself else None
    teacher = policy if check is not None else made.teacher  # line 1
    assert teacher is not None, "the reward of this run brings neither a teacher nor a check"
    for step in run.steps():
        prompts = run.prompts(step)  # line 2
        forward = config.divergence == "forward"
        rollout = teachers_text(run, teacher, prompts) if forward else run.sample(prompts)  # line 3
        rewards = run.rewards(rollout)  # (N,), for the log
        taught, written, judged = Lessons(torch.arange(len(rollout)), rollout, rollout)
        if check is not None:  # line 4
            right, context = check.correct(rollout), policy.config.context
            taught, written, judged = lessons(config, run.tokenizer, rollout, right, context)
        old = advantages = written.log_probs  # (K, T)
        if len(written):  # line 5
            old = run.old_log_probs(written, groups=False)
            with run.clock.phase("score"):
                p = teacher_log_probs(teacher, judged, config)
            advantages = teacher_rewards(p, old, written.response_mask, reverse_kl=True)
        update = Update(old, None, advantages, written.response_mask)

        for rows in run.minibatches(written, groups=False):  # line 6
            for part, batch in run.micro_batches(written, rows):
                other = judged.sequences.rows(part) if check is not None else None
                with run.precise():
                    scores, token_kl = scores_and_kl(config, policy, teacher, batch, other)
                given = update.rows(part)
                loss = distillation_loss(  # line 7
                    scores.log_probs, given.old, given.advantages, token_kl, given.mask,
                    tokens=written.tokens_of(rows),
                )  # fmt: skip
                loss.backward()
                measured = -given.advantages if token_kl is None else token_kl
                run.record(loss, scores, given, batch, token_kl=measured)
            run.optimizer_step()  # line 8

        row = run.row(rollout, rewards, old) | {"taught_responses": len(written) / len(rollout)}
        paid = rewards[taught.to(rewards.device)]
        taught_on = StepBatch(written, paid, update, run.clip_mask) if len(written) else None
        run.close_step(step, row, taught_on)
    return run.log.rows


def teacher_reward(config: OnPolicyDistillationConfig, teacher: GPT) -> TeacherReward:
    """The teacher; its reward is log p(y) / q(y), which validations report."""
    return TeacherReward(teacher, config, aggregate="sum", reverse_kl=True)


def require_check(config: OnPolicyDistillationConfig, task: Task) -> dict[str, Any]:
    """UserError unless a rule says which answers are right, where the policy is its own teacher."""
    if config.taught_by_itself and components(task.reward_fn).check is None:
        raise UserError(
            f"--teacher self: the reward is {task.reward_name}, which does not say which answers are "
            "right: take data whose answers a rule checks, such as --data sums, or another teacher"
        )
    return {}


ENGINE = Engine(
    name="on_policy_distillation",
    box="On-policy distillation",
    config=OnPolicyDistillationConfig,
    train=train,
    learns_from="teacher",
    groups=False,
    prepare=require_check,
    own_reward=lambda config: (
        None if config.taught_by_itself else reward_from_teacher(teacher_reward)
    ),
)

main = ENGINE.run  # config -> run folder

if __name__ == "__main__":
    ENGINE.run_as_command()
