"""A hand-written GPT-2: model, tokenizers, generation, scoring, pre-training, fine-tuning, teachers."""
