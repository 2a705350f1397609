"""The Bradley-Terry reward model: a GPT with a scalar head, its pairs, loss and training script."""

try:
    from harness import process
except ImportError as error:
    raise ImportError(
        f"another package hides Glassbox's 'harness' ({error}): start Python from another folder, or "
        "rename that package"
    ) from None

process.require_ours("harness", "data", "gpt")
