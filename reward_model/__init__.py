"""The Bradley-Terry reward model: a GPT with a scalar head, its pairs, loss and training script."""

try:
    from data import packages
    from data import threads as threads  # before PyTorch is loaded
except ImportError as error:
    raise ImportError(
        f"another package hides Glassbox's 'data' ({error}): start Python from another folder, or "
        "rename that package"
    ) from None

packages.require_ours("data", "gpt")
