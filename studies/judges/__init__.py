"""Three ways to pay for answers: what is run and shown (__main__), and how (stages)."""
