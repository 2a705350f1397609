"""Claims of recent papers: README.md says where things are."""
