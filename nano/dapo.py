"""DAPO: Decoupled Clip and Dynamic Sampling (Yu et al. 2025, arXiv:2503.14476, Algorithm 1).

What is new next to GRPO: the clip is wider above than below; groups of equal rewards teach nothing
and other prompts are sampled in their place; every token of a batch counts the same; answers that
come near the limit of length pay for it. No KL. Without the paper's overlong filtering.

    python nano/dapo.py         (the same numbers: rl/grpo_variants_engine.py --variant dapo)
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
    steps=60,  # M
    prompts_per_step=8,
    group_size=8,  # G
    epochs=2,  # mu
    minibatches=2,
    clip_low=0.2,
    clip_high=0.28,
    max_rounds=5,  # of sampling in a step
    lr=1e-3,
    max_grad_norm=1.0,
    max_new_tokens=8,
    seed=0,
):
    """Run DAPO: change `policy` in place and return the numbers of each step."""
    late = max(max_new_tokens // 5, 1)  # the last tokens, for which an answer pays
    optimizer = torch.optim.Adam(policy.parameters(), lr=lr, betas=(0.9, 0.95))
    sampling, shuffling = gpt.generator(seed, "sampling"), gpt.generator(seed, "minibatches")
    numbers, taken = [], 0
    for _ in range(steps):  # line 1
        kept, groups, all_rewards = [], torch.zeros(0, group_size), []
        for _ in range(max_rounds):
            missing = prompts_per_step - len(groups)
            if missing == 0:  # lines 7-8
                break
            asked = gpt.shuffled(prompts, taken, missing, seed)  # line 2
            taken += missing
            asked = [prompt for prompt in asked for _ in range(group_size)]
            tokens, mask = gpt.sample(policy, asked, max_new_tokens, sampling)  # lines 3-4
            answers = gpt.decode(tokens, mask)
            rewards = torch.tensor(list(map(reward, asked, answers)))  # (n,)  line 5
            rewards = rewards.view(-1, group_size)
            overlong = (max_new_tokens - late - mask.sum(1)) / late  # Eq. 13
            overlong = overlong.clamp(-1, 0).view(-1, group_size)
            spread = rewards.amax(1) > rewards.amin(1)  # line 6: groups of equal rewards go
            groups = torch.cat([groups, (rewards + overlong)[spread]])
            for row in spread.repeat_interleave(group_size).nonzero()[:, 0]:
                kept.append((asked[row], answers[row]))
            all_rewards.append(rewards + overlong)
        if not kept:  # nothing to learn from
            gpt.report(numbers, reward=torch.cat(all_rewards))
            continue
        tokens, mask = gpt.collate(kept)
        with torch.no_grad():
            old_log_probs = gpt.log_probs(policy, tokens)  # (N, S - 1)  line 3
        advantages = (groups - groups.mean(1, keepdim=True)) / (groups.std(1, keepdim=True) + 1e-4)
        advantages = advantages.view(-1, 1)  # (N, 1)  line 9

        losses, norms = [], []
        for _ in range(epochs):  # line 10
            order = torch.randperm(len(groups), generator=shuffling)
            for part in order.tensor_split(min(minibatches, len(groups))):
                rows = (part[:, None] * group_size + torch.arange(group_size)).flatten()
                A, m = advantages[rows], mask[rows]
                new_log_probs = gpt.log_probs(policy, tokens[rows])
                ratio = (new_log_probs - old_log_probs[rows]).exp()
                clipped = ratio.clamp(1 - clip_low, 1 + clip_high)
                loss = -torch.minimum(ratio * A, clipped * A)  # line 11: Eq. 8
                loss = (loss * m).sum() / m.sum()  # every token the same
                optimizer.zero_grad()
                loss.backward()
                norm = torch.nn.utils.clip_grad_norm_(policy.parameters(), max_grad_norm)
                optimizer.step()
                losses.append(loss.item())
                norms.append(norm.item())
        gpt.report(numbers, reward=torch.cat(all_rewards), loss=losses, grad_norm=norms)
    return numbers


def main(steps=60):
    policy = gpt.pretrained()
    gpt.show(policy)
    train(policy, gpt.gold, gpt.PROMPTS, steps=steps)
    gpt.show(policy)


if __name__ == "__main__":
    main()
