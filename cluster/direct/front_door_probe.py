"""Whether requests go direct, proven by one that did."""

import httpx

from cluster.direct.direct_replica import PROBE_PATH
from cluster.readiness import NotReady

TIMEOUT_SECONDS = 3.0


class FrontDoorProbe:
    """Sends one request through HAProxy as a client would, until it was answered by a replica. From then on requests
    may go by an ingress now and then, counted, but HAProxy has the rules."""

    def __init__(self, front_url: str, timeout_seconds: float = TIMEOUT_SECONDS):
        """front_url: where clients find the API."""
        self._url = front_url + PROBE_PATH
        self._timeout_seconds = timeout_seconds
        self._is_proven = False

    async def check(self) -> None:
        """Raises NotReady."""
        if self._is_proven:
            return
        try:
            async with httpx.AsyncClient(timeout=self._timeout_seconds, trust_env=False) as http:
                response = await http.post(self._url)
        except httpx.HTTPError as error:
            raise NotReady(f"no request goes direct yet: {error!r}") from error
        if response.status_code != 200 or "x-warmlane-replica" not in response.headers:
            raise NotReady(f"no request goes direct yet: HAProxy's answer to a probe is {response.status_code}")
        self._is_proven = True
