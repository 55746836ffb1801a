"""What an exception from a Ray Serve call says about the request and about the replica."""

from ray.exceptions import NodeDiedError, ObjectLostError, RayActorError, RayTaskError, WorkerCrashedError
from ray.serve.exceptions import ReplicaUnavailableError

from replica.errors import EngineDead

_REPLICA_GONE = (RayActorError, WorkerCrashedError, NodeDiedError, ObjectLostError, ReplicaUnavailableError, EngineDead)


def cause_of(error: BaseException) -> BaseException:
    """What the replica raised, out of Ray's wrapping."""
    while isinstance(error, RayTaskError) and isinstance(error.cause, BaseException) and error.cause is not error:
        error = error.cause
    return error


def is_replica_gone(error: BaseException) -> bool:
    """The replica died, or cannot be reached, or its engine is dead; another one may still serve the request."""
    return isinstance(error, _REPLICA_GONE)
