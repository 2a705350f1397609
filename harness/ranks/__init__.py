"""Several processes for one run: how they start, what they exchange."""
