"""A reward model from comparisons (Bradley and Terry 1952; Ouyang et al. 2022, arXiv:2203.02155, Eq. 1).

    line 1     D = (x, y_w, y_l), answers that somebody has compared
    line 2     reward model <- pre-trained GPT under a new scalar head
    line 3     for every batch of pairs
    line 4     R(x, y) = the score of the answer's last token
    line 5     descend the mean of -log sigmoid(R(x, y_w) - R(x, y_l))

What is new next to a language model: the head gives one number instead of V logits, and it is about
the token that was just read, not about the next one.

    python nano/reward_model.py
    the same numbers: reward_model/reward_model_training.py --pooling last_token --warmup-steps 0
    --weight-decay 0, with one pair per prompt
"""

import copy
import math
import sys
import zlib
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # where nano is
from nano import gpt


class RewardModel(torch.nn.Module):
    """A GPT with a scalar head."""

    def __init__(self, policy):
        super().__init__()
        self.gpt, (_, n_embd) = copy.deepcopy(policy), policy.wte.weight.shape
        self.head = torch.nn.Linear(n_embd, 1)
        torch.nn.init.normal_(self.head.weight, std=(n_embd + 1) ** -0.5)
        torch.nn.init.zeros_(self.head.bias)

    def forward(self, tokens, mask):
        """The score of each answer, (N, S) and (N, S - 1) -> (N,)."""
        scores = self.head(self.gpt.hidden(tokens))[:, 1:, 0]  # (N, S - 1), at the token itself
        last = mask & (mask.cumsum(1) == mask.sum(1, keepdim=True))
        return (scores * last).sum(1)


def train(
    model,  # line 2
    pairs,  # [(prompt, better answer, worse answer)]
    *,
    steps=100,
    batch_size=32,
    lr=1e-3,
    max_grad_norm=1.0,
    seed=0,
):
    """Train a reward model: change `model` in place and return the numbers of each step."""
    optimizer = torch.optim.Adam(model.parameters(), lr=lr, betas=(0.9, 0.95))
    numbers, order = [], zlib.crc32(f"{seed}:pair order".encode())
    for step in range(steps):  # line 3
        batch = gpt.shuffled(pairs, step * batch_size, batch_size, order)
        better = [(prompt, answer) for prompt, answer, _ in batch]
        worse = [(prompt, answer) for prompt, _, answer in batch]
        tokens, mask = gpt.collate(better + worse)  # (2n, S), (2n, S - 1)
        chosen, rejected = model(tokens, mask).chunk(2)  # (n,) each  line 4
        margin = chosen - rejected
        loss = -torch.nn.functional.logsigmoid(margin).mean()  # line 5
        optimizer.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), max_grad_norm)
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
    torch.manual_seed(0)
    model = RewardModel(gpt.pretrained())
    train(model, pairs(), steps=steps)
    answers = ["aaaa.", "abab.", "abcd.", "cdcd."]
    tokens, mask = gpt.collate([("ab:", answer) for answer in answers])
    for answer, score in zip(answers, model(tokens, mask).tolist(), strict=True):
        print(f"R(ab:, {answer}) = {score:.2f}")


if __name__ == "__main__":
    main()
