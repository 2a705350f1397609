"""Worlds, record types, file readers and collation: data before it is a model's input."""

from data import early as early  # before PyTorch, which takes seconds
from data import memory as memory
from data import threads as threads  # before PyTorch is loaded
