"""The paged KV pool of one replica: block counts, and a prefix cache over chains of block hashes.

Blocks are counted, not numbered. A block is *held* (some running sequence refers to it), *cached* (nobody does, its
content may be hit again, LRU) or *plain* (free, no content). Invariant: ``held + cached + plain = total`` where the
held ones are those that callers took and have not given back.

Three kinds of content are remembered: a *unit* of a prefix chain (one or more blocks under one key, shared by
reference count), and a *run*, the blocks of one finished or preempted sequence that no chain names. Runs are never
shared, but they age in the same LRU, so that they push units out as they do in a real pool, and a preempted sequence
finds again what has not been overwritten.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

BLOCK = 16
"""Tokens per KV block."""


def blocks_for(tokens: int) -> int:
    """Blocks that hold ``tokens`` tokens."""
    return -(-tokens // BLOCK)


@dataclass(slots=True, frozen=True)
class Run:
    """Key of the unnamed blocks of the sequence with number ``owner``."""

    owner: int


class KvPool:
    """Counts of blocks, references to shared units, and the LRU of what nobody refers to."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.plain = total
        self.cached = 0
        self._lru: OrderedDict[Hashable, int] = OrderedDict()
        self._refs: dict[Hashable, int] = {}

    @property
    def available(self) -> int:
        """Blocks that can be taken now: plain and cached ones."""
        return self.plain + self.cached

    @property
    def use(self) -> float:
        """Share of the pool that running sequences hold, 0 to 1; cached blocks count as free."""
        return 1 - self.available / self.total

    def known(self, key: Hashable) -> bool:
        """Whether the unit ``key`` is held or cached."""
        return key in self._refs or key in self._lru

    def match(self, chain: Sequence[Hashable], limit: int) -> int:
        """How many units from the start of ``chain`` are known, at most ``limit``."""
        refs, lru = self._refs, self._lru
        for index in range(limit):
            if chain[index] not in refs and chain[index] not in lru:
                return index
        return limit

    def unreferenced(self, keys: Sequence[Hashable]) -> int:
        """Blocks of the known units ``keys`` that are only cached, so that holding them lowers ``available``."""
        lru = self._lru
        return sum(lru.get(key, 0) for key in keys)

    def run_length(self, owner: int) -> int:
        """Blocks left of the run of ``owner``."""
        return self._lru.get(Run(owner), 0)

    def hold(self, keys: Sequence[Hashable]) -> None:
        """Refer to known units."""
        for key in keys:
            blocks = self._lru.pop(key, None)
            if blocks is not None:
                self.cached -= blocks
            self._refs[key] = self._refs.get(key, 0) + 1

    def take(self, blocks: int) -> None:
        """Take ``blocks`` of what is available, throwing out the least recently used content where needed."""
        spare = min(blocks, self.plain)
        self.plain -= spare
        self._overwrite(blocks - spare)

    def take_run(self, owner: int) -> None:
        """Take what is left of the run of ``owner`` with its content."""
        self.cached -= self._lru.pop(Run(owner))

    def name(self, keys: Sequence[Hashable]) -> int:
        """Turn taken blocks into shared units under new ``keys``, up to the first known one; return how many."""
        for index, key in enumerate(keys):
            if self.known(key):
                return index
            self._refs[key] = 1
        return len(keys)

    def unname(self, keys: Sequence[Hashable], unit_blocks: int) -> None:
        """Give back units whose content was never computed; only their creator may refer to them."""
        for key in keys:
            del self._refs[key]
            self.plain += unit_blocks

    def drop(self, keys: Sequence[Hashable], unit_blocks: int) -> None:
        """Stop referring to units; those that nobody refers to stay cached, the last of a chain is the oldest."""
        for key in reversed(keys):
            left = self._refs[key] - 1
            if left:
                self._refs[key] = left
            else:
                del self._refs[key]
                self._lru[key] = unit_blocks
                self.cached += unit_blocks

    def drop_run(self, owner: int, *, computed: int, empty: int) -> None:
        """Give back taken blocks: ``computed`` stay cached as the run of ``owner``, ``empty`` have no content."""
        self.plain += empty
        if computed:
            older = self._lru.pop(Run(owner), 0)  # left by an earlier preemption and not hit since
            self.plain += older
            self.cached -= older
            self._lru[Run(owner)] = computed
            self.cached += computed

    def _overwrite(self, blocks: int) -> None:
        lru = self._lru
        while blocks > 0:
            key = next(iter(lru))
            length = lru[key]
            if length > blocks and isinstance(key, Run):
                lru[key] = length - blocks  # the end of a run is overwritten first: its start stays a usable prefix
                self.cached -= blocks
                return
            del lru[key]
            self.cached -= length
            self.plain += max(0, length - blocks)
            blocks -= length
