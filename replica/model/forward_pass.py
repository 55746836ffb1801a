"""Which forward pass an engine runs, and why not a faster one."""

from dataclasses import dataclass

NAMES = {
    "fused_decoder": "the fused decoder",
    "packed_linears": "packed linear layers",
    "model": "the model's own layers",
    "token_by_token": "the model's own layers, one token at a time",
}


@dataclass(frozen=True, slots=True)
class ForwardPass:
    """path: one of NAMES. attention: name of the backend. device: "cpu" or "cuda".

    passed_over: what would have been faster here, each with the reason why it is not used.
    """

    path: str
    attention: str
    device: str
    passed_over: tuple[str, ...] = ()

    @property
    def is_slow(self) -> bool:
        """Somebody should know: on CPUs native kernels do not run, on GPUs no kernel reads pages."""
        return self.attention == "torch"

    @property
    def reason(self) -> str:
        return "; ".join(self.passed_over)

    def __str__(self) -> str:
        why = f" ({self.reason})" if self.passed_over else ""
        return f"{NAMES[self.path]}, {self.attention} attention on {self.device}{why}"
