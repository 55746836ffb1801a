"""What the process that holds Ray tells the command line while it starts, one JSON object a line."""

import json
from dataclasses import asdict, dataclass
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class HostMessage:
    """kind "progress": `text` names what is going on, done of total units (0 of 0: not countable).

    kind "ready": `text` names the transport, `forward_passes` what the replicas compute with, each once.
    kind "failed": `text` is one sentence for the user.
    """

    kind: Literal["progress", "ready", "failed"]
    text: str
    done: int = 0
    total: int = 0
    forward_passes: tuple[str, ...] = ()
    unit: Literal["replicas", "bytes"] = "replicas"

    def to_line(self) -> str:
        return json.dumps(asdict(self)) + "\n"

    @classmethod
    def from_line(cls, line: str) -> "HostMessage":
        fields = json.loads(line)
        return cls(**fields | {"forward_passes": tuple(fields["forward_passes"])})


@dataclass(frozen=True, slots=True)
class HostOrders:
    """What the process that holds Ray is told on its standard input, because the secret must not stand in `ps`.

    config: fields of ServeConfig. folder: the cluster's run folder.
    """

    config: dict[str, Any]
    model_dir: str
    folder: str

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "HostOrders":
        return cls(**json.loads(text))
