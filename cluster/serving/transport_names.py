"""How answers can come from the replicas to an ingress; see `cluster.serving.transports`."""

TRANSPORTS = ("auto", "side_channel", "handle")
"""auto: over side channels, and by Serve streams while there is none. side_channel: nothing else. handle: streams."""
