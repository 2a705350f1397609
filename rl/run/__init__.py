"""The machinery around a run: config, setup, critic, metrics, evaluation and the I/O."""
