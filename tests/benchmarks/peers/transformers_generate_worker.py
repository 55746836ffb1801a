"""transformers' `generate`: one static batch of prompts of equal length."""

from collections.abc import Callable
from typing import Any

import torch
from transformers import AutoModelForCausalLM
from transformers.generation.streamers import BaseStreamer
from worker import Generate, serve


class FirstToken(BaseStreamer):
    """Is handed the prompts first, then each step's tokens."""

    def __init__(self, at_first_token: Callable[[], None]):
        self._calls, self._at_first_token = 0, at_first_token

    def put(self, value: Any) -> None:
        self._calls += 1
        if self._calls == 2:
            self._at_first_token()

    def end(self) -> None:
        pass


def load(folder: str, threads: int) -> Generate:
    torch.set_num_threads(threads)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()

    def generate(prompts: list[list[int]], max_tokens: int, at_first_token: Callable[[], None]) -> list[list[int]]:
        ids = torch.tensor(prompts)
        with torch.inference_mode():
            # generate refuses a streamer for a batch; what a batch's first token costs is not asked for.
            streamer = FirstToken(at_first_token) if len(prompts) == 1 else None
            out = model.generate(
                ids, attention_mask=torch.ones_like(ids), max_new_tokens=max_tokens, min_new_tokens=max_tokens,
                do_sample=False, pad_token_id=0, streamer=streamer,
            )  # fmt: skip
        if streamer is None:
            at_first_token()
        return out[:, ids.shape[1] :].tolist()

    return generate


serve(load)
