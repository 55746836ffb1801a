"""Text to token ids: the chat template, the tokenizer, and what users may not write."""
