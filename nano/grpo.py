"""GRPO: Group Relative Policy Optimization (Shao et al. 2024, arXiv:2402.03300, Algorithm 1).

No critic: each answer is scored against the other answers to the same prompt.
What is new next to RLOO: the advantage is divided by the group's standard deviation, several updates
are made from one batch, with PPO's clip, and the KL to the reference is a term of the loss.

    python nano/grpo.py         (the same numbers: rl/grpo_engine.py)
"""

import copy
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
    clip=0.2,  # epsilon
    kl_coef=0.04,  # beta
    lr=1e-3,
    max_grad_norm=1.0,
    max_new_tokens=8,
    seed=0,
):
    """Run GRPO: change `policy` in place and return the numbers of each step."""
    reference = copy.deepcopy(policy)  # line 3
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
            ref_log_probs = gpt.log_probs(reference, tokens)  # (N, S - 1)
        k1 = (old_log_probs - ref_log_probs) * mask  # its sum over an answer estimates the KL
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
                clipped = ratio.clamp(1 - clip, 1 + clip)
                loss = -torch.minimum(ratio * A, clipped * A)  # line 11: Eq. 3
                delta = ref_log_probs[rows] - new_log_probs
                loss = loss + kl_coef * (delta.exp() - delta - 1)  # Eq. 4
                loss = ((loss * m).sum(1) / m.sum(1)).mean()  # 1/G sum 1/|o| sum
                optimizer.zero_grad()
                loss.backward()
                norm = torch.nn.utils.clip_grad_norm_(policy.parameters(), max_grad_norm)
                optimizer.step()
                losses.append(loss.item())
                norms.append(norm.item())
        gpt.report(numbers, reward=rewards, kl=k1.sum(1), loss=losses, grad_norm=norms)
    return numbers


def main(steps=60):
    policy = gpt.pretrained()
    gpt.show(policy)
    train(policy, gpt.gold, gpt.PROMPTS, steps=steps)
    gpt.show(policy)


if __name__ == "__main__":
    main()
