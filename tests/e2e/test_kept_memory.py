"""Clients that keep memory: stopped, deaf, gone but not quite. Others get their
share, and what is kept is given back or counted."""
import fcntl
import os
import signal
import time

import pytest

import wireclient as w
from daemon import fork, gone, in_child, until
from tenants import A, B, config, fill, value_of
from wireclient import batch_body, crc32c, extent_body, key_of, save_row

MIB = 1 << 20
DRAM = 32 * MIB
SIZE = 400000
F_ADD_SEALS, F_SEAL_WRITE, F_SEAL_FUTURE_WRITE = 1033, 8, 16


def shared_bytes(daemon):
    """Of the daemon's memory, what lies in files: arena, windows, rings."""
    with open(f"/proc/{daemon.pid}/status") as file:
        for line in file:
            if line.startswith("RssShmem:"):
                return int(line.split()[1]) * 1024


def file_bytes(fd):
    return os.fstat(fd).st_blocks * 512


def keep(daemon, how):
    """A process of tenant a that fills the arena and keeps what it has; on
    SIGUSR1 it looks at what it has leased, and ends with 0 if all is right.
    Gives its pid once it is there."""
    read_fd, write_fd = os.pipe()

    def work():
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
        a = w.Peer(daemon.socket).enter("a", A).attach()
        space = a.space("s")
        names = fill(a, space, "a", 100, SIZE)
        leases = []
        if "leases" in how:
            leases = [a.lease(space, key_of(n)) for n in names]
            leases = [(n, r) for n, r in zip(names, leases)
                      if r.status == w.OK]
            assert len(leases) > 60
        if "hangs up" in how:
            a.sock.close()
        if "stopped" in how:
            os.write(write_fd, b"x")
            os.kill(os.getpid(), signal.SIGSTOP)
        else:
            os.write(write_fd, b"x")
        assert signal.sigwait([signal.SIGUSR1]) == signal.SIGUSR1
        for name, r in leases:
            at = int(name.split()[1]) % 4
            assert a.read_segs(r.segs) == value_of(f"a {at}", SIZE), name

    pid = fork(work)
    os.close(write_fd)
    assert os.read(read_fd, 1) == b"x"
    os.close(read_fd)
    return pid


@pytest.mark.parametrize("how", (
    "stopped", "deaf", "hangs up", "stopped with leases", "deaf with leases",
    "hangs up with leases"))
def test_who_keeps_memory_starves_nobody(serve, tmp_path, how):
    """a has all of the arena and lets go of nothing. b saves and loads within
    its half all the same; a's leases stay right; and what a keeps counts."""
    daemon = serve(config=config(tmp_path), dram="32M", dirs=1)
    pid = keep(daemon, how)
    try:
        def work():
            b = w.Peer(daemon.socket).enter("b", B).attach()
            space = b.space("s")
            stored, others = 0, []
            for i in range(30):
                value = value_of(f"b {i}", SIZE)
                r = b.ring_ask(w.RESERVE, batch_body(space, [save_row(
                    key_of(f"b {i}"), SIZE)]), arg=10000).result
                if r.status == w.OK:
                    b.write_segs(r.segs, value)
                    stored += b.commit(r.lease, crc32c(value)).status == w.OK
                else:
                    others.append((i, r.status))
            found = sum(b.shm_get(space, key_of(f"b {i}"))[0]
                        == value_of(f"b {i}", SIZE) for i in range(30))
            return stored, found, others

        stored, found, others = in_child(work)
        assert stored == 30, others
        assert found >= 25, "b's own half holds nearly all of them"
        kept = daemon.value("larder_tenant_overdue_bytes", tenant="a")
        assert 0 < kept <= DRAM // 2
        assert daemon.value("larder_tenant_overdue_bytes", tenant="b") == 0
        assert "does not give memory back that another" in daemon.log()
        if "leases" not in how:
            assert shared_bytes(daemon) <= DRAM + 8 * MIB
        os.kill(pid, signal.SIGCONT)
        os.kill(pid, signal.SIGUSR1)
        assert os.waitpid(pid, 0)[1] == 0, "what a had leased has changed"
        pid = None
    finally:
        if pid is not None:
            gone(pid)
    until(lambda: daemon.value("larder_tenant_overdue_bytes", tenant="a") == 0,
          text="a is gone, and still counts")
    until(lambda: shared_bytes(daemon) <= DRAM + 8 * MIB)


def test_who_keeps_memory_gets_no_more(serve, tmp_path):
    """What a keeps is part of its share: others' memory is not its next."""
    daemon = serve(config=config(tmp_path), dram="32M")
    pid = keep(daemon, "deaf")
    try:
        def of_b(count):
            b = w.Peer(daemon.socket).enter("b", B).attach()
            space = b.space("s")
            for i in range(count):
                r = b.ring_ask(w.RESERVE, batch_body(space, [save_row(
                    key_of(f"b {i}"), SIZE)]), arg=10000).result
                assert r.status in (w.OK, w.PRESENT)
                if r.status == w.OK:
                    b.commit(r.lease, 0)
            return count

        def has_half():
            in_child(lambda: of_b(35))
            return daemon.value("larder_tenant_dram_bytes",
                                tenant="b") >= DRAM * 3 // 8

        until(has_half, text="b never got its half")
        def of_a():
            a = w.Peer(daemon.socket).enter("a", A).attach()
            fill(a, a.space("s"), "more", 100, SIZE)
            return True

        assert in_child(of_a)
        m = daemon.metrics()
        used = m.sum("larder_tenant_dram_bytes", tenant="a")
        kept = m.sum("larder_tenant_overdue_bytes", tenant="a")
        assert used + kept <= DRAM
        assert kept >= DRAM // 4
        assert m.sum("larder_tenant_dram_bytes", tenant="b") >= DRAM * 3 // 8
    finally:
        gone(pid)


@pytest.mark.parametrize("isolation", ("shared", "strict"))
def test_no_seals(serve, isolation):
    """A client cannot seal what it was handed: its memory could never be given
    back, and others of the tenant could not map it."""
    daemon = serve(dram="32M", isolation=isolation)

    def work():
        a = w.Peer(daemon.socket).enter().attach()
        space = a.space("s")
        value = value_of("x", SIZE)
        fds = []

        def extent(number, generation):
            reply = a.ask(w.EXTENT, extent_body(number, generation))
            assert reply.status == w.OK
            fds.append(os.dup(reply.fds[0]))
            reply.close_fds()

        r = a.reserve(space, key_of("x"), SIZE)
        for piece in {(s[0], s[1]) for s in r.segs}:
            extent(*piece)
        assert fds
        for fd in fds:
            for seal in (F_SEAL_WRITE, F_SEAL_FUTURE_WRITE):
                with pytest.raises(PermissionError):
                    fcntl.fcntl(fd, F_ADD_SEALS, seal)
        a.write_segs(r.segs, value)
        assert a.commit(r.lease, crc32c(value)).status == w.OK
        b = w.Peer(daemon.socket).enter().attach()
        assert b.shm_get(b.space("s"), key_of("x"))[0] == value
        return True

    assert in_child(work)


@pytest.mark.parametrize("isolation", ("shared", "strict"))
def test_sessions_that_come_and_go_keep_nothing(serve, isolation):
    """Who takes a window or a ring, says that it has unmapped it, hangs up and
    keeps the descriptor has an empty file."""
    daemon = serve(dram="32M", isolation=isolation, strict_window="1M")

    def work():
        kept = []
        for turn in range(20):
            a = w.Peer(daemon.socket).enter()
            reply = a.ask(w.ATTACH, w.attach_body())
            assert reply.status == w.OK, reply.text
            kept += [os.dup(reply.fds[0])]
            reply.close_fds()
            if isolation == "strict":
                reply = a.ask(w.EXTENT, extent_body(0x80000000, 1))
                kept.append(os.dup(reply.fds[0]))
                reply.close_fds()
            if turn % 2 == 0:
                a.ask(w.REVOKED, extent_body(0xffffffff, 0))
            else:
                a.send(b"garbage" * 100)  # the daemon ends it
            a.sock.close()
        return sum(map(file_bytes, kept)), until_empty(kept)

    def until_empty(fds):
        until(lambda: sum(map(file_bytes, fds)) <= limit,
              text=f"{sum(map(file_bytes, fds))} bytes are kept")
        return sum(map(file_bytes, fds))

    # Windows of those that did not say so stay, and are counted; of a ring the
    # page with its positions.
    limit = 20 * 4096 + (10 * MIB if isolation == "strict" else 0)
    before, after = in_child(work)
    assert after <= limit


def test_revoked_is_believed_and_costs_nothing(serve, tmp_path):
    """Who says REVOKED and keeps its mappings keeps empty memory."""
    daemon = serve(config=config(tmp_path), dram="32M")
    read_fd, write_fd = os.pipe()

    def liar():
        a = w.Peer(daemon.socket).enter("a", A).attach()
        fill(a, a.space("s"), "a", 100, SIZE)
        os.write(write_fd, b"x")
        while True:
            a.ask(w.PING)
            for f in a.told:
                if f.opcode == w.REVOKE:
                    piece = w.struct.unpack("<IIQQ", f.body)[:2]
                    a.ask(w.REVOKED, extent_body(*piece))
            a.told.clear()
            time.sleep(0.01)

    def mapped(pid):
        """Of the arena, what the process has in its memory."""
        total, inside = 0, False
        with open(f"/proc/{pid}/smaps") as file:
            for line in file:
                if "-" in line.split()[0]:
                    inside = "larder-extent" in line
                elif inside and line.startswith("Rss:"):
                    total += int(line.split()[1]) * 1024
        return total

    pid = fork(liar)
    try:
        assert os.read(read_fd, 1) == b"x"
        assert mapped(pid) > DRAM * 3 // 4

        def work():
            b = w.Peer(daemon.socket).enter("b", B).attach()
            space = b.space("s")
            for i in range(35):
                r = b.ring_ask(w.RESERVE, batch_body(space, [save_row(
                    key_of(f"b {i}"), SIZE)]), arg=10000).result
                assert r.status in (w.OK, w.PRESENT)
                if r.status == w.OK:
                    b.commit(r.lease, 0)
            return True

        # As b gets its half, a loses that, though it has it mapped.
        until(lambda: in_child(work) and mapped(pid) <= DRAM * 5 // 8,
              text="a keeps more than its share")
    finally:
        gone(pid)
