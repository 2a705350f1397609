"""Which preset fits which card: the memory forecast of every script, without starting one.

    python -m rl.memory                                    all presets, all scripts, cards of 16 to 141 GB
    python -m rl.memory --preset gpt2-xl --script grpo     one of them in full, with the flags to copy
    python -m rl.memory --lora-rank 16 --checkpoint-blocks --precision bfloat16

Letters in the table say with which flags a run fits: docs/memory.md explains the arithmetic.
"""

from __future__ import annotations

from harness.command_line import run_command
from rl.commands.memory_tables import MemoryConfig, in_full, legend, table
from rl.training.evaluation import format_table


def main(flags: MemoryConfig) -> None:
    """Print the tables, or one script at one preset in full."""
    if len(flags.preset) * len(flags.script) == 1:
        print(in_full(flags.script[0], flags.preset[0], flags))
        return
    print(f"peaks by forecast on {flags.device}, prompts of {flags.prompt_tokens} tokens")
    columns = ["script", "GB", "phase", *(f"{card} GB" for card in flags.cards)]
    for preset in flags.preset:
        print(f"\n{preset}\n{format_table(columns, table(preset, flags))}")
    print(f"\nyes: fits as it is. {legend()}")


if __name__ == "__main__":
    run_command(main, MemoryConfig)
