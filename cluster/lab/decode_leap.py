"""Many decode steps at once, as the scheduler would have made them one by one."""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate

from cluster.lab.cost_model import StepWork
from cluster.lab.step_clock import StepClock
from replica.engine.scheduler import Scheduler
from replica.request import Request

MAX_LEAP_STEPS = 1024


def num_quiet_steps(scheduler: Scheduler, max_num_seqs: int) -> int:
    """How many steps from now on only decode what runs, the last of which may end a request; 0 where the next does
    not: something is prefilled, could be admitted, or pages might run out."""
    running, manager = scheduler.running, scheduler.manager
    if not running or any(request.is_prefilling for request in running):
        return 0
    if scheduler.waiting and len(running) < max_num_seqs:
        return 0
    num_steps = min(MAX_LEAP_STEPS, *(request.max_total_tokens - request.num_tokens for request in running))
    num_pages_needed = sum(
        manager.num_pages_for(request.num_tokens + num_steps - 1) - len(manager.block_table(request.id))
        for request in running
    )
    return num_steps if num_pages_needed <= manager.pool.num_free else 0


class DecodeLeap:
    """A run of quiet steps. `ends[i]` is when step i ends. Steps are carried out lazily, in order, by `advance`.

    Of each step only what changes pages or keys is done: `grow` where a request enters a page, `commit` where a block
    is full, both with the calls and in the order of the scheduler's own step.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        clock: StepClock,
        started: float,
        first_step: int,
        num_steps: int,
        token_of: Callable[[Request], int],
    ):
        """first_step: how many steps the replica has made before. token_of: the next token of a request's answer."""
        self.requests: Sequence[Request] = list(scheduler.running)
        self.num_done = 0
        self._scheduler, self._token_of = scheduler, token_of
        context = sum(request.num_tokens for request in self.requests)
        work = StepWork(num_decodes=len(self.requests), decode_context=context)
        self.seconds = clock.decode_seconds(work, first_step, num_steps)
        self.ends = list(accumulate(self.seconds, initial=started))[1:]
        block, page = scheduler.manager.block_size, scheduler.manager.page_size
        self._block_size, self._page_size = block, page

    @property
    def end(self) -> float:
        return self.ends[-1]

    def cut(self) -> None:
        """The step that runs now is the last."""
        del self.ends[self.num_done + 1 :], self.seconds[self.num_done + 1 :]

    def num_over(self, now: float) -> int:
        """How many steps have ended by `now`."""
        return bisect_right(self.ends, now)

    def step(self) -> None:
        """Carries out the next step."""
        manager = self._scheduler.manager
        full = []
        for request in self.requests:
            num_tokens = request.num_tokens
            if (num_tokens - 1) % self._page_size == 0 and not manager.grow(request.id, num_tokens):
                raise RuntimeError(f"no page for request {request.id} in a run of quiet steps")
            if num_tokens % self._block_size == 0:
                full.append(request)
        for request in self.requests:
            request.num_computed_tokens = request.num_tokens
        for request in full:
            manager.commit(request.id, request.block_keys, request.num_tokens)
        for request in self.requests:
            self._scheduler.append_token(request, self._token_of(request))
        self.num_done += 1
