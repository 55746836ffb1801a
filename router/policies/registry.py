"""Policies by name."""

from collections.abc import Mapping

from router.policies.base import Policy
from router.policies.expected_finish import ExpectedFinishPolicy
from router.policies.least_tokens import LeastTokensPolicy
from router.policies.longest_prefix import LongestPrefixPolicy
from router.policies.power_of_two import PowerOfTwoPolicy
from router.policies.random_choice import RandomPolicy
from router.policies.round_robin import RoundRobinPolicy

DEFAULT_POLICY = "expected_finish"

POLICIES: Mapping[str, type[Policy]] = {
    policy.name: policy
    for policy in (
        RandomPolicy,
        RoundRobinPolicy,
        PowerOfTwoPolicy,
        LeastTokensPolicy,
        LongestPrefixPolicy,
        ExpectedFinishPolicy,
    )
}


def make_policy(name: str, weights: Mapping[str, float] | None = None) -> Policy:
    """Raises ValueError for an unknown policy or weight."""
    if name not in POLICIES:
        raise ValueError(f"policy must be one of {', '.join(POLICIES)}, got {name!r}")
    return POLICIES[name](weights)
