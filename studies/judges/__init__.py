"""Three ways to pay for answers: what is run and shown (study), and how (stages)."""
