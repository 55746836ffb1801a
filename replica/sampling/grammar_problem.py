"""What llguidance says of a grammar that it cannot use, in words that a client may read."""

import re

_QUOTED_GRAMMAR = re.compile(r"\n *\d+ \| .*", re.DOTALL)
_ADVICE = re.compile(r"\.? *Enable '\w+' option.*", re.DOTALL)
"""For options that no client has."""
_PLACE = re.compile(r"^at \d+\(\d+\): ")


def grammar_problem(message: str) -> str:
    """On one line, without the grammar: clients know their schemas, not what is made of them."""
    text = _PLACE.sub("", _ADVICE.sub("", _QUOTED_GRAMMAR.sub("", message)))
    return " ".join(line.strip() for line in text.splitlines() if line.strip(" ^"))[:500]
