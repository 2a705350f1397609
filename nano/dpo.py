"""DPO: Direct Preference Optimization (Rafailov et al. 2023, arXiv:2305.18290, section 4).

    line 1     D = (x, y_w, y_l), answers that somebody has compared
    line 2     pi_ref <- policy
    line 3     for every batch of pairs
    line 4     log pi(y | x) = sum_t log pi(y_t | x, y_<t)
    line 5     h = log pi/pi_ref(y_w) - log pi/pi_ref(y_l)          (Eq. 7)
    line 6     descend the mean of -log sigmoid(beta h)

What is new next to a reward model: the policy is the reward model, its score beta log(pi / pi_ref).
No sampling, no reward, no advantage.

    python nano/dpo.py          (the same numbers: rl/dpo_engine.py --warmup-steps 0)
"""

import copy
import math
import sys
import zlib
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # where nano is
from nano import gpt


def train(
    policy,
    pairs,  # [(prompt, better answer, worse answer)]
    *,
    steps=100,
    batch_size=32,
    beta=0.1,
    lr=1e-3,
    max_grad_norm=1.0,
    seed=0,
):
    """Run DPO: change `policy` in place and return the numbers of each step."""
    reference = copy.deepcopy(policy)  # line 2
    optimizer = torch.optim.Adam(policy.parameters(), lr=lr, betas=(0.9, 0.95))
    numbers, order = [], zlib.crc32(f"{seed}:pair order".encode())
    for step in range(steps):  # line 3
        batch = gpt.shuffled(pairs, step * batch_size, batch_size, order)
        better = [(prompt, answer) for prompt, answer, _ in batch]
        worse = [(prompt, answer) for prompt, _, answer in batch]
        tokens, mask = gpt.collate(better + worse)  # (2n, S), (2n, S - 1)
        log_pi = (gpt.log_probs(policy, tokens) * mask).sum(1)  # (2n,)  line 4
        with torch.no_grad():
            log_pi_ref = (gpt.log_probs(reference, tokens) * mask).sum(1)
        chosen, rejected = (log_pi - log_pi_ref).chunk(2)
        margin = beta * (chosen - rejected)  # (n,)  line 5
        loss = -torch.nn.functional.logsigmoid(margin).mean()  # line 6
        optimizer.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(policy.parameters(), max_grad_norm)
        for group in optimizer.param_groups:  # a cosine, down to a tenth
            group["lr"] = lr * (0.1 + 0.45 * (1 + math.cos(math.pi * step / steps)))
        optimizer.step()
        gpt.report(numbers, loss=loss.detach(), margin=margin.detach(), grad_norm=norm)
    return numbers


def pairs(count=1000):
    """[(prompt, better answer, worse answer)]: the gold compares two answers of the world's text."""
    found = []
    for index in range(count):
        (prompt, a), (_, b) = gpt.text(index, rows=2)
        if gpt.gold(prompt, a) != gpt.gold(prompt, b):
            worse, better = sorted([a, b], key=lambda answer: gpt.gold(prompt, answer))
            found.append((prompt, better, worse))
    return found


def main(steps=100):
    policy = gpt.pretrained()
    gpt.show(policy)
    train(policy, pairs(), steps=steps)
    gpt.show(policy)


if __name__ == "__main__":
    main()
