"""Only who knows the cluster's secret gets a side channel, and only for this connection."""

import pytest

from replica.channel.handshake import BadHandshake, IngressHandshake, ReplicaHandshake

SECRET, OTHER = b"0123456789abcdef", b"0123456789abcdeF"


def test_both_ends_are_proven() -> None:
    replica, ingress = ReplicaHandshake(SECRET, "a"), IngressHandshake(SECRET, "a")
    channel_id, proof = replica.answer(ingress.answer(replica.challenge))
    ingress.check(proof)
    assert channel_id == ingress.channel_id


def test_an_ingress_with_another_secret_is_refused() -> None:
    replica = ReplicaHandshake(SECRET, "a")
    with pytest.raises(BadHandshake, match="does not know the cluster's secret"):
        replica.answer(IngressHandshake(OTHER, "a").answer(replica.challenge))


def test_a_replica_with_another_secret_is_refused() -> None:
    ingress = IngressHandshake(SECRET, "a")
    ingress.answer(ReplicaHandshake(OTHER, "a").challenge)
    with pytest.raises(BadHandshake, match="does not know the cluster's secret"):
        ingress.check(b"x" * 32)


def test_another_replica_at_the_same_address_is_refused() -> None:
    """A port may have a new owner: the ingress names the replica that it means."""
    replica = ReplicaHandshake(SECRET, "b")
    with pytest.raises(BadHandshake):
        replica.answer(IngressHandshake(SECRET, "a").answer(replica.challenge))


def test_what_was_overheard_is_worth_nothing_on_another_connection() -> None:
    first, second = ReplicaHandshake(SECRET, "a"), ReplicaHandshake(SECRET, "a")
    overheard = IngressHandshake(SECRET, "a").answer(first.challenge)
    with pytest.raises(BadHandshake):
        second.answer(overheard)


def test_a_proof_cannot_be_sent_back() -> None:
    replica, ingress = ReplicaHandshake(SECRET, "a"), IngressHandshake(SECRET, "a")
    answer = ingress.answer(replica.challenge)
    with pytest.raises(BadHandshake):
        ingress.check(answer[-32:])


@pytest.mark.parametrize("flipped", [0, 31, 32, 47, 48, 79], ids=lambda byte: f"byte {byte}")
def test_every_byte_of_the_answer_counts(flipped: int) -> None:
    replica = ReplicaHandshake(SECRET, "a")
    answer = bytearray(IngressHandshake(SECRET, "a").answer(replica.challenge))
    answer[flipped] ^= 1
    with pytest.raises(BadHandshake):
        replica.answer(bytes(answer))


@pytest.mark.parametrize("frame", [b"", b"x" * 79, b"x" * 81, b"GET / HTTP/1.1"], ids=len)
def test_other_lengths_and_other_protocols_are_refused(frame: bytes) -> None:
    with pytest.raises(BadHandshake):
        ReplicaHandshake(SECRET, "a").answer(frame)
    with pytest.raises(BadHandshake):
        IngressHandshake(SECRET, "a").answer(frame)
