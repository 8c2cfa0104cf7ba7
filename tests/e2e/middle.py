"""Somebody between a client and a daemon, who passes everything on but the
hello and its answer: those say what the test wants, so that each side takes the
other for one of another version. Descriptors are passed on, too."""
import contextlib
import os
import socket
import struct
import threading

import wireclient as w

WELCOME = struct.Struct("<HHQQ32s64s")
HELLO = struct.Struct("<HHQ32s64s64s")
PIECE = 1 << 18


class Middle:
    """hello(low, high, features) gives what the daemon shall hear,
    welcome(version, features) what the client shall. What each really said is
    in .hellos and .welcomes; .frames has (opcode, bytes of the body) of all
    that went to the daemon by socket. refuse: (status, text), instead of a
    welcome."""

    def __init__(self, daemon, transport, folder, *, hello=None, welcome=None,
                 refuse=None):
        self.daemon = daemon.address(transport)
        self.family = (socket.AF_UNIX if transport == "unix"
                       else socket.AF_INET)
        self.hello, self.welcome, self.refuse = hello, welcome, refuse
        self.hellos, self.welcomes, self.frames = [], [], []
        self.failed = []
        self.threads, self.open = [], []
        self.listener = socket.socket(self.family)
        if transport == "unix":
            path = f"{folder}/middle-{id(self)}"
            self.listener.bind(path)
            self.url = f"unix:{path}"
        else:
            self.listener.bind(("127.0.0.1", 0))
            self.url = f"tcp://127.0.0.1:{self.listener.getsockname()[1]}"
        self.listener.listen(16)
        self._run(self._accept)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
        assert not self.failed, self.failed

    def close(self):
        with contextlib.suppress(OSError):
            self.listener.shutdown(socket.SHUT_RDWR)
        self.threads[0].join()
        self.listener.close()
        self.drop()
        for thread in self.threads[1:]:
            thread.join()
        for sock in self.open:
            sock.close()

    def drop(self):
        """Ends the connections that there are."""
        for sock in list(self.open):
            _hang_up(sock)

    def _run(self, work, *args):
        thread = threading.Thread(target=work, args=args)
        self.threads.append(thread)
        thread.start()

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                client = self.listener.accept()[0]
                server = socket.socket(self.family)
                self.open += [client, server]
                server.connect(self.daemon)
                if self.family == socket.AF_INET:
                    for sock in (client, server):
                        sock.setsockopt(socket.IPPROTO_TCP,
                                        socket.TCP_NODELAY, 1)
                self._run(self._pass, client, server, self._to_daemon)
                self._run(self._pass, server, client, self._to_client)

    def _pass(self, source, target, change):
        """Frame by frame, until one side hangs up."""
        try:
            while True:
                head, fds = _read(source, w.FRAME_BYTES)
                fields = list(w.FRAME.unpack(head))
                assert fields[0] == w.MAGIC, "not a frame"
                body, more = _read(source, fields[5])
                new = change(fields, body)
                if new != body:
                    fields[5] = len(new)
                    head = w.FRAME.pack(*fields[:8], 0)[:36]
                    head += struct.pack("<I", w.crc32c(new, w.crc32c(head)))
                _send(target, head + new, fds + more)
                left = fields[6]
                while left > 0:
                    piece, fds = _read(source, min(left, PIECE))
                    _send(target, piece, fds)
                    left -= len(piece)
        except (EOFError, OSError):
            pass
        except Exception as e:  # told to the test
            self.failed.append(repr(e))
        finally:
            _hang_up(source)
            _hang_up(target)

    def _to_daemon(self, fields, body):
        self.frames.append((fields[1], len(body)))
        if fields[1] != w.HELLO:
            return body
        low, high, features, *rest = HELLO.unpack(body)
        self.hellos.append((low, high, features))
        if self.hello is not None:
            low, high, features = self.hello(low, high, features)
        return HELLO.pack(low, high, features, *rest)

    def _to_client(self, fields, body):
        if fields[1] != w.HELLO or fields[7] != w.OK:
            return body
        version, auth, features, *rest = WELCOME.unpack(body)
        self.welcomes.append((version, features))
        if self.refuse is not None:
            fields[7] = self.refuse[0] & 0xFFFFFFFF
            return self.refuse[1].encode()
        if self.welcome is not None:
            version, features = self.welcome(version, features)
        return WELCOME.pack(version, auth, features, *rest)

    def sent(self, opcode):
        """The bytes of each body that went to the daemon with it."""
        return [size for one, size in list(self.frames) if one == opcode]


def _hang_up(sock):
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)


def _read(sock, count):
    """(bytes, descriptors that came with them)"""
    data, fds = b"", []
    while len(data) < count:
        if sock.family == socket.AF_UNIX:
            more, got, _, _ = socket.recv_fds(sock, count - len(data), 8)
            fds += got
        else:
            more = sock.recv(count - len(data))
        if not more:
            raise EOFError
        data += more
    return data, fds


def _send(sock, data, fds):
    if fds:
        sent = socket.send_fds(sock, [data], fds)
        data = data[sent:]
        for fd in fds:
            os.close(fd)
    sock.sendall(data)
