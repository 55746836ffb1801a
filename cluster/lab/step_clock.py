"""Turns the work of each step of one replica into seconds, noise and slowness included."""

import math
from random import Random

from cluster.lab.cost_model import CostModel, StepWork


class StepClock:
    """The n-th step of a replica meets the n-th number of its generator, whatever it computes.

    noise: standard deviation of a step's time as a share of it (log-normal, mean 1). slowness: 1.3 takes 30 % longer.
    """

    def __init__(self, cost_model: CostModel, rng: Random, noise: float = 0.0, slowness: float = 1.0):
        """Raises ValueError for noise below 0 or a slowness that is not above 0."""
        if noise < 0.0 or not slowness > 0.0:
            raise ValueError(f"noise must be at least 0 and slowness above 0, got {noise} and {slowness}")
        self._cost_model, self._rng, self._slowness = cost_model, rng, slowness
        self._sigma = math.sqrt(math.log1p(noise * noise))
        self._factors: list[float] = []

    def seconds(self, work: StepWork, step: int) -> float:
        """step: how many steps the replica has made before."""
        return self._cost_model.seconds(work) * self._factor(step)

    def decode_seconds(self, work: StepWork, step: int, num_steps: int) -> list[float]:
        """Of so many decode steps in a row, the first of which does `work`; contexts grow by a token a step."""
        return [
            self._cost_model.seconds(
                StepWork(num_decodes=work.num_decodes, decode_context=work.decode_context + number * work.num_decodes)
            )
            * self._factor(step + number)
            for number in range(num_steps)
        ]

    def _factor(self, step: int) -> float:
        if not self._sigma:
            return self._slowness
        while len(self._factors) <= step:
            drawn = self._rng.gauss(-0.5 * self._sigma * self._sigma, self._sigma)
            self._factors.append(self._slowness * math.exp(drawn))
        return self._factors[step]
