"""From logits to the next token: edits, filters, grammars, random streams, logprobs."""
