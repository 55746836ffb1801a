"""Which replica holds which blocks, as one router sees it."""
