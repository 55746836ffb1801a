"""How a replica is chosen: one policy per file, found by name in `registry`."""
