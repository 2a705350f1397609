"""The sizes of the study: models, labels, steps and prompts. A smaller `Settings` is a rehearsal."""

from __future__ import annotations

from dataclasses import dataclass

SHAPES: dict[str, tuple[int, int, int]] = {  # name: layers, heads, width
    "1x32": (1, 2, 32),
    "2x64": (2, 2, 64),
    "3x96": (3, 3, 96),
    "4x128": (4, 4, 128),  # the policy's own shape
}


@dataclass(frozen=True)
class Settings:
    """Everything that decides a number of the study."""

    # The law: reward models of every size on every number of labels, a whole start per seed.
    sizes: tuple[str, ...] = tuple(SHAPES)
    labels: tuple[int, ...] = (600, 1800, 5400, 16200, 48600)
    starts: tuple[int, ...] = (0, 1, 2)
    ppo_cells: tuple[tuple[str, int], ...] = (
        ("1x32", 1800), ("1x32", 16200), ("2x64", 5400),
        ("4x128", 600), ("4x128", 5400), ("4x128", 48600),
    )  # fmt: skip
    best_of: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
    bank_prompts: int = 64
    bank_answers: int = 1024

    # The cures: one cell of the law, over more starts.
    cure_cell: tuple[str, int] = ("4x128", 1800)
    cure_starts: tuple[int, ...] = (0, 1, 2, 3, 4)
    members: int = 3
    refresh_every: int = 12  # steps between two trainings on the policy's own answers

    # How models are trained.
    policy: str = "4x128"
    pretraining_steps: int = 1500
    responses_per_prompt: int = 4  # K: 6 comparisons a prompt
    wide_temperature: float = 1.5
    held_out_pairs: int = 1000
    reward_batch: int = 8  # prompts a step
    reward_lr: float = 2e-3
    fewest_reward_steps: int = 200  # few labels are gone through again, at most `most_epochs` times
    most_epochs: int = 4

    # How policies are optimised and measured, in the law and in the cures.
    lr: float = 4e-4
    prompts_per_step: int = 8
    group_size: int = 8
    most_steps: int = 120
    measure_every: int = 3
    prompts: int = 128  # test prompts, one answer each, the same random numbers every time
    fall: float = 0.10  # gold has turned when it lies this far below its best
    smooth: int = 3  # each a mean over so many measurements

    def reward_steps(self, labels: int) -> int:
        """Optimizer steps of a reward model: whole epochs, one where that is enough."""
        per_prompt = self.responses_per_prompt * (self.responses_per_prompt - 1) // 2
        an_epoch = max(labels // per_prompt // self.reward_batch, 1)
        epochs = min(max(-(-self.fewest_reward_steps // an_epoch), 1), self.most_epochs)
        return an_epoch * epochs


@dataclass(frozen=True)
class Rehearsal(Settings):
    """Everything once, in about a minute: what the tests run."""

    sizes: tuple[str, ...] = ("1x32",)
    labels: tuple[int, ...] = (12, 24)
    starts: tuple[int, ...] = (0, 1)
    ppo_cells: tuple[tuple[str, int], ...] = (("1x32", 24),)
    best_of: tuple[int, ...] = (1, 2, 4)
    bank_prompts: int = 3
    bank_answers: int = 8
    cure_cell: tuple[str, int] = ("1x32", 12)
    cure_starts: tuple[int, ...] = (0, 1)
    members: int = 2
    policy: str = "1x32"
    pretraining_steps: int = 30
    held_out_pairs: int = 12
    reward_batch: int = 2
    fewest_reward_steps: int = 2
    prompts_per_step: int = 2
    group_size: int = 4
    most_steps: int = 6
    measure_every: int = 2
    refresh_every: int = 3
    prompts: int = 8
    smooth: int = 1


SETTINGS: dict[str, Settings] = {"full": Settings(), "rehearsal": Rehearsal()}
