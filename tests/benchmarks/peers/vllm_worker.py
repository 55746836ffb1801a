"""vLLM on CPU, eager, driven step by step in this process. A third argument switches prefix caching off."""

import os
import sys
from collections.abc import Callable

os.environ.update(VLLM_CPU_KVCACHE_SPACE="2", VLLM_ENABLE_V1_MULTIPROCESSING="0", HF_HUB_OFFLINE="1")
os.environ["VLLM_NO_USAGE_STATS"] = "1"
from worker import Generate, serve


def load(folder: str, threads: int) -> Generate:
    import torch
    from vllm import LLM, SamplingParams

    torch.set_num_threads(threads)
    llm = LLM(
        folder, dtype="float32", enforce_eager=True, max_num_seqs=64, max_model_len=2048, skip_tokenizer_init=True,
        enable_prefix_caching=sys.argv[3:] != ["cache-off"],
    )  # fmt: skip
    engine, count = llm.llm_engine, iter(range(10**9))

    def generate(prompts: list[list[int]], max_tokens: int, at_first_token: Callable[[], None]) -> list[list[int]]:
        llm.reset_prefix_cache()
        params = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True, detokenize=False)
        names = [str(next(count)) for _ in prompts]
        for name, prompt in zip(names, prompts, strict=True):
            engine.add_request(name, {"prompt_token_ids": prompt}, params)
        outputs: dict[str, list[int]] = {}
        while engine.has_unfinished_requests():
            started = len(outputs)
            for output in engine.step():
                outputs[output.request_id] = list(output.outputs[0].token_ids)
            if started < len(names) == len(outputs):
                at_first_token()
        return [outputs[name] for name in names]

    return generate


serve(load)
