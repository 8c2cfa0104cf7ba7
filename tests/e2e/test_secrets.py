"""Which secret of a tenant is the right one: by the operator's word, or by the
first save; with and without a disk, a shared tier, and a process of its own."""
import contextlib
import hashlib
import hmac
import os
import signal
from ctypes import byref, c_void_p

import pytest

import wireclient as w
from capi import (E_SECRET, MISS, OK, Error, Node, SpaceParams, found,
                  put_some)
from daemon import FAILED, USAGE, refused, until

SHARED = 2  # LARDER_TIER_SHARED
ONE = b"the first secret, of 30 bytes.."
TWO = b"another secret, of 30 bytes...."
SIZE = 20000
TENANT = "a"
ID = hashlib.sha256(b"larder tenant 1a").digest()[:16].hex()


def mac_of(secret):
    """The half of a tier's T/check that is made from the secret's key."""
    key = hmac.new(secret, b"larder shared 1" + TENANT.encode(),
                   hashlib.sha256).digest()
    return hmac.new(key, b"larder tier secret 1" + bytes.fromhex(ID),
                    hashlib.sha256).digest()[:16]


def owner_of(tier):
    """Whose secret the tier has as the tenant's; None: nobody's."""
    check = tier / ID / "check"
    if not check.exists():
        return None
    mac = check.read_bytes()[32:48]
    return {mac_of(ONE): ONE, mac_of(TWO): TWO}.get(mac, mac)


def secret_file(folder, name, secret):
    path = folder / name
    path.write_bytes(secret + b"\n")
    path.chmod(0o600)
    return path


class Embedded:
    """A node in this process; clients are spaces of one handle."""

    def __init__(self, folder, disk, tier, **more):
        where = folder / "kv" if disk else ""
        shared = f"&shared=dir:{tier}&shared_poll_ms=50" if tier else ""
        shared += "".join(f"&{name}={value}" for name, value in more.items())
        self.url = f"embed:{where}?dram=32M&ssd=64M&retry_ms=200{shared}"
        self.handle = None

    def client(self, secret):
        if self.handle is None:
            self.handle = Node(self.url, b"none of the tenant's")
        return Space(self.handle, secret)

    def end(self):
        if self.handle is not None:
            self.handle.close()
            self.handle = None


class Space(Node):
    """One more space of a handle."""

    def __init__(self, handle, secret):
        self.lib, self.node, self.space = handle.lib, handle.node, c_void_p()
        params = SpaceParams(4 | 1 | (2 if secret else 0), b"tests", 5,
                             TENANT.encode(), secret, len(secret or b""), 1, 0)
        self._check(self.lib.larder_space_open(self.node, byref(params),
                                               byref(self.space)))

    def close(self, timeout_ms=0):
        self.lib.larder_space_close(byref(self.space))


class Served:
    def __init__(self, serve, name, disk, tier, config="[tenant a]\n", **more):
        if tier:
            more |= {"shared": f"dir:{tier}", "shared_poll_ms": 50}
        self.daemon = serve(name=name, config=config, dram="32M", retry_ms=200,
                            dirs=1 if disk else 0, **more)

    def client(self, secret, **more):
        return Node(self.daemon.url(tenant=TENANT, **more), tenant=TENANT,
                    secret=secret)

    def end(self):
        self.daemon.end()


@pytest.fixture
def make(serve, tmp_path):
    """Makes nodes of either kind, and ends them."""
    made = []

    def node(kind, name, disk, tier, **more):
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        made.append(Served(serve, name, disk, tier, **more)
                    if kind == "daemon"
                    else Embedded(folder, disk, tier, **more))
        return made[-1]

    yield node
    for one in made:
        one.end()


def status_of(node, secret):
    """How opening a space under this secret ends."""
    try:
        with node.client(secret):
            return OK
    except Error as e:
        assert TENANT in str(e) and "secret_file" in str(e), str(e)
        return e.status


def until_there(client, count, name="k"):
    until(lambda: all(client.exists(f"{name} {i}") == OK
                      for i in range(count)), text="not found")


# ---- the first one ----------------------------------------------------------

@pytest.mark.parametrize("kind", ("daemon", "embedded"))
@pytest.mark.parametrize("disk", (True, False), ids=("disk", "no disk"))
@pytest.mark.parametrize("shared", (True, False), ids=("tier", "no tier"))
def test_a_second_secret(make, tier, kind, disk, shared):
    """Is refused whatever the node stands on; the same one is not. The tier has
    the first one's objects and no others, and a fresh node gives them."""
    tier = tier if shared else None
    node = make(kind, "first", disk, tier)
    with node.client(ONE) as a:
        put_some(a, 5, SIZE)
        assert [status_of(node, s) for s in (ONE, TWO, None)] == [
            OK, E_SECRET, E_SECRET]
        put_some(a, 5, SIZE, "more")
        with node.client(ONE) as again:
            assert found(again, 5, SIZE) == found(again, 5, SIZE, "more") == 5
        if shared:
            assert a.flush(SHARED) == OK
            assert owner_of(tier) == ONE
    if not shared:
        return
    # One that has nothing of its own, and a client with another secret first.
    other = make(kind, "second", disk, tier, shared_timeout_ms=1000)
    with other.client(TWO) as b:
        assert found(b, 5, SIZE) == 0
        put_some(b, 3, SIZE, "other's")
        assert b.flush(SHARED) != OK
        assert status_of(other, ONE) == E_SECRET
    fresh = make(kind, "third", disk, tier)
    with fresh.client(ONE) as c:
        until_there(c, 5)
        assert found(c, 5, SIZE) == found(c, 5, SIZE, "more") == 5
        assert found(c, 3, SIZE, "other's") == 0
    assert owner_of(tier) == ONE


@pytest.mark.parametrize("kind", ("daemon", "embedded"))
@pytest.mark.parametrize("disk", (True, False), ids=("disk", "no disk"))
@pytest.mark.parametrize("shared", (True, False), ids=("tier", "no tier"))
def test_who_only_looks(make, tier, kind, disk, shared):
    """Fixes nothing, in memory, on the disk or in the tier; whoever saves first
    does, and who had looked before is refused then."""
    tier = tier if shared else None
    node = make(kind, "first", disk, tier)
    with contextlib.ExitStack() as stack:
        b = stack.enter_context(node.client(TWO))
        assert b.get("k 0")[0] == MISS and b.exists("k 0") == MISS
        assert tier is None or owner_of(tier) is None
        a = stack.enter_context(node.client(ONE))
        late = stack.enter_context(node.client(TWO))
        put_some(a, 5, SIZE)
        for one in (b, late):
            assert one.put("own", b"x" * 100) == E_SECRET
            assert one.remove("k 0") == E_SECRET
            assert one.reset() == E_SECRET
            assert one.get("own")[0] == MISS
        assert found(a, 5, SIZE) == 5
        assert status_of(node, TWO) == E_SECRET
        if shared:
            assert a.flush(SHARED) == OK
            assert owner_of(tier) == ONE
            with make(kind, "second", disk, tier).client(ONE) as c:
                until_there(c, 5)
                assert found(c, 5, SIZE) == 5


def test_one_space_frame(make, tier):
    """A check value and a key of nobody's, from whoever may come in: nothing is
    recorded of them, and the right client notices nothing."""
    node = make("daemon", "first", True, tier)
    directory = node.daemon.dirs[0]
    check, key = os.urandom(16), os.urandom(32)
    peer = node.daemon.enter("unix", TENANT)
    assert peer.ask(w.SPACE, w.space_body("x", check, key=key)).status == w.OK
    assert owner_of(tier) is None
    assert check not in (directory / "larder.super").read_bytes()
    with node.client(ONE) as a:
        put_some(a, 5, SIZE)
        assert a.flush(SHARED) == OK
    reply = peer.ask(w.SPACE, w.space_body("y", check, key=key))
    assert reply.status == w.E_SECRET
    known = w.check_of(TENANT, ONE)
    assert known not in reply.body and known.hex() not in reply.text
    assert known in (directory / "larder.super").read_bytes()
    peer.close()
    node.daemon.stop()
    node.daemon.start()
    with node.client(ONE) as a:
        assert found(a, 5, SIZE) == 5
    assert status_of(node, None) == E_SECRET
    assert owner_of(tier) == ONE


def test_the_right_check_value_alone(make, tier):
    """Whoever has learned it, but not the secret, gives the tier no key."""
    node = make("daemon", "first", False, tier)
    peer = node.daemon.enter("unix", TENANT)
    with node.client(ONE) as a:
        put_some(a, 2, SIZE)
        body = w.space_body("x", w.check_of(TENANT, ONE),
                            key=os.urandom(32))
        assert peer.ask(w.SPACE, body).status == w.E_SECRET
        assert a.flush(SHARED) == OK
    assert owner_of(tier) == ONE


def test_takeover_keeps_the_secret(serve, make):
    """Of a daemon that has only memory."""
    node = make("daemon", "first", False, None)
    with node.client(ONE) as a:
        put_some(a, 5, SIZE)
    second = serve(name="second", start=False, config="[tenant a]\n",
                   dram="32M", socket=node.daemon.socket)
    second.start("--takeover")
    node.daemon.wait()
    node.daemon = second
    assert status_of(node, TWO) == E_SECRET
    with node.client(ONE) as a:
        assert found(a, 5, SIZE) == 5


# ---- the operator's word ----------------------------------------------------

def by_file(folder, secret, name="secret"):
    return f"[tenant a]\nsecret_file = {secret_file(folder, name, secret)}\n"


def by_check(larder, folder, secret):
    file = secret_file(folder, "for the check", secret)
    value = larder("secret", file, "--tenant", TENANT).out.strip()
    assert len(value) == 64 and value.startswith(
        w.check_of(TENANT, secret).hex())
    return f"[tenant a]\nsecret_check = {value}\n"


@pytest.mark.parametrize("how", ("file", "check"))
@pytest.mark.parametrize("disk", (True, False), ids=("disk", "no disk"))
def test_given(make, larder, tmp_path, tier, how, disk):
    """Nobody who comes first takes the tenant over."""
    config = (by_file(tmp_path, ONE) if how == "file"
              else by_check(larder, tmp_path, ONE))
    node = make("daemon", "first", disk, tier, config=config)
    for secret in (TWO, None):
        assert status_of(node, secret) == E_SECRET
    peer = node.daemon.enter("unix", TENANT)
    known = w.check_of(TENANT, ONE)
    reply = peer.ask(w.SPACE, w.space_body("x", os.urandom(16)))
    assert reply.status == w.E_SECRET and known.hex() not in reply.text
    reply = peer.ask(w.SPACE, w.space_body("x", known, key=os.urandom(32)))
    assert reply.status == w.E_SECRET, "another key"
    assert owner_of(tier) is None
    with node.client(ONE) as a:
        put_some(a, 5, SIZE)
        assert a.flush(SHARED) == OK
    assert owner_of(tier) == ONE
    log = node.daemon.log()
    assert log.count("a client with another secret was refused") == 1
    assert known.hex() not in log
    assert node.daemon.value("larder_errors_total", status="secret") == 4


def test_given_after_it_was_taken(make, tmp_path, tier):
    """A directory and a tier that somebody else has had: the tenant is its
    operator's again from a reload on, and nobody else loses anything."""
    node = make("daemon", "first", True, tier)
    daemon = node.daemon
    with Node(daemon.url()) as default:
        put_some(default, 5, SIZE, "default's")
    with node.client(TWO) as b:
        put_some(b, 5, SIZE, "b")
        assert b.flush(SHARED) == OK
    assert status_of(node, ONE) == E_SECRET
    daemon.write_config(by_file(tmp_path, ONE))
    daemon.signal(signal.SIGHUP)
    until(lambda: "reloaded" in daemon.log())
    assert f"{daemon.dirs[0]}: recorded another secret of tenant 'a'" in \
        daemon.log()
    assert status_of(node, TWO) == E_SECRET
    with node.client(ONE) as a:
        put_some(a, 5, SIZE)
        assert found(a, 5, SIZE) == 5 and found(a, 5, SIZE, "b") == 0
        assert a.flush() == OK
    assert owner_of(tier) == TWO, "what is there was not asked for"
    daemon.stop()
    daemon.start()
    assert "recorded another secret" not in daemon.log(), "it was put right"
    with node.client(ONE) as a:
        assert found(a, 5, SIZE) == 5
        until(lambda: "larder tier wipe URL --tenant a" in daemon.log(),
              text=daemon.log)
    with Node(daemon.url()) as default:
        assert found(default, 5, SIZE, "default's") == 5
    assert status_of(node, TWO) == E_SECRET
    # And back: what was saved under the other one is still there.
    daemon.write_config(by_file(tmp_path, TWO))
    daemon.signal(signal.SIGHUP)
    until(lambda: "its secret is another now" in daemon.log())
    assert status_of(node, ONE) == E_SECRET
    with node.client(TWO) as b:
        assert found(b, 5, SIZE, "b") == 5


def test_reload(make, larder, tmp_path):
    """A file that cannot be used changes nothing; without the setting what is
    known stays."""
    node = make("daemon", "first", False, None,
                config=by_file(tmp_path, ONE, "own"))
    daemon, file = node.daemon, tmp_path / "own"

    def reload(text):
        daemon.write_config(text)
        seen = daemon.log().count("reload")
        daemon.signal(signal.SIGHUP)
        until(lambda: daemon.log().count("reload") > seen)
        return daemon.log().splitlines()[-1]

    with node.client(ONE) as a:
        put_some(a, 2, SIZE)
    file.chmod(0o644)
    assert "nothing was changed" in reload(daemon.config.read_text())
    file.chmod(0o600)
    line = reload(by_check(larder, tmp_path, TWO) + f"secret_file = {file}\n")
    assert "secret_check of tenant a is not that of its secret_file" in line
    for text in ("12ab", "12ab" * 20):
        line = reload(f"[tenant a]\nsecret_check = {text}\n")
        assert "64 digits" in line and text not in line
    assert [status_of(node, s) for s in (ONE, TWO)] == [OK, E_SECRET]
    reload(by_check(larder, tmp_path, TWO))
    assert [status_of(node, s) for s in (ONE, TWO)] == [E_SECRET, OK]
    reload("[tenant a]\n")
    assert [status_of(node, s) for s in (ONE, TWO)] == [E_SECRET, OK]
    file.write_bytes(ONE)
    reload(f"[tenant a]\nsecret_file = {file}\n")
    with node.client(ONE) as a:
        assert found(a, 2, SIZE) == 2


def test_takeover_with_another_word(serve, make, tmp_path):
    node = make("daemon", "first", True, None)
    with node.client(TWO) as b:
        put_some(b, 5, SIZE)
    second = serve(name="second", start=False, dram="32M",
                   config=by_file(tmp_path, ONE), socket=node.daemon.socket)
    second.dirs = node.daemon.dirs
    second.start("--takeover")
    node.daemon.wait()
    node.daemon = second
    assert [status_of(node, s) for s in (ONE, TWO)] == [OK, E_SECRET]
    with node.client(ONE) as a:
        assert found(a, 5, SIZE) == 0
        put_some(a, 5, SIZE)


@pytest.mark.parametrize("text, why", [
    (None, "cannot read the secret file"), (b"short", "too short")])
def test_given_of_no_use(serve, tmp_path, text, why):
    """Known before anything is opened."""
    file = tmp_path / "secret"
    if text:
        secret_file(tmp_path, "secret", text)
    daemon = serve(start=False, dirs=1,
                   config=f"[tenant a]\nsecret_file = {file}\n")
    assert why in refused(daemon)
    assert not (daemon.dirs[0] / "larder.super").exists()


# ---- tenant default ---------------------------------------------------------

@pytest.mark.parametrize("disk", (True, False), ids=("disk", "no disk"))
def test_default(serve, disk):
    """Has the secret that everybody knows, and nobody gives it another."""
    daemon = serve(dirs=1 if disk else 0)
    for secret in (ONE, TWO):
        with pytest.raises(Error) as caught:
            Node(daemon.url(), secret=secret)
        assert caught.value.status == E_SECRET
        assert "without secret_file" in str(caught.value)
    peer = daemon.enter()
    assert peer.ask(w.SPACE, w.space_body("x", bytes(16))).status == w.E_SECRET
    with Node(daemon.url()) as node:
        put_some(node, 5, SIZE)
        assert found(node, 5, SIZE) == 5


def test_default_with_a_secret(serve, tmp_path):
    """The option secret_file, and the section of the configuration."""
    file = secret_file(tmp_path, "own", ONE)
    other = secret_file(tmp_path, "other", TWO)
    daemon = serve(flags=("--secret_file", file))
    with pytest.raises(Error) as caught:
        Node(daemon.url())
    assert caught.value.status == E_SECRET
    with Node(daemon.url(secret_file=file)) as node:
        put_some(node, 5, SIZE)
    daemon = serve(config=f"secret_file = {file}\n")
    with Node(daemon.url(secret_file=file)):
        pass
    daemon.write_config(f"[tenant default]\nsecret_file = {other}\n")
    daemon.signal(signal.SIGHUP)
    until(lambda: "reloaded" in daemon.log(), text=daemon.log)
    with Node(daemon.url(secret_file=other)):
        pass
    with pytest.raises(Error):
        Node(daemon.url(secret_file=file))
    both = serve(start=False, config=f"secret_file = {file}\n"
                                     f"[tenant default]\nsecret_file = {other}")
    assert "keep one" in refused(both, code=USAGE)


# ---- beginning anew, for one tenant ----------------------------------------

def test_wipe_one_tenant(make, larder):
    """Its data and its secret are forgotten; the others' are not touched."""
    node = make("daemon", "first", True, None)
    daemon = node.daemon
    with node.client(TWO) as b, Node(daemon.url()) as default:
        put_some(b, 5, SIZE)
        put_some(default, 5, SIZE, "default's")
        assert b.flush() == OK
    with pytest.raises(Error) as caught:
        node.client(ONE)
    folder = daemon.dirs[0]
    command = f"larder wipe --tenant a {folder}"
    assert command in str(caught.value)
    words = command.split()[1:]
    assert "in use" in larder(*words, "--yes", code=FAILED).err
    daemon.stop()
    assert "--yes" in larder(*words, code=USAGE).err
    assert "nothing of tenant 'b'" in larder("wipe", folder, "--tenant", "b",
                                             "--yes").out
    assert "tenant 'a' is forgotten: 5 records in 1 space," in larder(
        *words, "--yes").out
    daemon.start()
    with Node(daemon.url()) as default:
        assert found(default, 5, SIZE, "default's") == 5
    with node.client(ONE) as a:
        put_some(a, 5, SIZE)
        assert a.flush() == OK
    assert status_of(node, TWO) == E_SECRET
    daemon.stop()
    assert larder.json("wipe", folder, "--tenant", "a", "--yes") == [{
        "status": "wiped", "dir": str(folder), "tenant": "a", "secret": True,
        "spaces": 2, "records": 10}]
    daemon.start()
    with node.client(TWO) as b:
        assert found(b, 5, SIZE) == 0, "it was forgotten"
        put_some(b, 5, SIZE)
        assert found(b, 5, SIZE) == 5
    with Node(daemon.url()) as default:
        assert found(default, 5, SIZE, "default's") == 5
    daemon.stop()
    assert "clean" in larder("fsck", folder).out
    (folder / "larder.super").unlink()
    assert "no superblock" in larder("wipe", folder, "--tenant", "a", "--yes",
                                     code=FAILED).err
    assert not (folder / "larder.super").exists(), "it was not made"


def test_wipe_one_tenant_of_a_tier(make, larder, tier, tmp_path):
    """Nodes to which it was another's use it then, by themselves."""
    node = make("daemon", "first", False, tier)
    with node.client(TWO) as b, Node(node.daemon.url()) as default:
        put_some(b, 5, SIZE)
        put_some(default, 5, SIZE, "default's")
        assert b.flush(SHARED) == OK
    words = ("tier", "wipe", f"dir:{tier}", "--tenant", "a")
    until(lambda: (tier / ID / "cleaner").exists())
    assert "a node uses" in larder(*words, "--yes", code=FAILED).err
    node.daemon.stop()
    second = make("daemon", "second", False, tier,
                  config=by_file(tmp_path, ONE))
    with second.client(ONE) as a:
        put_some(a, 5, SIZE)
        assert a.flush(SHARED, 1000) != OK
        assert "--yes" in larder(*words, code=USAGE).err
        assert "say whose" in larder(*words[:3], "--yes", code=USAGE).err
        assert "objects of tenant 'a' removed" in larder(*words, "--yes").out
        until(lambda: owner_of(tier) == ONE, text="it is not used again")
        until(lambda: a.flush(SHARED) == OK)
    third = make("daemon", "third", False, tier, config=by_file(tmp_path, ONE))
    with third.client(ONE) as a, Node(third.daemon.url()) as default:
        until_there(a, 5)
        until_there(default, 5, "default's")
        assert found(a, 5, SIZE) == found(default, 5, SIZE, "default's") == 5


# ---- what is shown ----------------------------------------------------------

def test_not_shown(serve, larder, tmp_path):
    """Neither the secret nor its check value, where others can ask."""
    config = by_check(larder, tmp_path, ONE)
    daemon = serve(config=config, admin="127.0.0.1:0")
    page = daemon.http("/config")
    value = config.split()[-1]
    assert '"secret_check":"given"' in page
    assert value not in page + daemon.log() + daemon.http("/metrics")


def test_command(larder, tmp_path):
    file = secret_file(tmp_path, "own", ONE)
    one = larder("secret", file).out
    assert larder("secret", file, "--tenant", "default").out == one
    assert larder("secret", file, "--tenant", "a").out != one
    assert larder.json("secret", file) == [
        {"tenant": "default", "secret_check": one.strip()}]
    assert "write 1 to 63" in larder("secret", file, "--tenant", "a b",
                                     code=USAGE).err
    file.chmod(0o644)
    assert "chmod" in larder("secret", file, code=FAILED).err
