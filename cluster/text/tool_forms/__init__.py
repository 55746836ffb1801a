"""How models write tool calls: each form described as data."""
