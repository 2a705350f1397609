"""Asynchronous GRPO: the answers come from a policy that is `lag` updates old.

What is new next to GRPO: a past policy samples, and each token weighs by how much likelier the policy
has made it since, pi_old / mu, truncated at `cap` (token TIS). The weight of the whole answer, the product,
is nearer to the right gradient, but of long answers only few would count.

    python nano/async_grpo.py         (its weights and others: page 19 of notebooks/)
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
    lag=4,  # optimizer steps
    cap=2.0,  # C
    clip=0.2,  # epsilon
    kl_coef=0.04,  # beta
    lr=1e-3,
    max_grad_norm=1.0,
    max_new_tokens=8,
    seed=0,
):
    """Run asynchronous GRPO: change `policy` in place and return the numbers of each step."""
    reference = copy.deepcopy(policy)  # line 3
    optimizer = torch.optim.Adam(policy.parameters(), lr=lr, betas=(0.9, 0.95))
    shuffling = gpt.generator(seed, "minibatches")
    past, numbers = [copy.deepcopy(policy)], []  # the policy as it was, up to `lag` updates ago
    for step in range(steps):  # line 4
        asked = gpt.shuffled(prompts, step * prompts_per_step, prompts_per_step, seed)  # line 5
        asked = [prompt for prompt in asked for _ in range(group_size)]
        mu, sampling = past[0], gpt.generator(seed, f"sampling {step}")  # new: an older policy
        tokens, mask = gpt.sample(mu, asked, max_new_tokens, sampling)  # line 7
        rewards = torch.tensor(list(map(reward, asked, gpt.decode(tokens, mask))))  # (N,)  line 8
        with torch.no_grad():
            old_log_probs = gpt.log_probs(policy, tokens)  # (N, S - 1)  line 6
            moved = (old_log_probs - gpt.log_probs(mu, tokens)) * mask
            weights = moved.exp().clamp(max=cap)  # (N, S - 1)  new: token TIS
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
                loss = -weights[rows] * torch.minimum(ratio * A, clipped * A)  # line 11: w Eq. 3
                delta = ref_log_probs[rows] - new_log_probs
                loss = loss + kl_coef * (delta.exp() - delta - 1)  # Eq. 4
                loss = ((loss * m).sum(1) / m.sum(1)).mean()  # 1/G sum 1/|o| sum
                optimizer.zero_grad()
                loss.backward()
                norm = torch.nn.utils.clip_grad_norm_(policy.parameters(), max_grad_norm)
                optimizer.step()
                past = [*past, copy.deepcopy(policy)][-lag - 1 :]
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
