"""Attention over paged K/V: one interface, one file per backend, and the bridge into transformers."""
