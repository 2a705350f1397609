"""CISPO: clipped importance-sampling weights (MiniMax-M1 2025, arXiv:2506.13585, Eqs. 4 and 5).

The line numbers are those of GRPO's Algorithm 1 (nano/grpo.py).
What is new next to GRPO: the clipped ratio only weighs -A log pi and has no gradient of its own, so a
token beyond the clip still teaches. Every token of a batch counts the same. No KL.

    python nano/cispo.py        (the same numbers: rl/grpo_variants_engine.py --variant cispo)
"""

import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # where nano is
from nano import gpt


def train(
    policy,  # line 1
    reward,  # (prompt, answer) -> number
    prompts,  # strings
    *,
    steps=60,  # M
    prompts_per_step=8,
    group_size=8,  # G
    epochs=2,  # mu
    minibatches=2,
    clip_high=0.2,  # epsilon above 1; there is none below
    lr=1e-3,
    max_grad_norm=1.0,
    max_new_tokens=8,
    seed=0,
):
    """Run CISPO: change `policy` in place and return the numbers of each step."""
    optimizer = torch.optim.Adam(policy.parameters(), lr=lr, betas=(0.9, 0.95))
    sampling, shuffling = gpt.generator(seed, "sampling"), gpt.generator(seed, "minibatches")
    numbers = []
    for step in range(steps):  # line 4
        asked = gpt.shuffled(prompts, step * prompts_per_step, prompts_per_step, seed)  # line 5
        asked = [prompt for prompt in asked for _ in range(group_size)]
        tokens, mask = gpt.sample(policy, asked, max_new_tokens, sampling)  # lines 6-7
        rewards = torch.tensor(list(map(reward, asked, gpt.decode(tokens, mask))))  # (N,)  line 8
        with torch.no_grad():
            old_log_probs = gpt.log_probs(policy, tokens)  # (N, S - 1)  line 6
        groups = rewards.view(-1, group_size)  # line 9
        advantages = (groups - groups.mean(1, keepdim=True)) / (groups.std(1, keepdim=True) + 1e-4)
        advantages = advantages.view(-1, 1)  # (N, 1), one for all tokens of an answer

        losses, norms = [], []
        for _ in range(epochs):  # line 10
            order = torch.randperm(prompts_per_step, generator=shuffling)
            for part in order.tensor_split(minibatches):
                rows = (part[:, None] * group_size + torch.arange(group_size)).flatten()
                A, m = advantages[rows], mask[rows]
                new_log_probs = gpt.log_probs(policy, tokens[rows])
                ratio = (new_log_probs - old_log_probs[rows]).exp()
                weight = ratio.clamp(max=1 + clip_high).detach()  # Eq. 5
                loss = -weight * A * new_log_probs  # line 11: Eq. 4
                loss = (loss * m).sum() / m.sum()  # every token the same
                optimizer.zero_grad()
                loss.backward()
                norm = torch.nn.utils.clip_grad_norm_(policy.parameters(), max_grad_norm)
                optimizer.step()
                losses.append(loss.item())
                norms.append(norm.item())
        gpt.report(numbers, reward=rewards, loss=losses, grad_norm=norms)
    return numbers


def main(steps=60):
    policy = gpt.pretrained()
    gpt.show(policy)
    train(policy, gpt.gold, gpt.PROMPTS, steps=steps)
    gpt.show(policy)


if __name__ == "__main__":
    main()
