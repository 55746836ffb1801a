"""One replica: a paged KV engine around one transformers model, and the Ray deployment that wraps it.

Does not know routing or other replicas.
"""
