"""GSPO: Group Sequence Policy Optimization (Zheng et al. 2025, arXiv:2507.18071, Eqs. 5 to 7).

The line numbers are those of GRPO's Algorithm 1 (nano/grpo.py).
What is new next to GRPO: one ratio for an answer, the geometric mean of its tokens' ratios, because
the reward is one for an answer too. It hardly moves, so its clip range is tiny. No KL.

    python nano/gspo.py         (the same numbers: rl/grpo_variants_engine.py --variant gspo)
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
    clip_low=3e-4,
    clip_high=4e-4,
    lr=1e-3,
    max_grad_norm=1.0,
    max_new_tokens=8,
    seed=0,
):
    """Run GSPO: change `policy` in place and return the numbers of each step."""
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
        groups = rewards.view(-1, group_size)  # line 9: Eq. 6
        advantages = (groups - groups.mean(1, keepdim=True)) / (groups.std(1, keepdim=True) + 1e-4)
        advantages = advantages.view(-1)  # (N,), one for an answer

        losses, norms = [], []
        for _ in range(epochs):  # line 10
            order = torch.randperm(prompts_per_step, generator=shuffling)
            for part in order.tensor_split(minibatches):
                rows = (part[:, None] * group_size + torch.arange(group_size)).flatten()
                A, m = advantages[rows], mask[rows]
                new_log_probs = gpt.log_probs(policy, tokens[rows])
                log_ratio = (new_log_probs - old_log_probs[rows]) * m
                ratio = (log_ratio.sum(1) / m.sum(1)).exp()  # (n,)  Eq. 7
                clipped = ratio.clamp(1 - clip_low, 1 + clip_high)
                loss = -torch.minimum(ratio * A, clipped * A)  # line 11: Eq. 5
                loss = loss.mean()  # 1/G sum
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
