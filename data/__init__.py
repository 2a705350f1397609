"""Worlds, record types, file readers and collation: data before it is a model's input."""

import harness as harness  # before PyTorch is loaded
