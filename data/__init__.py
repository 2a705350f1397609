"""Worlds, record types, file readers and collation: data before it is a model's input."""

try:
    from harness import process
except ImportError as error:
    raise ImportError(
        f"another package hides Glassbox's 'harness' ({error}): start Python from another folder, or "
        "rename that package"
    ) from None

process.require_ours("harness")
