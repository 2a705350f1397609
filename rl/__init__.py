"""Reinforcement learning from preferences: rollouts, advantages, losses and one file per engine."""

from data import threads as threads  # before PyTorch is loaded
