"""HAProxy in front of Ray Serve: its settings, its configuration, and who launches it."""
