"""Frames come out as they went in, however the bytes are cut."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replica.channel.frames import BadFrame, FrameReader, framed


def frames_of(reader: FrameReader, data: bytes) -> list[bytes]:
    reader.feed(data)
    return list(iter(reader.next_frame, None))


@given(st.lists(st.binary(max_size=300)), st.lists(st.integers(1, 50), min_size=1))
def test_frames_survive_any_cutting(payloads: list[bytes], sizes: list[int]) -> None:
    data, reader, found = b"".join(map(framed, payloads)), FrameReader(300), []
    position = turn = 0
    while position < len(data):
        size = sizes[turn % len(sizes)]
        found += frames_of(reader, data[position : position + size])
        position, turn = position + size, turn + 1
    assert found == payloads


def test_half_a_frame_is_none_yet() -> None:
    reader = FrameReader(10)
    assert frames_of(reader, framed(b"abcdef")[:-1]) == []
    assert frames_of(reader, b"f") == [b"abcdef"]


def test_a_length_beyond_the_bound_is_refused_before_its_bytes_come() -> None:
    reader = FrameReader(10)
    with pytest.raises(BadFrame, match="at most 10 bytes, got 11"):
        frames_of(reader, framed(b"x" * 11)[:4])


def test_the_bound_may_grow_between_two_frames() -> None:
    reader = FrameReader(4)
    reader.feed(framed(b"abcd") + framed(b"abcde"))
    assert reader.next_frame() == b"abcd"
    reader.max_bytes = 5
    assert reader.next_frame() == b"abcde"
