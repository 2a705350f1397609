"""A GPT with a scalar head that scores how good a response is (Ouyang et al. 2022, arXiv:2203.02155).

Unlike a language model, which predicts token t from column t - 1, the reward model judges a token
after reading it: the score of response token t comes from the token's own column.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, get_args

import torch
import torch.nn as nn
from torch import Tensor

from data.collate import ResponseBatch
from gpt.checkpoint import about_gpt, build, load_strictly
from gpt.folder import ModelFolder
from gpt.log_probs import response_hidden, scatter_responses
from gpt.lora import copy_to_train, merged_state
from gpt.model import GPT, head_product
from gpt.ranks import score_in_micro_batches
from gpt.tokenizer import Tokenizer
from harness.device import shapes_alone
from harness.errors import UserError
from harness.files import as_user_error
from harness.paths import MODEL_FILE
from harness.safetensors_file import load_weights, save_weights

Pooling = Literal["mean_score", "last_token"]


class RewardModel(nn.Module):
    """`gpt` reads the row, `head` turns each hidden state into a score, `pooling` into one number.

    mean_score averages the scores of the response tokens, the EOS included; last_token takes the score
    of the last valid one. `mean` and `std` normalise the result: the Bradley-Terry loss leaves the
    origin of the scale open, so after training it is set on reference responses.
    """

    def __init__(self, gpt: GPT, pooling: Pooling = "last_token") -> None:
        super().__init__()
        self.gpt = gpt
        self.pooling = pooling
        self.head = nn.Linear(gpt.config.n_embd, 1)
        self.mean: Tensor
        self.std: Tensor
        self.register_buffer("mean", torch.zeros(()))
        self.register_buffer("std", torch.ones(()))

    @classmethod
    def from_policy(
        cls, policy: GPT, pooling: Pooling = "last_token", generator: torch.Generator | None = None
    ) -> RewardModel:
        """A reward model whose trunk is a copy of `policy`; head N(0, 1/(D + 1)), bias 0.

        (Ziegler et al. 2019, arXiv:1909.08593, the released code.) Of a policy with adapters it trains
        copies of these, and the head.
        """
        model = cls(copy_to_train(policy), pooling)
        with torch.no_grad():
            std = (policy.config.n_embd + 1) ** -0.5
            weight = torch.empty(1, policy.config.n_embd).normal_(0, std, generator=generator)
            model.head.weight.copy_(weight)
            model.head.bias.zero_()
        return model.to(policy.device)

    @property
    def device(self) -> torch.device:
        return self.gpt.device

    def token_scores(self, batch: ResponseBatch) -> Tensor:
        """Unnormalised score after each response token, (N, T) float32, 0 at padding."""
        hidden = response_hidden(self.gpt, batch, batch.response_columns)  # (M, D)
        scores = head_product(hidden, self.head.weight, self.head.bias)[:, 0]  # (M,)
        return scatter_responses(scores, batch)

    def raw_scores(self, batch: ResponseBatch) -> Tensor:
        """One unnormalised score per response, (N,): what the Bradley-Terry loss compares."""
        scores = self.token_scores(batch)
        lengths = batch.lengths
        if self.pooling == "mean_score":
            return scores.sum(1) / lengths.clamp(min=1)
        last = (lengths - 1).clamp(min=0)
        return scores.gather(1, last[:, None]).squeeze(1)

    def prefix_scores(self, batch: ResponseBatch) -> Tensor:
        """The normalised reward if the response ended after this token, (N, T), 0 at padding."""
        scores, mask = self.token_scores(batch), batch.response_mask
        if self.pooling == "mean_score":
            scores = scores.cumsum(1) / mask.cumsum(1).clamp(min=1)
        return torch.where(mask, (scores - self.mean) / self.std, 0.0)

    def forward(self, batch: ResponseBatch) -> Tensor:
        """One normalised score per response, (N,): the reward that RL sees."""
        return (self.raw_scores(batch) - self.mean) / self.std

    @torch.no_grad()
    def normalize_on(self, batch: ResponseBatch, micro_batch_size: int = 64) -> None:
        """Set `mean` and `std` so that these reference responses have mean 0 and standard deviation 1."""
        scores = score_in_micro_batches(self.raw_scores, batch, micro_batch_size)
        self.mean.copy_(scores.mean())
        self.std.copy_(scores.std().clamp(min=1e-6) if len(scores) > 1 else torch.ones(()))


def save_reward_model(path: Path, model: RewardModel, tokenizer: Tokenizer) -> None:
    """Write weights, adapters merged, normalisation, pooling and tokenizer into one safetensors file."""
    about: dict[str, Any] = about_gpt(model.gpt, tokenizer) | {"pooling": model.pooling}
    save_weights(path, merged_state(model), "reward_model", about)


def load_reward_model(
    name: str | Path, device: torch.device | str = "cpu"
) -> tuple[RewardModel, Tokenizer]:
    """A reward model, frozen, with its tokenizer: a run's, or a published one. UserError for a policy."""
    found = ModelFolder.open(name)
    path = found.folder / MODEL_FILE
    if found.kind != "reward_model":
        raise UserError(
            f"{name} is a policy, no reward model: train one of it with `python -m "
            f"reward_model.reward_model_training --model {name} --data PAIRS`, or name a published one"
        )
    if found.run is None:
        model = published_reward_model(found)
    else:
        tensors, about = load_weights(path, "reward_model")
        if about.get("pooling") not in get_args(Pooling):
            raise UserError(
                f"{path} does not say how it pools scores: it is damaged, train it again"
            )
        with shapes_alone():  # the tensors of the file become the weights
            model = RewardModel(build(found.shape), about["pooling"])
        load_strictly(model, tensors, path)
    if not model.std > 0:
        raise UserError(f"{path}: the spread of its scores is not above 0: train it again")
    return model.to(device).eval().requires_grad_(False), found.tokenizer()


def published_reward_model(found: ModelFolder) -> RewardModel:
    """transformers' classifier with one label: its raw score, mean 0 and std 1, unless we exported it.

    Then config.json says what a score without a bias lacks, and on what scale it was learned.
    """
    from gpt.huggingface import load_classifier  # which few runs need

    gpt, score = load_classifier(found.folder, found.shape, found.about)
    with as_user_error(found.folder):
        std, offset = (float(found.ours.get(name, x)) for name, x in (("std", 1), ("offset", 0)))
    model = RewardModel(gpt)
    with torch.no_grad():
        model.head.weight.copy_(score * std)
        model.head.bias.fill_(offset * std)
        model.std.fill_(std)
    return model
