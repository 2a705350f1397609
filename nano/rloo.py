"""RLOO: REINFORCE Leave-One-Out (Ahmadian et al. 2024, arXiv:2402.14740, section 2.3).

    line 1     y_1 ... y_k ~ pi( . | x)
    line 2     R(y, x) = r(x, y) - beta log(pi / pi_ref)(y | x)
    line 3     A_i = R(y_i, x) - the mean of the other k - 1
    line 4     two gradient steps a batch, on disjoint rows
    line 5     ascend A log pi(y | x)

What is new next to REINFORCE: an answer's own reward is not part of its baseline, which leaves the
expected gradient unscaled; the KL to the reference is part of the reward.

    python nano/rloo.py         (the same numbers: rl/rloo_engine.py)
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
    prompts_per_step=8,
    group_size=8,  # k
    minibatches=2,  # line 4
    kl_coef=0.04,  # beta
    lr=1e-3,
    max_grad_norm=1.0,
    max_new_tokens=8,
    seed=0,
):
    """Run RLOO: change `policy` in place and return the numbers of each step."""
    reference = copy.deepcopy(policy)  # pi_ref
    optimizer = torch.optim.Adam(policy.parameters(), lr=lr, betas=(0.9, 0.95))
    sampling, shuffling = gpt.generator(seed, "sampling"), gpt.generator(seed, "minibatches")
    numbers = []
    for step in range(steps):
        asked = gpt.shuffled(prompts, step * prompts_per_step, prompts_per_step, seed)
        asked = [prompt for prompt in asked for _ in range(group_size)]
        tokens, mask = gpt.sample(policy, asked, max_new_tokens, sampling)  # line 1
        rewards = torch.tensor(list(map(reward, asked, gpt.decode(tokens, mask))))  # (N,)
        with torch.no_grad():
            old_log_probs = gpt.log_probs(policy, tokens)  # (N, S - 1)
            ref_log_probs = gpt.log_probs(reference, tokens)  # (N, S - 1)
        k1 = (old_log_probs - ref_log_probs) * mask  # its sum over an answer estimates the KL
        groups = (rewards - kl_coef * k1.sum(1)).view(-1, group_size)  # line 2
        advantages = groups - (groups.sum(1, keepdim=True) - groups) / (group_size - 1)  # line 3
        advantages = advantages.view(-1, 1)  # (N, 1), one for all tokens of an answer

        losses, norms = [], []
        order = torch.randperm(prompts_per_step, generator=shuffling)
        for part in order.tensor_split(minibatches):  # line 4
            rows = (part[:, None] * group_size + torch.arange(group_size)).flatten()
            A, m = advantages[rows], mask[rows]
            new_log_probs = gpt.log_probs(policy, tokens[rows])
            loss = -A * new_log_probs  # line 5
            loss = (loss * m).sum(1).mean()  # log pi(y | x) is the sum over its tokens
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
