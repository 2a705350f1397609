"""What a step learns from: sampled rollouts, and preference pairs."""
