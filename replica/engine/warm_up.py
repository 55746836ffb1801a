"""Runs an engine once before it takes requests."""

from cache.block_hasher import ExtraKeys
from replica.engine.engine import Engine
from replica.engine.observer import EngineCounters
from replica.messages import GenerateRequest
from replica.sampling_params import SamplingParams


def warm_up(engine: Engine, num_prompt_tokens: int = 128, num_generated_tokens: int = 4) -> None:
    """First use of kernels and memory is paid here, and the replica's speed is known before its first request.

    Leaves the cache empty and the counters at zero. Shrinks to what the window and the pool allow.
    """
    longest = engine.longest_request_tokens
    num_generated_tokens = max(1, min(num_generated_tokens, longest // 2))
    prompt = [i % engine.vocab_size for i in range(max(1, min(num_prompt_tokens, longest - num_generated_tokens)))]
    sampling = SamplingParams(max_tokens=num_generated_tokens, temperature=0.0, ignore_eos=True)
    engine.add(GenerateRequest("warm-up", prompt, sampling, 0.0, ExtraKeys(cache_salt="warm-up")))
    while engine.has_work:
        engine.step()
    engine.manager.take_events()
    engine.manager.reset(keep_tiers=True)  # a disk may hold what an earlier process left there
    engine.books.counters = EngineCounters()
