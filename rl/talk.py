"""Talk to a trained model: type a prompt, read its answers and what they are worth.

    python -m rl.talk runs/grpo-reviews-tiny                    type prompts; ? suggests some
    python -m rl.talk runs/grpo-reviews-tiny --against          side by side with its start
    python -m rl.talk runs/ppo-reviews-tiny --against runs/grpo-reviews-tiny
    python -m rl.talk runs/grpo-sums-tiny --json < prompts.txt  one prompt a line, one object a line

It works for every run folder with weights. The folder's config.json says what an answer is measured
by: the reward that the run was trained on, gold where a rule knows it, and the KL to the model that
training started from (of the distributions over the vocabulary, summed over the answer's tokens, in
nats). A reward model's folder writes nothing: it scores "prompt <tab> answer".
"""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path

from harness.command_line import command_name, explained, show_help
from harness.files import received
from rl.commands.talking import Talk, TalkConfig, from_pipe, from_terminal, open_talk, with_start


def main(run: Path, /, config: TalkConfig) -> None:
    """Talk to a trained model, or let a reward model score.

    Args:
        run: Run folder of the model.
    """
    for stream in (sys.stdout, sys.stderr, sys.stdin):
        if isinstance(stream, io.TextIOWrapper):  # a terminal of ASCII alone must not end the talk
            stream.reconfigure(errors="replace" if stream is sys.stdin else "backslashreplace")
    with received(run):
        talk = open_talk(run, config)
    if sys.stdin.isatty() and not config.json:
        try:
            import readline  # noqa: F401  (arrow keys and the history of lines; not on Windows)
        except ImportError:
            pass
        from_terminal(talk)
        return
    if isinstance(talk, Talk):
        for note in talk.partners[0].measures.notes:
            print(note, file=sys.stderr)
    try:
        worked = from_pipe(talk, iter(sys.stdin), config.json)
    except BrokenPipeError:  # the reader, as in `| head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return
    except KeyboardInterrupt:
        sys.exit(130)
    if not worked:
        sys.exit(1)


if __name__ == "__main__":
    import tyro

    with explained():
        show_help(TalkConfig, arguments="RUN")
        tyro.cli(
            main,
            args=with_start(sys.argv[1:]),
            prog=command_name(),
            config=(tyro.conf.OmitArgPrefixes,),
        )
