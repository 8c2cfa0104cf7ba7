"""Blocks that are read beside the steps.

A save that a thread makes reads its blocks while the engine goes on. So the
scheduler takes a reference to each in the step that computes it, and gives it
back when every rank has reported the save, done or not: whatever happens to the
request meanwhile, its blocks are nobody else's until then.

References come back by the workers' reports, which come with a step's output:
some steps after the save has ended. Sooner by the board: memory that the
workers of this host share with the scheduler, where each says up to which save
it has ended all. Each step looks at it, and so does a reset, which cannot wait
for a step.

So many blocks may be held as are free, up to a part of the pool: while there is
room, holding blocks takes it from nobody.
"""
from __future__ import annotations

import logging
import mmap
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from larder_kv import _lib
from larder_kv._options import Options
from larder_kv.engine import kv

if TYPE_CHECKING:
    from larder_kv.engine.counts import Counts
    from larder_kv.engine.moves import Move

logger = logging.getLogger("larder")

HOLD_PART = 8  # of the pool: one in so many blocks may be held always,
FREE_PART = 2  # and one in so many while as many are free
HELD_MS = 2000  # at least: the deadline of a save that nobody waits for
YOUNG_SECONDS = 0.05  # a save younger than that gives its blocks back next
SETTLE_MORE = 1.0  # seconds beyond a save's deadline that a reset waits
WORD = 8  # bytes of a rank on the board


def threads(options: Options, gpu: bool) -> int:
    """That save, in each worker; 0: saves are made in the step."""
    if options.save_threads != "auto":
        return int(options.save_threads)
    return 1 if gpu else 0


def deadline_ms(options: Options) -> int:
    """Of a save that is held: it keeps its blocks, and nobody waiting."""
    return max(options.save_ms, HELD_MS)


class Pool(Protocol):
    """The engine's blocks, each with block_id, block_hash and ref_cnt."""

    blocks: Sequence[Any]
    num_gpu_blocks: int

    def get_num_free_blocks(self) -> int: ...

    def touch(self, blocks: Sequence[Any]) -> None: ...

    def free_blocks(self, ordered_blocks: Iterable[Any]) -> None: ...


class Held:
    """The blocks of one save."""

    __slots__ = ("blocks", "ranks", "began")

    def __init__(self, blocks: list[Any]):
        self.blocks = blocks
        self.ranks = 0  # that have reported it
        self.began = time.monotonic()


class Holds:
    """The scheduler's, of its thread only."""

    def __init__(self, options: Options, described: kv.Model,
                 counts: Counts, ranks: int, on: bool, shares: bool):
        """on: saves are held at all. shares: workers are on this host."""
        self._ranks = ranks
        self._counts = counts
        self._size = described.chunk_tokens
        self._stored = kv.stored_blocks(described)
        # Of groups that save every chunk.
        self.chunk_blocks = max(1, sum(
            end - begin for (begin, end), g in zip(self._stored,
                                                   described.groups)
            if g.rule != _lib.RULE_LAST))
        self._settle_seconds = deadline_ms(options) / 1000 + SETTLE_MORE
        self._pool: Pool | None = None
        self._most = 0
        self._jobs: dict[int, Held] = {}
        self._blocks: dict[int, int] = {}  # of a block: how often it is held
        self._peak = 0
        self._board: Board | None = None
        self._shares_memory = shares
        self.wanted = on

    @property
    def on(self) -> bool:
        return self.wanted and self._pool is not None

    @property
    def board(self) -> str:
        """Where the workers open it, or ""."""
        if self._board is None and self.on and self._shares_memory:
            try:
                self._board = Board(self._ranks)
            except OSError as error:
                self._shares_memory = False
                logger.warning("larder: saves are reported with steps: no "
                               "memory to share: %s", error)
        return self._board.path if self._board is not None else ""

    def bind(self, pool: Pool) -> None:
        self._pool = pool
        self._most = max(1, pool.num_gpu_blocks // HOLD_PART)

    # ---- a save ----

    def room(self, blocks: int) -> int:
        """How many times so many blocks may be held now; what is larger than
        may be held at all is held alone."""
        pool = self._pool
        most = max(self._most, min(pool.num_gpu_blocks // FREE_PART,
                                   pool.get_num_free_blocks()))
        found = (most - len(self._blocks)) // blocks
        return max(found, 0 if self._blocks else 1)

    def take(self, move: Move) -> None:
        """Its blocks are held from now on."""
        blocks = [self._pool.blocks[i] for i in self.needed(move)]
        self._pool.touch(blocks)
        self._jobs[move.job] = Held(blocks)
        for block in blocks:
            number = block.block_id
            self._blocks[number] = self._blocks.get(number, 0) + 1
        self._peak = max(self._peak, len(self._blocks))
        self._note()

    def needed(self, move: Move) -> Iterator[int]:
        """The blocks that it reads. (A chunk of which one is not there is not
        saved; to hold the others is no harm.)"""
        if move.in_tail:
            for _, ids in move.tables:
                yield from (i for i in ids if i != _lib.NULL_BLOCK)
            return
        chunks = range(move.begin // self._size, move.end // self._size)
        for (begin, end), (first, ids) in zip(self._stored, move.tables):
            for chunk in chunks:
                at = chunk * end - first
                for i in ids[max(0, at + begin):max(0, at + end)]:
                    if i != _lib.NULL_BLOCK:
                        yield i

    def shared(self, ids: list[int]) -> bool:
        """Whether others may hold these: an engine wants blocks of states
        for itself until they are in its cache."""
        return all(self._pool.blocks[i].block_hash is not None for i in ids)

    # ---- its end ----

    def report(self, ranks: dict[int, int]) -> None:
        """Of saves: by how many ranks they were ended since."""
        for job, count in ranks.items():
            held = self._jobs.get(job)
            if held is not None:
                held.ranks += count
                if held.ranks >= self._ranks:
                    self._free(job)

    def look(self) -> None:
        """Gives back what the board says has ended."""
        if self._jobs and self._board is not None:
            done = self._board.done()
            for job in [job for job in self._jobs if job <= done]:
                self._free(job)

    def settle(self) -> bool:
        """Waits for the saves under way, no longer than one may take. Gives
        whether nothing is held any more."""
        end = time.monotonic() + self._settle_seconds
        while self._jobs and self._board is not None:
            self.look()
            if not self._jobs or time.monotonic() >= end:
                break
            time.sleep(0.001)
        return not self._jobs

    def _free(self, job: int) -> None:
        held = self._jobs.pop(job)
        for block in held.blocks:
            number = block.block_id
            left = self._blocks[number] - 1
            if left:
                self._blocks[number] = left
            else:
                del self._blocks[number]
        # The last first: engines evict in this order.
        self._pool.free_blocks(reversed(held.blocks))
        self._counts.time("hold_ms", (time.monotonic() - held.began) * 1000)
        self._note()

    def _note(self) -> None:
        self._counts.set("held_blocks", len(self._blocks))
        self._counts.set("held_blocks_peak", self._peak)

    # ---- what the engine asks ----

    def __bool__(self) -> bool:
        return bool(self._jobs)

    def has_young(self) -> bool:
        """Whether blocks that nobody else needs come back in a moment."""
        young = time.monotonic() - YOUNG_SECONDS
        return any(held.began > young and any(
            block.ref_cnt == self._blocks[block.block_id]
            for block in held.blocks) for held in self._jobs.values())

    def close(self) -> None:
        if self._board is not None:
            self._board.close()


class Board:
    """The scheduler's end."""

    def __init__(self, ranks: int):
        self._memory = _lib.Memory(WORD * ranks)
        self._words = memoryview(self._memory.map).cast("Q")
        self.path = self._memory.path

    def done(self) -> int:
        """Every rank has ended all saves up to this one."""
        return min(self._words)

    def close(self) -> None:
        self._words.release()
        self._memory.close()


def write_on(path: str, rank: int) -> Callable[[int], None] | None:
    """Opens a board in a worker: what is called with the save up to which all
    have ended. None: it is not to be had, and resets wait for steps."""
    try:
        if not os.readlink(path).startswith("/memfd:larder-"):
            return None
        with open(path, "r+b") as file:
            words = memoryview(mmap.mmap(file.fileno(), 0)).cast("Q")
    except (OSError, ValueError):
        return None
    if rank >= len(words):
        return None
    return lambda job: words.__setitem__(rank, job)
