"""The KV cache of the engine: blocks of 16 tokens, shared between requests with equal prefixes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Sequence

BLOCK_TOKENS = 16
"""vLLM's block size on GPUs (`--block-size` default, 0.32)."""


def hash_blocks(tokens: Sequence[Hashable], parent: int = 0) -> list[int]:
    """Hashes of the full blocks of a token sequence, each chained to the ones before it.

    Args:
        tokens: Token ids or pieces.
        parent: Hash of the block before the first one.
    """
    hashes = []
    for start in range(0, len(tokens) - len(tokens) % BLOCK_TOKENS, BLOCK_TOKENS):
        parent = hash((parent, tuple(tokens[start : start + BLOCK_TOKENS])))
        hashes.append(parent)
    return hashes


def blocks_for(tokens: int) -> int:
    """Blocks that hold so many tokens."""
    return -(-tokens // BLOCK_TOKENS)


class KvPool:
    """Counts blocks: those in use, and those whose content may be used again.

    A block is private (a request fills it), shared (full, hashed, used by at least one request)
    or idle (full, hashed, used by none). Idle blocks are free memory: they are dropped, least
    recently used first, when room is needed.

    Args:
        total_blocks: Size of the cache.
        prefix_caching: Whether full blocks are kept for later requests.
    """

    def __init__(self, total_blocks: int, *, prefix_caching: bool = True) -> None:
        self.total_blocks = total_blocks
        self.prefix_caching = prefix_caching
        self._users: dict[int, int] = {}
        self._idle: OrderedDict[int, None] = OrderedDict()
        self._private = 0

    @property
    def used_blocks(self) -> int:
        """Blocks in use by at least one request."""
        return self._private + len(self._users)

    @property
    def usage(self) -> float:
        """Share of the cache in use, 0 to 1."""
        return self.used_blocks / self.total_blocks if self.total_blocks else 0.0

    def match(self, hashes: Sequence[int]) -> int:
        """How many leading blocks are in the cache."""
        if not self.prefix_caching:
            return 0
        for count, block in enumerate(hashes):
            if block not in self._users and block not in self._idle:
                return count
        return len(hashes)

    def allocate(self, shared: Sequence[int], private: int) -> bool:
        """Take hold of cached blocks and of empty ones, all or nothing.

        Args:
            shared: Hashes of blocks that `match` found.
            private: Empty blocks wanted beside them.

        Returns:
            False if there is no room; then nothing was taken.
        """
        revived = sum(1 for block in shared if block in self._idle)
        if self.used_blocks + revived + private > self.total_blocks:
            return False
        for block in shared:
            self._idle.pop(block, None)
            self._users[block] = self._users.get(block, 0) + 1
        self._private += private
        while self.used_blocks + len(self._idle) > self.total_blocks:
            self._idle.popitem(last=False)
        return True

    def publish(self, block: int) -> None:
        """Make a full private block known by its hash, so that others can share it."""
        self._private -= 1
        self._idle.pop(block, None)
        self._users[block] = self._users.get(block, 0) + 1

    def release(self, shared: Sequence[int], private: int) -> None:
        """Give back what a request held. Its last blocks are the first to be dropped."""
        self._private -= private
        for block in reversed(shared):
            users = self._users[block] - 1
            if users:
                self._users[block] = users
                continue
            del self._users[block]
            if self.prefix_caching:
                self._idle[block] = None

    def clear(self) -> bool:
        """Forget idle blocks; False (and nothing done) while any block is in use."""
        if self.used_blocks:
            return False
        self._idle.clear()
        return True
