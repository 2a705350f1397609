"""MiniLLM: distillation by the reverse KL of whole answers (Gu et al. 2024, arXiv:2306.08543).

    line 1     student q <- start; teacher p frozen      line 7     for some epochs of minibatches
    line 2-3   y ~ p~ = alpha p + (1 - alpha) q          line 8     Single = w_t KL(q || p) at token t
    line 4     r_t = log p(y_t) - log q(y_t)             line 9     Long = -w_t R_{t+1} clip(rho_t)
    line 5     w_t = q / p~                              line 10    L_PT = -log q(text)
    line 6     R_{t+1} = the mean of r after t           line 11    descend the sum of the three

What is new next to KD-GRPO: the teacher judges every token and helps to sample; the KL of the next
token is exact, summed over the vocabulary. No baseline, no reference.

    python nano/minillm.py      (the same numbers: rl/minillm_engine.py)
"""

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
    prompts_per_step=64,
    epochs=2,
    minibatches=2,
    clip=0.2,  # epsilon
    teacher_share=0.2,  # alpha
    text_coef=0.1,  # lambda
    lr=1e-3,
    max_grad_norm=1.0,
    max_new_tokens=8,
    seed=0,
):
    """Run MiniLLM: change `policy` in place and return the numbers of each step."""

    def mixture(tokens):  # line 3: its logits
        p, q = teacher(tokens).softmax(-1), policy(tokens).softmax(-1)
        return (teacher_share * p + (1 - teacher_share) * q).log()

    optimizer = torch.optim.Adam(policy.parameters(), lr=lr, betas=(0.9, 0.95))
    sampling, shuffling = gpt.generator(seed, "sampling"), gpt.generator(seed, "minibatches")
    numbers, updates = [], 0
    for step in range(steps):  # line 2
        asked = gpt.shuffled(prompts, step * prompts_per_step, prompts_per_step, seed)  # line 3
        tokens, mask = gpt.sample(mixture, asked, max_new_tokens, sampling)  # line 3
        with torch.no_grad():
            old_log_probs = gpt.log_probs(policy, tokens)  # (N, S - 1)
            teacher_log_probs = gpt.log_probs(teacher, tokens)  # (N, S - 1)
            teacher_all = teacher(tokens)[:, :-1].log_softmax(-1)  # (N, S - 1, V)
        r = (teacher_log_probs - old_log_probs) * mask  # line 4
        w = 1 / (teacher_share * r.exp() + 1 - teacher_share)  # line 5
        after = r.flip(1).cumsum(1).flip(1) - r  # the sum of r after t
        count = mask.flip(1).cumsum(1).flip(1) - 1  # how many
        returns = after / count.clamp(min=1)  # line 6

        losses, norms = [], []
        for _ in range(epochs):  # line 7
            order = torch.randperm(prompts_per_step, generator=shuffling)
            for rows in order.tensor_split(minibatches):
                A, m = (w * returns)[rows], mask[rows]
                new_all = policy(tokens[rows])[:, :-1].log_softmax(-1)  # (n, S - 1, V)
                new_log_probs = new_all.gather(-1, tokens[rows, 1:, None])[:, :, 0]
                ratio = (new_log_probs - old_log_probs[rows]).exp()
                clipped = ratio.clamp(1 - clip, 1 + clip)
                loss = -torch.minimum(ratio * A, clipped * A)  # line 9
                token_kl = (new_all.exp() * (new_all - teacher_all[rows])).sum(-1)
                loss = loss + w[rows] * token_kl  # line 8
                loss = (loss * m).sum() / m.sum()
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
        gpt.report(numbers, reward=r.sum(1), loss=losses, grad_norm=norms)
    return numbers


def main(steps=60):
    policy = gpt.pretrained()
    gpt.show(policy)
    teacher = gpt.pretrained(good=1)
    train(policy, teacher, gpt.text, gpt.PROMPTS, steps=steps)
    gpt.show(policy)


if __name__ == "__main__":
    main()
