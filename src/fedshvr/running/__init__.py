"""A run and its files."""
