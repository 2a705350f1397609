"""ReMax: the greedy answer is REINFORCE's baseline (Li et al. 2024, arXiv:2310.10505, Algorithm 1).

    line 1     for each batch of prompts x
    line 2     sample y ~ pi( . | x)
    line 3     greedy answer g: always the likeliest token
    line 4     A = r(x, y) - r(x, g)
    line 5-6   loss = -mean of A log pi(y | x)
    line 7     minimise the loss

The paper's algorithm leaves the KL out. Here every token pays beta k1, and its advantage holds what
is paid from it on, as in PPO.
What is new next to RLOO: the baseline is one more answer, drawn without chance, and no other sample,
so one answer per prompt is enough.

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
    kl_coef=0.04,  # beta
    lr=1e-3,
    max_grad_norm=1.0,
    max_new_tokens=8,
    seed=0,
):
    """Run ReMax: change `policy` in place and return the numbers of each step."""
    reference = copy.deepcopy(policy)  # pi_ref
    optimizer = torch.optim.Adam(policy.parameters(), lr=lr, betas=(0.9, 0.95))
    sampling = gpt.generator(seed, "sampling")
    numbers = []

    def likeliest(rows):  # at a temperature of nearly 0 no other token is ever drawn
        return policy(rows) * 1e9

    for step in range(steps):
        asked = gpt.shuffled(prompts, step * prompts_per_step, prompts_per_step, seed)  # line 1
        tokens, mask = gpt.sample(policy, asked, max_new_tokens, sampling)  # line 2
        rewards = torch.tensor(list(map(reward, asked, gpt.decode(tokens, mask))))  # (N,)
        greedy = gpt.sample(likeliest, asked, max_new_tokens, gpt.generator(seed, "greedy"))
        greedy_rewards = torch.tensor(list(map(reward, asked, gpt.decode(*greedy))))  # line 3
        with torch.no_grad():
            old_log_probs = gpt.log_probs(policy, tokens)  # (N, S - 1)
            ref_log_probs = gpt.log_probs(reference, tokens)  # (N, S - 1)
        k1 = (old_log_probs - ref_log_probs) * mask  # its sum over an answer estimates the KL
        k1_to_go = k1.flip(1).cumsum(1).flip(1)  # the sum from a token on
        advantages = (rewards - greedy_rewards)[:, None] - kl_coef * k1_to_go  # line 4

        loss = -advantages * gpt.log_probs(policy, tokens)  # line 5
        loss = (loss * mask).sum(1).mean()  # line 6: log pi(y | x) is the sum over its tokens
        optimizer.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(policy.parameters(), max_grad_norm)
        optimizer.step()  # line 7
        gpt.report(numbers, reward=rewards, kl=k1.sum(1), loss=loss.detach(), grad_norm=norm)
    return numbers


def main(steps=60):
    policy = gpt.pretrained()
    gpt.show(policy)
    train(policy, gpt.gold, gpt.PROMPTS, steps=steps)
    gpt.show(policy)


if __name__ == "__main__":
    main()
