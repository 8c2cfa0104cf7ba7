"""What became of each request, for `larder explain` and for metrics.

The scheduler keeps one Record for a request and fills it in; when the request
ends, a thread counts it and writes one line to this process's file in the
runtime directory. The scheduler itself does no I/O and formats nothing.

A line is `key=value` pairs with tabs between. In values, tabs, newlines,
backslashes and other control characters are written as \\xNN.
"""
from __future__ import annotations

import contextlib
import logging
import os
import pathlib
import queue
import re
import threading
import time
from typing import TYPE_CHECKING, Any

from larder_kv import _lib, _node

if TYPE_CHECKING:
    from larder_kv.engine.counts import Counts

logger = logging.getLogger("larder")

FILE_BYTES = 1 << 20  # of each of the two files of a process
ID_MAX = 256  # characters; users may choose it
WAITING_MAX = 10000  # records that were not written yet; more are dropped
KEEP_SECONDS = 86400.0  # files of processes that have ended
_UNSAFE = re.compile(r"[\x00-\x1f\x7f-\x9f\\]")


class Half:
    """A request's half of a hand-off (docs/guide/handoff.md).

    Times as in Record."""

    __slots__ = ("side", "tokens", "member", "why", "promised", "saved",
                 "ended", "early", "whole")

    def __init__(self, side: str, tokens: int = 0, member: str = ""):
        self.side = side  # prefill or decode
        self.tokens = tokens
        self.member = member
        self.why = ""  # it came to nothing, or to less
        # prefill: the node has the promise; the step with the last save began
        self.promised = self.saved = 0.0
        # prefill: answered; decode: it waits no longer
        self.ended = 0.0
        self.early = False  # decode: it came before the prefill's answer
        self.whole = False  # decode: all of it was staged

    def fields(self, came: float) -> dict[str, Any]:
        """came: when the request did."""
        found: dict[str, Any] = {
            "handoff": self.side, "handoff_tokens": self.tokens,
            "handoff_member": self.member, "handoff_why": self.why}
        if self.side == "decode":
            found["handoff_early"] = int(self.early)
            found["handoff_whole"] = int(self.whole)
        for name, at in (("promised", self.promised), ("saved", self.saved),
                         ("answered" if self.side == "prefill" else "waited",
                          self.ended)):
            if at:
                found[f"handoff_{name}_ms"] = round(
                    max(at - came, 0) * 1000, 3)
        return found


class Record:
    """One request. Times are of time.monotonic(); 0: it did not happen."""

    __slots__ = ("request_id", "came", "began", "half", "prompt_tokens",
                 "look", "local_tokens", "claimed_tokens", "failed", "why",
                 "issued", "reported", "scheduled", "saved_chunks",
                 "preemptions")

    def __init__(self, request_id: str, prompt_tokens: int, why: str = ""):
        self.request_id = request_id
        self.came, self.began = time.time(), time.monotonic()
        self.half: Half | None = None  # of a hand-off
        self.prompt_tokens = prompt_tokens
        self.look: Any = None  # the last lookup
        self.local_tokens = 0  # in the engine's own cache
        self.claimed_tokens = 0  # to be loaded behind these
        self.failed = False  # its load
        self.why = why  # it goes without Larder, or its lookup was given up
        self.issued = self.reported = self.scheduled = 0.0
        self.saved_chunks = 0
        self.preemptions = 0

    def again(self) -> None:
        """It was preempted: what follows counts."""
        self.preemptions += 1
        if self.why == "late":
            self.why = ""
        self.look = None
        self.claimed_tokens = 0
        self.failed = False
        self.issued = self.reported = self.scheduled = 0.0

    def claim(self, local: int, tokens: int) -> None:
        self.local_tokens = local
        self.claimed_tokens = tokens
        self.issued = time.monotonic()

    def report(self, failed: bool) -> None:
        """The workers have ended its load."""
        self.failed = failed
        self.reported = time.monotonic()

    def schedule(self) -> None:
        """It is computed from now on."""
        if self.scheduled == 0:
            self.scheduled = time.monotonic()

    def fields(self, chunk_tokens: int) -> dict[str, Any]:
        """What is written of it. A time that is not there did not happen."""
        limit = max(self.prompt_tokens - 1, 0) // chunk_tokens
        loaded = 0 if self.failed else self.claimed_tokens
        missed = max(0, limit * chunk_tokens - self.local_tokens - loaded)
        found: dict[str, Any] = {
            "id": self.request_id[:ID_MAX],
            "time_ms": int(self.came * 1000),
            "engine": os.getpid(),
            "chunk_tokens": chunk_tokens,
            "prompt_tokens": self.prompt_tokens,
            "limit_chunks": limit,
            "local_tokens": self.local_tokens,
        }
        look = self.look
        if look is not None:
            found["matched_chunks"] = look.matched
            found["staged_chunks"] = look.chunks
            for name, size in zip(_lib.TIERS, look.tier_bytes):
                found[f"{name}_bytes"] = size
        found["loaded_tokens"] = loaded
        found["failed_tokens"] = self.claimed_tokens - loaded
        found["missed_tokens"] = missed
        found["reason"] = self._reason(limit, missed)
        found["saved_chunks"] = self.saved_chunks
        found["preemptions"] = self.preemptions
        found.update(self._times())
        if self.half is not None:
            found.update(self.half.fields(self.began))
        return found

    def _reason(self, limit: int, missed: int) -> str:
        """Why not more was loaded; "": there was no more."""
        look = self.look
        if self.half is not None and self.half.whole and not self.failed:
            return ""
        if limit == 0:
            return self.why or "short"
        if missed == 0 and look is not None:
            return ""
        if self.failed:
            return "load"
        if self.why or look is None:
            return self.why or "off"
        if look.reason not in ("", "none"):
            return look.reason
        # All of it was there and staged: the engine took less.
        return "engine"

    def _times(self) -> dict[str, float]:
        times = {}
        look = self.look
        if look is not None and look.found:
            times["lookup_ms"] = look.found - look.began
            if look.chunks > 0:
                times["stage_ms"] = look.ended - look.found
        if self.reported:
            times["copy_ms"] = self.reported - self.issued
            if self.scheduled:
                times["resume_ms"] = self.scheduled - self.reported
        return {name: round(max(s, 0) * 1000, 3) for name, s in times.items()}


def line(fields: dict[str, Any]) -> str:
    return "\t".join(f"{name}={_safe(value)}"
                     for name, value in fields.items()) + "\n"


def _safe(value: Any) -> str:
    return _UNSAFE.sub(lambda m: f"\\x{ord(m.group()):02x}", str(value))


class Explain:
    """Where records go when their requests end."""

    def __init__(self, counts: Counts, chunk_tokens: int,
                 folder: pathlib.Path, engine: str):
        self.counts = counts
        self.chunk_tokens = chunk_tokens
        self.folder = folder
        self.engine = engine  # its files are ENGINE-PID.log
        self._queue: queue.SimpleQueue[Record | None] = queue.SimpleQueue()
        self._file = Files(folder, engine) if self._prepare() else None
        self._thread = threading.Thread(target=self._work, daemon=True,
                                        name="larder-explain")
        self._thread.start()

    def end(self, record: Record) -> None:
        if self._queue.qsize() < WAITING_MAX:
            self._queue.put(record)

    def skip(self, request_id: str, prompt_tokens: int, why: str) -> None:
        """Of a request that goes without Larder."""
        self.end(Record(request_id, prompt_tokens, why))

    def close(self) -> None:
        self._queue.put(None)
        self._thread.join(timeout=5)

    def _prepare(self) -> bool:
        try:
            make_private(self.folder)
            remove_old(self.folder, self.engine)
            return True
        except OSError as error:
            logger.warning(
                "larder: %s: %s; `larder explain` will know nothing of this "
                "engine's requests", self.folder, error.strerror or error)
            return False

    def _work(self) -> None:
        more = True
        while more:
            batch = [self._queue.get()]
            with contextlib.suppress(queue.Empty):
                while len(batch) < 256:
                    batch.append(self._queue.get_nowait())
            more = None not in batch
            try:
                self._take([r for r in batch if r is not None])
            except Exception:
                logger.exception("larder: explain")

    def _take(self, records: list[Record]) -> None:
        lines = []
        for record in records:
            fields = record.fields(self.chunk_tokens)
            self._count(fields)
            lines.append(line(fields))
        if self._file is not None and lines:
            try:
                self._file.append("".join(lines))
            except OSError as error:
                self._file = None
                logger.warning("larder: %s: %s; `larder explain` learns no "
                               "more", self.folder, error.strerror or error)

    def _count(self, fields: dict[str, Any]) -> None:
        for name in ("lookup_ms", "stage_ms", "copy_ms", "resume_ms"):
            if name in fields:
                self.counts.time(name, fields[name])
        reason = fields["reason"]
        if reason:
            self.counts.add(f"missed_requests:{reason}")
            self.counts.add(f"missed_tokens:{reason}",
                            fields["missed_tokens"])


# ---- files ----


def make_private(folder: pathlib.Path) -> None:
    """A directory of this user's alone; OSError if it is another's."""
    folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    _node.check_own(folder, 0o077)


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass
    return True


def remove_old(folder: pathlib.Path, engine: str) -> None:
    """What processes left that ended long ago."""
    ours = re.compile(re.escape(engine) + r"-(\d+)(\.old)?\.log")
    for path in folder.iterdir():
        name = ours.fullmatch(path.name)
        with contextlib.suppress(OSError):
            if (name is not None and not _lives(int(name.group(1)))
                    and time.time() - path.lstat().st_mtime > KEEP_SECONDS):
                path.unlink()


class Files:
    """This process's lines: the newest in one file, those before in another.
    Opened for each batch, so that it may be deleted at any time."""

    def __init__(self, folder: pathlib.Path, engine: str,
                 limit: int = FILE_BYTES):
        self._path = folder / f"{engine}-{os.getpid()}.log"
        self._limit = limit

    def append(self, text: str) -> None:
        data = text.encode(errors="replace")
        fd = self._open()
        try:
            size = os.fstat(fd).st_size
            if size > 0 and size + len(data) > self._limit:
                os.close(fd)
                fd = -1
                os.replace(self._path, self._path.with_suffix(".old.log"))
                fd = self._open()
            os.write(fd, data[:self._limit])
        finally:
            if fd >= 0:
                os.close(fd)

    def _open(self) -> int:
        return os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT
                       | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
