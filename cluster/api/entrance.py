"""Whether an ingress still takes requests for text, and how many it is answering."""

from collections.abc import Iterator
from contextlib import contextmanager

from cluster.api.errors import SERVER_ERROR, ApiError

RETRY_AFTER_SECONDS = 5.0
"""By then another cluster, or this one started again, may answer."""


class Entrance:
    """Once closed it lets nobody in, so that what is inside can finish before the cluster stops."""

    def __init__(self) -> None:
        self.num_inside = 0
        self._closed = False

    def close(self) -> None:
        self._closed = True

    @contextmanager
    def admitted(self) -> Iterator[None]:
        """Raises ApiError 503 where the entrance is closed."""
        if self._closed:
            raise ApiError(
                503, "The cluster is stopping.", type=SERVER_ERROR, code="stopping",
                retry_after_seconds=RETRY_AFTER_SECONDS,
            )  # fmt: skip
        self.num_inside += 1
        try:
            yield
        finally:
            self.num_inside -= 1
