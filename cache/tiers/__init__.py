"""Colder places for pages than the engine's own pool: the replica's memory, its disk."""
