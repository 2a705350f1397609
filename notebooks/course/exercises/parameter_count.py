"""The famous number: how many weights a GPT-2 has."""

import torch

from course.exercises import Arguments, Case, Exercise, mistake
from gpt.model import GPT, GPTConfig


def parameter_count(vocabulary, context, layers, width):
    attention = (3 * width**2 + 3 * width) + (width**2 + width)
    mlp = (4 * width**2 + 4 * width) + (4 * width**2 + width)
    block = attention + mlp + 4 * width
    return vocabulary * width + context * width + layers * block + 2 * width


def by_the_library(vocabulary, context, layers, width):
    """Built on a device without memory, and counted."""
    with torch.device("meta"):
        model = GPT(GPTConfig(vocabulary, context, layers, n_head=1, n_embd=width))
    return torch.tensor(float(model.parameter_count()))


@mistake
def untied_head(vocabulary, context, layers, width):
    """you count an output head of its own. GPT-2's is tied: it is the token embedding once more,
    and has no weights."""
    return parameter_count(vocabulary, context, layers, width) + vocabulary * width


@mistake
def no_biases(vocabulary, context, layers, width):
    """you left out the biases of the linear layers: 9 D in each block, 4 D in attention and 5 D in
    the MLP."""
    return parameter_count(vocabulary, context, layers, width) - layers * 9 * width


@mistake
def no_positions(vocabulary, context, layers, width):
    """you left out the learned positions: one vector of width D for each of C columns."""
    return parameter_count(vocabulary, context, layers, width) - context * width


@mistake
def no_final_norm(vocabulary, context, layers, width):
    """nearly: the LayerNorm after the last block is missing, 2 D."""
    return parameter_count(vocabulary, context, layers, width) - 2 * width


@mistake
def no_norms_in_blocks(vocabulary, context, layers, width):
    """the two LayerNorms of every block are missing: 4 D in each."""
    return parameter_count(vocabulary, context, layers, width) - layers * 4 * width


@mistake
def one_block(vocabulary, context, layers, width):
    """you count one block only. There are L of them, one above the other."""
    return parameter_count(vocabulary, context, 1, width)


@mistake
def no_output_projection(vocabulary, context, layers, width):
    """attention has a fourth matrix: after the average the heads' results are mixed by an output
    projection, D^2 + D."""
    missing = layers * (width**2 + width)
    return parameter_count(vocabulary, context, layers, width) - missing


def some_shape(generator: torch.Generator) -> Arguments:
    def number(low: int, high: int) -> int:
        return int(torch.randint(low, high, (1,), generator=generator))

    return {
        "vocabulary": number(50, 700),
        "context": number(8, 128),
        "layers": number(2, 6),
        "width": number(8, 64),
    }


def shape(vocabulary, context, layers, width):
    return {"vocabulary": vocabulary, "context": context, "layers": layers, "width": width}


EXERCISE = Exercise(
    statement=(
        "Return the number of weights of a GPT-2 from its vocabulary V, context C, layers L and "
        "width D. Every linear layer has a bias, every LayerNorm a gain and a bias; the output "
        "head is the token embedding."
    ),
    solution=parameter_count,
    library=by_the_library,
    cases=(
        Case("V = 10, C = 4, one layer of width 2", shape(10, 4, 1, 2), 106),
        Case("GPT-2", shape(50257, 1024, 12, 768), 124_439_808),
    ),
    random=some_shape,
    tolerance=1e-7,
)
