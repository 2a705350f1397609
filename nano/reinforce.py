"""REINFORCE (Williams 1992) on whole answers, with the mean reward of a prompt's answers as baseline.

    line 1     sample answers y to the prompts x
    line 2     A = R(x, y) - baseline(x)
    line 3     ascend A log pi(y | x)

The other policy gradients in this folder are this file and a remedy for one of its weaknesses.

    python nano/reinforce.py
    the same numbers: rl/grpo_variants_engine.py --surrogate cispo --reducer sequence_sum
    --reward-scale none --minibatches 1 --kl-coef 0  (with one update all ratios are 1)
"""

import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # where nano is
from nano import gpt


def train(
    policy,
    reward,  # (prompt, answer) -> number
    prompts,  # strings
    *,
    steps=60,
    prompts_per_step=8,
    group_size=8,
    lr=1e-3,
    max_grad_norm=1.0,
    max_new_tokens=8,
    seed=0,
):
    """Run REINFORCE: change `policy` in place and return the numbers of each step."""
    optimizer = torch.optim.Adam(policy.parameters(), lr=lr, betas=(0.9, 0.95))
    sampling = gpt.generator(seed, "sampling")
    numbers = []
    for step in range(steps):
        asked = gpt.shuffled(prompts, step * prompts_per_step, prompts_per_step, seed)
        asked = [prompt for prompt in asked for _ in range(group_size)]
        tokens, mask = gpt.sample(policy, asked, max_new_tokens, sampling)  # line 1
        rewards = torch.tensor(list(map(reward, asked, gpt.decode(tokens, mask))))  # (N,)
        groups = rewards.view(-1, group_size)  # line 2
        advantages = groups - groups.mean(1, keepdim=True)
        advantages = advantages.view(-1, 1)  # (N, 1), one for all tokens of an answer

        loss = -advantages * gpt.log_probs(policy, tokens)  # line 3
        loss = (loss * mask).sum(1).mean()  # log pi(y | x) is the sum over its tokens
        optimizer.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(policy.parameters(), max_grad_norm)
        optimizer.step()
        gpt.report(numbers, reward=rewards, loss=loss.detach(), grad_norm=norm)
    return numbers


def main(steps=60):
    policy = gpt.pretrained()
    gpt.show(policy)
    train(policy, gpt.gold, gpt.PROMPTS, steps=steps)
    gpt.show(policy)


if __name__ == "__main__":
    main()
