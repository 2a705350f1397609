"""On-policy distillation: a teacher judges every token that the student writes (arXiv:2306.13649).

    line 1     student q <- start; teacher p frozen      line 5     A_t = log p(y_t) - log q(y_t)
    line 2     for each batch of prompts                 line 6     for some epochs of minibatches
    line 3     y ~ q, the student alone                  line 7     L_t = -(q / q_old) A_t
    line 4     p reads the same prompt                   line 8     descend the mean over tokens

What is new next to MiniLLM: nothing is passed back. A token answers for itself, not for what comes
after it, so there are no returns, no mixture, no clip and no text.

    python nano/on_policy_distillation.py      (the same numbers: rl/on_policy_distillation_engine.py)
"""

import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # where nano is
from nano import gpt


def train(
    policy,  # line 1
    teacher,
    prompts,  # strings
    *,
    steps=60,
    prompts_per_step=64,
    epochs=2,
    minibatches=2,
    lr=1e-3,
    max_grad_norm=1.0,
    max_new_tokens=8,
    seed=0,
):
    """Distil on the policy's own answers: change `policy` in place and return each step's numbers."""
    optimizer = torch.optim.Adam(policy.parameters(), lr=lr, betas=(0.9, 0.95))
    sampling, shuffling = gpt.generator(seed, "sampling"), gpt.generator(seed, "minibatches")
    numbers = []
    for step in range(steps):
        asked = gpt.shuffled(prompts, step * prompts_per_step, prompts_per_step, seed)  # line 2
        tokens, mask = gpt.sample(policy, asked, max_new_tokens, sampling)  # line 3
        with torch.no_grad():
            old_log_probs = gpt.log_probs(policy, tokens)  # (N, S - 1)
            teacher_log_probs = gpt.log_probs(teacher, tokens)  # (N, S - 1)  line 4
        advantages = (teacher_log_probs - old_log_probs) * mask  # line 5

        losses, norms = [], []
        for _ in range(epochs):  # line 6
            order = torch.randperm(prompts_per_step, generator=shuffling)
            for rows in order.tensor_split(minibatches):
                A, m = advantages[rows], mask[rows]
                new_log_probs = gpt.log_probs(policy, tokens[rows])
                ratio = (new_log_probs - old_log_probs[rows]).exp()
                loss = -ratio * A  # line 7
                loss = (loss * m).sum() / m.sum()  # line 8
                optimizer.zero_grad()
                loss.backward()
                norm = torch.nn.utils.clip_grad_norm_(policy.parameters(), max_grad_norm)
                optimizer.step()
                losses.append(loss.item())
                norms.append(norm.item())
        gpt.report(numbers, reward=advantages.sum(1).float(), loss=losses, grad_norm=norms)
    return numbers


def main(steps=60):
    policy = gpt.pretrained()
    gpt.show(policy)
    teacher = gpt.pretrained(good=1)
    train(policy, teacher, gpt.PROMPTS, steps=steps)
    gpt.show(policy)


if __name__ == "__main__":
    main()
