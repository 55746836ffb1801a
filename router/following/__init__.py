"""How a router stays in step with Redis: members, heartbeats, block events, the policy."""
