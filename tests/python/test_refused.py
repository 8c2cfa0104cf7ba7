"""A node that begins to refuse an engine: one warning in the engine's log, not
one a request, a status in every call, and counters on both sides."""
import contextlib
import os
import signal
import socket
import threading
import time

import pytest

from daemon import Daemon, free_port, until
from larder_kv import _lib

WARNING = 1
CALLS = 50


class Engine:
    """Who asks again and again, and keeps what was logged."""

    def __init__(self, url):
        self.said = []
        self.node = _lib.Node(f"{url}connect=lazy&breaker_ms=20",
                              lambda *line: self.said.append(line))

    def ask(self):
        try:
            self.node.stats()
            return 0
        except _lib.LarderError as error:
            return error.status

    def until(self, status):
        until(lambda: self.ask() == status, 30,
              lambda: f"the last status is {self.ask()}, not {status}")

    def warned(self, text):
        return sum(level == WARNING and text in line
                   for level, line in self.said)


@contextlib.contextmanager
def engine(url):
    one = Engine(url)
    try:
        yield one
    finally:
        one.node.close()


@pytest.mark.parametrize("transport", ["unix", "tcp"])
def test_token_is_changed(tmp_path, transport):
    files = {who: tmp_path / who for who in ("node", "engine")}
    for path in files.values():
        path.write_text("a-token-of-a-0123456789abcdef0123456\n")
        path.chmod(0o600)
    port = free_port()
    daemon = Daemon(os.environ["LARDER_PROGRAM"], tmp_path / "daemon",
                    listen=f"127.0.0.1:{port}",
                    config=f"[tenant a]\ntoken_file = {files['node']}\n")
    daemon.start()
    where = (f"unix:{daemon.socket}" if transport == "unix"
             else f"tcp://127.0.0.1:{port}")
    with contextlib.ExitStack() as stack:
        stack.callback(daemon.end)
        one = stack.enter_context(engine(
            f"{where}?tenant=a&token_file={files['engine']}&"))
        assert one.ask() == 0
        daemon.stop()
        one.until(_lib.E_OFFLINE)  # the gate is shut, for another reason
        files["node"].write_text("b-token-of-a-0123456789abcdef0123456\n")
        daemon.start()
        one.until(_lib.E_DENIED)
        for _ in range(CALLS):
            assert one.ask() == _lib.E_DENIED
            time.sleep(0.002)
        assert one.warned("does not let this client in as tenant 'a'") == 1
        assert daemon.value("larder_auth_failures_total", reason="token") >= 1
        until(lambda: "refused as tenant 'a': the token is not right"
              in daemon.log())
        files["node"].write_text("a-token-of-a-0123456789abcdef0123456\n")
        daemon.signal(signal.SIGHUP)
        one.until(0)
        stats = one.node.stats()
        assert stats.client_denied >= 2 and stats.client_version == 0
        assert one.warned("does not let this client in") == 1


def test_without_a_token(tmp_path):
    """Who has none is refused by the node, too: it counts it, and says why."""
    token = tmp_path / "token"
    token.write_text("a-token-of-a-0123456789abcdef0123456\n")
    token.chmod(0o600)
    daemon = Daemon(os.environ["LARDER_PROGRAM"], tmp_path / "daemon",
                    config=f"[tenant a]\ntoken_file = {token}\n")
    daemon.start()
    with contextlib.ExitStack() as stack:
        stack.callback(daemon.end)
        with pytest.raises(_lib.LarderError, match="token_file=") as error:
            _lib.Node(daemon.url("tcp", tenant="a"), lambda *_: None)
        assert error.value.status == _lib.E_DENIED
        assert daemon.value("larder_auth_failures_total", reason="token") == 1
        until(lambda: "refused as tenant 'a'" in daemon.log())


def test_somebody_else_listens(tmp_path):
    """The port was given to another program, and back."""
    port = free_port()
    daemon = Daemon(os.environ["LARDER_PROGRAM"], tmp_path / "daemon",
                    listen=f"127.0.0.1:{port}")

    def answer(listener):
        with contextlib.suppress(OSError):
            while True:
                with listener.accept()[0] as peer:
                    peer.recv(1000)
                    peer.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n" * 10)

    with contextlib.ExitStack() as stack:
        stack.callback(daemon.end)
        one = stack.enter_context(engine(f"tcp://127.0.0.1:{port}?"))
        assert one.ask() == _lib.E_OFFLINE
        listener = socket.create_server(("127.0.0.1", port))
        thread = threading.Thread(target=answer, args=(listener,))
        thread.start()
        one.until(_lib.E_VERSION)
        for _ in range(CALLS):
            assert one.ask() == _lib.E_VERSION
            time.sleep(0.002)
        assert one.warned("does not speak Larder's protocol") == 1
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()
        daemon.start()
        one.until(0)
        stats = one.node.stats()
        assert stats.client_version >= 2 and stats.client_denied == 0
