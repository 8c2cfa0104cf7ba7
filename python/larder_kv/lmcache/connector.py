"""What LMCache's native_plugin adapter calls, on Larder's tickets.

LMCache calls submit_batch_*() under a lock that its other threads need too, so
these never wait for the node: they compute keys, hand tickets to the library
and return. The bytes move between LMCache's memory and the node's in the
library's threads, without a copy on the way.

A batch becomes one or more tickets, and is complete when all of them are. A
batch that cannot be handed over is complete at once, as a miss or as a store
that failed.

Lock order: _lock is taken last, and no call that waits is made under it.
"""
from __future__ import annotations

import ctypes
import itertools
import logging
import os
import select
import threading
from array import array
from collections.abc import Sequence
from typing import Any

from larder_kv import _lib
from larder_kv._buffers import Pinned
from larder_kv._node import node_url, open_node
from larder_kv._options import Options
from larder_kv._status import Status
from larder_kv._structs import Item

LOGGER = logging.getLogger("larder")
PLACE = "larder: adapter_params"
# What of a connector's options means something here.
TAKEN = {"url", "secret_file", "weights", "lookup_ms", "load_ms",
         "load_threads", "save_ms", "node_dram", "node_dram_start",
         "node_ssd", "node_dir", "node_idle_s"}
TICKETS = 4096
SHARE_BYTES = 8 << 20  # of a batch, that is worth a thread of its own
SAVE_MS = 2000  # beside the engine's steps: at least this
OPEN_MS = 2000  # for a space, or a session
ONE = array("I", [0])  # the token of a chunk: names are in what comes with it
KEPT = (_lib.OK, _lib.PRESENT)

# A completion: the number that submit gave, whether it went well, why not, and
# for each key whether it was kept, found, loaded or removed.
Done = tuple[int, bool, str, "list[bool] | None"]


class _Batch:
    """Of one submit, until all of its tickets are done. Under _lock."""

    __slots__ = ("number", "op", "left", "results", "error")

    def __init__(self, number: int, op: int, keys: int):
        self.number = number
        self.op = op
        self.left = 0
        self.results = [False] * keys
        self.error = ""

    def done(self) -> Done:
        """LMCache counts what a store kept by this one bool. Of the others it
        takes the bools of the keys, and a miss is no failure."""
        ok = self.op != _lib.OP_PUT or all(self.results)
        return self.number, ok, self.error, self.results


class _Part:
    """What one ticket has of a batch: it keeps the items, the keys and the
    buffers where they are."""

    __slots__ = ("batch", "at", "items", "keys", "pinned")

    def __init__(self, batch: _Batch, at: Sequence[int],
                 items: Any, keys: list[bytes], pinned: Pinned):
        self.batch = batch
        self.at = at  # the items' places in the batch
        self.items = items
        self.keys = keys
        self.pinned = pinned

    def take(self) -> None:
        """What became of each item."""
        batch = self.batch
        for at, item in zip(self.at, self.items):
            batch.results[at] = (
                item.status in KEPT if batch.op == _lib.OP_PUT else
                # A shorter value of this name is another one's.
                item.status == _lib.OK and item.length == _size(item)
                if batch.op == _lib.OP_GET else
                item.status in (_lib.OK, Status.PARTIAL))
            if item.status < 0 and not batch.error:
                batch.error = _lib.status_text(item.status)


class Connector:
    """One connection of a process to a node.

    docs/guide/lmcache.md lists what adapter_params may hold."""

    def __init__(self, **adapter_params: Any):
        other = sorted(set(adapter_params) - TAKEN)
        if other:
            raise _lib.LarderError(
                _lib.E_INVALID, f"{PLACE}: there is no option {other[0]}; "
                f"these are known: {', '.join(sorted(TAKEN))}")
        options = Options(adapter_params, PLACE)
        self._options = options
        self._weights = options.weights
        if not self._weights:
            LOGGER.warning(
                "larder: weights is not set: LMCache's keys have neither the "
                "version of the weights nor the dtype of the KV. Set it to "
                "another text when you change one of them under the same "
                "model name, or KV of before is loaded")
        url = node_url(options, LOGGER.info)
        more = "".join(f"&{name}={value}" for name, value in (
            ("tickets", TICKETS), ("workers", options.load_threads),
            ("timeout_ms", OPEN_MS))
            if f"{name}=" not in url)
        url += more if "?" in url else "?" + more[1:]
        self._node = open_node(url.rstrip("?"), _log, LOGGER.warning,
                               secret_file=options.secret_file)
        self._deadlines = {_lib.OP_EXISTS: max(options.lookup_ms, 1),
                           _lib.OP_GET: options.load_ms,
                           _lib.OP_PUT: max(options.save_ms, SAVE_MS),
                           _lib.OP_REMOVE: max(options.save_ms, SAVE_MS)}
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._closed = False
        self._spaces: dict[str, _lib.Space] = {}
        # Of models whose space is being opened: the batches that wait for it.
        self._waiting: dict[str, list[tuple[_Batch, Any]]] = {}
        self._openers: list[threading.Thread] = []
        self._refused: set[str] = set()  # models of which the log has a line
        self._parts: dict[int, _Part] = {}  # by their tickets' user
        self._ended: list[_Batch] = []  # without a ticket, to be drained
        # Readable while either of two is: what the library has done, and
        # _ended.
        self._own = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._either = select.epoll()
        self._either.register(self._own, select.EPOLLIN)
        self._either.register(self._node.event_fd(), select.EPOLLIN)

    # ---- what LMCache calls ----

    def event_fd(self) -> int:
        """Readable while drain_completions() has something."""
        return self._either.fileno()

    def submit_batch_set(self, keys: list[str], bufs: list[Any]) -> int:
        return self._submit(_lib.OP_PUT, keys, bufs)

    def submit_batch_get(self, keys: list[str], bufs: list[Any]) -> int:
        return self._submit(_lib.OP_GET, keys, bufs)

    def submit_batch_exists(self, keys: list[str]) -> int:
        return self._submit(_lib.OP_EXISTS, keys, None)

    def submit_batch_delete(self, keys: list[str]) -> int:
        return self._submit(_lib.OP_REMOVE, keys, None)

    def drain_completions(self) -> list[Done]:
        with self._lock:
            if self._closed:
                return []
            ended, self._ended = self._ended, []
            if ended:
                os.eventfd_read(self._own)
            for user, status in self._node.drain():
                part = self._parts.pop(user)
                part.take()
                part.pinned.close()  # the items' buffers, with their sizes
                if status < 0:
                    part.batch.error = _lib.status_text(status)
                part.batch.left -= 1
                if part.batch.left == 0:
                    ended.append(part.batch)
        return [batch.done() for batch in ended]

    def close(self) -> None:
        """Ends what is in flight: after it no buffer is touched any more."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            openers = list(self._openers)
        for thread in openers:  # they use the node, each for one deadline
            thread.join()
        self._either.close()
        self._node.close()
        for space in self._spaces.values():
            space.close()
        for part in self._parts.values():
            part.pinned.close()
        self._parts.clear()
        os.close(self._own)

    # ---- inside ----

    def _submit(self, op: int, keys: list[str], bufs: list[Any] | None) -> int:
        batch = _Batch(next(self._numbers), op, len(keys))
        # A batch is of one model, but nothing promises that.
        by_model: dict[str, list[tuple[int, str, Any]]] = {}
        for at, key in enumerate(keys):
            model, _, rest = key.partition("@")
            by_model.setdefault(model, []).append(
                (at, rest, None if bufs is None else bufs[at]))
        with self._lock:
            batch.left = max(1, len(by_model))
            if not by_model:
                self._leave(batch)
        for model, wanted in by_model.items():
            self._hand(model, batch, wanted)
        return batch.number

    def _hand(self, model: str, batch: _Batch, wanted: Any) -> None:
        """Hands it over, or leaves it to the thread that opens the space: that
        asks the node, and the caller must not wait."""
        with self._lock:
            space = self._spaces.get(model)
            if space is None and not self._closed:
                waiting = self._waiting.setdefault(model, [])
                waiting.append((batch, wanted))
                if len(waiting) == 1:
                    self._openers = [t for t in self._openers if t.is_alive()]
                    thread = threading.Thread(
                        target=self._open, args=(model,), daemon=True,
                        name="larder-space")
                    try:
                        thread.start()
                        self._openers.append(thread)
                    except RuntimeError as failed:  # there are too many
                        del self._waiting[model]
                        batch.error = str(failed)
                        self._leave(batch)
                return
        if space is not None:
            self._send(space, batch, wanted)

    def _open(self, model: str) -> None:
        """The space of a model. LMCache's names have the model, but nothing of
        its weights and their dtype: option weights says what else differs."""
        space, error = None, ""
        try:
            space = self._node.space(
                f"lmcache 1\n{model}\n{self._weights}".encode(), 1, 1,
                f"lmcache {model}")
        except Exception as failed:  # batches wait for this thread
            error = str(failed)
            if model not in self._refused:
                self._refused.add(model)
                LOGGER.warning(
                    "larder: the space of %s cannot be opened: %s; until it "
                    "can, all that LMCache asks for is a miss", model, error)
        with self._lock:
            waiting = self._waiting.pop(model)
            if space is not None:
                self._spaces[model] = space
            else:
                for batch, _ in waiting:
                    batch.error = error
                    self._leave(batch)
                return
        for batch, wanted in waiting:
            self._send(space, batch, wanted)

    def _send(self, space: _lib.Space, batch: _Batch, wanted: Any) -> None:
        """As tickets. A large batch is shared out to the library's threads.
        Whatever goes wrong, the batch has an end: LMCache waits for it."""
        try:
            pieces = self._pieces(wanted)
        except Exception as failed:
            self._give_up(batch, failed)
            return
        with self._lock:
            batch.left += len(pieces) - 1
        for piece in pieces:
            pinned = Pinned(batch.op == _lib.OP_GET)
            try:
                part = _make_part(space, batch, piece, pinned)
                with self._lock:
                    if self._closed:
                        pinned.close()
                        return
                    user = next(self._numbers)
                    self._parts[user] = part
                    try:
                        space.submit(batch.op, part.items,
                                     self._deadlines[batch.op], user)
                        continue
                    except _lib.LarderError:
                        del self._parts[user]
                        raise
            except Exception as failed:
                pinned.close()
                self._give_up(batch, failed)

    def _give_up(self, batch: _Batch, why: Exception) -> None:
        """One of its tickets, which was not handed over."""
        with self._lock:
            batch.error = str(why) or type(why).__name__
            self._leave(batch)

    def _pieces(self, wanted: Any) -> list[Any]:
        size = sum(buf.nbytes for _, _, buf in wanted if buf is not None)
        count = min(self._options.load_threads, size // SHARE_BYTES + 1,
                    len(wanted))
        each = min(-(-len(wanted) // count), _lib.BATCH_MAX)
        return [wanted[i:i + each] for i in range(0, len(wanted), each)]

    def _leave(self, batch: _Batch) -> None:
        """One that has no ticket is over. With _lock."""
        batch.left -= 1
        if batch.left == 0 and not self._closed:
            self._ended.append(batch)
            os.eventfd_write(self._own, 1)


def _make_part(space: _lib.Space, batch: _Batch, piece: Any,
               pinned: Pinned) -> _Part:
    items = (Item * len(piece))()
    names = []
    for item, (_, rest, buf) in zip(items, piece):
        name = _name(space, rest)
        names.append(name)
        item.key = name
        if buf is not None:
            item.iov, item.iov_count = pinned.vector(buf)
    return _Part(batch, [at for at, _, _ in piece], items, names, pinned)


def _name(space: _lib.Space, rest: str) -> bytes:
    """Of RANK@GROUP@HASH or RANK@GROUP@HASH@SALT, under the tenant's secret.
    There is no @ in any of them."""
    keys = _lib.Keys()
    space.chain(ONE, keys, [rest.encode()])
    return keys.data(0, 1)


def _size(item: Item) -> int:
    """Bytes of the item's buffer."""
    return ctypes.c_uint64.from_address(item.iov + 8).value


def _log(level: int, line: str) -> None:
    LOGGER.log((logging.ERROR, logging.WARNING, logging.INFO,
                logging.DEBUG)[min(level, 3)], "%s", line)
