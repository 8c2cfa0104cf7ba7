"""A worker's side: moves KV between the engine's pages and the store.

Loads run in threads and are reported when they are done, and so do saves whose
blocks the scheduler holds (see hold). Others are copied in wait_for_save(),
after the forward that computed them, into room that was reserved meanwhile (see
ahead), by the threads that computed them (see cores).

The end of a load comes to the scheduler with a step's output, and in no other
way. Steps that compute nothing wait a moment for one, in place of the engine's
sleep (see goes_on).

On a GPU a copy follows what the engine's stream had to do when it was ordered:
a load the zeroing of its blocks, a save the forward. An event says when that
is done; no thread of the engine waits for it.
"""
from __future__ import annotations

import errno
import logging
import queue
import threading
import time
from typing import Any, NamedTuple

from larder_kv import _lib
from larder_kv._options import Options
from larder_kv.engine import (ahead, cores, early, handoff, hold, kv, pages,
                              reports)
from larder_kv.engine.counts import Counts
from larder_kv.engine.moves import Move, Step

logger = logging.getLogger("larder")

LATE = 40  # times save_ms: a save that waited so long for a thread is dropped
LOAD_SECONDS = 0.002  # that a step which computes nothing waits for a load,
LOAD_MOST = 0.006  # or so long, if it is expected to end by then
ENTER_SECONDS = 0.0005  # that a load's thread gets to begin
PASSES = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN)
PLACE_SECONDS, PLACE_MOST = 0.1, 1.0  # pauses, the first and the longest


class Rank(NamedTuple):
    """A worker's place: its number among an engine's, the shard that it
    holds (0: its layout says which), its number among those that hold the
    same, and of how many that divide the heads it is which."""

    number: int
    shard: int
    writer: int
    tensor: tuple[int, int] = (1, 0)


class Mover:
    def __init__(self, options: Options, described: kv.Model,
                 node: _lib.Node, rank: Rank, max_tokens: int,
                 saved: type[reports.Saved] = reports.Saved):
        """max_tokens: of one request. saved: what report() gives."""
        self.options = options
        self.model = described
        self.node = node
        self.counts = Counts()
        self.space = node.space(described.descriptor, described.shards,
                                described.chunk_tokens, described.label,
                                chunk_bytes=described.chunk_bytes,
                                page_tokens=described.page_tokens)
        self._layout: _lib.Layout | None = None  # between start() and stop()
        # For tails; made with the first one, by whichever thread has it.
        self._tail: _lib.Space | None = None
        self._tails: dict[tuple[kv.GroupInfo, ...], _lib.Layout] = {}
        self._tail_lock = threading.Lock()
        self._gpu: _lib.Gpu | None = None  # the node's memory is registered
        self._caches: dict[str, Any] = {}  # keeps the memory alive
        self._max_tokens = max_tokens
        self._rank = rank
        self.reports = reports.Reports(saved)
        self._lock = threading.Lock()
        self._ended = threading.Condition(self._lock)  # a load
        self._empty = False  # the step that runs computes nothing
        self._until = 0.0  # as the step's
        self.early = False  # begin_now() may be called
        self._loading = 0  # loads under way
        self.news = False  # a load has ended, and the engine shall go on
        self._done: set[str] = set()
        self._failed: set[str] = set()
        self._bad_blocks: set[int] = set()
        self._jobs: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._cuda = False
        self._saves: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._savers: list[threading.Thread] = []
        self._closing = False
        self._stuck: list[threading.Thread] = []  # that did not end in time
        self._unsaved: list[Move] = []  # held, and not handed over yet
        self._board = ""
        self._ahead: ahead.Ahead | None = None
        self._huge: pages.Huge | None = None

    def start(self, layout: _lib.Layout, caches: dict[str, Any],
              zeroes: bool) -> None:
        """caches: the memory of the layout. zeroes: a step may zero the blocks
        that it allocates; loads come after that."""
        self._layout = layout
        self._caches = caches
        self._cuda = _on_cuda(caches)
        self.early = self._cuda and not zeroes
        if not self._cuda:
            self._huge = pages.Huge(_memory(caches))
        if layout.gpu is not self._gpu:
            self._gpu = layout.gpu
            self._gpu.attach(self.node)
        self.resume()
        self._say_sizes()

    def resume(self) -> None:
        """Also after a stop() that has failed. With queues of their own: what
        was stopped empties those it had."""
        self._jobs, self._saves = queue.SimpleQueue(), queue.SimpleQueue()
        self._closing = False
        self._threads = _start("load", self.options.load_threads, self._work,
                               self._jobs)
        self._savers = _start("save", hold.threads(self.options, self._cuda),
                              self._save_work, self._saves)
        if self.node.url.startswith("unix:") and not self._cuda:
            self._ahead = ahead.Ahead(self._reserve, cores.team())

    def _say_sizes(self) -> None:
        per_token = max(kv.bytes_per_token(self.model, self._layout), 1)
        try:
            stats = self.node.stats()
        except _lib.LarderError:
            logger.info("larder: space %s, chunks of %d tokens, %d bytes per "
                        "token", self.model.name, self.model.chunk_tokens,
                        per_token)
            return
        logger.info(
            "larder: %s, space %s, chunks of %d tokens, %d bytes per token; "
            "dram holds %d tokens, ssd %d%s", self.node.url, self.model.name,
            self.model.chunk_tokens, per_token,
            stats.dram_max_bytes / per_token, stats.ssd_max_bytes / per_token,
            _shared(stats, per_token))
        if stats.dram_max_bytes < per_token * self._max_tokens:
            logger.error(
                "larder: the node's dram of %d bytes is smaller than one "
                "request of max_model_len=%d (%d bytes): such prefixes cannot "
                "be loaded whole; raise dram of `larder serve` (node_dram)",
                stats.dram_max_bytes, self._max_tokens,
                per_token * self._max_tokens)

    # ---- loads ----

    def start_loads(self, step: Step) -> None:
        if step.saves or self._unsaved:
            self._begin_saves(step)
        self._empty, self._until = step.empty, step.until
        if not step.loads:
            return
        self.hurry()
        with self._lock:
            self._loading += len(step.loads)
        event = self._event()
        for move in step.loads:
            move.after = event
            self._jobs.put(move)

    def begin_now(self, move: Move) -> None:
        """For a scheduler in this process, on its thread: begins a load at
        once, not with the step that is being made. Only if nothing else uses
        its blocks: nobody computes, and the step zeroes none (early)."""
        self.hurry()
        with self._lock:
            self._loading += 1
            free = self._loading <= len(self._threads)
        move.ready, move.entered = _closed(), _closed()
        self._jobs.put(move)  # a thread wakes up, while here all is prepared
        try:
            move.after = self._event()
            move.request = self._request(move, self.options.load_ms)
        except Exception:
            move.request = None  # it fails in the thread
        move.ready.release()
        if free:  # it needs the interpreter, which this thread would keep
            move.entered.acquire(timeout=ENTER_SECONDS)

    def early_load(self) -> early.Early | None:
        """For a scheduler in this process, where begin_now() may be called: a
        load whose blocks come later. None: no thread is free for it."""
        if not self.early or self._loading >= len(self._threads):
            return None
        return early.Early(self._jobs, len(self.model.groups),
                           self._asked(b"", None, self.options.load_ms))

    def go_on(self, begun: early.Early, move: Move) -> bool:
        """As begin_now(), with what was begun. False: it has ended."""
        self.hurry()
        event = self._event()
        if isinstance(event, Exception):
            return False
        with self._lock:
            self._loading += 1
        if begun.go_on(move, event):
            return True
        with self._lock:
            self._loading -= 1
        return False

    def _event(self) -> Any:
        """What the engine's stream has to do up to now. None: nothing, it is
        the CPU. An exception in its place fails the copies that await it."""
        if not self._cuda:
            return None
        import torch

        try:
            event = torch.cuda.Event(blocking=True)
            event.record()
            return event
        except Exception as error:
            logger.exception("larder: no event on the engine's stream")
            return error

    def _work(self, jobs: queue.SimpleQueue[Any]) -> None:
        while (move := jobs.get()) is not None:
            began = time.monotonic()
            if isinstance(move, early.Early):
                self._work_early(move, began)
                continue
            try:
                status, request = self._run(move, self.options.load_ms, True)
                move.after = None
            except Exception:
                logger.exception("larder: load of %s", move.request_id)
                status, request = -1, None
            self._over(move, status, request, began)

    def _work_early(self, begun: early.Early, began: float) -> None:
        status = -1
        try:
            begun.enter()
            status = self.space.load_early(self._layout, begun.request,
                                           begun.gate, early.WAIT_MS)
        except Exception:
            logger.exception("larder: load")
        finally:
            begun.close()
        if begun.goes_on():  # else nobody knows of it
            self._over(begun.move, status, begun.request, began)
            begun.move.after = None

    def _over(self, move: Move, status: int, request: _lib.Move | None,
              began: float) -> None:
        """A load has ended."""
        ms = (time.monotonic() - began) * 1000
        self._tell(move, status == _lib.OK)
        if status == _lib.OK:
            self.counts.add("loads")
            self.counts.add("loaded_bytes", request.bytes)
            self.counts.time("load_ms", ms)
        else:
            cause = ("error" if request is None else
                     _lib.CAUSES[request.cause]
                     if status == _lib.MISS
                     else _lib.status_text(status))
            self.counts.add("load_failures")
            logger.warning(
                "larder: load of %s failed after %.0f ms (%s): it is "
                "computed", move.request_id, ms, cause)

    def _tell(self, move: Move, good: bool) -> None:
        """The engine may wait for that."""
        with self._lock:
            self._loading -= 1
            self._done.add(move.request_id)
            if not good:
                self._failed.add(move.request_id)
                for part in (move, move.tail):
                    for _, ids in part.tables if part is not None else ():
                        self._bad_blocks.update(ids)
                self._bad_blocks.discard(_lib.NULL_BLOCK)
            self._ended.notify()

    def _asked(self, keys: bytes, tables: Any, timeout_ms: int) -> _lib.Move:
        return _lib.Move(
            keys=keys, tables=tables, shard=self._rank.shard,
            writers=self.model.replicas, writer=self._rank.writer,
            timeout_ms=timeout_ms,
            flags=_lib.PUT_ANNOUNCED)  # the scheduler does

    def _request(self, move: Move, timeout_ms: int) -> _lib.Move:
        tables = (_lib.Table * len(move.tables))(
            *((ids.buffer_info()[0], first, len(ids))
              for first, ids in move.tables))
        request = self._asked(move.keys, tables, timeout_ms)
        request.first_key = move.first_key
        request.begin, request.end = move.begin, move.end
        request.ttl_ms = move.ttl_ms
        if move.token:
            request.token[:] = move.token
        if isinstance(move.after, Exception):
            raise move.after
        if move.after is not None:
            request.after = move.after.cuda_event
        return request

    def _where(self, move: Move) -> tuple[_lib.Space, _lib.Layout]:
        """Where its chunks are, and how they lie in memory."""
        if not move.in_tail:
            return self.space, self._layout
        model = handoff.tail_model(self.model, move.in_tail)
        with self._tail_lock:
            if self._tail is None:
                self._tail = self.node.space(
                    model.descriptor, model.shards, model.chunk_tokens,
                    model.label)
            if model.groups not in self._tails:
                self._tails[model.groups] = self.layout_of(model)
            return self._tail, self._tails[model.groups]

    def layout_of(self, model: kv.Model) -> _lib.Layout:
        """The engine's memory, for chunks of another size."""
        raise NotImplementedError

    def _run(self, move: Move, timeout_ms: int,
             load: bool) -> tuple[int, _lib.Move]:
        if move.ready is not None:
            move.ready.acquire()
        request = move.request or self._request(move, timeout_ms)
        if move.entered is not None:
            move.entered.release()
        if move.memory:
            return self._place(move.memory, request), request
        space, layout = self._where(move)
        status = _lib.OK
        if move.begin < move.end:  # else there is nothing before the tail
            run = space.load if load else space.save
            status = run(layout, request)
        if move.tail is None or status != _lib.OK:
            return status, request
        move.tail.after = move.after
        status, rest = self._run(move.tail, timeout_ms, load)
        rest.bytes += request.bytes
        return status, rest

    def _place(self, path: str, request: _lib.Move) -> int:
        """vLLM cannot be told of a failure here: it would end. Too many open
        files, or too little memory, may pass, and is waited for however long
        it takes: the request waits with it, others go on. The scheduler keeps
        what is placed until the load is reported. Others are tried twice."""
        pause, tries = PLACE_SECONDS, 0
        while True:
            try:
                status, tries = _lib.E_IO, tries + 1
                status = self.space.place(self._layout, request, path)
                passes = status == _lib.E_NO_MEMORY
                why = _lib.status_text(status)
            except (OSError, MemoryError) as error:
                passes = getattr(error, "errno", errno.ENOMEM) in PASSES
                why = str(error)
            if (status == _lib.OK or self._closing
                    or not passes and tries == 2):
                return status
            if tries == 1:
                logger.warning("larder: a load cannot be made (%s): it is "
                               "tried again", why)
            time.sleep(pause)
            pause = min(2 * pause, PLACE_MOST)

    # ---- saves ----

    def _begin_saves(self, step: Step) -> None:
        """A step's saves that are held are known from its begin on: those of
        one that ended without a forward are given up."""
        for move in self._unsaved:
            self._drop(move, "failed")
        self._unsaved = [move for move in step.saves if move.held]
        if self._unsaved and step.board != self._board:
            self._board = step.board
            self.reports.tell = hold.write_on(step.board, self._rank.number)
        for move in self._unsaved:
            self.reports.begin(move.job)

    def _drop(self, move: Move, reason: str) -> None:
        self.counts.add(f"saves_dropped:{reason}")
        self.reports.add(move.job, False)

    def _hand_over(self) -> None:
        """To the threads: what they save is in its blocks when the stream has
        come to here."""
        moves, self._unsaved = self._unsaved, []
        if not moves:
            return
        event, now = self._event(), time.monotonic()
        for move in moves:
            move.after = event
            self._saves.put((move, now))
        self.counts.set("save_queue", self._saves.qsize())

    def _save_work(self, jobs: queue.SimpleQueue[Any]) -> None:
        while (job := jobs.get()) is not None:
            self.counts.set("save_queue", jobs.qsize())
            self._save_held(*job)

    def _save_held(self, move: Move, queued: float) -> None:
        """Its deadline begins when there is something to copy."""
        done = False
        try:
            if hasattr(move.after, "query") and not move.after.query():
                move.after.synchronize()
                queued = time.monotonic()
            late = time.monotonic() - queued > LATE * (
                self.options.save_ms / 1000)
            if late or self._closing:
                self.counts.add("saves_dropped:late")
                return
            began = time.monotonic()
            done = self._save(move, hold.deadline_ms(self.options))
            self.counts.time("save_ms", (time.monotonic() - began) * 1000)
        except Exception:
            logger.exception("larder: save of %s", move.request_id)
            self.counts.add("saves_dropped:failed")
        finally:
            move.after = None
            self.reports.add(move.job, done)

    def begin(self, step: Step) -> None:
        """Before the step's forward: room for what is saved after it."""
        if self._ahead is not None and (step.saves or self._ahead.begun):
            self._ahead.start([move for move in step.saves if not move.held])

    def _reserve(self, move: Move
                 ) -> tuple[_lib.Move, int, _lib.Rooms | None]:
        request = self._request(move, self.options.save_ms)
        space, layout = self._where(move)
        return request, *space.reserve(layout, request)

    def _fill(self, move: Move,
              timeout_ms: int) -> tuple[int, _lib.Move]:
        """Saves it into the room that was reserved for it, if there is."""
        if self._ahead is not None and not move.held:
            job, timeout_ms = self._ahead.take(move, timeout_ms)
            if job is not None and job.rooms is not None:
                if timeout_ms != self.options.save_ms:
                    job.request.timeout_ms = timeout_ms
                return job.fill(), job.request
        return self._run(move, timeout_ms, False)

    def save(self, step: Step, whole: bool = True) -> None:
        """whole: the forward came to its end. If not, layers that were not
        reached have what was in their blocks before."""
        if not whole:
            self._save_nothing(step)
            return
        if self._unsaved:
            self._hand_over()
        moves = step.saves
        if self._savers:
            moves = [move for move in moves if not move.held]
        if not moves:
            return
        # The engine waits, and what runs here was last used a step ago: every
        # call more is one more that no cache holds.
        event = None
        if self._cuda:
            event = self._event()
            if hasattr(event, "synchronize"):
                event.synchronize()
        began = time.monotonic()
        left, ms = self.options.save_ms, 0.0
        for move in moves:
            move.after = event
            done = left > 0 and self._save(move, left)
            if left <= 0:
                self.counts.add("saves_dropped:late")
            if move.job:
                self.reports.add(move.job, done)
            late, ms = left <= 0, (time.monotonic() - began) * 1000
            left = int(self.options.save_ms - ms)
        if late:
            self.counts.add("saves_late")
        self.counts.time("save_ms", ms)

    def _save_nothing(self, step: Step) -> None:
        self._unsaved = []
        for move in step.saves:
            if move.job:
                self._drop(move, "failed")

    def _save(self, move: Move, timeout_ms: int) -> bool:
        """Whether the store has all of it now."""
        try:
            status, request = self._fill(move, timeout_ms)
        except Exception:
            logger.exception("larder: save of %s", move.request_id)
            status = -1
        if status < 0:
            self.counts.add("save_failures")
            self.counts.add("saves_dropped:failed")
            return False
        self.counts.add_all(saved_shards=request.shards,
                            saved_bytes=request.bytes,
                            saves_present=request.present)
        if request.failed:
            self.counts.add("save_failures", request.failed)
            self.counts.add("saves_dropped:failed")
        return request.item == _lib.OK  # else some failed, or was declined

    # ---- results ----

    def finished(self) -> tuple[set[str], set[str], set[int]]:
        """Loads that ended since the last call, those of them that failed, and
        the blocks these were for."""
        if self._empty:
            self._wait()
        if not self._done:  # what ends now comes with the next step
            return set(), set(), set()
        with self._lock:
            found = self._done, self._failed, self._bad_blocks
            # Never one that a load may still add to: an id that is given
            # twice ends the engine.
            self._done, self._failed = set(), set()
            self._bad_blocks = set()
        self.news = True
        return found

    def _wait(self) -> None:
        """Waits a moment for the end of a load, if there is one."""
        with self._lock:
            if self._loading and not self._done:
                left = self._until - time.monotonic()
                self._ended.wait(max(LOAD_SECONDS, left + LOAD_SECONDS / 2)
                                 if left < LOAD_MOST else LOAD_SECONDS)

    def goes_on(self) -> bool:
        """Whether the engine need not sleep before its next step: this one has
        waited for the load that is under way, or there is one to schedule."""
        news, self.news = self.news, False
        return news or self._empty and bool(self._loading or self._done)

    def hurry(self) -> None:
        """A load begins: an engine whose steps would sleep meanwhile can be
        kept from that (goes_on)."""

    def stop(self) -> bool:
        """Lets go of the engine's memory, until start() is called again. What
        is queued to be saved is, as far as its deadline goes. False: a copy is
        still under way; until resume() nothing else is moved."""
        if self._huge is not None:
            self._huge.close()
        for _ in self._savers:
            self._saves.put(None)
        for _ in self._threads:
            self._jobs.put(None)
        seconds = hold.deadline_ms(self.options) / 1000
        _join(self._savers, seconds)
        self._closing = True
        _join(self._savers, seconds + 1)
        threads = [*self._stuck, *self._savers, *self._threads]
        _join(threads, self.options.load_ms / 1000 + 1)
        if self._ahead is not None:
            self._ahead.close(self.options.save_ms / 1000 + 1)
            threads.append(self._ahead.thread)
        self._savers, self._threads, self._ahead = [], [], None
        self._stuck = [thread for thread in threads if thread.is_alive()]
        if self._stuck:
            return False
        self._say_copies()
        self._closing, self._huge = False, None
        if self._layout is not None:
            self._layout.close()
        tail, self._tail = self._tail, None
        tails, self._tails = self._tails, {}
        for part in (*tails.values(), *([tail] if tail else ())):
            part.close()
        self._layout, self._caches = None, {}
        return True

    def close(self) -> None:
        if self.stop():
            self.space.close()
            self.node.close()

    def _say_copies(self) -> None:
        if self._gpu is not None:
            stats = self._gpu.stats()
            logger.info(
                "larder: copies by the GPU: %d staged, %d direct, %d by way "
                "of the CPU, %d page by page, %d failed", stats.staged,
                stats.direct, stats.bounced, stats.plain, stats.failures)


def _shared(stats: _lib.Stats, per_token: float) -> str:
    """Of the shared tier it is known what it has, not what it could hold: that
    is all nodes'."""
    tier = stats.shared_tier
    if not stats.shared:
        return ""
    return (f", shared has {tier.bytes / per_token:.0f}" if tier.on else
            f", shared is off: {tier.reason.decode(errors='replace')}")


def say(level: int, line: str) -> None:
    """What the library says."""
    logger.log((logging.ERROR, logging.WARNING, logging.INFO,
                logging.DEBUG)[level], "larder: %s", line)


def _start(name: str, count: int, work: Any,
           jobs: queue.SimpleQueue[Any]) -> list[threading.Thread]:
    def run() -> None:
        cores.spread()
        work(jobs)

    found = [threading.Thread(target=run, daemon=True,
                              name=f"larder-{name}-{i}") for i in range(count)]
    for thread in found:
        thread.start()
    return found


def _closed() -> threading.Lock:
    lock = threading.Lock()
    lock.acquire()
    return lock


def _join(threads: list[threading.Thread], seconds: float) -> None:
    """All of them together have so long."""
    end = time.monotonic() + seconds
    for thread in threads:
        thread.join(timeout=max(0.0, end - time.monotonic()))


def _tensors(caches: dict[str, Any]) -> list[Any]:
    return [one for cache in caches.values() for one in
            (cache if isinstance(cache, (list, tuple)) else [cache])]


def _on_cuda(caches: dict[str, Any]) -> bool:
    return any(one.device.type == "cuda" for one in _tensors(caches))


def _memory(caches: dict[str, Any]) -> set[tuple[int, int]]:
    """Base and bytes of every allocation."""
    stored = [one.untyped_storage() for one in _tensors(caches)]
    return {(one.data_ptr(), one.nbytes()) for one in stored}
