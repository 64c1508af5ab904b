"""One communication round, readable beside Algorithm 1."""
