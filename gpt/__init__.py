"""A hand-written GPT-2: model, tokenizers, generation, scoring, pre-training, fine-tuning, distillation."""

try:
    from harness import process
except ImportError as error:
    raise ImportError(
        f"another package hides Glassbox's 'harness' ({error}): start Python from another folder, or "
        "rename that package"
    ) from None

process.require_ours("harness", "data")
