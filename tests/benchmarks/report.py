"""Collects pairs of runs and writes them as a table and as JSON."""

import json
import statistics
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from tests.benchmarks.peer import Run
from tests.benchmarks.works import Work


@dataclass(slots=True)
class Pairs:
    """Runs of one work, ours and a peer's in turn, on the same prompts."""

    work: Work
    peer: str
    runs: list[tuple[Run, Run]] = field(default_factory=list)

    @property
    def ratios(self) -> list[float]:
        return [self.work.ratio(ours, theirs) for ours, theirs in self.runs]

    @property
    def ours(self) -> float:
        return statistics.median(self.work.value(ours) for ours, _ in self.runs)

    @property
    def theirs(self) -> float:
        return statistics.median(self.work.value(theirs) for _, theirs in self.runs)

    @property
    def same_outputs(self) -> tuple[int, int] | None:
        """Requests with equal token ids on both sides, and how many there were; None for a peer without outputs."""
        pairs = [pair for ours, theirs in self.runs for pair in zip(ours.outputs, theirs.outputs, strict=False)]
        if not pairs:
            return None
        return sum(a == b for a, b in pairs), len(pairs)


class Report:
    """rows: one per work, in the order in which they were measured."""

    def __init__(self, machine: dict[str, Any]):
        self._machine = machine
        self.bars: list[dict[str, Any]] = []
        """What was asked for and whether it holds, where a benchmark has bars."""
        self._rows: dict[str, dict[str, Any]] = {}

    def keep_rows_of(self, path: Path) -> None:
        """Goes on from an earlier run: its rows stay, but for what this run measures anew."""
        if path.exists():
            found = json.loads(path.read_text())
            for row in found["rows"]:
                self._rows[row["work"]] = row
            self.bars = found.get("bars", [])

    def add(self, pairs: Pairs) -> None:
        ratios = pairs.ratios
        row = self._rows.setdefault(
            pairs.work.name,
            {
                "work": pairs.work.name,
                "unit": pairs.work.measure,
                "ours": pairs.ours,
                "ratio": {},
                "peers": {},
                "same": {},
            },
        )
        row["ours"] = pairs.ours
        row["ratio"][pairs.peer] = [min(ratios), statistics.median(ratios), max(ratios)]
        row["peers"][pairs.peer] = pairs.theirs
        if pairs.same_outputs:
            row["same"][pairs.peer] = list(pairs.same_outputs)

    def add_row(self, name: str, unit: str, ours: float, **more: Any) -> None:
        self._rows[name] = {"work": name, "unit": unit, "ours": ours, "ratio": {}, **more}

    def add_bar(self, bar: str, at_least: float, median: float) -> None:
        """Of a median ratio; takes the place of the same bar of an earlier run."""
        self.bars = [each for each in self.bars if each["bar"] != bar]
        self.bars.append({"bar": bar, "holds": median >= at_least, "measured": f"{median:.2f} (at least {at_least:g})"})

    def left_out(self, peer: str, cause: str) -> None:
        self._machine.setdefault("left_out", {})[peer] = cause

    def write(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        found = {"machine": self._machine, "rows": list(self._rows.values())} | (
            {"bars": self.bars} if self.bars else {}
        )
        path.write_text(json.dumps(found, indent=1) + "\n")

    def show(self, console: Console) -> None:
        table = Table("work", "ours", "peer", "its value", "ratio min / median / max", "same outputs")
        for row in self._rows.values():
            ours = f"{row['ours']:.4g} {row['unit']}"
            for peer, ratio in row["ratio"].items():
                same = row["same"].get(peer)
                table.add_row(
                    row["work"], ours, peer, f"{row['peers'][peer]:.4g}", " / ".join(f"{x:.2f}" for x in ratio),
                    f"{same[0]} of {same[1]}" if same else "-",
                )  # fmt: skip
                ours = ""
            if not row["ratio"]:
                table.add_row(row["work"], ours, "-", "-", "-", "-")
        console.print(table)
        for peer, cause in self._machine.get("left_out", {}).items():
            console.print(f"left out: {peer}: {cause}")
