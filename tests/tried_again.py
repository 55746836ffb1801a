"""The tests that are run a second time when they fail, each with the reason; everything else must pass at once.

Only a test that depends on what neither it nor Warmlane decides may stand here: such as a deadline of Ray's own that a
busy machine misses. The report says which were tried again (`-ra` prints them).
"""

TRIED_AGAIN: dict[str, str] = {}


def reason_to_try_again(nodeid: str) -> str | None:
    """nodeid: pytest's, parameters included; a name without parameters stands for all of them."""
    return TRIED_AGAIN.get(nodeid) or TRIED_AGAIN.get(nodeid.partition("[")[0])
