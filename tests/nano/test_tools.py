"""nano/tools.py against slow code, and against nano/grpo.py where the tool is silent."""

from __future__ import annotations

import pytest
import torch
from test_equal_to_engines import PROMPTS, varied
from toys import flat_gradient

from nano import gpt, grpo, tools

SAID = {prompt: prompt[-2::-1] for prompt in PROMPTS}  # the prompt backwards
END, CALL = (gpt.LETTERS.index(letter) for letter in (gpt.END, tools.CALL))


def random_policy(seed: int = 0) -> gpt.GPT:
    """In float64; no gain is 1, no bias 0, and many letters are END or a call."""
    torch.manual_seed(seed)
    policy = gpt.GPT(len(gpt.LETTERS), context=16, n_layer=1, n_embd=16).double()
    with torch.no_grad():
        for weight in policy.parameters():
            weight += 0.1 * torch.randn_like(weight)
        policy.wte.weight[[END, CALL]] += policy.ln_f.bias
    return policy


# --- sampling -------------------------------------------------------------------------------------


def slowly(policy: gpt.GPT, prompt: str, uniforms: list[float]) -> tuple[str, list[bool]]:
    """One answer letter by letter, each from a forward over what stands there so far."""
    answer, mine = "", []
    while len(mine) < len(uniforms):
        tokens = torch.tensor([[gpt.LETTERS.index(x) for x in prompt + answer]])
        left, token = uniforms[len(mine)], 0
        for probability in policy(tokens)[0, -1].softmax(-1).tolist():
            left -= probability
            if left < 0:
                break
            token += 1
        answer, mine = answer + gpt.LETTERS[token], [*mine, True]
        if token == END:
            break
        if token == CALL:
            if len(mine) + len(SAID[prompt]) >= len(uniforms):  # no room for a letter behind it
                break
            answer, mine = answer + SAID[prompt], mine + [False] * len(SAID[prompt])
    return answer, mine


def test_a_batch_is_sampled_as_its_rows_are() -> None:
    policy, asked = random_policy(), 12 * PROMPTS
    tokens, mask, answers = tools.sample(
        policy, asked, 10, torch.Generator().manual_seed(1), SAID.get
    )
    generator = torch.Generator().manual_seed(1)
    uniforms = torch.rand(len(asked), 10, generator=generator).tolist()
    calls, ended = set(), set()
    for row, prompt in enumerate(asked):
        answer, mine = slowly(policy, prompt, uniforms[row])
        start = len(prompt)
        assert answers[row] == answer
        assert tokens[row, start : start + len(answer)].tolist() == [
            *map(gpt.LETTERS.index, answer)
        ]
        written = mask[row].tolist()
        assert written[start - 1 : start - 1 + len(mine)] == mine
        assert sum(written) == sum(mine)
        calls.add(answer[:-1].count(tools.CALL))
        ended.add(answer[-1] == gpt.END)
    assert {0, 1, 2} <= calls and ended == {True, False}


# --- learning -------------------------------------------------------------------------------------


def test_the_first_gradient_is_that_of_the_letters_that_the_policy_wrote(monkeypatch) -> None:
    """Row by row and letter by letter; what the tool wrote is read, and has no gradient of its own."""
    policy, seen = random_policy(), []
    real = torch.nn.utils.clip_grad_norm_

    def clipped(parameters, max_grad_norm):
        seen.append(flat_gradient(policy).clone())
        return real(parameters, max_grad_norm)

    monkeypatch.setattr(torch.nn.utils, "clip_grad_norm_", clipped)
    sizes = dict(steps=1, prompts_per_step=4, group_size=4, max_new_tokens=10, seed=3)
    tools.train(policy, varied, PROMPTS, SAID.get, epochs=1, minibatches=1, **sizes)

    policy = random_policy()
    asked = [prompt for prompt in gpt.shuffled(PROMPTS, 0, 4, 3) for _ in range(4)]
    sampled = tools.sample(policy, asked, 10, gpt.generator(3, "sampling"), SAID.get)
    tokens, mask, answers = sampled
    rewards = [varied(*pair) for pair in zip(asked, answers, strict=True)]
    loss, holes = torch.zeros((), dtype=torch.float64), 0
    for row in range(16):
        group = torch.tensor(rewards[row - row % 4 : row - row % 4 + 4])
        advantage = (rewards[row] - group.mean()) / (group.std() + 1e-4)
        written = mask[row].nonzero()[:, 0].tolist()
        holes += written[-1] + 1 - written[0] - len(written)
        for column in written:
            logits = policy(tokens[row : row + 1, : column + 1])[0, -1]
            loss -= advantage * logits.log_softmax(-1)[tokens[row, column + 1]] / len(written) / 16
    loss.backward()
    assert holes > 3
    torch.testing.assert_close(seen[0], flat_gradient(policy), rtol=0, atol=1e-6)


def test_with_a_silent_tool_it_is_grpo() -> None:
    sizes = dict(steps=5, prompts_per_step=4, group_size=4, lr=3e-3, max_new_tokens=10, seed=3)
    with_tool, plain = random_policy(), random_policy()
    rows = tools.train(with_tool, varied, PROMPTS, lambda prompt: "", **sizes)
    others = grpo.train(plain, varied, PROMPTS, kl_coef=0.0, **sizes)
    for row, other in zip(rows, others, strict=True):
        for key in ("reward", "loss", "grad_norm"):
            assert row[key] == pytest.approx(other[key], abs=1e-10)
    for weight, other in zip(with_tool.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(weight, other, rtol=0, atol=1e-10)
