"""The OpenAI API in front of one engine, in the engine's own process."""

import time
from collections.abc import Mapping

from fastapi import FastAPI

from cluster.api.generation_api import GenerationApi, ServedModel
from cluster.api.http_app import Access, Handler, Report, build_http_app
from cluster.api.model_api import ModelApi
from cluster.api.prompt_reader import PromptReader
from cluster.serving.cluster_spec import ClusterSpec
from cluster.serving.local_call import LocalCall
from cluster.serving.render_api import RenderApi
from cluster.text.tokenization import ChatTokenizer
from replica.engine.async_engine import AsyncEngine


def build_replica_api(
    spec: ClusterSpec,
    engine: AsyncEngine,
    operations: Mapping[tuple[str, str], Handler],
    on_failure: Report,
    access: Access | None = None,
) -> FastAPI:
    """The same API code as the ingress has, without a router, and what other routers ask an engine (`RenderApi`).

    operations, on_failure, access: see `build_http_app`.
    """
    model = ServedModel(
        name=spec.served_model_name,
        fingerprint=spec.fingerprint,
        max_model_len=spec.max_model_len,
        created=int(time.time()),
        sampling_defaults=spec.sampling_defaults,
    )
    reader = PromptReader(ChatTokenizer(spec.model_dir), spec.max_model_len, lambda seconds: None)
    generation = GenerationApi(model, reader, lambda request: LocalCall(engine, request), spec.limits, on_failure)
    operations = {**operations, **RenderApi(generation, spec.limits).handlers()}
    return build_http_app(generation, ModelApi(model, reader, spec.limits), operations, on_failure, access=access)
