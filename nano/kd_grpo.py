"""GRPO with a teacher's log-likelihood as the reward: distillation by reinforcement.

    line 1     student <- start; teacher frozen           line 7     A = (r - mean) / std of the group
    line 2     reference <- student                       line 8     L_policy, with GRPO's clip
    line 3     for each batch of prompts                  line 9     L_KL to the reference
    line 4     G outputs per prompt                       line 10    L_PT = -log pi(text)
    line 5     r = log p_teacher(o) - log p_student(o)    line 11    descend the sum of the three

What is new next to GRPO: the reward is a model's log-probability, and a loss on text (L_PT) holds on
to what the student knew. Without "- log p_student" the best answer is the teacher's likeliest one.

    python nano/kd_grpo.py      (the same numbers: rl/kd_grpo_engine.py)
"""

import copy
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # where nano is
from nano import gpt


def train(
    policy,  # line 1
    teacher,
    text,  # index -> [(prompt, answer)]
    prompts,  # strings
    *,
    steps=60,
    prompts_per_step=8,
    group_size=8,  # G
    epochs=2,
    minibatches=2,
    clip=0.2,  # epsilon
    kl_coef=0.04,  # beta
    text_coef=0.1,  # lambda
    lr=1e-3,
    max_grad_norm=1.0,
    max_new_tokens=8,
    seed=0,
):
    """Run KD-GRPO: change `policy` in place and return the numbers of each step."""
    reference = copy.deepcopy(policy)  # line 2
    optimizer = torch.optim.Adam(policy.parameters(), lr=lr, betas=(0.9, 0.95))
    sampling, shuffling = gpt.generator(seed, "sampling"), gpt.generator(seed, "minibatches")
    numbers, updates = [], 0
    for step in range(steps):  # line 3
        asked = gpt.shuffled(prompts, step * prompts_per_step, prompts_per_step, seed)  # line 3
        asked = [prompt for prompt in asked for _ in range(group_size)]
        tokens, mask = gpt.sample(policy, asked, max_new_tokens, sampling)  # line 4
        with torch.no_grad():
            old_log_probs = gpt.log_probs(policy, tokens)  # (N, S - 1)
            ref_log_probs = gpt.log_probs(reference, tokens)  # (N, S - 1)
            teacher_log_probs = gpt.log_probs(teacher, tokens)  # (N, S - 1)
        k1 = (old_log_probs - ref_log_probs) * mask  # its sum over an answer estimates the KL
        rewards = ((teacher_log_probs - old_log_probs) * mask).sum(1).float()  # (N,)  line 5
        groups = rewards.view(-1, group_size)  # line 7
        advantages = (groups - groups.mean(1, keepdim=True)) / (groups.std(1, keepdim=True) + 1e-4)
        advantages = advantages.view(-1, 1)  # (N, 1), one for all tokens of an answer

        losses, norms = [], []
        for _ in range(epochs):
            order = torch.randperm(prompts_per_step, generator=shuffling)
            for part in order.tensor_split(minibatches):
                rows = (part[:, None] * group_size + torch.arange(group_size)).flatten()
                A, m = advantages[rows], mask[rows]
                new_log_probs = gpt.log_probs(policy, tokens[rows])
                ratio = (new_log_probs - old_log_probs[rows]).exp()
                clipped = ratio.clamp(1 - clip, 1 + clip)
                loss = -torch.minimum(ratio * A, clipped * A)  # line 8
                delta = ref_log_probs[rows] - new_log_probs
                loss = loss + kl_coef * (delta.exp() - delta - 1)  # line 9
                loss = ((loss * m).sum(1) / m.sum(1)).mean()
                shown, m = gpt.collate(text(updates))
                text_loss = -(gpt.log_probs(policy, shown) * m).sum() / m.sum()  # line 10
                loss = loss + text_coef * text_loss  # line 11
                updates += 1
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
    teacher = gpt.pretrained(good=1)
    train(policy, teacher, gpt.text, gpt.PROMPTS, steps=steps)
    gpt.show(policy)


if __name__ == "__main__":
    main()
