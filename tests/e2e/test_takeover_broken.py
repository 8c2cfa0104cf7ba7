"""A takeover whose middle goes wrong: what the old daemon sends is cut short,
of another kind, or in another order. The new one starts all the same, and gives
right bytes or misses."""
import fcntl
import os
import socket
import struct
import threading

import pytest

import capi
import wireclient as w
from capi import found, put_some
from daemon import until
from wireclient import key_of

MANY = 100


class Between:
    """Stands where the new daemon looks for the old one; hands on its verb, the
    answer, and what change() makes of the descriptors that follow."""

    def __init__(self, path, old, change):
        self._path, self._old, self._change = path, old, change
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(path)
        self._listener.listen(1)
        self._listener.settimeout(30)
        self.error = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self):
        try:
            one, _ = self._listener.accept()
            with one:
                self._serve(one)
        except Exception as error:  # shown by who waits
            self.error = error

    def _serve(self, one):
        one.settimeout(30)
        with socket.socket(socket.AF_UNIX) as old:
            old.settimeout(30)
            old.connect(self._old)
            old.sendall(one.recv(4096))  # is it there?
            one.sendall(self._answer(old))
            old.sendall(one.recv(4096))
            answer, fds = self._answer(old), self._descriptors(old)
        self._listener.close()
        os.unlink(self._path)
        if (sent := self._change(fds)) is not None:
            one.sendall(answer)
            for fd in sent:
                socket.send_fds(one, [b"x"], [fd])
        for fd in fds:
            os.close(fd)

    @staticmethod
    def _answer(old):
        answer = b""
        while len(answer) < w.FRAME_BYTES:
            answer += old.recv(w.FRAME_BYTES - len(answer))
        body = w.FRAME.unpack(answer[:w.FRAME.size])[5]
        while len(answer) < w.FRAME_BYTES + body:
            answer += old.recv(w.FRAME_BYTES + body - len(answer))
        return answer

    @staticmethod
    def _descriptors(old):
        fds = []
        while True:
            data, more, _, _ = socket.recv_fds(old, 1, 4)
            if not data:
                return fds
            fds += more

    def wait(self):
        self._thread.join(40)
        assert not self._thread.is_alive() and self.error is None, self.error


def memory(data, seals=fcntl.F_SEAL_SHRINK):
    fd = os.memfd_create("another", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.write(fd, data)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    return fd


def unsealed(fd):
    """The same bytes, in a file that whoever has it can shrink."""
    return memory(os.pread(fd, os.fstat(fd).st_size, 0), 0)


def half_a_list(fds):
    size = os.fstat(fds[0]).st_size
    return [memory(os.pread(fds[0], size // 2, 0)), *fds[1:]]


def list_of_nothing(fds):
    size = os.fstat(fds[0]).st_size
    return [memory(bytes(size)), *fds[1:]]


# What the new daemon gets of the list and the extents, and what it says.
CHANGES = {
    "one is missing": (lambda fds: fds[:-1], "not all of its extents came"),
    "one too many": (lambda fds: [*fds, fds[-1]], "not all of its extents"),
    "only the list": (lambda fds: fds[:1], "not all of its extents came"),
    "nothing": (lambda fds: [], "took over: "),
    "the list is no memory": (lambda fds: [os.pipe()[0], *fds[1:]],
                              "took over: "),
    "half a list": (half_a_list, "is not used: its list"),
    "a list of nothing": (list_of_nothing, "is not used: its list"),
    "extents of another size": (
        lambda fds: [fds[0], *(memory(bytes(8192)) for _ in fds[1:])],
        "0 chunks with 0 bytes"),
    "extents that are none": (
        lambda fds: [fds[0], *(os.pipe()[0] for _ in fds[1:])],
        "0 chunks with 0 bytes"),
    "extents that can shrink": (
        lambda fds: [fds[0], *map(unsealed, fds[1:])],
        "0 chunks with 0 bytes"),
    "a list that can shrink": (lambda fds: [unsealed(fds[0]), *fds[1:]],
                               "took over: "),
    "another order": (lambda fds: [fds[0], *reversed(fds[1:])],
                      f"{MANY} chunks with"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_comes_is_not_right(serve, tmp_path, name):
    change, says = CHANGES[name]
    first = serve()
    with capi.Node(first.url("unix")) as node:
        put_some(node, MANY)
    path = str(tmp_path / "between")
    between = Between(path, first.socket, change)
    second = serve(start=False, socket=path)
    second.start("--takeover")
    between.wait()
    assert first.wait() == 0
    assert says in second.log(), second.log()
    with capi.Node(second.url("unix")) as node:
        # Bytes that are compared when they are first used are never wrong.
        assert found(node, MANY) == 0
        put_some(node, MANY)
        assert found(node, MANY) == MANY
    second.alive()


def test_no_answer(serve, tmp_path):
    """The old one is gone before it has answered: that is said, at once, and
    the new one serves in its place."""
    first = serve()
    path = str(tmp_path / "between")
    between = Between(path, first.socket, lambda fds: None)
    second = serve(start=False, socket=path)
    second.start("--takeover")
    assert "gone before it answered" in second.log()
    between.wait()
    assert first.wait() == 0
    second.alive()


def test_old_one_is_killed(serve):
    """Before it has handed over: the new one goes on, with what is on SSD."""
    first = serve(dirs=1)
    peer = first.enter("tcp")
    space = peer.space()
    assert peer.put_one(space, key_of("whole"), b"abc") == w.OK
    assert peer.ask(w.FLUSH, struct.pack("<I", 1)).status == w.OK
    row = w.save_row(key_of("half"), 1000)
    peer.send(w.frame(w.PUT, w.batch_body(space, [row]), payload=1000,
                      epoch=peer.epoch) + bytes(10))  # it waits for the rest
    second = serve(start=False, socket=first.socket,
                   flags=("--dir", first.dirs[0]))
    second.spawn("--takeover")
    until(lambda: "takes over" in first.log())
    first.kill()
    until(lambda: "ready: larder " in second.log(), text=second.log)
    peer = second.enter("tcp")
    space = peer.space()
    until(lambda: peer.get(space, [key_of("whole")]) == [b"abc"])
