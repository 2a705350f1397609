"""All of RLHF in one file (rlhf.py), and each paper in a file of its own, with torch alone."""
