"""GRPO with a tool: an answer holds letters that the policy did not write (the loop: arXiv:2402.03300).

    in sample  after a ":" of the policy the tool writes; the mask is True where the policy drew
    line 11    ratios and the mean over an answer: at the mask alone (the KL is left out)

What is new next to GRPO: the mask has holes. Tokens are scored as sampled, never read from text.

    python nano/tools.py        (with a tool that says nothing: the numbers of nano/grpo.py)
"""

import random
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # where nano is
from nano import gpt

CALL = ":"


@torch.no_grad()
def sample(policy, prompts, max_new_tokens, generator, tool):
    """tokens (N, S), the mask of the policy's letters (N, S - 1), and the answers, the tool's included."""
    tokens, mask = gpt.collate([(prompt, gpt.END * max_new_tokens) for prompt in prompts])
    mask, answers = torch.zeros_like(mask), [""] * len(prompts)
    uniforms = torch.rand(len(prompts), max_new_tokens, generator=generator)
    waiting, running = [""] * len(prompts), [True] * len(prompts)
    rows, columns = torch.arange(len(prompts)), torch.tensor([len(prompt) for prompt in prompts])
    for t in range(max_new_tokens):
        summed = policy(tokens)[rows, columns + t - 1].softmax(-1).cumsum(-1)  # (N, V)
        passed = uniforms[:, t : t + 1] * summed[:, -1:]
        drawn = torch.searchsorted(summed, passed, right=True)[:, 0].clamp(max=summed.shape[1] - 1)
        for row, prompt in enumerate(prompts):
            letter = gpt.LETTERS[drawn[row]]
            if waiting[row]:  # the tool's letter, and not the one that was drawn
                letter, waiting[row] = waiting[row][0], waiting[row][1:]
            elif running[row]:
                mask[row, columns[row] + t - 1] = True
                said = tool(prompt) if letter == CALL else ""
                fits = t + len(said) + 1 < max_new_tokens or not said
                waiting[row], running[row] = said if fits else "", fits and letter != gpt.END
            else:
                continue
            tokens[row, columns[row] + t] = gpt.LETTERS.index(letter)
            answers[row] += letter
    return tokens, mask, answers


def train(
    policy,
    reward,  # (prompt, answer) -> number
    prompts,  # strings
    tool,  # prompt -> letters
    *,
    steps=40,
    prompts_per_step=8,
    group_size=8,  # G
    epochs=2,  # mu
    minibatches=2,
    clip=0.2,  # epsilon
    lr=1e-3,
    max_grad_norm=1.0,
    max_new_tokens=8,
    seed=0,
):
    """Run GRPO: change `policy` in place and return the numbers of each step."""
    optimizer = torch.optim.Adam(policy.parameters(), lr=lr, betas=(0.9, 0.95))
    sampling, shuffling = gpt.generator(seed, "sampling"), gpt.generator(seed, "minibatches")
    numbers = []
    for step in range(steps):
        asked = gpt.shuffled(prompts, step * prompts_per_step, prompts_per_step, seed)
        asked = [prompt for prompt in asked for _ in range(group_size)]
        tokens, mask, answers = sample(policy, asked, max_new_tokens, sampling, tool)
        groups = torch.tensor(list(map(reward, asked, answers))).view(-1, group_size)  # (P, G)
        with torch.no_grad():
            old_log_probs = gpt.log_probs(policy, tokens)  # (N, S - 1)
        advantages = (groups - groups.mean(1, keepdim=True)) / (groups.std(1, keepdim=True) + 1e-4)
        advantages, losses, norms = advantages.view(-1, 1), [], []
        for _ in range(epochs):
            order = torch.randperm(prompts_per_step, generator=shuffling)
            for part in order.tensor_split(minibatches):
                rows = (part[:, None] * group_size + torch.arange(group_size)).flatten()
                A, m = advantages[rows], mask[rows]
                ratio = (gpt.log_probs(policy, tokens[rows]) - old_log_probs[rows]).exp()
                loss = -torch.minimum(ratio * A, ratio.clamp(1 - clip, 1 + clip) * A) * m
                loss = (loss.sum(1) / m.sum(1)).mean()  # line 11
                optimizer.zero_grad()
                loss.backward()
                norm = torch.nn.utils.clip_grad_norm_(policy.parameters(), max_grad_norm)
                norms.append(norm.item())
                optimizer.step()
                losses.append(loss.item())
        calls = [float(answer[:-1].count(CALL)) for answer in answers]  # the answered ones
        gpt.report(numbers, reward=groups, calls=calls, loss=losses, grad_norm=norms)
    return numbers


def main(steps=40):
    """Each prompt has a secret letter that only the tool knows: it earns 1, and a call costs 0.1."""
    chance, policy = random.Random(0), gpt.pretrained(steps=2)
    secret = {prompt: chance.choice("abcdefgh") for prompt in gpt.PROMPTS}
    optimizer = torch.optim.Adam(policy.parameters(), lr=3e-3)
    for _ in range(10 * steps):  # text in which some answers call, and repeat what they read
        letters = chance.choices("abcdefgh", k=2 * len(gpt.PROMPTS))
        texts = [f"{CALL}{x}{x}." if chance.random() < 0.3 else f"{x}." for x in letters]
        tokens, mask = gpt.collate(list(zip(2 * gpt.PROMPTS, texts, strict=True)))
        optimizer.zero_grad()
        (-gpt.log_probs(policy, tokens)[mask].mean()).backward()
        optimizer.step()

    def worth(prompt, answer):
        return (answer.rstrip(".")[-1:] == secret[prompt]) - 0.1 * answer.count(CALL)

    train(policy, worth, gpt.PROMPTS, secret.get, steps=steps)


if __name__ == "__main__":
    main()
