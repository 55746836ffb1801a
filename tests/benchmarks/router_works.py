"""What `bench_router --part peers` sends: chats of users in groups, each group behind one system prompt."""

from dataclasses import dataclass
from random import Random

from cluster.lab.conversations import Conversation, Exchange
from tests.benchmarks.router_cluster import PACED, REAL

_TEXT = """
time year people way day man thing woman life child world school state family student group country problem
hand part place case week company system program question work government number night point home water room
mother area money story fact month lot right study book eye job word business issue side kind head house
service friend father power hour game line end member law car city community name president team minute idea
kid body information back parent face others level office door health person art war history party result
change morning reason research girl guy moment air teacher force education
"""
_WORDS = tuple(_TEXT.split())
"""Common words, about one token each behind a blank."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerWork:
    """groups x users conversations of so many turns, `concurrency` of them at once (closed loop).

    system_words: fewest and most of a group's system prompt; question_words: of a question. engine: which replicas,
    see `router_cluster`. num_blocks: KV blocks of each. routers: processes of each side that route, which take the
    requests in turn. Histories hold recorded answers, so every side is sent the same.
    """

    name: str
    engine: str
    groups: int
    users: int
    turns: int
    concurrency: int
    system_words: tuple[int, int]
    question_words: tuple[int, int]
    answer_words: int
    new_tokens: int
    num_blocks: int
    routers: int = 1

    def conversations(self, seed: int) -> list[Conversation]:
        """In an order that mixes the groups; the same for the same seed."""
        rng = Random(f"{self.name} {seed}")
        prompts = [random_text(rng, rng.randint(*self.system_words)) for _ in range(self.groups)]
        talks = [self._talk(rng, group, prompts[group]) for group in range(self.groups) for _ in range(self.users)]
        rng.shuffle(talks)
        return talks

    @property
    def num_requests(self) -> int:
        return self.groups * self.users * self.turns

    def _talk(self, rng: Random, group: int, system_prompt: str) -> Conversation:
        exchanges = tuple(
            Exchange(random_text(rng, rng.randint(*self.question_words)), random_text(rng, self.answer_words))
            for _ in range(self.turns)
        )
        return Conversation(f"{group}-{rng.random()}", str(group), system_prompt, exchanges)


def random_text(rng: Random, num_words: int) -> str:
    return " ".join(rng.choices(_WORDS, k=num_words))


WORKS = (
    PeerWork(
        name="hits", engine=REAL, groups=6, users=5, turns=3, concurrency=8, num_blocks=1100,
        system_words=(256, 256), question_words=(12, 36), answer_words=16, new_tokens=4,
    ),
    # As it is run where no router may be missed. Only smg has a way to tell its other routers what it knows; it is on.
    PeerWork(
        name="hits_two_routers", engine=REAL, groups=6, users=5, turns=3, concurrency=8, num_blocks=1100,
        system_words=(256, 256), question_words=(12, 36), answer_words=16, new_tokens=4, routers=2,
    ),
    # Four of the longest requests fit into a replica, about half of all unique blocks into the fleet, so that what is
    # cached is thrown out again. A conversation is played to its end at once, so little of that would have been hit.
    PeerWork(
        name="hits_evicting", engine=REAL, groups=12, users=4, turns=3, concurrency=8, num_blocks=80,
        system_words=(128, 128), question_words=(12, 36), answer_words=16, new_tokens=4,
    ),
    # The pool is what 24 GB hold beside the weights of the model of the cost model.
    PeerWork(
        name="ttft", engine=PACED, groups=12, users=10, turns=4, concurrency=16, num_blocks=3000,
        system_words=(1024, 1024), question_words=(32, 96), answer_words=32, new_tokens=16,
    ),
)  # fmt: skip
