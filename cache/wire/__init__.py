"""What travels through Redis: names of keys, records and snapshots as bytes."""
