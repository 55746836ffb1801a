import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from cache.block_hasher import BlockHasher, ExtraKeys

GOLDEN = Path(__file__).with_name("golden_block_keys.json")
CASES = json.loads(GOLDEN.read_text())["cases"]
SECRET = bytes(range(32))

_PRINT_KEYS = """
import json, sys
from cache.block_hasher import BlockHasher, ExtraKeys
for case in json.load(open(sys.argv[1]))["cases"]:
    hasher = BlockHasher(bytes.fromhex(case["secret"]), case["fingerprint"], case["block_size"])
    print([key.hex() for key in hasher.keys(case["token_ids"], ExtraKeys(**case["extra"]))])
"""


def hasher(fingerprint: str = "weights", block_size: int = 4, secret: bytes = SECRET) -> BlockHasher:
    return BlockHasher(secret, fingerprint, block_size)


@pytest.mark.parametrize("case", CASES, ids=range(len(CASES)))
def test_a30_golden_vectors(case: dict) -> None:
    made = BlockHasher(bytes.fromhex(case["secret"]), case["fingerprint"], case["block_size"])
    keys = made.keys(case["token_ids"], ExtraKeys(**case["extra"]))
    assert [key.hex() for key in keys] == case["keys"]
    assert made.canary.hex() == case["canary"]


def test_a31_golden_keys_of_different_content_all_differ() -> None:
    keys = [key for case in CASES for key in case["keys"]]
    assert len(set(keys)) == len(keys)


def test_1_a30_c30_two_fresh_interpreters_agree() -> None:
    outputs = [
        subprocess.run(
            [sys.executable, "-c", _PRINT_KEYS, str(GOLDEN)],
            env={**os.environ, "PYTHONHASHSEED": seed},
            cwd=Path(__file__).parents[2],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "4711")
    ]
    assert outputs[0] == outputs[1] == "".join(f"{case['keys']}\n" for case in CASES)


def test_only_full_blocks_have_keys() -> None:
    assert [len(hasher().keys(range(n))) for n in (0, 3, 4, 7, 8)] == [0, 0, 1, 1, 2]


def test_a_key_stands_for_everything_before_it() -> None:
    first, second = hasher().keys([1, 2, 3, 4, 5, 6, 7, 8]), hasher().keys([9, 2, 3, 4, 5, 6, 7, 8])
    assert first[0] != second[0]
    assert first[1] != second[1]


def test_known_keys_are_taken_over_and_extended() -> None:
    ids = list(range(20))
    whole = hasher().keys(ids)
    assert hasher().keys(ids, known=whole[:3]) == whole
    assert hasher().keys(ids[:8], known=whole) == whole[:2]
    assert hasher().keys(ids, known=[b"x" * 16])[0] == b"x" * 16


def test_51_a32_c35_salts_are_spaces_of_their_own() -> None:
    ids = range(8)
    keys = [hasher().keys(ids, ExtraKeys(cache_salt=salt)) for salt in ("a", "b", None, "")]
    assert len({tuple(chain) for chain in keys}) == 4
    assert all(len(set(column)) == 4 for column in zip(*keys, strict=True))
    assert hasher().keys(ids, ExtraKeys(cache_salt="a")) == keys[0]


def test_c33_fields_cannot_be_mistaken_for_each_other() -> None:
    extras = (
        ExtraKeys(adapter="x"),
        ExtraKeys(cache_salt="x"),
        ExtraKeys(image="x"),
        ExtraKeys(adapter="x", cache_salt=""),
        ExtraKeys(adapter="", cache_salt="x"),
    )
    assert len({extra.encode() for extra in extras}) == len(extras)


def test_c36_the_canary_tells_secrets_weights_and_block_sizes_apart() -> None:
    mine = hasher()
    assert mine.agrees_with(hasher().canary)
    for other in (hasher("other"), hasher(block_size=8), hasher(secret=bytes(32))):
        assert not mine.agrees_with(other.canary)


def test_19_ids_that_are_no_token_ids_are_refused() -> None:
    for bad in (-1, 2**32):
        with pytest.raises(OverflowError):
            hasher().keys([1, 2, 3, bad])
    with pytest.raises(TypeError):
        hasher().keys([1, 2, 3, "4"])  # type: ignore[list-item]


@pytest.mark.parametrize(("secret", "block_size"), [(b"short", 16), (b"x" * 65, 16), (SECRET, 0), (SECRET, 2000)])
def test_bad_settings_name_the_bound(secret: bytes, block_size: int) -> None:
    with pytest.raises(ValueError, match=r"secret must have 16 to 64 bytes|block_size must be between 1 and 1024"):
        BlockHasher(secret, "weights", block_size)
