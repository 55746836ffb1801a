"""Tokens from a replica to an ingress over one connection of their own; the calls stay with Ray Serve."""
