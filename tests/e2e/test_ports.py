"""A port that somebody else has: the daemon says so before it opens anything,
or, where nobody asked for that very port, serves without it."""
import contextlib
import json
import os
import re
import socket

import pytest

from capi import OK, Node
from daemon import FAILED, refused

DEFAULT = "127.0.0.1:9464"


@contextlib.contextmanager
def taken(port=0):
    """A port that this process listens at; of the default one somebody else
    may be quicker, which is as well."""
    with socket.socket() as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with contextlib.suppress(OSError):
            one.bind(("127.0.0.1", port))
            one.listen()
        yield f"127.0.0.1:{port or one.getsockname()[1]}"


@pytest.mark.parametrize("option", ["admin", "listen"])
def test_asked_for(serve, option):
    """It is told by name, with who has it, and nothing was opened."""
    with taken() as address:
        daemon = serve(start=False, dirs=1, **{option: address})
        text = refused(daemon, code=FAILED)
        assert f"{option}: {address} is in use by " in text
        assert f"process {os.getpid()}" in text
        assert f"choose another --{option} HOST:PORT" in text
        assert ("--admin none" in text) == (option == "admin")
        assert not daemon.dirs[0].exists(), "it was opened before"
    daemon.start()
    assert daemon.dirs[0].exists()


def test_second_of_several(serve):
    """None of the others is kept, either."""
    with taken() as address:
        daemon = serve(start=False, dirs=1, listen=f"127.0.0.1:0,{address}")
        assert f"listen: {address} is in use" in refused(daemon, code=FAILED)
        assert not daemon.dirs[0].exists()


def test_default(serve, larder):
    with taken(9464):
        daemon = serve(admin=None, dirs=1)
        lines = [line for line in daemon.log().splitlines() if DEFAULT in line]
        assert len(lines) == 1, lines
        assert re.search(rf"warn.* admin: no dashboard and no /metrics: "
                         rf"{DEFAULT} is in use by .*--admin HOST:PORT",
                         lines[0])
        with Node(daemon.url()) as node:
            assert node.put("k", b"x") == OK and node.get("k")[0] == OK
        stat = larder("stat", daemon.url()).out
        assert re.search(rf"dashboard +OFF: http://{DEFAULT}/: another program "
                         "has that port", stat)
        assert json.loads(larder("stat", daemon.url(), "--json").out)[
            "admin"] == {"url": f"http://{DEFAULT}/", "on": False}
        assert "NO DASHBOARD" in larder("top", daemon.url(), "--once",
                                        "--interval", "1").out
        # As does who takes over from it.
        other = serve(start=False, admin=None, dirs=1,
                      socket=daemon.socket, listen=None)
        other.dirs = daemon.dirs
        other.start("--takeover")
        assert "no dashboard" in other.log()
        daemon.wait()


def test_its_own(serve, larder):
    daemon = serve(admin="127.0.0.1:0")
    stat = larder("stat", daemon.url()).out
    assert re.search(r"dashboard +http://127\.0\.0\.1:\d+/$", stat, re.M)
    assert "NO DASHBOARD" not in larder("top", daemon.url(), "--once",
                                        "--interval", "1").out
    none = serve(admin="none")
    assert "dashboard" not in larder("stat", none.url()).out
    assert json.loads(larder("stat", none.url(), "--json").out)[
        "admin"] is None


def test_as_a_tenant(serve, larder):
    """Who is not the daemon's user hears nothing of it."""
    daemon = serve(admin="127.0.0.1:0")
    assert "dashboard" not in larder("stat", daemon.url("tcp")).out
