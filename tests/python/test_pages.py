"""Huge pages under memory that is in use."""
import ctypes
import mmap
import pathlib
import re
import threading
import types

import pytest

from larder_kv.engine import pages

SIZE = 32 << 20
NOHUGEPAGE = 15


class Memory:
    """Anonymous, in small pages, all of it in use."""

    def __init__(self):
        self.map = mmap.mmap(-1, SIZE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.view = ctypes.c_uint8.from_buffer(self.map)
        self.base = ctypes.addressof(self.view)
        self.map.madvise(NOHUGEPAGE)
        for at in range(0, SIZE, mmap.PAGESIZE):
            self.map[at:at + 8] = at.to_bytes(8, "little")

    def huge(self):
        """Bytes of it that are in huge pages."""
        text = pathlib.Path("/proc/self/smaps").read_text()
        found = 0
        for part in re.split(r"^(?=[0-9a-f]+-[0-9a-f]+ )", text, flags=re.M):
            where = re.match(r"([0-9a-f]+)-([0-9a-f]+) ", part)
            size = re.search(r"^AnonHugePages: +(\d+) kB", part, flags=re.M)
            if (where and size and int(where[1], 16) >= self.base
                    and int(where[2], 16) <= self.base + SIZE):
                found += int(size[1]) << 10
        return found

    def check(self):
        for at in range(0, SIZE, mmap.PAGESIZE):
            assert self.map[at:at + 8] == at.to_bytes(8, "little")

    def close(self):
        del self.view
        self.map.close()


@pytest.fixture
def memory():
    one = Memory()
    yield one
    one.close()


def can_collapse():
    release = pathlib.Path("/proc/sys/kernel/osrelease").read_text()
    return (pages._allowed()
            and tuple(map(int, re.findall(r"\d+", release)[:2])) >= (6, 1))


@pytest.mark.skipif(not can_collapse(), reason="not on this kernel")
def test_put_together(memory):
    assert memory.huge() == 0
    one = pages.Huge([(memory.base, SIZE)])
    assert one.wait(60)
    first, end = pages._whole(memory.base, SIZE)
    assert memory.huge() >= (end - first) // 2  # memory may be short of them
    memory.check()
    one.close()


class Clock:
    """Every look at it is a second later."""

    def __init__(self):
        self.now = 0

    def monotonic(self):
        self.now += 1
        return self.now


@pytest.mark.skipif(not can_collapse(), reason="not on this kernel")
def test_rests(memory, monkeypatch):
    """Nine times as long as each call took."""
    rests = []

    class Stop(threading.Event):
        def wait(self, seconds):
            rests.append(seconds)
            return len(rests) == 3  # as if close() had come

    monkeypatch.setattr(pages, "time", Clock())
    monkeypatch.setattr(pages, "STEP", pages.HUGE)
    monkeypatch.setattr(pages, "threading", types.SimpleNamespace(
        Event=Stop, Thread=threading.Thread))
    one = pages.Huge([(memory.base, SIZE)])
    assert one.wait(60)
    assert rests == [9, 9, 9]
    one.close()


def test_never(memory, monkeypatch, tmp_path):
    setting = tmp_path / "enabled"
    setting.write_text("always madvise [never]\n")
    monkeypatch.setattr(pages, "SETTING", setting)
    one = pages.Huge([(memory.base, SIZE)])
    assert one.wait(60)
    assert memory.huge() == 0
    one.close()


def test_small_and_missing(monkeypatch, tmp_path):
    """Less than a huge page, nothing at all, no such kernel."""
    for regions in ([], [(4096, 4096)], [(pages.HUGE - 4096, pages.HUGE)]):
        one = pages.Huge(regions)
        assert one.wait(60)
        one.close()
    monkeypatch.setattr(pages, "SETTING", tmp_path / "missing")
    pages.Huge([(pages.HUGE, 2 * pages.HUGE)]).close()


@pytest.mark.parametrize("base, size, whole", [
    (0, pages.HUGE, (0, pages.HUGE)),
    (1, 2 * pages.HUGE, (pages.HUGE, 2 * pages.HUGE)),
    (pages.HUGE - 1, pages.HUGE, (pages.HUGE, pages.HUGE)),
])
def test_whole(base, size, whole):
    assert pages._whole(base, size) == whole


def test_ends_early(memory):
    """close() returns whatever is left to do, and nothing is lost."""
    pages.Huge([(memory.base, SIZE)] * 50).close()
    memory.check()
