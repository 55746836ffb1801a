"""`make bench-isolation`: can a tenant tell by time what another tenant has cached (A32, C35)?

One cluster with API keys. In each pair a tenant sends a prompt that another tenant has just warmed, and one that nobody
has sent, in random order. AUC is the chance that the first is answered sooner: .5 is no difference. The control is the
tenant's own warm prompt, which must show, or the benchmark could see nothing. Writes out/isolation.json.
"""

import argparse
import json
import random
import statistics
import tempfile
import time
from pathlib import Path

import httpx
import numpy as np
import yaml
from rich.console import Console
from rich.progress import track

from cluster.api.tenants import key_hash
from cluster.lab.cluster_process import ClusterProcess

OUT = Path(__file__).parent / "out" / "isolation.json"
BAR = 0.55
console = Console(width=120)


def auc(sooner: list[float], later: list[float]) -> float:
    """Chance that one of `sooner` is below one of `later`, ties counted half (Mann and Whitney 1947)."""
    differences = np.subtract.outer(later, sooner)
    return float((differences > 0).mean() + (differences == 0).mean() / 2)


class TwoTenants:
    """Clients of two tenants of one cluster."""

    def __init__(self, base_url: str, keys: dict[str, str]):
        self._clients = {
            tenant: httpx.Client(base_url=base_url, timeout=60.0, headers={"Authorization": f"Bearer {key}"})
            for tenant, key in keys.items()
        }
        self._model = self._clients["b"].get("/v1/models").json()["data"][0]["id"]

    def seconds(self, tenant: str, prompt: list[int]) -> tuple[float, int]:
        """Seconds until the one token is there, and the cached tokens that the answer tells."""
        body = {"model": self._model, "prompt": prompt, "max_tokens": 1, "temperature": 0.0}
        started = time.perf_counter()
        response = self._clients[tenant].post("/v1/completions", json=body)
        taken = time.perf_counter() - started
        return taken, response.raise_for_status().json()["usage"]["prompt_tokens_details"]["cached_tokens"]


def measure(tenants: TwoTenants, num_pairs: int, prompt_tokens: int) -> dict[str, list[float]]:
    rng = random.Random(1)
    times: dict[str, list[float]] = {"cold": [], "warm of another tenant": [], "own warm": []}
    for number in track(range(num_pairs + 2), "pairs", console=console):
        theirs, unseen = (rng.choices(range(100, 40_000), k=prompt_tokens) for _ in range(2))
        tenants.seconds("a", theirs)
        found = {}
        for name, prompt in rng.sample([("cold", unseen), ("warm of another tenant", theirs)], 2):
            found[name], cached = tenants.seconds("b", prompt)
            if cached:
                raise RuntimeError(f"{cached} tokens of a {name} prompt came from the cache")
        found["own warm"], cached = tenants.seconds("b", theirs)
        if not cached:
            raise RuntimeError("a tenant's own prompt was not cached")
        if number >= 2:  # the first requests of a cluster are slower than all others
            for name, value in found.items():
                times[name].append(value)
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=150)
    parser.add_argument("--prompt-tokens", type=int, default=96)
    arguments = parser.parse_args()
    keys = {"a": "key-of-a", "b": "key-of-b"}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "keys.yaml"
        entries = [{"name": tenant, "key_sha256": key_hash(key)} for tenant, key in keys.items()]
        file.write_text(yaml.safe_dump({"tenants": entries}))
        process = ClusterProcess(
            ("--replicas", "1", "--api-keys-file", str(file)), output_path=Path(folder) / "serve.log"
        )
        try:
            process.start()
            process.wait_ready(timeout_seconds=300.0)
            times = measure(TwoTenants(process.base_url, keys), arguments.pairs, arguments.prompt_tokens)
        finally:
            process.stop()
    other = auc(times["warm of another tenant"], times["cold"])
    own = auc(times["own warm"], times["cold"])
    for name, values in times.items():
        console.print(f"{name}: median {statistics.median(values) * 1e3:.0f} ms of {len(values)}")
    holds = "holds" if other < BAR else "MISSED"
    chance = (6 * len(times["cold"])) ** -0.5  # standard deviation of the AUC of equal samples of this size
    console.print(f"AUC of another tenant's warm against cold: {other:.3f} ({holds}: under {BAR}); own warm: {own:.3f}")
    console.print(f"Chance alone gives .5 +- {chance:.3f}.")
    OUT.parent.mkdir(exist_ok=True)
    rows = [{"work": "another_tenants_warm", "auc": other, "bar": BAR}, {"work": "own_warm", "auc": own}]
    OUT.write_text(json.dumps({"rows": rows, "seconds": times}, indent=1) + "\n")


if __name__ == "__main__":
    main()
