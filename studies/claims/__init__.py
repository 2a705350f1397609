"""Claims of recent papers, one file each; docs/claims.md has the results."""
