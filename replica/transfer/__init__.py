"""Pages from the caches of other replicas."""
