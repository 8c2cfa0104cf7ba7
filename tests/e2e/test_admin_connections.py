"""Admin HTTP under peers that want to keep others out: metrics and health are
answered all the same."""
import contextlib
import re
import socket
import threading
import time

import pytest

from daemon import PATIENCE_S

PATHS = ("/healthz", "/metrics", "/readyz")
HOST = b"Host: 127.0.0.1\r\n"


def dial(stack, address, rcvbuf=None):
    one = stack.enter_context(socket.socket())
    if rcvbuf:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, rcvbuf)
    one.settimeout(PATIENCE_S)
    one.connect(address)
    return one


def address_of(daemon):
    host, port = re.match(r"http://([^:]+):(\d+)", daemon.admin).groups()
    return host, int(port)


def answers(daemon):
    for path in PATHS:
        assert daemon.http(path)


@pytest.mark.parametrize("say", (
    b"", b"GET /metr", b"GET /healthz HTTP/1.1\r\n" + HOST,
    b"POST /metrics HTTP/1.1\r\n" + HOST + b"Content-Length: 9\r\n\r\nabc"),
    ids=("nothing", "half a line", "half a head", "half a body"))
def test_half_requests(serve, say):
    """300 of them: those that are there give way."""
    daemon = serve(admin="127.0.0.1:0")
    with contextlib.ExitStack() as stack:
        for i in range(300):
            dial(stack, address_of(daemon)).sendall(say)
            if i % 60 == 59:
                answers(daemon)
        answers(daemon)


def test_replies_that_are_not_read(serve):
    """200 who ask for the whole page and do not read it."""
    daemon = serve(admin="127.0.0.1:0")
    with contextlib.ExitStack() as stack:
        for _ in range(200):
            dial(stack, address_of(daemon), 4096).sendall(
                b"GET / HTTP/1.1\r\n" + HOST + b"\r\n")
        answers(daemon)


def test_half_requests_that_go_on(serve):
    """Each says a little more now and then, and comes again when it was
    closed."""
    daemon = serve(admin="127.0.0.1:0")
    address = address_of(daemon)
    stop = threading.Event()

    def speak(stack, ones, i):
        try:
            ones[i].sendall(b"G")
            ones[i].setblocking(False)
            gone = ones[i].recv(1) == b""
        except BlockingIOError:
            gone = False
        except OSError:
            gone = True
        if gone:
            ones[i].close()
            ones[i] = dial(stack, address)

    def flood():
        with contextlib.ExitStack() as stack:
            ones = [dial(stack, address) for _ in range(300)]
            while not stop.is_set():
                for i in range(len(ones)):
                    speak(stack, ones, i)
                    time.sleep(0.0005)

    thread = threading.Thread(target=flood)
    thread.start()
    try:
        end = time.monotonic() + 2
        while time.monotonic() < end:
            answers(daemon)
    finally:
        stop.set()
        thread.join()
