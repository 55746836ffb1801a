"""The decode step of transformers' own forward on a contiguous cache: no scheduler, no pages, all contexts equal."""

import statistics
import time
from collections.abc import Callable

import torch
from transformers import AutoModelForCausalLM
from worker import Generate, serve


def load(folder: str, threads: int) -> Generate:
    torch.set_num_threads(threads)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()

    @torch.inference_mode()
    def generate(prompts: list[list[int]], max_tokens: int, at_first_token: Callable[[], None]) -> list[list[int]]:
        output = model(torch.tensor(prompts), use_cache=True, logits_to_keep=1)
        tokens = [output.logits[:, -1].argmax(-1)]
        at_first_token()
        seconds = []
        for _ in range(max_tokens - 1):
            started = time.perf_counter()
            output = model(tokens[-1].unsqueeze(1), past_key_values=output.past_key_values, use_cache=True)
            tokens.append(output.logits[:, -1].argmax(-1))
            seconds.append(time.perf_counter() - started)
        generate.decode_step_seconds = statistics.median(seconds)
        return torch.stack(tokens, dim=1).tolist()

    return generate


serve(load)
