"""The most hit tokens that a workload allows: one cache for the whole fleet, without bounds."""

from collections.abc import Sequence

from cache.block_hasher import BlockHasher
from cluster.lab.conversations import Conversation
from cluster.text.tokenization import ChatTokenizer

BLOCK_SIZE = 16


async def most_hit_tokens(conversations: Sequence[Conversation], tokenizer: ChatTokenizer) -> int:
    """As if the requests came one after another; those that come together can only hit less."""
    hasher = BlockHasher(bytes(16), "", BLOCK_SIZE)
    seen: set[bytes] = set()
    num_hits = 0
    for conversation in conversations:
        for messages in conversation.requests():
            token_ids = await tokenizer.encode_chat(messages)
            keys = hasher.keys(token_ids)
            usable = keys[: (len(token_ids) - 1) // BLOCK_SIZE]  # the last token is always computed
            num_hits += next((at for at, key in enumerate(usable) if key not in seen), len(usable)) * BLOCK_SIZE
            seen.update(keys)
    return num_hits
