"""A hand-written GPT-2: model, tokenizers, generation, scoring and pre-training."""

from data import threads as threads  # before PyTorch is loaded
