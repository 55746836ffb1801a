"""Makes workloads of shared prefixes: groups of users behind one system prompt, each in a talk of several turns."""

from dataclasses import dataclass
from random import Random

from cluster.lab.session_order import interleave
from cluster.lab.trace import Trace, TraceRequest
from cluster.lab.word_tokenizer import VOCAB_SIZE


@dataclass(frozen=True, slots=True, kw_only=True)
class SyntheticPrefixes:
    """groups x users sessions of so many turns; a group shares its system prompt, a session its history.

    hot_share: share of all sessions that belong to the first group; 0 spreads them evenly.
    All lengths are in tokens; a turn's question varies by a half around its mean.
    """

    groups: int = 12
    users: int = 10
    turns: int = 4
    hot_share: float = 0.0
    system_tokens: int = 512
    question_tokens: int = 64
    answer_tokens: int = 32

    def __post_init__(self) -> None:
        for name in ("groups", "users", "turns", "system_tokens", "question_tokens", "answer_tokens"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if not 0.0 <= self.hot_share <= 1.0:
            raise ValueError(f"hot_share must be between 0 and 1, got {self.hot_share}")

    def trace(self, seed: int = 0, num_requests: int | None = None) -> Trace:
        """num_requests: the number of users of each group grows until there are so many."""
        rng = Random(f"synthetic prefixes {seed}")
        sessions = self.groups * self.users
        if num_requests is not None:
            sessions = -(-num_requests // self.turns)
        prompts = [self._tokens(rng, self.system_tokens) for _ in range(self.groups)]
        num_hot = round(sessions * self.hot_share)
        members = [0] * num_hot + [number % self.groups for number in range(sessions - num_hot)]
        rng.shuffle(members)
        talks = [self._talk(rng, prompts[group], f"u{number}") for number, group in enumerate(members)]
        name = f"synthetic hot {self.hot_share:.0%}" if self.hot_share else "synthetic uniform"
        trace = Trace(name, interleave(talks, rng), "generated")
        return trace if num_requests is None else trace.head(num_requests)

    def _talk(self, rng: Random, prompt: list[int], session: str) -> list[TraceRequest]:
        requests = []
        for _ in range(self.turns):
            mean = self.question_tokens
            prompt = prompt + self._tokens(rng, rng.randint(max(1, mean // 2), mean + mean // 2))
            answer = self._tokens(rng, self.answer_tokens)
            requests.append(TraceRequest(prompt, self.answer_tokens, tuple(answer), session))
            prompt = prompt + answer
        return requests

    @staticmethod
    def _tokens(rng: Random, count: int) -> list[int]:
        return rng.choices(range(VOCAB_SIZE), k=count)
