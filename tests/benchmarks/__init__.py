"""Speed of the engine against its peers and its bounds: `make bench-engine`. Measured, never asserted."""
