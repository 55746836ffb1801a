"""Models on this machine: where they lie, what their files say, the default one and how it gets here."""
