"""PPO's critic: a GPT of its own with a scalar head that values every state of a response.

V_t is the value of the state (x, y_<t), *before* token t: it is read at the column that predicts
token t. One value per prompt would leave GAE without temporal differences.
"""

from __future__ import annotations

import torch
import torch.nn as nn
from torch import Tensor

from data.collate import ResponseBatch
from gpt.log_probs import response_hidden, scatter_responses
from gpt.lora import copy_to_train
from gpt.model import GPT, head_product
from gpt.ranks import score_in_micro_batches
from reward_model.scalar_head import RewardModel


class ValueModel(nn.Module):
    """`gpt` reads the row, `head` turns each hidden state into the value of that state."""

    def __init__(self, gpt: GPT) -> None:
        super().__init__()
        self.gpt = gpt
        self.head = nn.Linear(gpt.config.n_embd, 1)

    @classmethod
    def from_policy(cls, policy: GPT) -> ValueModel:
        """A copy of the policy's trunk, or of its adapters, under a head of zeros: values start at 0.

        Where there is a reward model, from which Huang et al. 2024, arXiv:2403.17031, start theirs, take
        `from_reward_model`.
        """
        model = cls(copy_to_train(policy))
        with torch.no_grad():
            model.head.weight.zero_()
            model.head.bias.zero_()
        return model.to(policy.wte.weight).eval()  # its device and dtype

    @classmethod
    def from_reward_model(cls, reward_model: RewardModel, gpt: GPT | None = None) -> ValueModel:
        """A copy of the reward model, head included (InstructGPT, arXiv:2203.02155, section 3.5).

        The normalisation of its scores is folded into the head, so that a state's first value is
        the score of the last token so far, on the scale of the rewards. `gpt` is the trunk to train,
        if it is not to be a whole copy.
        """
        model = cls(gpt or copy_to_train(reward_model.gpt))
        with torch.no_grad():
            model.head.weight.copy_(reward_model.head.weight / reward_model.std)
            model.head.bias.copy_((reward_model.head.bias - reward_model.mean) / reward_model.std)
        return model.to(reward_model.head.weight).eval()

    def forward(self, batch: ResponseBatch) -> Tensor:
        """V_t of the state before each response token, (N, T), float32 at least, 0 at padding."""
        hidden = response_hidden(self.gpt, batch, batch.predicting_columns)  # (M, D)
        values = head_product(hidden, self.head.weight, self.head.bias)[:, 0]  # (M,)
        return scatter_responses(values, batch)

    def rollout_values(self, batch: ResponseBatch, micro_batch_size: int) -> Tensor:
        """`forward` in micro-batches and without a gradient, (N, T)."""
        return score_in_micro_batches(self, batch, micro_batch_size)
