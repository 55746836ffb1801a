"""Policies by name."""

from collections.abc import Mapping

from router.policies.base import Policy
from router.policies.baselines import (
    LeastTokensPolicy,
    LongestPrefixPolicy,
    PowerOfTwoPolicy,
    RandomPolicy,
    RoundRobinPolicy,
    SessionHashPolicy,
)
from router.policies.dualmap import DualmapPolicy
from router.policies.dynamo_cost import DynamoCostPolicy
from router.policies.expected_finish import ExpectedFinishPolicy
from router.policies.llmd_p2p import LlmdP2pPolicy
from router.policies.llmd_weighted import LlmdWeightedPolicy
from router.policies.lmetric import LmetricPolicy
from router.policies.preble import PreblePolicy
from router.policies.prefix_hash_bounded import PrefixHashBoundedPolicy
from router.policies.ray_prefix_affinity import RayPrefixAffinityPolicy
from router.policies.sglang_cache_aware import SglangCacheAware02Policy, SglangCacheAwarePolicy

DEFAULT_POLICY = "expected_finish"

POLICIES: Mapping[str, type[Policy]] = {
    policy.name: policy
    for policy in (
        RandomPolicy,
        RoundRobinPolicy,
        PowerOfTwoPolicy,
        LeastTokensPolicy,
        SessionHashPolicy,
        PrefixHashBoundedPolicy,
        LongestPrefixPolicy,
        RayPrefixAffinityPolicy,
        SglangCacheAwarePolicy,
        SglangCacheAware02Policy,
        DynamoCostPolicy,
        LmetricPolicy,
        PreblePolicy,
        DualmapPolicy,
        LlmdWeightedPolicy,
        LlmdP2pPolicy,
        ExpectedFinishPolicy,
    )
}


def make_policy(name: str, weights: Mapping[str, float] | None = None) -> Policy:
    """Raises ValueError for an unknown policy or weight."""
    if name not in POLICIES:
        raise ValueError(f"policy must be one of {', '.join(POLICIES)}, got {name!r}")
    return POLICIES[name](weights)
