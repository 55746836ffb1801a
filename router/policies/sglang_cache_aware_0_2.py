"""cache_aware of SGLang's router with the defaults that it has had since version 0.2."""

from types import MappingProxyType

from router.policies.sglang_cache_aware import SglangCacheAwarePolicy


class SglangCacheAware02Policy(SglangCacheAwarePolicy):
    """Source: `sglang_router/router_args.py` of sglang-router 0.2.0 to 0.3.2 (the last release read), which starts the
    router with 0.3, 64 and 1.5. Up to 0.1.9 that file had 0.5, 32 and 1.0001, and the Rust code's own were 0.5, 32 and
    1.1, which are `sglang_cache_aware`'s.

    Less has to match before a prompt follows its prefix, and loads may lie further apart before affinity gives way.
    """

    name = "sglang_cache_aware_0_2"
    default_weights = MappingProxyType(
        {"cache_threshold": 0.3, "balance_abs_threshold": 64.0, "balance_rel_threshold": 1.5, "events": 0.0}
    )
