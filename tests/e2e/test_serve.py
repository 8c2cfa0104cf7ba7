"""`larder serve` as its operator sees it: starting, stopping, reloading, being
paused, watched."""
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import tempfile
import threading
import time
import urllib.error
import urllib.request

import pytest

import capi
import wireclient as w
from capi import found, put_some
from daemon import FAILED, Child, Metrics, hear, refused, until
from wireclient import key_of

BOTH = ("unix", "tcp")
both = pytest.mark.parametrize("transport", BOTH)


# ---- starting --------------------------------------------------------------

def test_second_daemon_on_the_same_socket(serve):
    first = serve()
    second = serve(start=False, socket=first.socket)
    text = refused(second, code=FAILED)
    assert first.socket in text and "another daemon" in text
    assert "--takeover" in text and "--socket" in text
    first.alive()
    assert os.path.exists(first.socket), "the other one took it away"


def test_second_daemon_on_the_same_directory(serve):
    first = serve(dirs=1)
    second = serve(start=False)
    second.dirs = first.dirs
    text = refused(second, code=FAILED)
    assert str(first.dirs[0]) in text and "in use" in text
    first.alive()


def test_second_daemon_of_the_same_config(serve):
    """That it listens says more than that the directory is in use."""
    first = serve(dirs=1)
    second = serve(start=False, socket=first.socket)
    second.dirs = first.dirs
    text = refused(second, code=FAILED)
    assert "another daemon listens there" in text and "in use" not in text
    first.alive()


def test_socket_without_a_directory(serve, tmp_path):
    """Who may reach it is not for the daemon to guess."""
    where = tmp_path / "typo"
    text = refused(serve(start=False, socket=where / "sock"), code=FAILED)
    assert f"there is no directory {where}:" in text
    assert not where.exists()


def test_socket_that_is_a_file(serve, tmp_path):
    """It is not the daemon's to remove."""
    mine = tmp_path / "mine"
    mine.write_text("mine")
    text = refused(serve(start=False, socket=mine), code=FAILED)
    assert f"{mine}: " in text and "socket" in text.lower()
    assert mine.read_text() == "mine"


def test_second_daemon_on_the_same_port(serve):
    first = serve()
    second = serve(start=False, listen=f"127.0.0.1:{first.tcp[1]}")
    text = refused(second, code=FAILED)
    assert str(first.tcp[1]) in text and "in use" in text
    first.alive()


def test_congestion_that_cannot_be_had(serve):
    """It serves, and says so once."""
    daemon = serve(congestion="nonsense")
    lines = [line for line in daemon.log().splitlines() if "nonsense" in line]
    assert len(lines) == 1 and "congestion" in lines[0], daemon.log()
    assert "modprobe tcp_nonsense" in lines[0]
    daemon.alive()


def test_stale_socket_is_replaced(serve):
    daemon = serve()
    daemon.kill()
    assert os.path.exists(daemon.socket)
    daemon.start()
    daemon.alive()
    daemon.stop()
    assert not os.path.exists(daemon.socket)


def test_socket_path_that_is_something_else(serve):
    daemon = serve(start=False)
    with open(daemon.socket, "w", encoding="ascii") as file:
        file.write("precious")
    text = refused(daemon)
    assert daemon.socket in text
    with open(daemon.socket, encoding="ascii") as file:
        assert file.read() == "precious"


@pytest.mark.parametrize("tenant", ["default", "a"])
@pytest.mark.parametrize("address", ["0.0.0.0:0", "[::]:0"])
def test_wider_bind_needs_authentication(serve, tmp_path, address, tenant):
    """Refused with the line to add; and with that line it runs."""
    daemon = serve(start=False, listen=address)
    text = refused(daemon)
    assert "token_file = FILE" in text and "[tenant " in text
    assert "tls_client_ca" in text and address in text
    token = tmp_path / "token"
    token.write_text("0123456789abcdef0123\n")
    token.chmod(0o600)
    if address.startswith("[") and not os.path.exists("/proc/net/if_inet6"):
        return
    daemon = serve(start=False, listen=address,
                   config=f"[tenant {tenant}]\ntoken_file = {token}\n")
    daemon.token = "0123456789abcdef0123"
    daemon.start()
    port = int(re.search(r"listening: tcp://\S+:(\d+)",
                         daemon.log()).group(1))
    with w.Peer(("127.0.0.1", port)) as peer:
        assert peer.hello(tenant, "wrong-wrong-wrong-wrong").status == \
            w.E_DENIED
    with w.Peer(("127.0.0.1", port)) as peer:
        assert peer.enter(tenant, daemon.token).ask(w.PING).status == w.OK


@pytest.mark.parametrize("address", ["0.0.0.0:9464", "[::]:9464",
                                     "192.0.2.1:9464"])
def test_wider_admin_is_asked_for(serve, address):
    """Refused with the line to add and the address that needs none."""
    text = refused(serve(start=False, admin=address))
    assert f"{address} (--admin)" in text and "other hosts" in text
    assert "`admin_open = on`" in text and "127.0.0.1:9464" in text
    assert "listening" not in text and "ready" not in text


def test_wider_admin_that_was_asked_for(serve):
    """With that line it runs, and says what others see; without it a reload
    changes nothing. In a network that has nobody in it."""
    inside = ["unshare", "--net"]
    if subprocess.run([*inside, "true"], stderr=subprocess.DEVNULL,
                      check=False).returncode != 0:
        pytest.skip("needs root: a network namespace")
    daemon = serve(start=False, listen=None, admin=None,
                   config="admin = 0.0.0.0:0\nadmin_open = on\n")
    command = daemon.command()
    daemon.command = lambda: inside + command
    daemon.start()
    assert re.search(r"warn.* admin: http://0\.0\.0\.0:\d+/ is not loopback: "
                     r"other hosts can read /metrics, /healthz and /readyz ",
                     daemon.log())
    daemon.write_config("admin = 0.0.0.0:0\nlog_level = debug\n")
    daemon.signal(signal.SIGHUP)
    until(lambda: daemon.value("larder_reloads_total", outcome="failed") == 1)
    assert re.search("nothing was changed: .*admin_open = on", daemon.log())
    daemon.alive()


@pytest.mark.parametrize("flags, hints", [
    (["--dram", "many"], ["dram", "many", "64M"]),
    (["--dram", "1K"], ["dram", "1K", "2M"]),
    (["--loops", "65"], ["loops", "65", "0 to 64"]),
    (["--mode", "sometimes"], ["mode", "sometimes", "is not on"]),
    (["--mode", "observe"], ["observe", "is gone", "--trace", "larder plan"]),
    (["--frob", "1"], ["frob"]),
    (["--drma", "1G"], ["drma", "dram"]),
    (["--listen", "nowhere"], ["listen", "nowhere", "host:port"]),
    (["--socket_mode", "9"], ["socket_mode", "9"]),
    (["--log", "xml"], ["log", "xml", "json"]),
    (["--config", "/nonexistent/larder.conf"], ["/nonexistent/larder.conf"]),
    (["--dram"], ["dram"]),
    (["--tls", "on"], ["tls_cert"]),
    (["--tls_client_ca", "x"], ["tls"]),
    (["--verify", "load"], ["verify"]),
    (["--numa", "7777"], ["numa", "7777"]),
])
def test_bad_options(serve, flags, hints):
    """They name the option, the value and what it may be."""
    daemon = serve(start=False, dram=None, listen=None)
    text = refused(daemon, *flags)
    for hint in hints:
        assert hint in text
    assert len(text) < 2000


@pytest.mark.parametrize("text, hints", [
    ("dram = many\n", ["larder.conf:1", "dram", "many"]),
    ("# fine\n\nfrob = 1\n", ["larder.conf:3", "frob"]),
    ("[tenant]\n", ["larder.conf:1"]),
    ("[tenant a]\nquota = 1\n", ["larder.conf:2", "quota"]),
    ("[tenant a/b]\n", ["larder.conf:1", "a/b"]),
    ("[tenant a]\n[tenant a]\n", ["larder.conf:2", "a"]),
    ("dram 1G\n", ["larder.conf:1"]),
    ("[tenant a]\ntoken_file = /nonexistent/token\n", ["/nonexistent/token"]),
])
def test_bad_config(serve, text, hints):
    daemon = serve(start=False, config=text, dram=None)
    said = refused(daemon)
    for hint in hints:
        assert hint in said


def test_token_file_that_others_can_read(serve, tmp_path):
    token = tmp_path / "token"
    token.write_text("0123456789abcdef0123\n")
    token.chmod(0o644)
    daemon = serve(start=False,
                   config=f"[tenant a]\ntoken_file = {token}\n")
    text = refused(daemon)
    assert "chmod" in text and str(token) in text
    assert "0123456789abcdef0123" not in text


def test_options_from_everywhere(serve):
    """Flag before environment before file before default, and /config says
    which it was."""
    daemon = serve(start=False, admin="127.0.0.1:0", dram=None, ssd=None,
                   config="dram = 32M\nloops = 2\njobs = 3\n",
                   env={"LARDER_LOOPS": "1", "LARDER_JOBS": "2"},
                   flags=["--jobs", "1"])
    daemon.start()
    shown = json.loads(daemon.http("/config"))
    options = {o["name"]: o for o in shown["options"]} if isinstance(
        shown["options"], list) else shown["options"]
    for name, value, source in (("dram", "32M", "larder.conf:1"),
                                ("loops", "1", "LARDER_LOOPS"),
                                ("jobs", "1", "--jobs"),
                                ("window", "64M", "default")):
        assert str(options[name]["value"]) == value
        assert source in options[name]["source"]


def test_help_fits_a_screen(larder):
    lines = larder("serve", "--help").out.splitlines()
    assert len(lines) <= 50 and max(map(len, lines)) <= 80
    for name in ("--dram", "--socket", "--listen", "--config"):
        assert any(name in line for line in lines)


@pytest.mark.parametrize("flags", ((), ("--takeover",)))
def test_directory_of_others(serve, flags):
    """The default socket is not listened on, nor is anybody there taken over
    from, where others could have put one."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        os.chmod(folder, 0o777)
        daemon = serve(start=False, socket=None, listen=None, env={
            "RUNTIME_DIRECTORY": "", "XDG_RUNTIME_DIR": folder})
        assert f"{folder}: not a directory in which" in refused(daemon, *flags)
        assert os.listdir(folder) == []


# ---- stopping --------------------------------------------------------------

def test_sigterm_right_after_commits(serve):
    """Commits are not answered, so who made them calls them done: those that
    still lie in its ring are read before the end, even if the bell was not
    rung for them yet."""
    daemon = serve(dirs=1)
    ready = os.pipe()

    def work():
        peer = w.Peer(daemon.socket).enter().attach()
        space = peer.space()
        ends = []
        for i in range(100):
            value = capi.value_of(f"k {i}", 1, 60000)
            r = peer.reserve(space, key_of(f"k {i}"), len(value))
            peer.write_segs(r.segs, value)
            ends.append((r.lease, w.crc32c(value), w.PLAIN))
        os.kill(daemon.pid, signal.SIGSTOP)
        try:
            for end in ends:
                peer.ring.put_raw(w.frame(
                    w.COMMIT, w.ends_body([end]), epoch=peer.epoch,
                    flags=w.SILENT, seal=False), bell=False)
            os.kill(daemon.pid, signal.SIGTERM)
        finally:
            os.kill(daemon.pid, signal.SIGCONT)
        os.write(ready[1], b"x")
        signal.pause()

    child = Child(work)
    try:
        assert os.read(ready[0], 1) == b"x"
        assert daemon.wait() == 0
    finally:
        os.kill(child.pid, signal.SIGKILL)
        os.waitpid(child.pid, 0)
    daemon.start()
    peer = daemon.enter("tcp")
    space = peer.space()
    for i in range(100):
        assert peer.get(space, [key_of(f"k {i}")]) == [
            capi.value_of(f"k {i}", 1, 60000)]
    for fd in ready:
        os.close(fd)


@both
def test_sigterm_keeps_what_was_saved(serve, transport):
    """Everything that was accepted is on the disk afterwards."""
    daemon = serve(dirs=2, sync_ms=60000)
    with capi.Node(daemon.url(transport)) as node:
        put_some(node, 200)
    daemon.stop()
    daemon.start()
    with capi.Node(daemon.url(transport)) as node:
        assert found(node, 200) == 200


@both
def test_sigterm_while_clients_work(serve, transport):
    """Requests under way are answered; who comes afterwards is told so. The
    SSD tier is complete: what the daemon has seen saved is there. (By shared
    memory a save does not wait for the daemon; a lookup after it does.)"""
    daemon = serve(dirs=1)
    read_fd, write_fd = os.pipe()

    def work():
        node = capi.Node(daemon.url(transport, timeout_ms=2000))
        i = seen = 0
        while True:
            status = node.put(f"k {i}", capi.value_of(f"k {i}", 1, 60000))
            if status != capi.OK:
                break
            if node.exists(f"k {i}") == capi.OK:
                seen = i + 1
            i += 1
            if i == 50:
                os.write(write_fd, b"x")
        assert status == capi.E_OFFLINE, status
        return seen

    child = Child(work)
    hear(read_fd, child)
    daemon.stop()
    stored = child.result()
    assert stored >= 50
    daemon.start()
    with capi.Node(daemon.url("tcp")) as node:
        assert found(node, stored) == stored
    os.close(read_fd)
    os.close(write_fd)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_ends_with_idle_sessions(serve, number):
    daemon = serve()
    for i in range(20):
        daemon.enter(BOTH[i % 2])
    daemon.signal(number)
    assert daemon.wait() == 0
    assert "draining" in daemon.log() and "ended" in daemon.log()
    for peer in daemon.peers:
        assert peer.ended()


def test_drain_is_bounded(serve):
    """A save that never comes to its end does not keep the daemon."""
    daemon = serve(drain_ms=1000)
    peer = daemon.enter("tcp")
    space = peer.space()
    peer.send(w.frame(w.PUT, w.batch_body(space, [w.save_row(
        key_of("k"), 500000)]), payload=500000, epoch=peer.epoch)
        + bytes(100000))
    until(lambda: daemon.value("larder_held_chunks") == 1)
    begin = time.monotonic()
    daemon.stop()
    assert time.monotonic() - begin < 15


def test_sigpipe_and_others_do_not_end_it(serve):
    daemon = serve()
    for number in (signal.SIGPIPE, signal.SIGHUP, signal.SIGHUP):
        daemon.signal(number)
    until(lambda: daemon.log().count("reloaded") >= 1)
    daemon.alive()


# ---- reloading -------------------------------------------------------------

def test_reload(serve):
    daemon = serve(config="log_level = info\nloops = 1\n")

    def reload(text, outcome="ok"):
        before = daemon.value("larder_reloads_total", outcome=outcome)
        daemon.write_config(text)
        daemon.signal(signal.SIGHUP)
        until(lambda: daemon.value("larder_reloads_total",
                                   outcome=outcome) > before, text=daemon.log)

    reload("log_level = debug\nloops = 2\n")
    assert "need a restart" in daemon.log() and "loops" in daemon.log()
    daemon.enter("tcp")
    until(lambda: "debug: " in daemon.log())
    reload("loops = many\n", "failed")
    assert "nothing was changed" in daemon.log() and "many" in daemon.log()
    daemon.alive()
    reload("mode = observe\n", "failed")
    assert "'observe' is gone" in daemon.log()
    reload("mode = on\n")
    assert daemon.value("larder_mode", mode="on") == 1


# ---- pause -----------------------------------------------------------------

@both
def test_pause_and_resume(serve, larder, transport):
    daemon = serve()
    with capi.Node(daemon.url(transport)) as node:
        put_some(node, 10)
        assert "paused" in larder("pause", daemon.socket).out
        assert node.get("k 0")[:2] == (capi.MISS, "paused")
        assert node.match(["k 0"])[1] == 0
        assert node.put("new", b"x") not in (capi.OK, capi.PRESENT)
        assert daemon.value("larder_mode", mode="paused") == 1
        # What is to be dropped is dropped all the same.
        assert node.remove("k 9") == capi.OK
        assert "resumed" in larder("resume", f"unix:{daemon.socket}").out
        assert found(node, 10) == 9
        assert node.get("new")[:2] == (capi.MISS, "absent")
        assert node.put("new", b"x") == capi.OK
    done = larder("pause", "/nonexistent/sock", code=FAILED)
    assert "/nonexistent/sock" in done.err


def test_pause_outlasts_a_reload(serve, larder):
    """A node stays paused until somebody resumes it."""
    daemon = serve(config="mode = on\n")
    with capi.Node(daemon.url()) as node:
        put_some(node, 3)
        larder("pause", daemon.socket)
        for count, level in enumerate(("debug", "info"), 1):
            daemon.write_config(f"mode = on\nlog_level = {level}\n")
            daemon.signal(signal.SIGHUP)
            until(lambda n=count: daemon.log().count("reloaded") == n)
            assert daemon.value("larder_mode", mode="paused") == 1
            assert node.get("k 0")[:2] == (capi.MISS, "paused")
        larder("resume", daemon.socket)
        assert daemon.value("larder_mode", mode="on") == 1


def test_put_while_paused(serve, larder):
    daemon = serve()
    larder("pause", daemon.socket)
    done = larder("put", daemon.url("unix"), "k", "-", stdin=b"x", code=FAILED)
    assert "paused" in done.err and "larder resume" in done.err


def test_pause_by_a_stranger(larder, tmp_path):
    """The daemon hangs up on who may not."""
    path = str(tmp_path / "sock")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        peer = threading.Thread(target=lambda: listener.accept()[0].close())
        peer.start()
        done = larder("pause", path, code=FAILED)
        peer.join()
    assert "no answer to 'pause'" in done.err
    assert "only root and the daemon's own user may" in done.err


# ---- watching --------------------------------------------------------------

def test_log_as_json(serve):
    daemon = serve(log="json", dirs=1)
    peer = daemon.connect("tcp")
    peer.send(b'GET /"\\\x01\xff HTTP/1.0\r\n' + bytes(40))
    assert peer.ended()
    peer = daemon.connect("tcp")
    peer.hello('quote"back\\slash', "no-token-at-all-00")
    daemon.alive()
    messages = []
    for line in daemon.log().splitlines():
        one = json.loads(line)
        assert one["level"] in ("error", "warn", "info", "debug")
        assert re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d", one["time"])
        messages.append(one["msg"])
    assert any(m.startswith("ready: larder") for m in messages)
    assert any('quote"back\\slash' in m for m in messages)


def test_nothing_per_request_at_info(serve):
    daemon = serve()
    with capi.Node(daemon.url()) as node:
        put_some(node, 5)
        before = daemon.log()
        put_some(node, 300, name="more")
        assert found(node, 300, name="more") == 300
        found(node, 300, name="absent")
    time.sleep(0.05)
    assert daemon.log() == before


def test_logs_are_limited_in_rate(serve):
    daemon = serve()
    begin = time.monotonic()
    for _ in range(500):
        with w.Peer(daemon.tcp) as peer:
            peer.send(bytes(40))
            assert peer.ended()
    seconds = time.monotonic() - begin
    lines = daemon.log().count("does not speak Larder's protocol")
    assert 1 <= lines <= 10 * (seconds + 2)  # ten of a kind each second
    assert daemon.value("larder_refused_connections_total",
                        reason="not_larder") == 500


def test_admin_http(serve):
    daemon = serve(admin="127.0.0.1:0", dirs=1)
    with capi.Node(daemon.url()) as node:
        put_some(node, 5)
        assert found(node, 10) == 5
    assert daemon.http("/healthz").strip()
    assert daemon.http("/readyz").strip()
    m = Metrics(daemon.http("/metrics"))
    assert m.sum("larder_loads_total", tier="dram") == 5
    assert m.sum("larder_misses_total", cause="absent") == 5
    assert m.sum("larder_saves_total", outcome="stored") == 5
    json.loads(daemon.http("/config"))
    json.loads(daemon.http("/status.json"))
    assert "<html" in daemon.http("/").lower()
    for path, code in (("/nothing", 404), ("/../etc/passwd", 404)):
        with pytest.raises(urllib.error.HTTPError) as e:
            daemon.http(path)
        assert e.value.code == code
    for method in ("POST", "PUT", "DELETE"):
        request = urllib.request.Request(daemon.admin + "/metrics",
                                         method=method)
        with pytest.raises(urllib.error.HTTPError) as e:
            urllib.request.urlopen(request, timeout=60)
        assert e.value.code in (400, 405, 501)
    # A browser that was told another name for this host gets nothing.
    request = urllib.request.Request(daemon.admin + "/config",
                                     headers={"Host": "evil.example"})
    with pytest.raises(urllib.error.HTTPError) as e:
        urllib.request.urlopen(request, timeout=60)
    assert e.value.code in (403, 421)


def test_config_has_no_secrets(serve, tmp_path):
    token = tmp_path / "token"
    token.write_text("0123456789abcdef0123\n")
    token.chmod(0o600)
    daemon = serve(start=False, admin="127.0.0.1:0", log_level="debug",
                   config=f"[tenant a]\ntoken_file = {token}\n")
    daemon.start()
    daemon.enter("tcp", "a", "0123456789abcdef0123")
    for path in ("/config", "/metrics", "/status.json"):
        assert "0123456789abcdef0123" not in daemon.http(path)
    assert str(token) in daemon.http("/config")
    assert "0123456789abcdef0123" not in daemon.log()


def test_not_ready_while_draining(serve):
    daemon = serve(admin="127.0.0.1:0", drain_ms=60000)
    peer = daemon.enter("tcp")
    space = peer.space()
    peer.send(w.frame(w.PUT, w.batch_body(space, [w.save_row(
        key_of("k"), 500000)]), payload=500000, epoch=peer.epoch) + bytes(9))
    until(lambda: daemon.value("larder_held_chunks") == 1)
    daemon.signal(signal.SIGTERM)

    def not_ready():
        try:
            daemon.http("/readyz")
        except urllib.error.HTTPError as e:
            assert e.code == 503 and "draining" in e.read().decode()
            return True
        return False

    until(not_ready)
    assert daemon.http("/healthz").strip()
    peer.drop()
    assert daemon.wait() == 0


def test_idle_daemon_sleeps(serve):
    """No measurable CPU: below a hundredth of a core, which any polling would
    take. (`larder bench serve-idle` has the figure.)"""
    daemon = serve(dirs=1)
    for i in range(50):
        peer = daemon.enter(BOTH[i % 2])
        if i % 2 == 0:
            peer.attach()

    def cpu():
        """Seconds that its threads ran."""
        tasks = pathlib.Path(f"/proc/{daemon.pid}/task").iterdir()
        return sum(int((task / "schedstat").read_text().split()[0])
                   for task in tasks) / 1e9

    def sleeps():
        """It has made its memory resident, and let all of them in."""
        before, begin = cpu(), time.monotonic()
        time.sleep(2.0)
        used, passed = cpu() - before, time.monotonic() - begin
        print(f"{used:.4f} s of {passed:.1f} s")
        return used <= passed / 100

    until(sleeps, 60)


# ---- the program as a client ------------------------------------------------

def test_program_by_every_transport(serve, larder, tmp_path):
    """`larder put` and `get` are clients as any other."""
    daemon = serve()
    value = os.urandom(3 << 20)
    (tmp_path / "in").write_bytes(value)
    for transport in BOTH:
        place = daemon.url(transport)
        assert larder("put", place, transport, "in").out.startswith("stored")
        for other in BOTH:
            larder("get", daemon.url(other), transport, "out")
            assert (tmp_path / "out").read_bytes() == value
    larder("get", daemon.url("tcp"), "absent", "out2", code=1)


def test_environment_has_the_socket(serve, larder):
    """Without a path, where everybody looks: the runtime directory."""
    daemon = serve(start=False, socket=None, listen=None)
    daemon.env = {"XDG_RUNTIME_DIR": str(daemon.folder)}
    daemon.given["socket"] = None
    env = dict(os.environ, XDG_RUNTIME_DIR=str(daemon.folder))
    env.pop("RUNTIME_DIRECTORY", None)
    daemon.spawn()
    path = daemon.folder / "larder.sock"
    until(path.exists, text=daemon.log)
    daemon.given["socket"] = path
    until(lambda: "ready: larder" in daemon.log())
    done = subprocess.run([larder.binary, "pause"], env=env, timeout=300,
                          stdout=subprocess.PIPE, check=True)
    assert b"paused" in done.stdout
