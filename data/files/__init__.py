"""Files of yours: their rows, and the source that a file is."""
