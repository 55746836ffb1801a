"""Paged KV bookkeeping: which block of which content lies in which page.

Knows token ids, block keys and pages. Does not know tensors, HTTP, Ray or Redis connections (only the Redis key
names and the wire format, because writer and reader must share them).
"""
