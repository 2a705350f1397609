"""What each side of bench/peers.py does: one process runs one of these functions.

A side sets up its models, then `while turns.next()` does one repetition each time. Both sides start
from the same weights and the same prompts of random ids. The end of a text has an id that no model can
draw (the first one behind its vocabulary), so every response is as long as it may be; both sides
look for it in every step all the same.

bfloat16 is autocast over float32 weights in our training. A peer then has bfloat16 weights, as it opens a
folder that says so: that is quicker, and an optimizer's small steps are lost in rounding.
"""

from __future__ import annotations

import harness  # isort: skip  # noqa: F401  (before PyTorch is loaded)

import math
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # the first optimizer loads it, 90 MiB: here no side's memory counts it
from torch import Tensor
from turns import Case, Side, Turns

from data.collate import ResponseBatch, join_responses
from data.records import PromptRecord
from gpt.checkpoint import build
from gpt.folder import ModelFolder, open_model
from gpt.generate import Generation, SamplingParams, generate
from gpt.huggingface import save_hf
from gpt.llama import LlamaConfig
from gpt.log_probs import token_log_probs
from gpt.model import GPT, GPTConfig, preset_config
from gpt.tokenizer import load_tokenizer
from harness.device import precision
from harness.metric_log import MetricLog
from harness.optimizer import adamw, clip_and_step
from harness.ranks.collectives import on_main, rank, world
from harness.ranks.launch import RankRequest, run_on_ranks
from harness.seeds import make_generator
from reward_model import reward_model_training
from reward_model.pairs import TokenPair
from reward_model.scalar_head import RewardModel
from rl import grpo_engine
from rl.batches.rollout import Rollout, micro_batches
from rl.equations.losses import clipped_surrogate, sequence_mean
from rl.loop import Run
from rl.run.engine import models_of_run
from rl.run.task import Task

LR, CLIP, KL_COEF, MAX_NORM = 1e-6, 0.2, 0.1, 1.0
BETAS = (0.9, 0.95)


def shape(case: Case) -> GPTConfig:
    """The model's shape; tiny has the vocabulary of the project's own tokenizer."""
    if case.folder:
        return ModelFolder.open(case.folder).shape
    if case.preset == "smollm2":
        return LlamaConfig()
    own = load_tokenizer("glassbox").n_vocab if case.preset == "tiny" else 50257
    return preset_config(case.preset, own)


def at_once(case: Case) -> int:
    """Rows of a forward with a gradient, on both sides: the small model's whole batch."""
    return 128 if case.preset == "tiny" else 16


def model_of(case: Case, device: str = "cpu") -> GPT:
    if case.folder:
        return open_model(Path(case.folder), torch.device(device))[0].eval()
    return build(shape(case)).initialize(make_generator(0, "weights")).eval().to(device)


def prompts_of(case: Case, count: int) -> list[list[int]]:
    """`count` prompts of random ids, all of one length."""
    size = (count, case.prompt_tokens)
    vocab = shape(case).vocab_size
    return torch.randint(vocab, size, generator=make_generator(0, "prompts")).tolist()


def sampled_batch(case: Case) -> tuple[ResponseBatch, Tensor, Tensor]:
    """Groups as if sampled: the batch, old log-probs (N, T) and advantages (N, 1), all random."""
    generator = make_generator(0, "responses")
    size = (case.rows, case.new_tokens)
    tokens = torch.randint(shape(case).vocab_size, size, generator=generator)
    whole = torch.ones(size, dtype=torch.bool)
    prompts = [prompt for prompt in prompts_of(case, case.prompts) for _ in range(case.group)]
    batch = join_responses(prompts, tokens, whole, ~whole[:, 0])
    uniform = -math.log(shape(case).vocab_size)  # about what random weights give
    old = uniform + 0.1 * torch.randn(size, generator=generator)
    return batch, old, torch.randn(case.rows, 1, generator=generator)


def all_drawn(lengths: Sequence[int], case: Case) -> None:
    """A response that ended early would make the comparison a different one."""
    if any(length != case.new_tokens for length in lengths):
        raise RuntimeError(f"responses of {set(lengths)} tokens, {case.new_tokens} were expected")


# Ours ---------------------------------------------------------------------------------------------


def sampled(model: GPT, case: Case, generator: torch.Generator) -> Generation:
    """Responses to each prompt; no token ends them."""
    params, end = SamplingParams(max_new_tokens=case.new_tokens), model.config.vocab_size
    prompts, group = prompts_of(case, case.prompts), case.group
    return generate(model, prompts, params, generator, eos_id=end, samples_per_prompt=group)


def sample_ours(side: Side, turns: Turns) -> None:
    """gpt.generate."""
    model, generator = model_of(side.case, side.device), make_generator(0, "sampling")
    while turns.next():
        with precision(model.device, side.case.precision):
            drawn = sampled(model, side.case, generator)
        all_drawn(drawn.response_mask.sum(1).tolist(), side.case)


class Numbers:
    """A tokenizer of texts that are ids: "17 4" is [17, 4]. What the engine needs of one."""

    def __init__(self, vocab: int) -> None:
        self.n_vocab = self.eos_id = self.pad_id = vocab
        self.other_ends = ()

    def encode(self, text: str) -> list[int]:
        return [int(word) for word in text.split()]

    encode_prompt = encode

    def decode(self, ids: Sequence[int]) -> str:
        return text_of(ids)


def text_of(tokens: Sequence[int]) -> str:
    return " ".join(map(str, tokens))


def even_share(tokens: Sequence[int]) -> float:
    """A reward that costs nothing: the share of tokens with an even id."""
    return sum(token % 2 == 0 for token in tokens) / len(tokens)


class EvenShare:
    name = "share of even ids"

    def __init__(self, case: Case) -> None:
        self.case = case

    def __call__(self, rollout: Rollout) -> Tensor:
        all_drawn(rollout.lengths.tolist(), self.case)
        return torch.tensor([even_share(row) for row in rollout.response_tokens.tolist()])


class Over(Exception):
    """No more turns."""


class TurnLog(MetricLog):
    """Ends a turn with every step."""

    def __init__(self, turns: Turns) -> None:
        super().__init__(10**9)
        self.turns = turns

    def write(self, *, step: int, **metrics: Any) -> None:
        super().write(step=step, **metrics)
        if not self.turns.next():
            raise Over


def engine_ours(side: Side, turns: Turns) -> None:
    """GRPO's whole steps: rollout, reward, reference, one update, metrics."""
    case, policy = side.case, model_of(side.case, side.device)
    config = grpo_engine.GRPOConfig(
        prompts_per_step=case.prompts, group_size=case.group, max_new_tokens=case.new_tokens,
        updates_per_batch=1, minibatches=1, micro_batch_size=at_once(case), lr=LR, warmup_steps=0,
        clip_range=CLIP, kl_coef=KL_COEF, max_grad_norm=MAX_NORM, stop_kl=None, lora_rank=case.lora_rank,
        precision=case.precision, steps=10**9, save_every=10**9, device=side.device,
    )  # fmt: skip
    records = [PromptRecord(text_of(prompt)) for prompt in prompts_of(case, 256)]
    numbers: Any = Numbers(policy.config.vocab_size)
    reward = EvenShare(case)
    start, _ = models_of_run(
        grpo_engine.ENGINE, config, Task(policy, numbers, {}, reward, None)
    )  # as for the command
    if turns.next():
        try:
            run = Run(config, policy, numbers, reward, records, TurnLog(turns), start=start)
            grpo_engine.train(run)
        except Over:
            pass


def pairs_of(case: Case) -> list[TokenPair]:
    """Prompts and two answers to each, all of random ids."""
    answers = replace(case, prompt_tokens=case.new_tokens)
    drawn = prompts_of(answers, 512)
    return [
        TokenPair(prompt, *drawn[2 * i : 2 * i + 2])
        for i, prompt in enumerate(prompts_of(case, 256))
    ]


def reward_ours(side: Side, turns: Turns) -> None:
    """Steps of a reward model's training."""
    case = side.case
    head = make_generator(0, "head")
    model = RewardModel.from_policy(model_of(case, side.device), generator=head)
    config = reward_model_training.RewardModelConfig(
        batch_size=case.prompts, micro_batch_size=at_once(case), lr=LR, warmup_steps=0,
        weight_decay=0.0, max_grad_norm=MAX_NORM,
        precision=case.precision, device=side.device,
    )  # fmt: skip
    if turns.next():
        try:
            pairs, log = pairs_of(case), TurnLog(turns)
            reward_model_training.train(model, pairs, config, log, eos_id=shape(case).vocab_size)
        except Over:
            pass


class Accumulated:
    """A policy's update: the gradient of the clipped surrogate over all rows, a few in a forward."""

    def __init__(self, case: Case, device: str) -> None:
        self.case = case
        self.batch, self.old, self.advantages = (x.to(device) for x in sampled_batch(case))

    def backward(self, model: GPT) -> None:
        """Add the gradient of the mean over responses to the model's; in bfloat16 under autocast."""
        for part, batch in micro_batches(
            self.batch, torch.arange(self.case.rows), at_once(self.case)
        ):
            with precision(model.device, self.case.precision):
                log_probs = token_log_probs(model, batch)
            old, advantages = self.old[part], self.advantages[part]
            token_loss = clipped_surrogate(log_probs, old, advantages, CLIP, CLIP)
            loss = sequence_mean(token_loss, batch.response_mask)
            (loss * len(part) / self.case.rows).backward()


def update_ours(side: Side, turns: Turns) -> None:
    """An optimizer step on sampled groups."""
    model, work = model_of(side.case, side.device), Accumulated(side.case, side.device)
    optimizer = adamw(model, LR, betas=BETAS, weight_decay=0.0)
    while turns.next():
        optimizer.zero_grad(set_to_none=True)
        work.backward(model)
        clip_and_step(optimizer, model.parameters(), MAX_NORM)


OURS = {"sample": sample_ours, "update": update_ours, "grpo": engine_ours, "reward": reward_ours}


# The peers ----------------------------------------------------------------------------------------


@contextmanager
def peer_model(side: Side) -> Iterator[Any]:
    """transformers' model with our weights (dropout 0), from a folder that stays while it is used."""
    import transformers

    case, kind = side.case, transformers.AutoModelForCausalLM
    more: dict[str, Any] = {}
    if case.task == "reward":
        kind, more = transformers.AutoModelForSequenceClassification, {"num_labels": 1}
    with tempfile.TemporaryDirectory(prefix="peer-") as own:
        folder = on_main(lambda: own)  # where the first rank saves it for all
        if not case.folder:
            save_hf(model_of(case), folder)
        yield kind.from_pretrained(case.folder or folder, dtype=side.weights, **more).eval()


def sample_peer(side: Side, turns: Turns) -> None:
    """transformers' `generate`."""
    case = side.case
    rows = [prompt for prompt in prompts_of(case, case.prompts) for _ in range(case.group)]
    tokens = torch.tensor(rows)
    torch.manual_seed(0)
    with peer_model(side) as model:
        end = model.config.vocab_size
        while turns.next():
            drawn = model.generate(
                tokens, attention_mask=torch.ones_like(tokens), do_sample=True, temperature=1.0,
                top_k=0, top_p=1.0, max_new_tokens=case.new_tokens, eos_token_id=end,
                pad_token_id=end,
            )  # fmt: skip
            all_drawn([drawn.shape[1] - case.prompt_tokens], case)


def peer_tokenizer(vocab: int) -> Any:
    """`Numbers` as a tokenizer of transformers."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = {str(token): token for token in range(vocab)} | {"<end>": vocab}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<end>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<end>", pad_token="<end>", padding_side="left"
    )


def as_ours(case: Case) -> dict[str, Any]:
    """The options of a trainer of TRL that make its optimizer and precision ours, and nothing else.

    Several processes look for no weight without a gradient: there is none.
    """
    return dict(
        output_dir=str(Path(tempfile.gettempdir(), "peer-trl")),  # where nothing is written
        learning_rate=LR, lr_scheduler_type="constant", warmup_steps=0, optim="adamw_torch_fused",
        adam_beta1=BETAS[0], adam_beta2=BETAS[1], weight_decay=0.0, max_grad_norm=MAX_NORM,
        bf16=case.precision == "bfloat16", gradient_checkpointing=False, use_cpu=True,
        logging_strategy="no", save_strategy="no", report_to="none", disable_tqdm=True,
        max_steps=10**6, seed=0, ddp_find_unused_parameters=False,
    )  # fmt: skip


def trl_config(case: Case) -> Any:
    """TRL's options, all of them said that change the work or the loss (docs/benchmarks.md)."""
    import trl

    own = case.rows // world()  # of this process
    rows = min(own, at_once(case))
    return trl.GRPOConfig(
        # The paper's loss.
        loss_type="grpo", scale_rewards="group", importance_sampling_level="token",
        use_bias_correction_kl=False,
        # One batch of prompts x group rows, sampled, scored and trained on once, one optimizer step.
        per_device_train_batch_size=rows, gradient_accumulation_steps=own // rows,
        steps_per_generation=own // rows, num_iterations=1, num_generations=case.group,
        max_completion_length=case.new_tokens, temperature=1.0, top_p=1.0, top_k=0,
        epsilon=CLIP, beta=KL_COEF, mask_truncated_completions=False,
        **as_ours(case),
    )  # fmt: skip


def turn_callback(turns: Turns) -> Any:
    """Ends a turn with every step of transformers' Trainer."""
    from transformers import TrainerCallback

    class TurnCallback(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> Any:
            control.should_training_stop = not turns.next()
            return control

    return TurnCallback()


def engine_peer(side: Side, turns: Turns) -> None:
    """TRL's GRPOTrainer, one step a turn."""
    import trl
    from datasets import Dataset

    case = side.case

    def reward(completion_ids: list[list[int]], **_: Any) -> list[float]:
        all_drawn([len(row) for row in completion_ids], case)
        return [even_share(row) for row in completion_ids]

    texts = [text_of(prompt) for prompt in prompts_of(case, 256)]
    adapters = None
    if case.lora_rank:
        from peft import LoraConfig

        adapters = LoraConfig(
            r=case.lora_rank, lora_alpha=2 * case.lora_rank, target_modules="all-linear"
        )
    with peer_model(side) as model:
        trainer = trl.GRPOTrainer(
            model=model, reward_funcs=reward, args=trl_config(case), peft_config=adapters,
            train_dataset=Dataset.from_dict({"prompt": texts}),
            processing_class=peer_tokenizer(model.config.vocab_size),
            callbacks=[turn_callback(turns)],
        )  # fmt: skip
        if turns.next():
            trainer.train()


def reward_peer(side: Side, turns: Turns) -> None:
    """TRL's RewardTrainer, one step a turn."""
    import trl
    from datasets import Dataset

    case = side.case
    rows = [
        {"chosen_ids": pair.prompt + pair.chosen, "rejected_ids": pair.prompt + pair.rejected}
        for pair in pairs_of(case)
    ]
    with peer_model(side) as model:
        trainer = trl.RewardTrainer(
            model=model,
            args=trl.RewardConfig(
                per_device_train_batch_size=case.prompts // world(), **as_ours(case)
            ),
            train_dataset=Dataset.from_list(rows),
            processing_class=peer_tokenizer(model.config.vocab_size),
            callbacks=[turn_callback(turns)],
        )
        if turns.next():
            trainer.train()


PEERS = {"sample": sample_peer, "grpo": engine_peer, "reward": reward_peer}


def work(side: Side, pipe: Any) -> None:
    """What a process does. Whatever a library prints goes to the error stream."""
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    torch.set_num_threads(side.threads)
    function = (OURS if side.library == "ours" else PEERS)[side.case.task]

    def begin() -> None:
        # For accelerate, whose launcher sets these; the group that it finds is joined already.
        os.environ.update(RANK=str(rank()), WORLD_SIZE=str(world()), LOCAL_WORLD_SIZE=str(world()))
        function(side, Turns(pipe))

    run_on_ranks(begin, RankRequest(side.ranks, "cpu"))
