"""The generated worlds, one file each (data/sources.py says what such a file holds)."""
