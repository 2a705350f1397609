"""REINFORCE++ (Hu et al. 2025, arXiv:2501.03262, version 9).

    line 1     one answer per prompt from the old policy
    line 2     r_t = -beta k1_t, plus R at the last token
    line 3     A_t = sum of r_u from t on                   (Eq. 4)
    line 4     A_t = (A_t - mean) / std over the batch      (Eq. 5)
    line 5     ascend the clipped objective                 (Eq. 1)

What is new next to GRPO: the whole batch is the baseline instead of a group, so one answer per prompt
is enough; the KL is part of each token's reward. Next to PPO: there is no critic.

    python nano/reinforce_pp.py (the same numbers: rl/reinforce_pp_engine.py)
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
    epochs=2,  # mu
    minibatches=2,
    clip=0.2,  # epsilon
    kl_coef=0.04,  # beta
    lr=1e-3,
    max_grad_norm=1.0,
    max_new_tokens=8,
    seed=0,
):
    """Run REINFORCE++: change `policy` in place and return the numbers of each step."""
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
        last = mask & (mask.cumsum(1) == mask.sum(1, keepdim=True))  # an answer's last token
        token_rewards = last * rewards[:, None] - kl_coef * k1  # (N, S - 1)  line 2
        advantages = token_rewards.flip(1).cumsum(1).flip(1)  # (N, S - 1)  line 3
        spread = (advantages[mask].var() + 1e-8).sqrt()
        advantages = (advantages - advantages[mask].mean()) / spread  # line 4

        losses, norms = [], []
        for _ in range(epochs):
            order = torch.randperm(prompts_per_step, generator=shuffling)
            for rows in order.tensor_split(minibatches):
                A, m = advantages[rows], mask[rows]
                new_log_probs = gpt.log_probs(policy, tokens[rows])
                ratio = (new_log_probs - old_log_probs[rows]).exp()
                clipped = ratio.clamp(1 - clip, 1 + clip)
                loss = -torch.minimum(ratio * A, clipped * A)  # line 5: Eq. 1
                loss = ((loss * m).sum(1) / m.sum(1)).mean()  # every answer the same
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
