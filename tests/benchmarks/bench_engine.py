"""`make bench-engine`: the engine against its peers and its bounds, in interleaved pairs.

Each pair runs ours and then the peer on the same prompts; a ratio above 1 says that ours is better. Five pairs, two
where the peer is slower than half our speed. Writes tests/benchmarks/out/engine.json after every peer; a run of some
works or peers adds to what is there.
"""

import argparse
import platform
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from rich.console import Console

from tests.benchmarks import engine_internals
from tests.benchmarks.peer import PEERS, Peer
from tests.benchmarks.peer_setup import PeerUnavailable
from tests.benchmarks.report import Pairs, Report
from tests.benchmarks.works import WORKS, Prompts, Work

_OUT = Path(__file__).parent / "out"
_SLOW = 2.0
"""A peer that is slower than 1 / _SLOW of our speed in two pairs gets no more of them."""

console = Console(width=120)


def main() -> None:
    arguments = _arguments()
    _OUT.mkdir(exist_ok=True)
    bandwidth = _read_bandwidth(arguments.threads)
    report = Report(_machine(arguments.threads, bandwidth))
    prompts = Prompts(arguments.model)
    if arguments.works or arguments.peers:
        report.keep_rows_of(_OUT / "engine.json")
    if not arguments.works:
        _internals(report, arguments.model, arguments.threads, bandwidth)
    wanted = [work for work in WORKS if not arguments.works or work.name in arguments.works]
    with PEERS["ours"](arguments.model, arguments.threads) as ours:
        ours.run(prompts.of(WORKS[0], 0), 4)  # the first use of memory belongs to nobody's first pair
        for name in dict.fromkeys(peer for work in wanted for peer in work.peers):
            if arguments.peers and name not in arguments.peers:
                continue
            try:
                for pairs in _against(ours, name, wanted, prompts, arguments):
                    report.add(pairs)
                    report.write(_OUT / "engine.json")
            except PeerUnavailable as cause:
                console.print(f"{name} is left out: {cause}")
                report.left_out(name, str(cause))
    report.write(_OUT / "engine.json")
    report.show(console)


def _against(
    ours: Peer, name: str, works: list[Work], prompts: Prompts, arguments: argparse.Namespace
) -> Iterator[Pairs]:
    console.print(f"starting {name}")
    with PEERS[name](arguments.model, arguments.threads) as peer:
        peer.run(prompts.of(WORKS[0], 0), 4)
        for work in works:
            if name in work.peers:
                yield _pairs(ours, peer, work, prompts, arguments.pairs)


def _pairs(ours: Peer, peer: Peer, work: Work, prompts: Prompts, num_pairs: int) -> Pairs:
    pairs = Pairs(work, peer.name)
    for pair in range(num_pairs):
        given = prompts.of(work, pair)
        pairs.runs.append((ours.run(given, work.max_tokens), peer.run(given, work.max_tokens)))
        console.print(f"  {work.name} pair {pair + 1}: {pairs.ratios[-1]:.2f}")
        if len(pairs.runs) == 2 and min(pairs.ratios) > _SLOW:
            break
    return pairs


def _internals(report: Report, model: Path, threads: int, bandwidth: float) -> None:
    overhead = engine_internals.decode_step(model, threads, num_requests=8)
    report.add_row("step_overhead", "share", overhead.pop("outside_share"), **overhead)
    console.print(f"step_overhead: {overhead}")
    alone = engine_internals.decode_step(model, threads, num_requests=1)
    bound = {"bound_ms": alone["weight_bytes"] / bandwidth * 1e3, "weight_bytes": alone["weight_bytes"]}
    report.add_row("decode_bound", "ms per step", alone["step_ms"], **bound)
    console.print(f"decode_bound: {alone['step_ms']:.1f} ms for one request, bound by reading the weights: {bound}")
    sizes = {num_blocks: engine_internals.scheduler_only(num_blocks) for num_blocks in (10_000, 100_000)}
    report.add_row("scheduler_only", "ms per step", sizes[100_000], at_10k_blocks=sizes[10_000])
    console.print(f"scheduler_only: {sizes} ms per step by blocks")


def _machine(threads: int, bandwidth: float) -> dict[str, object]:
    """The machine's read bandwidth is the bound of decode: a step reads every weight once."""
    console.print(f"read bandwidth {bandwidth / 1e9:.1f} GB/s with {threads} threads")
    return {"cpu": platform.processor() or platform.machine(), "threads": threads, "read_bytes_per_second": bandwidth}


def _read_bandwidth(threads: int) -> float:
    """Best of five passes over 512 MiB."""
    torch.set_num_threads(threads)
    memory = torch.ones(128 << 20)
    seconds = []
    for _ in range(5):
        started = time.perf_counter()
        memory.sum()
        seconds.append(time.perf_counter() - started)
    return memory.numel() * 4 / min(seconds)


def _arguments() -> argparse.Namespace:
    default = Path.home() / ".cache" / "warmlane" / "models" / "SmolLM2-135M-Instruct"
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=default, help="folder of a transformers model")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--works", nargs="*", choices=[work.name for work in WORKS], help="default: all")
    parser.add_argument("--peers", nargs="*", choices=sorted(set(PEERS) - {"ours"}), help="default: all")
    return parser.parse_args()


if __name__ == "__main__":
    main()
