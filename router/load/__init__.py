"""How busy each replica is, as one router sees it."""
