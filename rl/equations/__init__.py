"""The equations: losses, KL penalties, advantages, each tested by hand. They import nothing of rl/."""
