"""What `warmlane serve` starts on this machine: models, Redis, Ray, HAProxy, and their end."""
