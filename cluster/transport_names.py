"""How answers can come from the replicas to an ingress; see `cluster.transports`."""

TRANSPORTS = ("auto", "side_channel", "handle", "direct")
"""auto: over side channels, and by Serve streams while there is none. side_channel: nothing else. handle: streams.

direct: past the ingress, from the replica to HAProxy (`cluster.direct`); by Serve streams what cannot go so."""
