"""Every request draws by its own rules and from its own random stream, whoever is beside it (18, 35)."""

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from replica.messages import GenerateRequest
from replica.request import Request
from replica.sampling.sampler import Sampler
from replica.sampling.token_filters import keep_top_k
from replica.sampling_params import SamplingParams

PROBABILITIES = torch.tensor([0.4, 0.25, 0.15, 0.1, 0.06, 0.04])
LOGITS = PROBABILITIES.log() + 3.0
CHI_SQUARE_LIMIT = {1: 10.8, 2: 13.8, 3: 16.3, 4: 18.5, 5: 20.5}
"""Degrees of freedom -> what a right sampler exceeds once in a thousand; the seeds below are fixed."""
GREEDY = {"temperature": 0.0}


def request(request_id: str = "r", **sampling: Any) -> Request:
    return Request(GenerateRequest(request_id, [1], SamplingParams(**sampling), 0.0), 100, [])


def logits_of_step(step: int, rows: int = 1, vocabulary: int = 50) -> torch.Tensor:
    return torch.randn(rows, vocabulary, generator=torch.Generator().manual_seed(step)) * 2


def stream(sampler: Sampler, who: Request, steps: int = 20) -> list[int | None]:
    return [sampler.sample(logits_of_step(step), [who])[0] for step in range(steps)]


def check_frequencies(tokens: Sequence[int | None], expected: torch.Tensor) -> None:
    """Chi-square of the counts against expected probabilities; what has none must never come."""
    counts = Counter(tokens)
    possible = [token for token, probability in enumerate(expected.tolist()) if probability]
    assert set(counts) <= set(possible)
    wanted = {token: expected[token].item() * len(tokens) for token in possible}
    chi_square = sum((counts[token] - wanted[token]) ** 2 / wanted[token] for token in possible)
    assert len(possible) == 1 or chi_square < CHI_SQUARE_LIMIT[len(possible) - 1]


def by_definition(temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0) -> torch.Tensor:
    """Token by token from the likeliest on, until there are top_k or they reach top_p."""
    probabilities = torch.softmax(LOGITS / temperature, dim=-1)
    probabilities[top_k or len(LOGITS) :] = 0  # LOGITS fall, so order is position
    probabilities /= probabilities.sum()
    kept = torch.zeros_like(probabilities)
    for token, probability in enumerate(probabilities):
        if kept.sum() >= top_p:
            break
        kept[token] = probability
    return kept / kept.sum()


RULES: list[dict[str, Any]] = [
    {},
    {"temperature": 0.5},
    {"temperature": 2.0},
    {"top_k": 1},
    {"top_k": 3},
    {"top_k": 1000},
    {"top_p": 0.7},
    {"top_p": 0.3},
    {"top_p": 1e-6},
    {"temperature": 1.5, "top_k": 4, "top_p": 0.9},
]


@pytest.mark.parametrize("rules", RULES, ids=str)
def test_frequencies(rules: dict[str, Any]) -> None:
    """The first 15 tokens of 200 streams."""
    sampler, everybody = Sampler(), [request(f"r{i}", seed=1234 * i, **rules) for i in range(200)]
    tokens = [token for _ in range(15) for token in sampler.sample(LOGITS.repeat(200, 1), everybody)]
    check_frequencies(tokens, by_definition(**rules))


def test_frequencies_of_one_stream() -> None:
    sampler, who = Sampler(), request(seed=1)
    check_frequencies([sampler.sample(LOGITS.unsqueeze(0), [who])[0] for _ in range(1000)], PROBABILITIES)


def test_35_neighbouring_seeds_are_independent() -> None:
    """The first tokens of 3,000 requests with seeds in a row are as random as those of one stream."""
    tokens = Sampler().sample(LOGITS.repeat(3000, 1), [request(f"r{seed}", seed=seed) for seed in range(3000)])
    check_frequencies(tokens, PROBABILITIES)


def test_each_row_follows_its_own_rules() -> None:
    rules = [GREEDY, *RULES, {"temperature": 5e-5, "top_p": 0.1}]
    everybody = [request(f"r{i}", seed=77 + i, **rules[i % len(rules)]) for i in range(100 * len(rules))]
    sampler = Sampler()
    steps = [sampler.sample(LOGITS.repeat(len(everybody), 1), everybody) for _ in range(10)]
    for i, rule in enumerate(rules):
        greedy = rule.get("temperature", 1.0) < 1e-4
        tokens = [token for step in steps for token in step[i :: len(rules)]]
        check_frequencies(tokens, by_definition(top_k=1) if greedy else by_definition(**rule))


@pytest.mark.parametrize(
    "rules", [{}, {"top_k": 7}, {"top_p": 0.8}, {"temperature": 0.7, "top_k": 9, "top_p": 0.9}], ids=str
)
def test_35_same_seed_same_stream_in_any_batch(rules: dict[str, Any]) -> None:
    """Other places in the batch, other neighbours with other rules, some of them broken."""
    alone = stream(Sampler(), request(seed=5, **rules))
    sampler, me, crowd = Sampler(), request("me", seed=5, **rules), []
    for step in range(20):
        crowd = [request(f"n{step}-{i}", **rule) for i, rule in enumerate([GREEDY, *RULES][step % 5 : step])]
        place = step % (len(crowd) + 1)
        logits = logits_of_step(1000 + step, rows=len(crowd) + 1)
        logits[place] = logits_of_step(step)[0]
        if len(crowd) > 2:
            logits[place - 1] = float("nan")
        tokens = sampler.sample(logits, [*crowd[:place], me, *crowd[place:]])
        assert tokens[place] == alone[step]


def test_35_streams_without_a_seed_differ() -> None:
    sampler = Sampler()
    everybody = [request(f"r{i}") for i in range(5)]
    rows = [sampler.sample(logits_of_step(step).repeat(5, 1), everybody) for step in range(20)]
    assert len(set(zip(*rows, strict=True))) == 5
    assert len({tuple(stream(Sampler(), request("same id"))) for _ in range(5)}) == 5


@pytest.mark.parametrize("seed", [-(2**63), -1, 0, 2**63 - 1])
def test_every_allowed_seed_works(seed: int) -> None:
    first = stream(Sampler(), request("a", seed=seed))
    assert stream(Sampler(), request("b", seed=seed)) == first
    assert stream(Sampler(), request("b", seed=seed // 2 + 12345)) != first


def test_a_finished_request_leaves_nothing_behind() -> None:
    """Its id may come again, for instance after an abort, and starts from its seed."""
    sampler = Sampler()
    first = stream(sampler, request(seed=8))
    assert stream(sampler, request(seed=8)) != first  # the same request goes on where it was, as after a preemption
    sampler.forget("r")
    assert stream(sampler, request(seed=8)) == first
    sampler.forget("unknown")


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("rules", [GREEDY, {}, {"top_k": 3}, {"top_p": 0.5}], ids=str)
def test_18_a_row_that_is_not_finite_has_no_token_and_disturbs_nobody(bad: float, rules: dict[str, Any]) -> None:
    def neighbours(middle: float) -> list[int | None]:
        logits = logits_of_step(1, rows=3)
        logits[1, 17] = middle
        return Sampler().sample(logits, [request(f"r{i}", seed=i, **rules) for i in range(3)])

    healthy, broken = neighbours(0.0), neighbours(bad)
    assert None not in healthy
    assert broken == [healthy[0], None, healthy[2]]


@pytest.mark.parametrize("rules", [GREEDY, {}, {"top_k": 3, "top_p": 0.9}], ids=str)
def test_18_masked_tokens_never_come(rules: dict[str, Any]) -> None:
    logits = LOGITS.clone()
    logits[[0, 2]] = -math.inf
    sampler, who = Sampler(), request(seed=3, **rules)
    tokens = {sampler.sample(logits.unsqueeze(0), [who])[0] for _ in range(200)}
    assert tokens == ({1} if rules is GREEDY else {1, 3, 4} if rules else {1, 3, 4, 5})
    assert sampler.sample(torch.full((1, 6), -math.inf), [who]) == [None]


@pytest.mark.parametrize("temperature", [1e-5, 1e-4, 1e-3])
@pytest.mark.parametrize("size", [1.0, 1e36])
def test_18_a_tiny_temperature_is_greedy_and_overflows_nothing(temperature: float, size: float) -> None:
    sampler, who = Sampler(), request(seed=2, temperature=temperature)
    assert {sampler.sample(LOGITS.unsqueeze(0) * size, [who])[0] for _ in range(50)} == {0}


def test_half_precision_logits() -> None:
    for dtype in (torch.float16, torch.bfloat16):
        logits = LOGITS.to(dtype).unsqueeze(0)
        assert Sampler().sample(logits, [request(**GREEDY)]) == [0]
        everybody = [request(f"r{seed}", seed=seed, top_p=0.85) for seed in range(1000)]
        check_frequencies(Sampler().sample(logits.repeat(1000, 1), everybody), by_definition(top_p=0.85))


@pytest.mark.parametrize("vocabulary", [50, 2000])
def test_rows_are_filtered_by_their_own_rule_and_ties_stay(vocabulary: int) -> None:
    """All kinds of top-k in one batch, as its definition says: what is not below the k-th largest."""
    top_k = [0, 1, 7, vocabulary - 1, vocabulary, vocabulary + 9]
    logits = torch.randint(0, 30, (len(top_k), vocabulary), generator=torch.Generator().manual_seed(1)).float()
    kept = keep_top_k(logits, top_k)
    for row, k in zip(range(len(top_k)), top_k, strict=True):
        least = logits[row].sort(descending=True).values[(k or vocabulary) - 1 if k < vocabulary else -1]
        assert torch.equal(kept[row], logits[row].masked_fill(logits[row] < least, float("-inf")))


def test_a_row_without_top_k_makes_no_other_row_select_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is selected: rows with a rule alone, on a GPU never the vocabulary for a row that wants a few."""
    selected: list[tuple[int, int]] = []
    partition = np.partition
    monkeypatch.setattr(np, "partition", lambda row, k: selected.append((len(row), -k)) or partition(row, k))
    keep_top_k(torch.rand(4, 100), [40, 0, 3, 100])
    assert selected == [(100, 40), (100, 3)]
