"""The few lines that a person sees of a cluster that starts, runs and stops."""

import json
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from pathlib import Path

from rich.console import Console

from cluster.config import ServeConfig
from cluster.local.host_protocol import HostMessage
from cluster.progress_steps import ProgressSteps, Step


class StartupReport:
    """Prints steps while they run, then what can be pasted into another terminal."""

    def __init__(self, config: ServeConfig, console: Console):
        self._config = config
        self._console = console
        self._steps = ProgressSteps(console)

    def follow(self, messages: Iterable[HostMessage], log: Callable[[], Path | None]) -> None:
        """One line for each text that comes; returns after the message that the cluster is ready."""
        current: str | None = None
        with ExitStack() as stack:
            step: Step | None = None
            for message in messages:
                if message.kind == "ready":
                    stack.close()
                    self._ready(message, log())
                    return
                if message.text != current:
                    stack.close()
                    current = message.text
                    step = stack.enter_context(
                        self._steps.step(current, message.total, message.unit if message.total else "")
                    )
                if step is not None and message.total:
                    step.update(message.done, message.total)

    def notice(self, text: str) -> None:
        """What happened to a running cluster."""
        self._say(text)

    def stopping(self) -> None:
        self._say("\nStopping the cluster (Ctrl-C again: at once)")

    def stopped(self, log: Path | None) -> None:
        self._say(f"Stopped. What Ray and the libraries wrote: {log}" if log else "Stopped.")

    @property
    def url(self) -> str:
        return self._config.local_url

    def _ready(self, ready: HostMessage, log: Path | None) -> None:
        name = self._config.model_name
        question = "What is the capital of France?"
        # max_tokens: a small model may not know when to stop.
        messages = [{"role": "user", "content": question}]
        body = json.dumps({"model": name, "messages": messages, "temperature": 0, "max_tokens": 32})
        self._say(
            f"""
{name} is ready: {self._config.replicas} replicas behind {ready.text}, policy {self._config.policy}
  computed by {" and ".join(ready.forward_passes) or "unknown"}
  API  {self.url}/v1    metrics  {self.url}/metrics    log  {log}

curl -s {self.url}/v1/chat/completions -H 'Content-Type: application/json' -d '{body}'

from openai import OpenAI
client = OpenAI(base_url="{self.url}/v1", api_key="unused")
messages = [{{"role": "user", "content": "{question}"}}]
answer = client.chat.completions.create(model="{name}", messages=messages, temperature=0, max_tokens=32)
print(answer.choices[0].message.content)

Ctrl-C stops everything."""
        )

    def _say(self, text: str) -> None:
        # Not wrapped, so that the commands can be pasted whatever the terminal's width.
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)
