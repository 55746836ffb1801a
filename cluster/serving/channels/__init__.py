"""The ingress's end of the side channels."""
