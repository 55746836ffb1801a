"""What `serve` found out once and hands to every ingress and replica."""

import time
from dataclasses import dataclass, field

from cluster.api.generation_api import ServedModel
from cluster.api.limits import ApiLimits
from cluster.api.tenants import ApiKeys
from cluster.text.sampling_defaults import SamplingDefaults


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSpec:
    """served_model_name: the name clients use. model_dir: local folder with config, tokenizer and weights.

    fingerprint: identity of the weights (`cache.fingerprint`). secret: key of all block keys, never in Redis.
    max_model_len: tokens of prompt and answer together. block_size: tokens of a hash block.
    cors_origins: whose web pages may use the API.
    redis_url: None runs without shared memory (each router then knows only what it sent).
    api_keys: None lets everybody in. admin_open: whether administration needs no key then. num_ingress: HTTP ingresses.
    transport: how answers come from the replicas (`transports`). sampling_defaults: what requests leave out.
    index_blocks: keys that each router's index may hold.
    """

    served_model_name: str
    model_dir: str
    fingerprint: str
    secret: bytes = field(repr=False)
    block_size: int
    max_model_len: int
    redis_url: str | None
    policy: str = "expected_finish"
    policy_weights: dict[str, float] = field(default_factory=dict)
    limits: ApiLimits = field(default_factory=ApiLimits)
    api_keys: ApiKeys | None = None
    admin_open: bool = True
    cors_origins: tuple[str, ...] = ()
    num_ingress: int = 1
    transport: str = "auto"
    sampling_defaults: SamplingDefaults = field(default_factory=SamplingDefaults)
    index_blocks: int = 4_000_000

    def served_model(self) -> ServedModel:
        """As the API of one process shows it, from now on."""
        return ServedModel(
            name=self.served_model_name,
            fingerprint=self.fingerprint,
            max_model_len=self.max_model_len,
            created=int(time.time()),
            sampling_defaults=self.sampling_defaults,
        )
