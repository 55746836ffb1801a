"""What every worker script shares: a loop over JSON lines. Imports nothing of Warmlane, because peers lack it.

In: {"prompts": [[token id]], "max_tokens": n}. Out: {"seconds", "first_token_seconds", "outputs": [[token id]]}.
Seconds count from the moment all requests are handed over; the first token is there when every request has one. A
worker may leave the median time of a decode step of the whole batch as `generate.decode_step_seconds`.
"""

import json
import os
import sys
import time
from collections.abc import Callable

Generate = Callable[[list[list[int]], int, Callable[[], None]], list[list[int]]]
"""(prompts, max_tokens, call this at the first token of all) -> generated ids per prompt."""


def serve(load: Callable[[str, int], Generate]) -> None:
    """load(model folder, threads), from the command line. Libraries may print what they like: it goes to stderr."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    generate = load(sys.argv[1], int(sys.argv[2]))
    print(json.dumps({"ready": True}), file=answers, flush=True)
    first: list[float] = []
    for line in sys.stdin:
        work = json.loads(line)
        first.clear()
        started = time.perf_counter()
        outputs = generate(work["prompts"], work["max_tokens"], lambda: first.append(time.perf_counter()))
        ended = time.perf_counter()
        answer = {"seconds": ended - started, "first_token_seconds": first[0] - started, "outputs": outputs}
        if hasattr(generate, "decode_step_seconds"):
            answer["decode_step_seconds"] = generate.decode_step_seconds
        print(json.dumps(answer), file=answers, flush=True)
