"""transformers' continuous batching over its own paged cache."""

from collections.abc import Callable

import torch
from transformers import AutoModelForCausalLM, GenerationConfig
from transformers.generation.configuration_utils import ContinuousBatchingConfig
from worker import Generate, serve


def load(folder: str, threads: int) -> Generate:
    torch.set_num_threads(threads)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    manager = model.init_continuous_batching(
        generation_config=GenerationConfig(do_sample=False, eos_token_id=-1, pad_token_id=0),
        continuous_batching_config=ContinuousBatchingConfig(
            page_size=16, num_blocks=1024, auto_switch_to_flash=False, use_cuda_graph=False
        ),
    )
    manager.start()

    def generate(prompts: list[list[int]], max_tokens: int, at_first_token: Callable[[], None]) -> list[list[int]]:
        names = manager.add_requests(prompts, max_new_tokens=max_tokens, streaming=True)
        outputs: dict[str, list[int]] = {}
        unfinished = set(names)
        while unfinished:
            result = manager.get_result(timeout=1.0)
            if result is None:
                continue
            started = len(outputs)
            outputs[result.request_id] = list(result.generated_tokens)
            if started < len(names) == len(outputs):
                at_first_token()
            if result.is_finished():
                unfinished.discard(result.request_id)
        return [outputs[name] for name in names]

    return generate


serve(load)
