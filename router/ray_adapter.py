"""Tells Ray Serve which replica the ingress has chosen.

Ray pickles this class by value and creates one object per process that holds a handle, in a thread and loop of its own.
So it holds no state and no logic: both live in modules that are imported (`ray_routing`, `running_set`).
"""

from ray.serve.request_router import PendingRequest, ReplicaID, RequestRouter, RunningReplica

from router import ray_routing


class ChosenReplicaRouter(RequestRouter):
    """Maps the keyword `route_to` of a handle call to Ray's running replica of that `unique_id`."""

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        return ray_routing.choose(candidate_replicas, pending_request)

    @property
    def max_num_routing_tasks(self) -> int:
        return ray_routing.MAX_ROUTING_TASKS

    def update_replicas(self, replicas: list[RunningReplica]) -> None:
        super().update_replicas(replicas)
        ray_routing.replicas_changed(
            str(self._deployment_id), [replica.replica_id.unique_id for replica in self.curr_replicas.values()]
        )

    def on_replica_actor_died(self, replica_id: ReplicaID) -> None:
        super().on_replica_actor_died(replica_id)
        ray_routing.replica_died(replica_id.unique_id)
