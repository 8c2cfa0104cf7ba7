"""TCP on loopback, where a daemon cannot see whose a connection is: who gets in
without a token, and that nobody listens there unless it was told to."""
import os
import signal

import pytest

import wireclient as w
from daemon import until
from tenants import A, B, config

OPEN = "every user of this host gets in by tcp"


def hello(daemon, transport, tenant="default", token=None):
    with w.Peer(daemon.address(transport)) as peer:
        return peer.hello(tenant, token).status


@pytest.mark.parametrize("tenants", (
    None, "[tenant a]\nuids = any\n", "uids = any\n[tenant a]\nuids = 12345\n"),
    ids=("tokens", "uids", "everybody by the socket"))
def test_where_there_are_tenants(serve, tmp_path, tenants):
    """Nobody without one: neither as default, nor as another."""
    daemon = serve(config=config(tmp_path) if tenants is None else tenants)
    for tenant in ("default", "a", "b", "nobody"):
        assert hello(daemon, "tcp", tenant) == w.E_DENIED
    assert hello(daemon, "unix") == w.OK
    if tenants is None:
        assert hello(daemon, "tcp", "a", A) == w.OK
        assert hello(daemon, "tcp", "b", B) == w.OK
        assert hello(daemon, "tcp", "default", A) == w.E_DENIED
    assert "by tcp it needs a token (key token_file)" in daemon.log()
    assert daemon.value("larder_auth_failures_total", reason="token") >= 1
    assert OPEN not in daemon.log()


def test_where_it_is_meant(serve, tmp_path):
    daemon = serve(config=config(tmp_path), listen_open="on")
    assert hello(daemon, "tcp") == w.OK
    assert hello(daemon, "tcp", "a") == w.E_DENIED
    assert OPEN not in daemon.log()


def test_alone(serve):
    """The only tenant there is: it gets in, and the log says so, once."""
    daemon = serve(listen="127.0.0.1:0,127.0.0.2:0")
    assert hello(daemon, "tcp") == w.OK
    assert daemon.log().count(OPEN) == 1
    line = next(x for x in daemon.log().splitlines() if OPEN in x)
    for word in ("warn", "token_file", "[tenant default]", "unix socket",
                 "listen_open"):
        assert word in line


@pytest.mark.parametrize("options", (
    {"listen": None}, {"listen_open": "on"}), ids=("no tcp", "meant"))
def test_no_warning(serve, options):
    assert OPEN not in serve(**options).log()


def test_reload(serve, tmp_path):
    """A tenant that is added shuts the door, one that is taken away opens
    it."""
    daemon = serve(config=config(tmp_path))
    inside = daemon.enter("tcp", "a", A)
    assert OPEN not in daemon.log()
    for text, status in (("", w.OK), (config(tmp_path), w.E_DENIED),
                         ("", w.OK)):
        count = daemon.log().count("reloaded")
        daemon.write_config(text)
        daemon.signal(signal.SIGHUP)
        until(lambda n=count: daemon.log().count("reloaded") > n)
        assert hello(daemon, "tcp") == status
        assert daemon.log().count(OPEN) == 1
    assert inside.ask(w.PING).status == w.OK


def listening(pid):
    """The TCP ports that a process listens on."""
    inodes = set()
    for fd in os.listdir(f"/proc/{pid}/fd"):
        target = os.readlink(f"/proc/{pid}/fd/{fd}")
        if target.startswith("socket:["):
            inodes.add(target[8:-1])
    ports = set()
    for name in ("tcp", "tcp6"):
        with open(f"/proc/{pid}/net/{name}", encoding="ascii") as file:
            for line in file.readlines()[1:]:
                words = line.split()
                if words[3] == "0A" and words[9] in inodes:
                    ports.add(int(words[1].rpartition(":")[2], 16))
    return ports


def test_by_default_nothing_but_the_socket(serve):
    """As `make serve` and the node of an engine: of TCP the dashboard only."""
    daemon = serve(listen=None, admin="127.0.0.1:0")
    assert listening(daemon.pid) == {int(daemon.admin.rpartition(":")[2])}
    daemon.stop()
    daemon.given["admin"] = "none"
    daemon.start()
    assert listening(daemon.pid) == set()
