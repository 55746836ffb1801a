"""Reads the recorded conversations and turns each into the requests that a client of it sends."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from cluster.lab.trace_lines import json_rows

DATA_DIR = Path(__file__).parent / "data"

Message = dict[str, str]


@dataclass(frozen=True, slots=True)
class Exchange:
    user: str
    assistant: str


@dataclass(frozen=True, slots=True)
class Conversation:
    """group: conversations of one group share their system prompt."""

    conversation_id: str
    group: str
    system_prompt: str
    exchanges: tuple[Exchange, ...]

    def requests(self) -> Iterator[list[Message]]:
        """The messages of each request, in order: one request for each exchange.

        The history holds the RECORDED assistant turns, not the served model's answers: a request's prompt depends on
        nothing that was computed before, so two runs do identical work whatever they answered.
        """
        history: list[Message] = [{"role": "system", "content": self.system_prompt}]
        for exchange in self.exchanges:
            history.append({"role": "user", "content": exchange.user})
            yield list(history)
            history.append({"role": "assistant", "content": exchange.assistant})


def load_conversations(data_dir: Path = DATA_DIR) -> list[Conversation]:
    """All conversations of `sgd_conversations.jsonl`, neighbours from different groups.

    Raises ValueError with file and line for a conversation without exchanges or of a group that has no system prompt.
    """
    system_prompts: dict[str, str] = json.loads((data_dir / "system_prompts.json").read_text(encoding="utf-8"))
    path = data_dir / "sgd_conversations.jsonl"
    conversations = []
    for number, record in json_rows(path):
        if record["group"] not in system_prompts:
            raise ValueError(f"{path.name} line {number}: group {record['group']!r} has no system prompt")
        if not record["turns"]:
            raise ValueError(f"{path.name} line {number}: conversation {record['id']!r} has no turns")
        conversations.append(
            Conversation(
                conversation_id=record["id"],
                group=record["group"],
                system_prompt=system_prompts[record["group"]],
                exchanges=tuple(Exchange(turn["user"], turn["assistant"]) for turn in record["turns"]),
            )
        )
    return conversations
