"""The Bradley-Terry reward model: a GPT with a scalar head, its pairs, loss and training script."""

import harness as harness  # before PyTorch is loaded
