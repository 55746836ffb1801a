"""Both ends of a connection prove that they know the cluster's secret, without telling it.

    listening -> connecting   the purpose's greeting, its own nonce
    connecting -> listening   its own nonce, channel id, HMAC over its role, both nonces, channel id, replica id
    listening -> connecting   HMAC over its role and the same

Each proof holds for this purpose, this connection and this direction alone: keys and greetings differ by purpose and
nonces are fresh, so nothing that was overheard can be played again, sent back or used at another port. What follows is
neither encrypted nor signed, as the rest of a Ray cluster's traffic.
"""

import hashlib
import hmac
import secrets
from dataclasses import dataclass

NONCE_BYTES, CHANNEL_ID_BYTES, PROOF_BYTES = 32, 16, 32
MAX_HANDSHAKE_FRAME_BYTES = 128


@dataclass(frozen=True, slots=True)
class Purpose:
    """What a connection is for. name: at most 60 bytes. connecting, listening: what its two ends are called."""

    name: bytes
    connecting: bytes
    listening: bytes

    @property
    def greeting(self) -> bytes:
        return b"warmlane " + self.name + b" 1\n"


SIDE_CHANNEL = Purpose(b"side channel", connecting=b"ingress", listening=b"replica")
PAGE_TRANSFER = Purpose(b"page transfer", connecting=b"puller", listening=b"holder")


class BadHandshake(ValueError):
    """The other end does not know the cluster's secret, or does not speak this protocol."""


class ListeningHandshake:
    """The listening end: `challenge` goes out, `answer` takes what comes back and gives the proof to send."""

    def __init__(self, secret: bytes, replica_id: str, purpose: Purpose):
        """replica_id: the listening replica's own."""
        self._secret = secret
        self._replica_id = replica_id
        self._purpose = purpose
        self._nonce = secrets.token_bytes(NONCE_BYTES)

    @property
    def challenge(self) -> bytes:
        return self._purpose.greeting + self._nonce

    def answer(self, frame: bytes) -> tuple[bytes, bytes]:
        """The channel's id and our own proof. Raises BadHandshake."""
        if len(frame) != NONCE_BYTES + CHANNEL_ID_BYTES + PROOF_BYTES:
            raise BadHandshake(f"the {self._purpose.connecting.decode()}'s answer has {len(frame)} bytes")
        theirs, channel_id = frame[:NONCE_BYTES], frame[NONCE_BYTES:-PROOF_BYTES]
        signed = (self._nonce, theirs, channel_id, self._replica_id.encode())
        if not hmac.compare_digest(
            _proof(self._secret, self._purpose, self._purpose.connecting, *signed), frame[-PROOF_BYTES:]
        ):
            raise BadHandshake(f"the {self._purpose.connecting.decode()} does not know the cluster's secret")
        return channel_id, _proof(self._secret, self._purpose, self._purpose.listening, *signed)


class ConnectingHandshake:
    """The connecting end: `answer` takes the challenge, `check` the replica's proof."""

    def __init__(self, secret: bytes, replica_id: str, purpose: Purpose):
        """replica_id: of the replica that is meant, which listens."""
        self._secret = secret
        self._replica_id = replica_id
        self._purpose = purpose
        self._nonce = secrets.token_bytes(NONCE_BYTES)
        self.channel_id = secrets.token_bytes(CHANNEL_ID_BYTES)
        self._signed: tuple[bytes, ...] = ()

    def answer(self, challenge: bytes) -> bytes:
        """Raises BadHandshake."""
        greeting = self._purpose.greeting
        if len(challenge) != len(greeting) + NONCE_BYTES or not challenge.startswith(greeting):
            raise BadHandshake("this is no replica of this version")
        self._signed = (challenge[-NONCE_BYTES:], self._nonce, self.channel_id, self._replica_id.encode())
        proof = _proof(self._secret, self._purpose, self._purpose.connecting, *self._signed)
        return self._nonce + self.channel_id + proof

    def check(self, proof: bytes) -> None:
        """Raises BadHandshake."""
        expected = _proof(self._secret, self._purpose, self._purpose.listening, *self._signed)
        if not hmac.compare_digest(expected, proof):
            raise BadHandshake(f"the {self._purpose.listening.decode()} does not know the cluster's secret")


def _proof(secret: bytes, purpose: Purpose, *parts: bytes) -> bytes:
    key = hmac.digest(secret, b"warmlane " + purpose.name, hashlib.sha256)
    # All parts but the last have a fixed length for their role, so no two lists of parts give the same bytes.
    return hmac.digest(key, b"".join(parts), hashlib.sha256)
