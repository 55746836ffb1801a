"""How a replica is chosen: a policy's file, or `baselines`, found by name in `registry`."""
