"""Both ends of a side channel prove that they know the cluster's secret, without telling it.

    replica -> ingress   GREETING, replica's nonce
    ingress -> replica   ingress's nonce, channel id, HMAC over "ingress", both nonces, channel id, replica id
    replica -> ingress   HMAC over "replica" and the same

Each proof holds for this connection and this direction alone: nonces are fresh, so nothing that was overheard can be
played again or sent back. What follows is neither encrypted nor signed, as the rest of a Ray cluster's traffic.
"""

import hashlib
import hmac
import secrets

GREETING = b"warmlane side channel 1\n"
NONCE_BYTES, CHANNEL_ID_BYTES, PROOF_BYTES = 32, 16, 32
MAX_HANDSHAKE_FRAME_BYTES = 128
_KEY_PURPOSE = b"warmlane side channel"


class BadHandshake(ValueError):
    """The other end does not know the cluster's secret, or does not speak this protocol."""


class ReplicaHandshake:
    """The listening end: `challenge` goes out, `answer` takes what comes back and gives the proof to send."""

    def __init__(self, secret: bytes, replica_id: str):
        self._secret = secret
        self._replica_id = replica_id
        self._nonce = secrets.token_bytes(NONCE_BYTES)

    @property
    def challenge(self) -> bytes:
        return GREETING + self._nonce

    def answer(self, frame: bytes) -> tuple[bytes, bytes]:
        """The channel's id and our own proof. Raises BadHandshake."""
        if len(frame) != NONCE_BYTES + CHANNEL_ID_BYTES + PROOF_BYTES:
            raise BadHandshake(f"an ingress's answer has {len(frame)} bytes")
        theirs, channel_id = frame[:NONCE_BYTES], frame[NONCE_BYTES:-PROOF_BYTES]
        signed = (self._nonce, theirs, channel_id, self._replica_id.encode())
        if not hmac.compare_digest(_proof(self._secret, b"ingress", *signed), frame[-PROOF_BYTES:]):
            raise BadHandshake("an ingress does not know the cluster's secret")
        return channel_id, _proof(self._secret, b"replica", *signed)


class IngressHandshake:
    """The connecting end: `answer` takes the challenge, `check` the replica's proof."""

    def __init__(self, secret: bytes, replica_id: str):
        self._secret = secret
        self._replica_id = replica_id
        self._nonce = secrets.token_bytes(NONCE_BYTES)
        self.channel_id = secrets.token_bytes(CHANNEL_ID_BYTES)
        self._signed: tuple[bytes, ...] = ()

    def answer(self, challenge: bytes) -> bytes:
        """Raises BadHandshake."""
        if len(challenge) != len(GREETING) + NONCE_BYTES or not challenge.startswith(GREETING):
            raise BadHandshake("this is no replica of this version")
        self._signed = (challenge[-NONCE_BYTES:], self._nonce, self.channel_id, self._replica_id.encode())
        return self._nonce + self.channel_id + _proof(self._secret, b"ingress", *self._signed)

    def check(self, proof: bytes) -> None:
        """Raises BadHandshake."""
        if not hmac.compare_digest(_proof(self._secret, b"replica", *self._signed), proof):
            raise BadHandshake("a replica does not know the cluster's secret")


def _proof(secret: bytes, *parts: bytes) -> bytes:
    key = hmac.digest(secret, _KEY_PURPOSE, hashlib.sha256)
    # All parts but the last have a fixed length for their role, so no two lists of parts give the same bytes.
    return hmac.digest(key, b"".join(parts), hashlib.sha256)
