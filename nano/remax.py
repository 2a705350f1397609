"""ReMax: REINFORCE with the greedy answer as baseline (Li et al. 2023, arXiv:2310.10505, Algorithm 1).

    line 1     y ~ pi( . | x)
    line 2     y_max = the greedy answer to x
    line 3     A = r(x, y) - beta log(pi / pi_ref)(y | x) - r(x, y_max)
    line 4     ascend A log pi(y | x)

What is new next to RLOO: the baseline is what the policy's likeliest answer earns, so one answer to a
prompt is enough, and a greedy one beside it.

    python nano/remax.py
"""

import copy
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
    prompts_per_step=64,
    minibatches=2,
    kl_coef=0.04,  # beta
    lr=1e-3,
    max_norm=1.0,
    max_new_tokens=8,
    seed=0,
):
    """Run ReMax: change `policy` in place and return the numbers of each step."""
    reference = copy.deepcopy(policy)  # pi_ref
    optimizer = torch.optim.Adam(policy.parameters(), lr=lr, betas=(0.9, 0.95))
    sampling, shuffling = gpt.generator(seed, "sampling"), gpt.generator(seed, "minibatches")
    numbers = []
    for step in range(steps):
        asked = gpt.shuffled(prompts, step * prompts_per_step, prompts_per_step, seed)
        tokens, mask = gpt.sample(policy, asked, max_new_tokens, sampling)  # line 1
        rewards = torch.tensor(list(map(reward, asked, gpt.decode(tokens, mask))))  # (N,)
        with torch.no_grad():
            old_log_probs = gpt.log_probs(policy, tokens)  # (N, S - 1)
            ref_log_probs = gpt.log_probs(reference, tokens)  # (N, S - 1)
        k1 = (old_log_probs - ref_log_probs) * mask  # its sum over an answer estimates the KL
        greedy = gpt.sample(
            lambda rows: policy(rows) * 1e9, asked, max_new_tokens, gpt.generator(0, "")
        )  # line 2
        baseline = torch.tensor(list(map(reward, asked, gpt.decode(*greedy))))  # (N,)
        advantages = rewards - kl_coef * k1.sum(1) - baseline  # line 3
        advantages = advantages.view(-1, 1)  # (N, 1), one for all tokens of an answer

        losses, norms = [], []
        order = torch.randperm(prompts_per_step, generator=shuffling)
        for rows in order.tensor_split(minibatches):
            A, m = advantages[rows], mask[rows]
            new_log_probs = gpt.log_probs(policy, tokens[rows])
            loss = -A * new_log_probs  # line 4
            loss = (loss * m).sum(1).mean()  # log pi(y | x) is the sum over its tokens
            optimizer.zero_grad()
            loss.backward()
            norm = torch.nn.utils.clip_grad_norm_(policy.parameters(), max_norm)
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
