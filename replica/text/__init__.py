"""From token ids to text: detokenising, stop strings."""
