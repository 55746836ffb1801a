"""Only who knows the cluster's secret gets a side channel, and only for this connection."""

import pytest

from replica.channel.handshake import (
    PAGE_TRANSFER,
    SIDE_CHANNEL,
    BadHandshake,
    ConnectingHandshake,
    ListeningHandshake,
    Purpose,
)

SECRET, OTHER = b"0123456789abcdef", b"0123456789abcdeF"


def test_both_ends_are_proven() -> None:
    replica, ingress = ListeningHandshake(SECRET, "a", SIDE_CHANNEL), ConnectingHandshake(SECRET, "a", SIDE_CHANNEL)
    channel_id, proof = replica.answer(ingress.answer(replica.challenge))
    ingress.check(proof)
    assert channel_id == ingress.channel_id


def test_an_ingress_with_another_secret_is_refused() -> None:
    replica = ListeningHandshake(SECRET, "a", SIDE_CHANNEL)
    with pytest.raises(BadHandshake, match="does not know the cluster's secret"):
        replica.answer(ConnectingHandshake(OTHER, "a", SIDE_CHANNEL).answer(replica.challenge))


def test_a_replica_with_another_secret_is_refused() -> None:
    ingress = ConnectingHandshake(SECRET, "a", SIDE_CHANNEL)
    ingress.answer(ListeningHandshake(OTHER, "a", SIDE_CHANNEL).challenge)
    with pytest.raises(BadHandshake, match="does not know the cluster's secret"):
        ingress.check(b"x" * 32)


def test_another_replica_at_the_same_address_is_refused() -> None:
    """A port may have a new owner: the ingress names the replica that it means."""
    replica = ListeningHandshake(SECRET, "b", SIDE_CHANNEL)
    with pytest.raises(BadHandshake):
        replica.answer(ConnectingHandshake(SECRET, "a", SIDE_CHANNEL).answer(replica.challenge))


def test_what_was_overheard_is_worth_nothing_on_another_connection() -> None:
    first, second = ListeningHandshake(SECRET, "a", SIDE_CHANNEL), ListeningHandshake(SECRET, "a", SIDE_CHANNEL)
    overheard = ConnectingHandshake(SECRET, "a", SIDE_CHANNEL).answer(first.challenge)
    with pytest.raises(BadHandshake):
        second.answer(overheard)


def test_a_proof_cannot_be_sent_back() -> None:
    replica, ingress = ListeningHandshake(SECRET, "a", SIDE_CHANNEL), ConnectingHandshake(SECRET, "a", SIDE_CHANNEL)
    answer = ingress.answer(replica.challenge)
    with pytest.raises(BadHandshake):
        ingress.check(answer[-32:])


@pytest.mark.parametrize("flipped", [0, 31, 32, 47, 48, 79], ids=lambda byte: f"byte {byte}")
def test_every_byte_of_the_answer_counts(flipped: int) -> None:
    replica = ListeningHandshake(SECRET, "a", SIDE_CHANNEL)
    answer = bytearray(ConnectingHandshake(SECRET, "a", SIDE_CHANNEL).answer(replica.challenge))
    answer[flipped] ^= 1
    with pytest.raises(BadHandshake):
        replica.answer(bytes(answer))


@pytest.mark.parametrize("frame", [b"", b"x" * 79, b"x" * 81, b"GET / HTTP/1.1"], ids=len)
def test_other_lengths_and_other_protocols_are_refused(frame: bytes) -> None:
    with pytest.raises(BadHandshake):
        ListeningHandshake(SECRET, "a", SIDE_CHANNEL).answer(frame)
    with pytest.raises(BadHandshake):
        ConnectingHandshake(SECRET, "a", SIDE_CHANNEL).answer(frame)


@pytest.mark.parametrize(("asked", "meant"), [(SIDE_CHANNEL, PAGE_TRANSFER), (PAGE_TRANSFER, SIDE_CHANNEL)])
def test_a_proof_for_one_purpose_is_none_for_another(asked: Purpose, meant: Purpose) -> None:
    """Not even where somebody between the two ends swaps the greetings."""
    listening, connecting = ListeningHandshake(SECRET, "a", asked), ConnectingHandshake(SECRET, "a", meant)
    with pytest.raises(BadHandshake, match="no replica of this version"):
        connecting.answer(listening.challenge)
    answer = connecting.answer(listening.challenge.replace(asked.greeting, meant.greeting))
    with pytest.raises(BadHandshake, match="does not know the cluster's secret"):
        listening.answer(answer)
