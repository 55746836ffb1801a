"""Direct streaming: HAProxy asks an ingress where a request goes, and the answer comes from the replica itself."""
