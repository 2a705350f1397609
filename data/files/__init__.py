"""Files of yours: their rows, what each kind of row becomes, and the source that a file is."""
