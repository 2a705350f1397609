"""Where rewards come from: models, rules, steps and teachers."""
