"""What a run will need in memory, told before its first step."""
