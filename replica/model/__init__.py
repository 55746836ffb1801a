"""A transformers model over pages: loading, probing, refusing, sizing and running it."""
