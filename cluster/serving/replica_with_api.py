"""A replica that other routers can use too: the deployment with an OpenAI port of its own on loopback."""

from typing import Any

from cluster.serving.cluster_spec import ClusterSpec
from cluster.serving.replica_port import ReplicaPort
from replica.deployment import ReplicaDeployment


class ReplicaWithApi(ReplicaDeployment):
    """Where `replica_api_key` is set. What comes over the port counts as load, and the pages it leaves are in the
    routers' index, as with everything else."""

    def __init__(self, *, spec: ClusterSpec, api_key: str, **replica: Any):
        """replica: what ReplicaDeployment takes."""
        super().__init__(**replica)
        self._port = ReplicaPort(spec, self._engine, self._registry, api_key)
        labels = {"model": self._model_name, "process": self._process, "replica": self.replica_id}
        self._port.show_in(self._registry, labels)

    async def describe(self, route_to: str | None = None) -> dict[str, object]:
        return await super().describe(route_to) | {"api_url": self._port.url}

    def check_health(self) -> None:
        super().check_health()
        self._port.check_alive()

    def __del__(self) -> None:
        port = getattr(self, "_port", None)
        if port is not None:
            port.close()
        super().__del__()
