"""The ring under the consistent hashes."""

from collections import Counter

from router.policies.hash_ring import ring_of

IDS = tuple(f"replica-{number}" for number in range(8))


def owner(key: int, ids: tuple[str, ...] = IDS) -> str:
    return next(ring_of(ids).walk(b"%d" % key))


def test_a_walk_meets_each_replica_once() -> None:
    for key in range(50):
        assert sorted(ring_of(IDS).walk(b"%d" % key)) == sorted(IDS)
    assert list(ring_of(("only",)).walk(b"key")) == ["only"]


def test_keys_are_spread() -> None:
    counts = Counter(owner(key) for key in range(8000))
    assert set(counts) == set(IDS)
    assert min(counts.values()) > 600
    assert max(counts.values()) < 1500


def test_a_replica_that_goes_moves_only_its_keys_to_its_neighbours() -> None:
    left = IDS[:3] + IDS[4:]
    for key in range(2000):
        order = list(ring_of(IDS).walk(b"%d" % key))
        expected = next(replica_id for replica_id in order if replica_id != IDS[3])
        assert owner(key, left) == expected
