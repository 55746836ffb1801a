"""Where a request goes: the mirror of all replicas' pages, their load, the policies and the decision.

Does not know models or tensors.
"""
