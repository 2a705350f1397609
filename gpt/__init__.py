"""A hand-written GPT-2: model, tokenizers, generation, scoring, pre-training, fine-tuning, distillation."""

from data import threads as threads  # before PyTorch is loaded
