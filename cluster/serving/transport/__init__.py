"""How a request reaches its replica and the answer comes back: calls over Serve handles, and side channels."""
