"""On-policy distillation: the expected gradient and what it lacks; the policy as its own teacher."""

from __future__ import annotations

import copy

import pytest
import torch
from engines import SHARP_TEACHER, engine_named, small_gpt
from slow import after, assert_gradient, flat_gradient, tiny_gpt, tokens_of
from toys import LETTERS, PROMPTS, language
from watched import Noted, flip

from gpt.generate import SamplingParams
from gpt.log_probs import token_log_probs, token_scores_and_kl
from gpt.model import GPT
from rl import on_policy_distillation_engine as distillation
from rl.batches.rollout import Rollout
from rl.kd_grpo_engine import KDGRPOConfig, kd_grpo_loss
from rl.on_policy_distillation_engine import distillation_loss, right_answers
from rl.rewards.reward import components
from rl.rewards.verifiable import VerifiableReward
from rl.run.evaluation import evaluate

CONTRACT = {
    "forms": {"sampled": {}, "full": {"divergence": "full"}, "forward": {"divergence": "forward"}},
    "headings": ("With a teacher", "On-policy distillation"),
    "absent": {
        "kl": "there is no reference",
        "kl_per_token": "there is no reference",
        "kl_k3": "there is no reference",
    },
    "skips": {
        "without_a_kl_no_reference_is_asked": "there is no reference",
        "stop_kl_ends_the_run_with_a_validation": "there is no reference, and --stop-kl is refused",
        "the_adaptive_controller_moves_the_penalty": "there is no penalty",
        "minibatches_keep_groups_together": "there are no groups: rows are shuffled one by one",
        "a_constant_reward_teaches_nothing": "a teacher's reward differs between responses",
        "a_toy_reward_is_learned_and_its_negative_unlearned": "the teacher is the reward: own file",
    },
}
ENGINE = engine_named("on_policy_distillation")
CONFIG, run = ENGINE.config, ENGINE.run
CHECK = VerifiableReward(lambda record, text, ended: float(bool({*"abc"} & {*text})), "has a to c")
LESSON = "{answer}{prompt}{prompt}"
ITSELF = dict(teacher=distillation.ITSELF, lesson=LESSON, group_size=4, prompts_per_step=4)

# Over every response of a tiny language


def test_the_expected_gradient_is_that_of_the_token_kls_and_lacks_what_a_token_changes_later():
    """To 1e-12, of both divergences; MiniLLM's and KD-GRPO's is that of the KL of responses.

    The difference of the two is MiniLLM's long part. It is 0 for responses of one token alone.
    """
    for length in (1, 3):
        names = ("fixed", "responses", "full", "sampled", "kd", "long")
        models = {name: tiny_gpt(0) for name in names}
        teacher, batch = tiny_gpt(1), language(length)
        mask = batch.response_mask
        with torch.no_grad():
            log_p, old = (token_log_probs(model, batch) for model in (teacher, tiny_gpt(0)))
        chance = old.sum(1).exp()[:, None]  # of a response
        log_q = {name: token_log_probs(model, batch) for name, model in models.items()}

        fixed = torch.zeros(())  # a prefix is as likely as its student made it, and stays that
        for i, n in enumerate(mask.sum(1).tolist()):
            row = batch.tokens[i : i + 1, : 2 + n]
            q, p = (m(row)[0, 1:-1].log_softmax(-1) for m in (models["fixed"], teacher))
            fixed = fixed + chance[i, 0] * (q.exp() * (q - p)).sum()
        fixed.backward()
        own = log_q["responses"].sum(1)
        (own.exp() * (own - log_p.sum(1))).sum().backward()

        _, kl = token_scores_and_kl(models["full"], teacher, batch)
        nothing = torch.zeros_like(old)
        distillation_loss(nothing, nothing, nothing, chance * kl, mask, tokens=1).backward()
        A = chance * (log_p - old)
        distillation_loss(log_q["sampled"], old, A, None, mask, tokens=1).backward()
        config = KDGRPOConfig(policy_loss="reinforce")
        reward = chance * (log_p - old).sum(1, keepdim=True)
        kd_grpo_loss(
            config, log_q["kd"], old, None, reward, mask, kl_coef=0.0, responses=1
        ).backward()
        (-chance * after(log_p - old, mask) * log_q["long"]).sum().backward()

        found = {name: flat_gradient(model) for name, model in models.items()}
        exactly = dict(rtol=0, atol=1e-12)
        torch.testing.assert_close(found["sampled"], found["fixed"], **exactly)
        torch.testing.assert_close(found["full"], found["fixed"], **exactly)
        torch.testing.assert_close(found["kd"], found["responses"], **exactly)
        torch.testing.assert_close(found["fixed"] + found["long"], found["responses"], **exactly)
        assert float(found["fixed"].abs().max()) > 0.05
        assert (float(found["long"].abs().max()) > 0.02) == (length > 1)


# The first step


def first_gradient(
    policy: GPT, teacher: GPT, rows: list[tuple[list[int], list[int], list[int]]], divergence: str
) -> torch.Tensor:
    """Of rows (prompt, response, what the teacher reads), unpadded, by loops over tokens."""
    policy, total = copy.deepcopy(policy), torch.zeros(())
    for prompt, response, read in rows:
        log_q = policy(torch.tensor([prompt + response]))[0].log_softmax(-1)
        with torch.no_grad():
            log_p = teacher(torch.tensor([read + response]))[0].log_softmax(-1)
        for t, token in enumerate(response):
            q, p = log_q[len(prompt) - 1 + t], log_p[len(read) - 1 + t]
            if divergence == "full":
                total = total + (q.exp() * (q - p)).sum()
            else:
                total = total - float(p[token] - q[token].detach()) * q[token]
    (total / sum(len(response) for _, response, _ in rows)).backward()
    return flat_gradient(policy)


# The policy as its own teacher


def test_a_right_answer_is_another_one_of_the_group_and_the_shortest():
    right = torch.tensor([1, 1, 0, 1, 0, 0, 1, 0, 0, 0, 0, 0]).bool()
    lengths = torch.tensor([5, 3, 1, 3, 2, 2, 9, 2, 1, 1, 1, 1])
    assert right_answers(right, lengths, 4) == [1, 3, 1, 1, 6, 6, None, 6, *[None] * 4]


def by_hand(rollout: Rollout, right: list[bool]) -> dict[int, tuple[list[int], ...]]:
    """Row -> (prompt, response, lesson), by loops over the group and over letters."""
    found = {}
    for i in range(len(rollout)):
        first = i // 4 * 4
        others = [j for j in range(first, first + 4) if j != i and right[j]]
        if others:
            answer = sorted(others, key=lambda j: (len(tokens_of(rollout, j)[1]), j))[0]
            prompt, response = tokens_of(rollout, i)
            letters = [t for t in tokens_of(rollout, answer)[1] if t != LETTERS.eos_id]
            found[i] = prompt, response, letters + prompt + prompt
    return found


@pytest.mark.parametrize("divergence", ["sampled", "full"])
def test_the_first_gradient_of_a_policy_that_teaches_itself(gradients, divergence):
    """No gradient flows through the teacher, and rows without one play no part."""
    start, reward = small_gpt(context=32, sharpness=6.0), Noted(CHECK)
    reward.components = components(CHECK)
    options = ITSELF | dict(divergence=divergence, micro_batch_size=3)
    (row,) = run(copy.deepcopy(start), reward, steps=1, **options)
    (rollout,) = reward.rollouts
    right = components(CHECK).check.correct(rollout)
    rows = list(by_hand(rollout, right.tolist()).values())
    assert row["taught_responses"] == len(rows) / 16 and 4 < len(rows) < 16
    assert row["reward"] == pytest.approx(float(right.float().mean()))
    assert_gradient(gradients[0], first_gradient(start, start, rows, divergence))


# Learning


@pytest.mark.parametrize("divergence", ["sampled", "full", "forward"])
def test_the_student_reaches_the_teacher_and_flees_with_the_sign_flipped(monkeypatch, divergence):
    def distance(policy: GPT) -> float:
        params, judge = SamplingParams(max_new_tokens=6), ENGINE.taught_by(CONFIG, SHARP_TEACHER)
        measured = evaluate(policy, LETTERS, PROMPTS * 16, params, judge)
        return float(measured.reverse_kl_full.mean())

    policy, start = small_gpt(), distance(small_gpt())
    options = dict(prompts_per_step=32, max_new_tokens=6, divergence=divergence)
    rows = run(policy, **options)
    assert distance(policy) < 0.5 * start
    assert rows[-1]["token_kl"] < 0.5 * rows[0]["token_kl"]
    flip(monkeypatch, distillation, "distillation_loss")
    policy = small_gpt()
    run(policy, **options | dict(steps=12))
    assert distance(policy) > 1.1 * start
