from pathlib import Path

import pytest
import torch

from replica.attention.pages import LayerShape
from replica.config import EngineConfig
from replica.errors import PoolTooSmall
from replica.model import pool_sizing
from replica.node_share import CgroupLimits, available_memory

SHAPES = [LayerShape(3, 64, 64)] * 30  # SmolLM2-135M
TOKEN_BYTES = 30 * 3 * 128 * 4


def pages(max_model_len: int = 8192, page_size: int = 16, **config: object) -> int:
    engine_config = EngineConfig(model="m", **config)  # type: ignore[arg-type]
    return pool_sizing.num_pages(engine_config, SHAPES, torch.float32, torch.device("cpu"), page_size, max_model_len)


def test_a_token_costs_what_its_keys_and_values_cost() -> None:
    assert pool_sizing.bytes_per_token(SHAPES, torch.float32) == TOKEN_BYTES == 46080
    assert pool_sizing.bytes_per_token(SHAPES, torch.bfloat16) == TOKEN_BYTES // 2


def test_a37_given_blocks_win_over_given_bytes_and_bytes_over_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_sizing, "_free_bytes", lambda device: 0)
    assert pages(num_blocks=5, kv_memory_bytes=1 << 40) == 5
    assert pages(kv_memory_bytes=1 << 30) == (1 << 30) // (16 * TOKEN_BYTES)


def test_given_bytes_hold_the_padding_of_pages_too() -> None:
    odd = [LayerShape(1, 3, 5)] * 4  # 32 bytes a token, and in a page of one token 64 for each layer's keys and values
    config = EngineConfig(model="m", kv_memory_bytes=8 * 64 * 10)
    assert pool_sizing.num_pages(config, odd, torch.float32, torch.device("cpu"), 1, 4) == 10


def test_blocks_fill_pages_of_any_size_and_one_page_at_least() -> None:
    assert pages(num_blocks=35, page_size=256) == 2
    with pytest.raises(PoolTooSmall, match="num_blocks must be at least 16, got 15: a page has 256 tokens, a block 16"):
        pages(num_blocks=15, page_size=256)


def test_a37_a38_what_does_not_hold_one_request_is_refused_with_the_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(PoolTooSmall, match=r"needs 512 blocks .*377487360 bytes.*kv_memory_bytes=737280 gives 1 "):
        pages(kv_memory_bytes=16 * TOKEN_BYTES)
    monkeypatch.setattr(pool_sizing, "_free_bytes", lambda device: 500_000_000)
    with pytest.raises(PoolTooSmall, match=r"50% of 500000000 free bytes gives 339"):
        pages()
    assert pages(max_model_len=5000) == 313  # one request may take what others are not given


def test_half_of_what_may_be_taken_is_left_to_the_rest_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_sizing, "_free_bytes", lambda device: 8_000_000_000)
    assert pages(max_model_len=160) == min(2_000_000_000 // (16 * TOKEN_BYTES), 10 * 64)
    assert pages() == 5425 // 2


def test_memory_is_not_wasted_on_pages_that_no_mixture_of_requests_can_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_sizing, "_free_bytes", lambda device: 1 << 50)
    assert pages(max_model_len=160, max_num_seqs=4) == 40


def test_a38_a_container_limit_counts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    limit, usage = tmp_path / "memory.max", tmp_path / "memory.current"
    limits = CgroupLimits(tmp_path, tmp_path / "none")
    monkeypatch.setattr(pool_sizing, "available_memory", lambda: available_memory(limits))
    cpu = torch.device("cpu")
    unlimited = pool_sizing._free_bytes(cpu)
    limit.write_text("1000000\n")
    usage.write_text("400000\n")
    assert pool_sizing._free_bytes(cpu) == 600_000 < unlimited
    limit.write_text("max\n")
    assert pool_sizing._free_bytes(cpu) > 600_000


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_model_len", 0), ("block_size", 0), ("num_blocks", 1), ("kv_memory_bytes", 0), ("max_num_seqs", 0),
        ("watermark", 0.5), ("memory_fraction", 0.0), ("dtype", "int8"), ("device", "tpu"), ("threads", 0),
        ("max_waiting_requests", 0), ("max_num_batched_tokens", 0),
    ],
)  # fmt: skip
def test_a_bad_setting_is_named_with_its_value(field: str, value: object) -> None:
    with pytest.raises(ValueError, match=rf"{field} must be .*{value}"):
        EngineConfig(model="m", **{field: value})  # type: ignore[arg-type]
