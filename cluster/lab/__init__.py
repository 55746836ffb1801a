"""Measuring a cluster from outside: conversations, load, statistics."""
