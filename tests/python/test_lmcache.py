"""larder_kv.lmcache, called as LMCache 0.5.6 calls a native_plugin: submits
under one lock, completions by a thread that polls the descriptor.
tests/lmcache has LMCache itself."""
import contextlib
import os
import random
import select
import signal
import threading
import time

import pytest

import larder_kv
from conftest import Daemon
from daemon import PATIENCE_S, until
from larder_kv import _lib
from larder_kv.lmcache import Connector

SLACK_S = 10.0  # for a busy machine, where a call must not wait


class Bridge:
    """What NativeConnectorL2Adapter does with a plug-in."""

    def __init__(self, **params):
        self.client = Connector(**params)
        self.fd = int(self.client.event_fd())
        self.lock = threading.Lock()
        self.pending = {}
        self.done = {}
        self.slowest = 0.0
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self.demux, daemon=True)
        self.thread.start()

    def demux(self):
        poller = select.poll()
        poller.register(self.fd, select.POLLIN)
        while not self.stop.is_set():
            if not poller.poll(50):
                continue
            completions = self.client.drain_completions()
            with self.lock:
                for number, ok, error, bools in completions:
                    count = self.pending.pop(int(number))  # once
                    assert isinstance(ok, bool) and isinstance(error, str)
                    assert len(bools) == count
                    self.done[number] = ok, error, bools

    def submit(self, name, keys, *bufs):
        with self.lock:
            began = time.monotonic()
            number = int(getattr(self.client, f"submit_batch_{name}")(
                keys, *bufs))
            self.slowest = max(self.slowest, time.monotonic() - began)
            self.pending[number] = len(keys)
        return number

    def wait(self, number):
        until(lambda: number in self.done)
        return self.done.pop(number)

    def set(self, keys, values):
        return self.wait(self.submit("set", keys, views(values)))[0]

    def get(self, keys, sizes):
        bufs = [bytearray(size) for size in sizes]
        bools = self.wait(self.submit("get", keys, views(bufs)))[2]
        return [bytes(buf) if there else None
                for there, buf in zip(bools, bufs)]

    def exists(self, keys):
        return self.wait(self.submit("exists", keys))[2]

    def delete(self, keys):
        return self.wait(self.submit("delete", keys))[2]

    def close(self):
        self.stop.set()
        self.thread.join(timeout=5)
        self.client.close()


def views(values):
    return [memoryview(bytearray(v) if isinstance(v, bytes) else v)
            for v in values]


def key(number, model="m-qwen3", rank=0x01000100, group=0, salt=""):
    name = f"{model}@{rank:08x}@{group:x}@{number:064x}"
    return f"{name}@{salt}" if salt else name


@contextlib.contextmanager
def bridge(url, **params):
    one = Bridge(url=url, **params)
    try:
        yield one
    finally:
        one.close()


@pytest.mark.parametrize("transport", ["unix", "tcp"])
def test_round_trip(daemon, transport):
    rnd = random.Random(transport)
    sizes = [1, 4096, 65536, 65537, 524288, 3 << 20]
    values = [rnd.randbytes(size) for size in sizes]
    keys = [key(i) for i in range(len(sizes))]
    with bridge(daemon.url(transport)) as one:
        assert one.exists(keys) == [False] * 6
        assert one.get(keys, sizes) == [None] * 6
        assert one.set(keys, values) is True
        assert one.set(keys[:2], values[:2]) is True  # is there already
        assert one.exists([*keys, key(77)]) == [True] * 6 + [False]
        assert one.get(keys, sizes) == values
        assert one.delete([keys[1], key(77), keys[4]]) == [True, False, True]
        assert one.exists(keys) == [True, False, True, True, False, True]
        got = one.get(keys, sizes)
        assert got == [None if i in (1, 4) else values[i] for i in range(6)]
        assert one.set(keys, values) is True  # what was removed may come back
        assert one.get(keys, sizes) == values
        assert not select.select([one.fd], [], [], 0)[0]
    with bridge(daemon.url(transport)) as other:
        assert other.get(keys, sizes) == values


def test_names_apart(daemon, tmp_path):
    """Every part of LMCache's name, and the weights that it does not have."""
    names = [key(1), key(2), key(1, model="m"), key(1, model="m-qwen"),
             key(1, rank=0x02000200), key(1, rank=0x02010201),
             key(1, group=1), key(1, salt="a"), key(1, salt="b")]
    values = [bytes([i]) * 5000 for i in range(len(names))]
    with bridge(daemon.url()) as one:
        for i, name in enumerate(names):
            assert one.exists(names[i:]) == [False] * (len(names) - i)
            assert one.set([name], [values[i]]) is True
        assert one.get(names, [5000] * len(names)) == values
    with bridge(daemon.url(), weights="fp8") as one:
        assert one.exists(names) == [False] * len(names)
        assert one.set(names[:1], [b"8" * 5000])
        assert one.get(names[:1], [5000]) == [b"8" * 5000]
    secret = tmp_path / "secret"
    secret.write_text("another secret of this test, long enough\n")
    secret.chmod(0o600)
    with bridge(daemon.url(), secret_file=str(secret)) as one:
        assert one.exists(names) == [False] * len(names)  # E_SECRET
        assert one.set(names[:1], values[:1]) is False


def test_other_size_is_a_miss(daemon):
    with bridge(daemon.url()) as one:
        assert one.set([key(1), key(2)], [b"x" * 1000, b"y" * 1000])
        assert one.get([key(1), key(2)], [999, 1000]) == [None, b"y" * 1000]
        assert one.get([key(1), key(2)], [1001, 1000]) == [None, b"y" * 1000]


def test_many_at_once(daemon):
    """Threads, batches of more than a call may have, of several models, and
    of nothing; each result is at its key."""
    with bridge(daemon.url(), load_threads=4) as one:
        assert one.wait(one.submit("exists", [])) == (True, "", [])

        def work(thread):
            rnd = random.Random(thread)
            for turn in range(10):
                numbers = rnd.sample(range(10 ** 6), 40)
                names = [key(n, model=f"m{n % 3}", group=thread)
                         for n in numbers]
                values = [rnd.randbytes(rnd.choice([64, 70000]))
                          for _ in numbers]
                assert one.set(names[:30], values[:30]) is True
                sizes = [len(v) for v in values]
                assert one.get(names, sizes) == values[:30] + [None] * 10
            passed.append(thread)

        passed = []
        threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(passed) == [0, 1, 2, 3]
        many = [key(i, group=9) for i in range(_lib.BATCH_MAX + 100)]
        few = [0, 1, 77, 4095, 4096, len(many) - 1]
        assert one.set([many[i] for i in few], [b"v"] * 6) is True
        found = one.exists(many)
        assert [i for i, there in enumerate(found) if there] == few
        large = [bytes([i]) * (4 << 20) for i in range(9)]
        assert one.set([key(i, group=7) for i in range(9)], large) is True
        assert one.get([key(i, group=7) for i in range(9)],
                       [4 << 20] * 9) == large
        assert not one.pending


def test_buffers_are_used_in_place(daemon):
    """They cannot be resized while a ticket has them, and can be after it."""
    with bridge(daemon.url()) as one:
        assert one.set([key(1)], [b"z" * 4096])
        daemon.freeze()
        buf = bytearray(4096)
        number = one.submit("get", [key(1)], [memoryview(buf)])
        with pytest.raises(BufferError):
            buf.append(0)
        daemon.signal(signal.SIGCONT)
        assert one.wait(number)[2] == [True] and buf == b"z" * 4096
        buf.append(0)


def test_submits_do_not_wait(daemon):
    """For a node that does not answer, of a model that is new either: what
    they hand over waits longer."""
    ms = int(3 * SLACK_S * 1000)
    with bridge(daemon.url(timeout_ms=ms), load_ms=ms, lookup_ms=ms,
                save_ms=ms) as one:
        assert one.set([key(1)], [b"a" * 4096])
        daemon.freeze()
        numbers = [one.submit("get", [key(1)], views([bytes(4096)])),
                   one.submit("exists", [key(1)]),
                   one.submit("exists", [key(1, model="new")]),
                   one.submit("set", [key(2)], views([b"b" * 4096])),
                   one.submit("delete", [key(3)])]
        assert one.slowest < SLACK_S
        daemon.signal(signal.SIGCONT)
        assert [one.wait(number)[2] for number in numbers] == [
            [True], [True], [False], [True], [False]]


def test_what_cannot_be_handed_over(daemon):
    """Each batch has an end, also where a space is opened for it first."""
    with bridge(daemon.url()) as one:
        assert one.set([key(1)], [b"a" * 64])
        for model in ("m-qwen3", "new"):
            for buf in (object(), memoryview(b"cannot be written")):
                ok, error, there = one.wait(one.submit(
                    "get", [key(1, model=model)], [buf]))
                assert there == [False] and error
        assert one.get([key(1)], [64]) == [b"a" * 64]


def test_no_thread_for_a_new_model(daemon, monkeypatch):
    """The batch has an end, and so have later ones of the model."""
    with bridge(daemon.url()) as one:
        start = threading.Thread.start

        def refuse(thread):
            if thread.name == "larder-space":
                raise RuntimeError("can't start new thread")
            start(thread)

        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", refuse)
            for _ in range(2):
                ok, error, there = one.wait(one.submit("exists", [key(1)]))
                assert ok and there == [False] and "new thread" in error
        assert one.set([key(1)], [b"a" * 64])
        assert one.get([key(1)], [64]) == [b"a" * 64]


def test_weights_are_asked_for(daemon, caplog):
    """Their version is not in LMCache's keys: without option weights the log
    says so."""
    with caplog.at_level("INFO", "larder"):
        with bridge(daemon.url(), weights="v2"):
            assert "weights is not set" not in caplog.text
        with bridge(daemon.url()):
            assert caplog.text.count("weights is not set") == 1


def test_node_stopped(daemon):
    """Misses come by the deadline; afterwards all is as before."""
    with bridge(daemon.url(breaker_ms=1), load_ms=300, lookup_ms=300) as one:
        assert one.set([key(1)], [b"a" * 4096])
        daemon.freeze()
        numbers = [one.submit("get", [key(1)], views([bytes(4096)])),
                   one.submit("exists", [key(1)]),
                   one.submit("exists", [key(1, model="new")]),
                   one.submit("set", [key(2)], views([b"b" * 4096])),
                   one.submit("delete", [key(3)])]
        results = [one.wait(number) for number in numbers]
        assert [r[2] for r in results] == [[False]] * 5
        assert [r[0] for r in results] == [True, True, True, False, True]
        assert all(r[1] for r in results[3:])  # why
        daemon.signal(signal.SIGCONT)
        until(lambda: one.get([key(1)], [4096]) == [b"a" * 4096])
        until(lambda: one.set([key(9, model="new")], [b"n"]))


def test_node_killed(tmp_path):
    node = Daemon(os.environ["LARDER_PROGRAM"], tmp_path / "d", dirs=1)
    values = [random.Random(i).randbytes(100_000) for i in range(8)]
    keys = [key(i) for i in range(8)]
    node.start()
    try:
        with bridge(node.url(breaker_ms=10)) as one:
            assert one.set(keys, values)
            with larder_kv.open(node.url()) as other:
                other.flush()
            node.kill()
            assert one.get(keys, [100_000] * 8) == [None] * 8
            assert one.exists(keys) == [False] * 8
            assert one.set(keys, values) is False
            # A byte of the third is changed on the disk: it is a miss, and the
            # others are what they were.
            flip(node.dirs[0], values[2][5000:5064])
            node.start()
            until(lambda: any(one.exists(keys)))
            assert one.get(keys, [100_000] * 8) == [
                None if i == 2 else values[i] for i in range(8)]
            assert one.set(keys[2:3], values[2:3])
            assert one.get(keys, [100_000] * 8) == values
    finally:
        node.end()


def flip(folder, text):
    for path in folder.rglob("*"):
        data = path.read_bytes() if path.is_file() else b""
        if (at := data.find(text)) >= 0:
            with open(path, "r+b") as file:
                file.seek(at)
                file.write(bytes([data[at] ^ 0x40]))
            return
    pytest.fail("these bytes are in no file")


def test_close_with_tickets_in_flight(daemon):
    one = Bridge(url=daemon.url(timeout_ms=500))
    assert one.set([key(1)], [b"a" * 4096])
    daemon.freeze()
    bufs = [bytearray(4096) for _ in range(5)]
    for buf in bufs:
        one.submit("get", [key(1)], [memoryview(buf)])
    one.submit("exists", [key(1, model="new")])
    began = time.monotonic()
    one.close()
    assert time.monotonic() - began < PATIENCE_S / 2
    for buf in bufs:
        buf.append(0)  # nobody has them any more
    one.close()
    assert one.client.drain_completions() == []
    daemon.signal(signal.SIGCONT)


def test_too_many_tickets(daemon):
    """What the library cannot take is over at once, and is no error."""
    with bridge(daemon.url(tickets=2), load_ms=60000) as one:
        assert one.set([key(1)], [b"a" * 64])
        daemon.freeze()
        bufs = [bytearray(64) for _ in range(4)]
        numbers = [one.submit("get", [key(1)], [memoryview(b)]) for b in bufs]
        late = [one.wait(number) for number in numbers[2:]]
        assert [r[2] for r in late] == [[False]] * 2
        assert all("tickets" in r[1] for r in late)
        bufs[3].append(0)
        daemon.signal(signal.SIGCONT)
        assert [one.wait(n)[2] for n in numbers[:2]] == [[True]] * 2


@pytest.mark.parametrize("params, text", [
    ({"pages": "rank"}, "adapter_params: there is no option pages"),
    ({"host": "x"}, "adapter_params: there is no option host"),
    ({"load_ms": "soon"}, "adapter_params: "),
    ({"url": "embed:"}, "cannot share an embedded node"),
])
def test_refused(params, text):
    with pytest.raises(larder_kv.LarderError) as error:
        Connector(**params)
    assert text in str(error.value)
