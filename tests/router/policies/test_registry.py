"""Which policies and weights there are, and how others are refused: all that set a policy ask here."""

import pytest

from router.policies.registry import DEFAULT_POLICY, POLICIES, make_policy


def test_the_default_is_one_of_them() -> None:
    assert DEFAULT_POLICY in POLICIES


@pytest.mark.parametrize(
    ("name", "weights", "message"),
    [
        ("fastest", {}, "policy must be one of random, round_robin, .*, got 'fastest'"),
        ("lmetric", {"speed": 1.0}, "policy lmetric has no weight 'speed'; it has: count_waiting"),
        ("lmetric", {"count_waiting": -1.0}, "weight count_waiting of policy lmetric must be 0 to 1e\\+09, got -1.0"),
        ("lmetric", {"count_waiting": 10**400}, "weight count_waiting of policy lmetric must be .*, got 1000"),
        ("expected_finish", {"decode": 1e308}, "weight decode of policy expected_finish must be 0 to 1e\\+09"),
        ("expected_finish", {"stall": float("nan")}, "weight stall of policy expected_finish must be 0 to 1e\\+09"),
        ("random", {"margin": 1.0}, "policy random has no weight 'margin'; it has: none"),
    ],
)
def test_unknown_names_and_weights_out_of_bounds_are_refused(
    name: str, weights: dict[str, float], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        make_policy(name, weights)
