"""The Bradley-Terry reward model: a GPT with a scalar head, its pairs, loss and training script."""

from data import threads as threads  # before PyTorch is loaded
