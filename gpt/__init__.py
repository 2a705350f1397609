"""A hand-written GPT-2: model, tokenizers, generation, scoring, pre-training, fine-tuning, distillation."""

try:
    from data import packages
    from data import threads as threads  # before PyTorch is loaded
except ImportError as error:
    raise ImportError(
        f"another package hides Glassbox's 'data' ({error}): start Python from another folder, or "
        "rename that package"
    ) from None

packages.require_ours("data")
