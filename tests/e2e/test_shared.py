"""The shared tier: nodes with nothing in common but a directory."""
import contextlib
import math
import os
import random
import shutil
import signal
import threading
import time

import pytest

from capi import (E_SECRET, E_STALE, MISS, OK, PRESENT, Error, Node, found,
                  put_some, value_of)
from daemon import LONG, until

SHARED = 2  # LARDER_TIER_SHARED
SIZE = 60000


@pytest.fixture
def node(serve, tier):
    """Makes daemons of one tier, each with memory and disk of its own."""
    def make(name, **options):
        given = {"shared": f"dir:{tier}", "shared_poll_ms": 50,
                 "retry_ms": 200, "dirs": 1, "dram": "32M"}
        given.update(options)
        return serve(name=name, **given)
    return make


def names(count, name="k"):
    return [f"{name} {i}" for i in range(count)]


def all_there(node, count, name="k"):
    return all(node.exists(n) == OK for n in names(count, name))


def reason(larder, daemon):
    """Why the tier is not on, as `larder stat` says it."""
    return larder.json("stat", daemon.url())[0]["shared"]["reason"]


def sizes(tier):
    """Bytes of each object, and of each other file. The cleaner may remove any
    of them meanwhile."""
    objects, others = [], []
    for folder, _, files in os.walk(tier):
        is_object = os.path.basename(os.path.dirname(folder)) == "o"
        for name in files:
            with contextlib.suppress(FileNotFoundError):
                (objects if is_object else others).append(
                    os.stat(os.path.join(folder, name)).st_size)
    return objects, others


def test_cold_start(node, tier):
    """What one node has saved another, new one gives: every byte."""
    first = node("first")
    with Node(first.url()) as writer:
        put_some(writer, 200, SIZE)
        assert writer.flush(SHARED) == OK
    first.stop()
    shutil.rmtree(first.folder)

    with Node(node("second").url()) as reader:
        until(lambda: all_there(reader, 200), text="it is not found")
        assert reader.tiers(names(200)) == (0, 0, 200)
        assert found(reader, 200, SIZE) == 200
        # It is in memory now, and comes from there.
        assert reader.tiers(names(200)) == (200, 0, 0)


def test_few_files(node, tier):
    """Payload lies in objects of 8 MiB or more. A smaller one is only made by
    a flush, or where a save has waited for a second; in the long run, fewer
    than a dozen of them stay, and a few files that hold no payload."""
    daemon = node("one", dram="256M")
    payload, bursts, least = 0, 12, 8 << 20

    def count():
        """Files with enough payload, with less of it, and with none."""
        objects, others = sizes(tier)
        big = sum(size >= least for size in objects)
        return big, len(objects) - big, len(others)

    with Node(daemon.url()) as writer:
        data = random.Random(1).randbytes(1 << 20)
        began = time.monotonic()
        for burst in range(bursts):
            for i in range(32):
                value = (100 * burst + i).to_bytes(4, "little") + data
                assert writer.put(f"big {burst} {i}", value) == OK
                payload += len(value)
            assert writer.flush(SHARED) == OK
        waited = math.ceil(time.monotonic() - began)
        big, small, others = count()
        print(f"{payload >> 20} MiB in {waited} s: {big} objects, {small} "
              f"small ones, {others} other files")
        assert big > 0 and small <= bursts + waited

        def few():
            big, small, others = count()
            return big <= payload // least and small < 12 and others < 16
        until(few, 240, count)


def test_stage_and_shards(node):
    """A chunk counts only when all its shards are there."""
    first, second = node("first"), node("second")
    with Node(first.url(), shards=2) as writer, \
            Node(second.url(), shards=2) as reader:
        assert writer.put("half", b"x" * 5000) == OK  # shard 0 alone
        assert writer.flush(SHARED) == OK
        # Shard 0 can be had there, but no match counts the chunk.
        until(lambda: reader.get("half")[0] == OK, text="not found")
        assert reader.match(["half"])[1] == 0


def test_reset_reaches_all(node):
    first, second = node("first"), node("second")
    with Node(first.url()) as a, Node(second.url()) as b:
        put_some(a, 20, SIZE)
        assert a.flush(SHARED) == OK
        until(lambda: all_there(b, 20), text="not found")
        assert found(b, 20, SIZE) == 20  # b has its own copies now
        assert a.reset() == OK
        assert found(a, 20, SIZE) == 0
        until(lambda: found(b, 20, SIZE) == 0, text="b has not heard of it")
        # The space goes on.
        put_some(a, 5, SIZE, "new")
        assert a.flush(SHARED) == OK
        until(lambda: all_there(b, 5, "new"), text="not found")
        assert found(b, 5, SIZE, "new") == 5


def test_reset_while_down(node, tier):
    """A node that was not there when a space was reset hears of it before it
    gives anything of its own."""
    first, second = node("first"), node("second")
    with Node(first.url()) as a, Node(second.url()) as b:
        put_some(a, 20, SIZE)
        assert a.flush(SHARED) == OK
        until(lambda: all_there(b, 20), text="not found")
        assert found(b, 20, SIZE) == 20
        assert b.flush() == OK
    second.stop()
    with Node(first.url()) as a:
        assert a.reset() == OK
    second.start()
    with Node(second.url()) as b:
        until(lambda: found(b, 20, SIZE) == 0, text="it came back from disk")


def test_remove(node):
    first, second = node("first"), node("second", dirs=0)
    with Node(first.url()) as a, Node(second.url()) as b:
        put_some(a, 10, SIZE)
        assert a.flush(SHARED) == OK
        until(lambda: all_there(b, 10), text="not found")
        assert a.remove("k 3") == OK
        assert a.get("k 3")[0] == MISS
        until(lambda: b.exists("k 3") == MISS, text="b has not heard of it")
        assert found(b, 10, SIZE) == 9


def test_removed_stays_removed(node):
    """Loads that come while a key is being removed do not bring it back."""
    daemon = node("one")
    with Node(daemon.url()) as a, Node(daemon.url()) as b:
        put_some(a, 60, 4000)
        assert a.flush(SHARED) == OK
        current, end = ["k 0"], threading.Event()

        def load():
            while not end.is_set():
                b.get(current[0])

        loader = threading.Thread(target=load)
        loader.start()
        try:
            for name in names(60):
                current[0] = name
                assert a.remove(name) == OK
                assert a.get(name)[0] == MISS, name
        finally:
            end.set()
            loader.join()
        assert found(a, 60, 4000) == 0


def test_flush_while_others_save(node):
    """A flush is about what was saved before it: it ends however much comes
    meanwhile."""
    daemon = node("one", dirs=0)
    end, saved, much = threading.Event(), [0] * 4, bytes(1 << 19)

    def save(number):
        with Node(daemon.url()) as b:
            while not end.is_set():
                b.put(f"{number} {saved[number]}", much)
                saved[number] += 1

    savers = [threading.Thread(target=save, args=(i,)) for i in range(4)]
    with Node(daemon.url()) as a:
        for saver in savers:
            saver.start()
        try:
            until(lambda: min(saved) > 10, text="nothing is saved")
            for i in range(3):
                put_some(a, 20, SIZE, f"mine {i}")
                assert a.flush(SHARED, 10000) == OK, a.error()
        finally:
            end.set()
            for saver in savers:
                saver.join()


def test_both_save_the_same(node, tier):
    """Both succeed; one copy is kept in the end."""
    first = node("first", shared_poll_ms=50)
    second = node("second", shared_poll_ms=50)
    with Node(first.url()) as a, Node(second.url()) as b:
        threads = [threading.Thread(target=put_some, args=(n, 100, SIZE))
                   for n in (a, b)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        assert a.flush(SHARED) == OK and b.flush(SHARED) == OK
        bytes_once = sum(-(-len(value_of(f"k {i}", 1, SIZE)) // 4096) + 1
                         for i in range(100)) * 4096

        def live():
            return sum(sizes(tier)[0])
        until(lambda: live() <= bytes_once * 1.15,
              text=lambda: f"{live()} bytes, {bytes_once} once")
        assert found(a, 100, SIZE) == found(b, 100, SIZE) == 100


def test_not_a_tier(serve, tmp_path):
    """Nothing is written beneath an unmounted mount point."""
    path = tmp_path / "empty"
    path.mkdir()
    daemon = serve(shared=f"dir:{path}", retry_ms=100)
    with Node(daemon.url()) as n:
        put_some(n, 20, SIZE)
        assert n.flush(SHARED) != OK
        assert found(n, 20, SIZE) == 20
    assert list(path.iterdir()) == []
    assert "larder tier create" in daemon.log()
    assert daemon.metrics().sum("larder_shared_on", operation="read") == 0


def test_gone_and_back(node, tier, tmp_path):
    """The tier goes while it is used: the node goes on, and it comes back."""
    daemon = node("one", dirs=0)
    with Node(daemon.url()) as n:
        put_some(n, 20, SIZE)
        assert n.flush(SHARED) == OK
        away = tmp_path / "away"
        tier.rename(away)
        until(lambda: daemon.metrics().sum("larder_shared_on",
                                           operation="read") == 0)
        put_some(n, 20, SIZE, "meanwhile")
        assert found(n, 20, SIZE, "meanwhile") == 20
        away.rename(tier)
        until(lambda: daemon.metrics().sum("larder_shared_on",
                                           operation="write") == 1)
        assert n.flush(SHARED) == OK
    with Node(node("two", dirs=0).url()) as other:
        until(lambda: all_there(other, 20, "meanwhile"), text="not found")
        assert found(other, 20, SIZE, "meanwhile") == 20


def test_offers_of_a_takeover(node, tier, tmp_path):
    """What the old daemon could not write any more is written by the new one,
    once somebody opens its space: until then nobody has told it the key."""
    first = node("first", dirs=0)
    away = tmp_path / "away"
    with Node(first.url()) as a:
        tier.rename(away)
        until(lambda: first.value("larder_shared_on", operation="read") == 0)
        put_some(a, 20, SIZE)
    second = node("second", dirs=0, socket=first.socket, start=False)
    second.start("--takeover")
    first.wait()
    away.rename(tier)
    assert second.value("larder_shared_waiting_shards") == 20
    time.sleep(2.5)  # each space is looked at after a second
    assert second.value("larder_shared_waiting_shards") == 20
    with Node(second.url()) as b:
        assert found(b, 20, SIZE) == 20
        until(lambda: second.value("larder_shared_on",
                                   operation="write") == 1)
        assert b.flush(SHARED) == OK
    with Node(node("third", dirs=0).url()) as other:
        until(lambda: all_there(other, 20), text="not found")
        assert found(other, 20, SIZE) == 20


def test_damage_is_a_miss(node, tier):
    first = node("first")
    with Node(first.url()) as a:
        put_some(a, 50, SIZE)
        assert a.flush(SHARED) == OK
    rng = random.Random(7)
    for path in tier.rglob("o/*/*"):
        data = bytearray(path.read_bytes())
        for _ in range(5):
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        path.write_bytes(data)
    with Node(node("second").url()) as b:
        until(lambda: all_there(b, 50), text="not found")
        got = found(b, 50, SIZE)  # compares every byte of what it gets
        assert got < 50


def test_forged_manifests(node, tier):
    """Manifests that somebody without the secret has made say nothing."""
    first = node("first")
    with Node(first.url()) as a:
        put_some(a, 10, SIZE)
        assert a.flush(SHARED) == OK
    folder = next(tier.rglob("m"))
    for path in list(folder.iterdir()):
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
    second = node("second")
    with Node(second.url()) as b:
        until(lambda: "manifest" in second.log(), text=second.log)
        assert found(b, 10, SIZE) == 0


def test_another_secret_is_refused(node, larder):
    """By name; the engine starts all the same, with what the node itself has.
    Whoever comes with the right one has it."""
    first, second, third = (node(name, config="[tenant a]\n")
                            for name in ("first", "second", "third"))

    def client(daemon, secret):
        return Node(daemon.url(tenant="a"), tenant="a", secret=secret)

    with client(first, b"one" * 8) as a:
        put_some(a, 10, SIZE)
        assert a.flush(SHARED) == OK
    with client(second, b"two" * 8) as b:
        until(lambda: "another secret" in second.log(), text=second.log)
        assert "another secret" in reason(larder, second)
        put_some(b, 5, SIZE, "own")
        assert found(b, 5, SIZE, "own") == 5
        assert b.flush(SHARED) != OK
    with client(third, b"one" * 8) as c:
        until(lambda: all_there(c, 10), text="not found")


def test_forged_check_value(node, tier, larder):
    """One that says that the secret is another: the part is off until it is
    right again, and nobody is kept from starting."""
    with Node(node("first").url()) as a:
        put_some(a, 10, SIZE)
        assert a.flush(SHARED) == OK
    check, = [p for p in tier.rglob("check") if p.is_file()]
    good = check.read_bytes()
    check.write_bytes(good[:40] + bytes([good[40] ^ 1]) + good[41:])
    second = node("second")
    with Node(second.url()) as b:
        assert found(b, 10, SIZE) == 0
        put_some(b, 5, SIZE, "own")
        assert found(b, 5, SIZE, "own") == 5
        assert "another secret" in reason(larder, second)
        check.write_bytes(good)
        until(lambda: all_there(b, 10), text="it is still off")
        assert b.flush(SHARED) == OK
    with Node(node("third").url()) as c:
        until(lambda: all_there(c, 5, "own"), text="not found")


def test_junk_in_the_place_of_the_check_value(node, tier):
    """Whoever can write to the storage does not keep engines from starting:
    that tenant's part is off, and says why."""
    with Node(node("first").url()) as a:
        put_some(a, 10, SIZE)
        assert a.flush(SHARED) == OK
    checks = [p for p in tier.rglob("check") if p.is_file()]
    assert len(checks) == 1
    good = checks[0].read_bytes()
    checks[0].write_bytes(os.urandom(64))
    second = node("second")
    with Node(second.url()) as b:
        assert found(b, 10, SIZE) == 0
        put_some(b, 5, SIZE, "own")
        assert found(b, 5, SIZE, "own") == 5
        assert "check value" in second.log()
        # It is looked at again.
        checks[0].write_bytes(good)
        until(lambda: all_there(b, 10), text="it is still off")


def test_secret_file(node, tmp_path, larder):
    """Clients with the same secret share; one without is told so, and has
    nothing to do with what they saved."""
    files = [tmp_path / name for name in "ab"]
    for file in files:  # each host has its own
        file.write_text("5ecret that two hosts have\n")
        file.chmod(0o600)
    first = node("first", secret_file=files[0])
    second = node("second", secret_file=files[1])
    with Node(f"{first.url()}?secret_file={files[0]}") as a, \
            Node(f"{second.url()}?secret_file={files[1]}") as b:
        put_some(a, 10, SIZE)
        assert a.flush(SHARED) == OK
        until(lambda: all_there(b, 10), text="not found")
        assert found(b, 10, SIZE) == 10
        # A node knows one secret of each tenant.
        with pytest.raises(Error) as caught:
            Node(first.url())
        assert caught.value.status == E_SECRET
    third = node("third")
    with Node(third.url()) as c, Node(third.url(), b"other space"):
        until(lambda: "another secret" in reason(larder, third),
              text=lambda: reason(larder, third))
        assert found(c, 10, SIZE) == 0
    assert third.log().count("tenant 'default' has no secret") == 1
    assert "has no secret" not in first.log() + second.log()
    assert "5ecret" not in first.log() + second.log() + third.log()


@pytest.mark.parametrize("text, mode, why", [
    (None, 0, "cannot read the secret file"),
    ("", 0o600, "no secret in it"), ("\n", 0o600, "no secret in it"),
    ("short", 0o600, "too short"), ("x" * 2000, 0o600, "too long"),
    ("x" * 32, 0o644, "chmod o-rwx")])
def test_secret_file_of_no_use(tmp_path, text, mode, why):
    """Known when the handle is opened, whether there is a node or not."""
    file = tmp_path / "secret"
    if text is not None:
        file.write_text(text)
        file.chmod(mode)
    for url in (f"unix:{tmp_path}/none?connect=lazy&", "embed:?dram=8M&"):
        with pytest.raises(Error) as caught:
            Node(f"{url}secret_file={file}")
        assert why in str(caught.value) and str(file) in str(caught.value)


def test_encrypted(node, tier, tmp_path, larder):
    key = tmp_path / "key"
    key.write_text("5a" * 32 + "\n")
    key.chmod(0o600)
    first = node("first", shared_key=key)
    marker = b"this must not be readable by others" * 200
    with Node(first.url()) as a:
        assert a.put("secret", marker) == OK
        put_some(a, 10, SIZE)
        assert a.flush(SHARED) == OK
    for path in tier.rglob("*"):
        if path.is_file():
            assert marker[:35] not in path.read_bytes()
    with Node(node("second", shared_key=key).url()) as b:
        until(lambda: all_there(b, 10), text="not found")
        assert b.get("secret")[2] == marker
        assert found(b, 10, SIZE) == 10
    key.write_text("a5" * 32 + "\n")
    third = node("third", shared_key=key)
    with Node(third.url()) as c:
        assert found(c, 10, SIZE) == 0
        assert "another key" in reason(larder, third)


def test_budget(node, tier):
    """The tier keeps within its size, and what was used last stays although it
    was saved first. The node that looks has nothing of it in memory."""
    each = 9  # more than 8 MiB: none is made one with others

    def big(name):
        return random.Random(name).randbytes(1 << 20)

    def there(n, turn):
        """How many of the turn's: all right."""
        got = [(name, n.get(name, 2 << 20)) for name in names(each, turn)]
        assert all(status in (OK, MISS) for _, (status, _, _) in got)
        assert all(value == big(name) for name, (status, _, value) in got
                   if status == OK)
        return sum(status == OK for _, (status, _, _) in got)

    writer = node("writer", dram="128M", dirs=0)
    with Node(writer.url()) as n:
        for turn in range(6):
            for name in names(each, f"turn {turn}"):
                assert n.put(name, big(name)) == OK
            assert n.flush(SHARED) == OK
    writer.stop()  # it has no budget, and would be the one that cleans up
    reader = node("reader", dirs=0)
    with Node(reader.url()) as n:
        until(lambda: all_there(n, each, "turn 0"), text="not found")
        time.sleep(1.1)  # uses are told by the second
        assert there(n, "turn 0") == each
        assert n.put("and", b"this") == OK  # which tells of the use as well
        assert n.flush(SHARED) == OK
    reader.stop()

    def size():
        return sum(sizes(tier)[0])
    assert size() > 48 << 20
    with Node(node("third", shared_max="24M", dirs=0).url()) as n:
        until(lambda: size() <= 24 << 20, text=lambda: f"{size()} bytes")
        assert n.tiers(names(each, "turn 0")) == (0, 0, each)
        assert there(n, "turn 0") == each
        assert sum(there(n, f"turn {i}") for i in range(1, 6)) < 24 - each


def test_slow(node, tier, larder):
    """Storage that answers, but too slowly to be of use: the tier is turned
    off, says why, and is used again by itself."""
    with Node(node("first").url()) as writer:
        put_some(writer, 64, SIZE)
        assert writer.flush(SHARED) == OK
    # The first of what it reads are the tier's id, manifests and the like.
    daemon = node("cold", dirs=0, shared_slow_ms=10, retry_ms=100,
                  env={"LARDER_FAULTS": "dir_slow:1:40"})
    with Node(daemon.url()) as reader:
        def off():
            found(reader, 64, SIZE)  # right, or not there
            return "slow" in reason(larder, daemon)
        until(off, text=lambda: reason(larder, daemon))
        assert "shared_slow_ms is 10" in reason(larder, daemon)
        assert daemon.value("larder_shared_on") == 0
        until(lambda: daemon.value("larder_shared_on") == 2,
              text="it does not come back")
        until(lambda: found(reader, 64, SIZE) == 64,
              text="it is not used again")
        assert reason(larder, daemon) == ""


def test_killed_writers(node, tier):
    """kill -9 of a writer at random: nothing wrong is served, and what was
    flushed stays."""
    turns = 50 if LONG else 20
    rng = random.Random(50)
    reader = node("reader", dirs=0)
    kept = []
    with Node(reader.url()) as r:
        for turn in range(turns):
            writer = node(f"w{turn}", dirs=0)
            writer.clean = False
            with Node(writer.url()) as w:
                put_some(w, 8, SIZE, f"turn {turn}")
                if turn % 5 == 0:
                    assert w.flush(SHARED) == OK
                    kept.append(f"turn {turn}")
                else:
                    time.sleep(rng.random() * 0.05)  # anywhere in its work
                    w.lib.larder_flush(w.node, SHARED, rng.randrange(1, 60))
                writer.signal(signal.SIGKILL)
                writer.process.wait()
            found(r, 8, SIZE, f"turn {turn}")  # right, or not there
        with Node(node("cold", dram="64M", dirs=0).url()) as cold:
            for one in (r, cold):
                for name in kept:
                    until(lambda n=name, o=one: found(o, 8, SIZE, n) == 8,
                          text=f"{name} was lost")
                # All of them: right, or not there.
                there = [found(one, 8, SIZE, f"turn {turn}")
                         for turn in range(turns)]
                assert sum(there) >= 8 * len(kept), there


@pytest.mark.parametrize("seconds", [
    int(os.environ.get("LARDER_SHARED_SECONDS", 60 if LONG else 20))])
def test_all_at_once(node, tier, seconds):
    """Two writers, a cleaner that has much to do and three readers, while the
    storage fails now and then: no byte is wrong, nothing hangs."""
    writers = [node(f"w{i}", shared_max="16M", dirs=0, env={
        "LARDER_FAULTS": f"dir_write:{15 + i}:2,dir_sync:{40 + i}:4,"
                         f"dir_rename:30:2,dir_short:{5 + i}:50,"
                         "dir_full:300:1"}) for i in range(2)]
    readers = [node(f"r{i}", dirs=0, dram="8M", shared_max="16M", env={
        "LARDER_FAULTS": f"dir_read:{20 + 7 * i}:5,dir_stale:50:4,"
                         "dir_short:10:50"}) for i in range(3)]
    # Some three times what the tier may hold; whoever has the role cleans.
    end = time.monotonic() + seconds
    errors, reads = [], [0, 0]
    lock = threading.Lock()

    def write(daemon, seed):
        rng = random.Random(seed)
        with Node(daemon.url()) as n:
            while time.monotonic() < end:
                i = rng.randrange(2000)
                status = n.put(f"k {i}", value_of(f"k {i}", 1, SIZE))
                if status not in (OK, PRESENT, E_STALE):
                    errors.append(f"put: {status}: {n.error()}")
                if rng.randrange(200) == 0:
                    n.flush(SHARED, 2000)

    def read(daemon, seed):
        rng = random.Random(seed)
        with Node(daemon.url()) as n:
            while time.monotonic() < end:
                i = rng.randrange(2000)
                status, _, value = n.get(f"k {i}", timeout_ms=3000)
                if status == OK and value != value_of(f"k {i}", 1, SIZE):
                    errors.append(f"k {i}: wrong bytes")
                if status not in (OK, MISS):
                    errors.append(f"get: {status}: {n.error()}")
                with lock:
                    reads[status == OK] += 1

    def harm():
        rng = random.Random(99)
        while time.monotonic() < end:
            time.sleep(0.2)
            files = [p for p in tier.rglob("o/*/*") if p.is_file()]
            if not files:
                continue
            victim = rng.choice(files)
            try:
                what = rng.randrange(3)
                if what == 0:
                    victim.unlink()
                elif what == 1:
                    os.truncate(victim, victim.stat().st_size // 2)
                else:
                    with open(victim, "r+b") as f:
                        f.seek(rng.randrange(victim.stat().st_size))
                        f.write(b"\xff\x00\xff")
            except OSError:
                pass

    threads = [threading.Thread(target=write, args=(w, i))
               for i, w in enumerate(writers)]
    threads += [threading.Thread(target=read, args=(r, 10 + i))
                for i, r in enumerate(readers)]
    threads.append(threading.Thread(target=harm))
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not errors, errors[:5]
    assert reads[1] > 0, "nobody ever hit"
    # What the test is about did happen: more than fits was written, and one of
    # them removed it; storage failed for both sides, and readers came across
    # what was harmed or gone.
    written = sum(w.value("larder_shared_moved_bytes_total",
                          operation="write") for w in writers)
    cleaned = sum(d.value("larder_shared_cleaned_bytes_total")
                  for d in writers + readers)
    assert written > 16 << 20 and cleaned > 0, (written, cleaned)
    for what, daemons in (("write", writers), ("read", readers)):
        failed = [d.value("larder_shared_errors_total", operation=what)
                  for d in daemons]
        assert sum(failed) > 0, (what, failed)
    lost = sum(r.value("larder_shared_lost_total") for r in readers)
    assert lost > 0, "no reader met what was harmed"
