"""How models write tool calls: each form described as data, and found out from a chat template."""
