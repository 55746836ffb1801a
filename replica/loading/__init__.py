"""Pages on their way into the engine's pool, in threads beside its steps."""
