"""What the commands that look at runs share; the commands themselves stand at the top of rl/."""
