"""Preference pairs and a published chat model: what training makes of them, beside all controls."""
