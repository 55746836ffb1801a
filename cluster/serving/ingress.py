"""The HTTP end of the cluster: one Ray Serve replica with the API, the tokenizer and its own router."""

import secrets
from random import Random
from typing import Any

from fastapi import FastAPI
from prometheus_client import CollectorRegistry, disable_created_metrics
from ray import serve

from cache.block_hasher import BlockHasher
from cache.garbage_collection import settle_garbage_collection
from cache.wire.records import PolicySetting
from cluster.api.admission import Drain
from cluster.api.generation_api import GenerationApi
from cluster.api.http_app import Access, build_http_app
from cluster.api.ingress_metrics import IngressMetrics
from cluster.api.model_api import ModelApi
from cluster.api.prompt_reader import PromptReader
from cluster.api.tenant_limits import TenantLimits
from cluster.serving.cache_reset import CacheReset
from cluster.serving.cluster_scrape import ClusterScrape
from cluster.serving.cluster_spec import ClusterSpec
from cluster.serving.explain_api import ExplainApi
from cluster.serving.operations_api import OperationsApi
from cluster.serving.policy_control import PolicyApi, PolicyControl
from cluster.serving.readiness import Readiness
from cluster.serving.relay import RelaySettings, RequestRelay
from cluster.serving.siblings import Siblings, running_replicas
from cluster.serving.transport.transports import make_transport
from cluster.text.tokenization import ChatTokenizer
from router.prefix_router import PrefixRouter


@serve.ingress()
class Ingress:
    """Validates, tokenises once, routes, relays. Everything that a request needs is built here, once per process."""

    def __init__(self, spec: ClusterSpec, replica_handle: Any):
        """replica_handle: Serve handle of the replicas, whose request router is `router.ray_adapter`."""
        disable_created_metrics()
        process = f"ingress-{serve.get_replica_context().replica_id.unique_id}-{secrets.token_hex(8)}"
        registry = CollectorRegistry()
        limits = spec.limits
        self._router = PrefixRouter(
            model=spec.served_model_name,
            hasher=BlockHasher(spec.secret, spec.fingerprint, spec.block_size),
            redis_url=spec.redis_url,
            policy=spec.policy,
            policy_weights=spec.policy_weights,
            registry=registry,
            process=process,
            rng=Random(),
            max_model_len=spec.max_model_len,
            max_index_blocks=spec.index_blocks,
        )
        metrics = IngressMetrics(registry, spec.served_model_name, process)
        readiness = Readiness(self._router, replica_handle, running_replicas)
        transport = make_transport(spec.transport, replica_handle, spec.secret, self._router, metrics)
        relay = RequestRelay(self._router, transport, RelaySettings(), readiness.on_answer)
        siblings = Siblings()
        self._scrape = ClusterScrape(registry, process, replica_handle, running_replicas, siblings.pages)
        self._policy = PolicyControl(self._router, process, siblings.ask)

        model = spec.served_model()
        tokenizer = ChatTokenizer(spec.model_dir)
        reader = PromptReader(tokenizer, spec.max_model_len, self._observe_tokenizing)
        generation = GenerationApi(model, reader, relay.open, limits, metrics.count_failure)
        operations = OperationsApi(self._router, self._scrape, readiness)
        explain = ExplainApi(self._router, generation, replica_handle, spec.block_size, limits)
        reset = CacheReset(replica_handle, running_replicas, siblings.ask)
        self._drain = Drain()
        # Ray Serve echoes X-Request-Id itself; twice would be two headers.
        self._app = build_http_app(
            generation,
            ModelApi(model, reader, limits),
            {
                **operations.handlers(),
                **explain.handlers(),
                **PolicyApi(self._policy, limits).handlers(),
                **reset.handlers(),
            },
            metrics.count_failure,
            echo_request_id=False,
            access=Access(
                keys=spec.api_keys,
                admin_open=spec.admin_open,
                limits=TenantLimits(spec.num_ingress),
                drain=self._drain,
                cors_origins=spec.cors_origins,
                own_hosts_only=spec.admin_open and spec.api_keys is None,  # a key is more than a name
            ),
        )
        self._router.start()
        settle_garbage_collection()

    def __serve_build_asgi_app__(self) -> FastAPI:
        """Ray Serve asks for the application once this object is complete."""
        return self._app

    def local_metrics(self) -> str:
        """This process's own page, for the ingress that was asked for `/metrics`."""
        return self._scrape.local_page()

    def reconfigure(self, user_config: dict[str, Any]) -> None:
        """Serve calls it with the deployment's `user_config` at the start and at each change of it."""
        self._policy.configure(user_config)

    def local_policy(self) -> dict[str, Any]:
        """The policy of this process, for the ingress that was asked for `/admin/policy`."""
        return self._policy.local()

    def adopt_policy(self, setting: PolicySetting) -> dict[str, Any]:
        """Another ingress was told a policy for all."""
        return self._policy.adopt(setting)

    def begin_drain(self) -> int:
        """The cluster stops: requests that come now are refused. Returns how many are still being answered."""
        self._drain.begin()
        return self._drain.num_in_flight

    def forget_cached(self) -> None:
        """All replicas have emptied their caches (see `CacheReset`)."""
        self._router.forget_cached()

    def _observe_tokenizing(self, seconds: float) -> None:
        self._router.metrics.observe_phases(self._router.policy, {"tokenize": seconds})

    def __del__(self) -> None:
        router = getattr(self, "_router", None)
        if router is not None:
            router.stop()
