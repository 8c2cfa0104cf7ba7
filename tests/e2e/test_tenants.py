"""Tenants: who may be which, what each can see, and whose memory it is."""
import os
import shutil
import signal
import tempfile

import pytest

import capi
import wireclient as w
from certificates import make_certificate
from daemon import in_child, refused, until
from tenants import A, B, K, both, config, token_file, value_of
from wireclient import (batch_body, crc32c, ends_body, extent_body, key_of,
                        match_body, name_row, save_row)


@pytest.fixture
def two(serve, tmp_path):
    """A daemon with tenants a and b; default is for the operator."""
    return serve(config=config(tmp_path), dirs=1)


# ---- seeing each other -----------------------------------------------------

@both
def test_tenants_do_not_see_each_other(two, transport):
    """The same space, the same key, and for a even the id that b sends."""
    a = two.enter(transport, "a", A)
    b = two.enter(transport, "b", B)
    default = two.enter("unix")
    mine, yours, third = a.space("s"), b.space("s"), default.space("s")
    assert b.put_one(yours, K, value_of("b")) == w.OK
    assert a.get(mine, [K]) == [None]
    assert default.get(third, [K]) == [None], "not even the operator"
    assert a.ask(w.MATCH, match_body(mine, [K])).chunks == 0
    names = batch_body(mine, [name_row(K)])
    for opcode in (w.EXISTS, w.GET, w.LEASE, w.REPORT, w.REMOVE):
        row = a.ask(opcode, names).result
        assert (row.status, row.cause) in ((w.MISS, "absent"),
                                           (w.MISS, "none")), opcode
    # What it does to its own is done to its own.
    assert a.put_one(mine, K, value_of("a")) == w.OK
    assert a.get(mine, [K]) == [value_of("a")]
    assert b.get(yours, [K]) == [value_of("b")]
    assert a.ask(w.RESET, w.struct.pack("<I", mine)).status == w.OK
    assert a.get(mine, [K]) == [None]
    assert b.get(yours, [K]) == [value_of("b")]
    # And so it stays after a restart.
    for peer in two.peers:
        peer.close()
    two.peers.clear()
    two.stop()
    two.start()
    a, b = two.enter(transport, "a", A), two.enter(transport, "b", B)
    assert a.get(a.space("s"), [K]) == [None]
    assert b.get(b.space("s"), [K]) == [value_of("b")]


@both
def test_foreign_and_absent_are_the_same_answer(two, transport):
    """Byte for byte, but for the id of the request: keys, and spaces whose
    names the other knows."""
    a, b = two.enter(transport, "a", A), two.enter(transport, "b", B)
    mine, yours = a.space("s"), b.space("s")
    for i in range(5):
        assert b.put_one(yours, key_of(f"b{i}"), value_of(f"b{i}")) == w.OK

    def answer(opcode, body):
        reply = a.ask(opcode, body)
        return reply.status, reply.body, reply.payload

    for i in range(5):
        foreign, absent = key_of(f"b{i}"), key_of(f"nobody's {i}")
        for opcode in (w.EXISTS, w.GET, w.LEASE, w.REMOVE, w.REPORT):
            assert (answer(opcode, batch_body(mine, [name_row(foreign)]))
                    == answer(opcode, batch_body(mine, [name_row(absent)])))
        assert (answer(w.MATCH, match_body(mine, [foreign]))
                == answer(w.MATCH, match_body(mine, [absent])))
        # The first of a session has the same number, whoever has one like it.
        b.space(f"b{i}")
        numbers = [two.enter(transport, "a", A).space(name)
                   for name in (f"b{i}", f"nobody's {i}")]
        assert numbers == [0, 0]
    for i in range(5):
        assert b.get(yours, [key_of(f"b{i}")]) == [value_of(f"b{i}")]


def test_figures_are_the_tenants_own(two):
    a, b = two.enter("tcp", "a", A), two.enter("tcp", "b", B)
    assert b.put_one(b.space("s"), K, value_of("b")) == w.OK
    text = a.ask(w.METRICS).text
    assert 'tenant="a"' in text
    assert 'tenant="b"' not in text and 'tenant="default"' not in text
    assert "larder_requests_total" not in text, "of all tenants together"
    saved = w.struct.Struct("<16xQ")  # the first counter
    assert saved.unpack_from(a.ask(w.STATS).body)[0] == 0, "b's saves"
    assert saved.unpack_from(b.ask(w.STATS).body)[0] == 1
    everything = two.metrics()
    assert everything.sum("larder_saves_total", tenant="b",
                          outcome="stored") == 1
    assert everything.sum("larder_tenant_sessions", tenant="a") == 1


def test_secret_of_a_tenant(two):
    """Another secret is refused by name, and says nothing about others."""
    a, b = two.enter("tcp", "a", A), two.enter("tcp", "b", B)
    space = a.space("s", check=b"1" * 16)
    assert a.put_one(space, K, value_of("a")) == w.OK
    reply = a.ask(w.SPACE, w.space_body("t", b"2" * 16))
    assert reply.status == w.E_SECRET and "'a'" in reply.text
    b.space("s", check=b"2" * 16)


# ---- coming in -------------------------------------------------------------

@both
def test_wrong_token_is_as_unknown_tenant(serve, tmp_path, transport):
    """The answers of a wrong token, a tenant that is not there, one without a
    token and one that may only come in otherwise do not differ."""
    daemon = serve(config=config(
        tmp_path, more="[tenant nobody]\nuids = 54321\n"))

    def refusal(tenant):
        peer = daemon.connect(transport)
        reply = peer.hello(tenant, "wrong-token-wrong-token-wrong")
        assert reply.status == w.E_DENIED
        assert peer.ended()
        return peer.auth, reply.opcode, reply.text.replace(
            f"'{tenant}'", "T")

    answers = {refusal(t) for t in ("a", "b", "missing", "A")}
    if transport == "tcp":
        answers.add(refusal("nobody"))
    assert len(answers) == 1, answers
    failures = daemon.metrics()
    assert failures.sum("larder_auth_failures_total", reason="token") >= 2
    assert failures.sum("larder_auth_failures_total", reason="tenant") == 2
    for tenant, token in (("a", A), ("b", B)):
        assert A not in daemon.log() and B not in daemon.log()
        daemon.enter(transport, tenant, token)
    # Another tenant's token is a wrong one.
    peer = daemon.connect(transport)
    assert peer.hello("a", B).status == w.E_DENIED


@both
def test_token_rotation(serve, tmp_path, transport):
    daemon = serve(config=config(tmp_path))
    new = "the-new-token-of-a-0123456789abcdef"
    old_session = daemon.enter(transport, "a", A)

    def try_token(token):
        peer = daemon.connect(transport)
        return peer.hello("a", token).status

    def reload(*tokens, failed=False):
        token_file(tmp_path, "a", *tokens)
        outcome = "failed" if failed else "ok"
        before = daemon.value("larder_reloads_total", outcome=outcome)
        daemon.signal(signal.SIGHUP)
        until(lambda: daemon.value("larder_reloads_total",
                                   outcome=outcome) > before)

    assert try_token(new) == w.E_DENIED
    reload(A, new)
    assert try_token(A) == try_token(new) == w.OK
    reload(new)
    assert try_token(A) == w.E_DENIED
    assert try_token(new) == w.OK
    # A file that is not right changes nothing.
    reload("short", failed=True)
    assert try_token(new) == w.OK and try_token("short") == w.E_DENIED
    until(lambda: "nothing was changed" in daemon.log())  # its own thread's
    # Who is in stays in.
    assert old_session.ask(w.PING).status == w.OK


@pytest.mark.parametrize("wrong", ["certificate", "key", "token"])
@pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl")
def test_proofs_of_no_use(serve, tmp_path, wrong):
    """A key of another certificate, a key in place of the certificate, a token
    that is too short: the file and the reason are named, before anything is
    opened."""
    for name in ("node", "other"):
        make_certificate(tmp_path, name)
    token = "0123456789abcde" if wrong == "token" else A
    token_file(tmp_path, "a", token)
    daemon = serve(
        start=False, dirs=1, tls="on",
        tls_cert=tmp_path / ("node.key" if wrong == "certificate"
                             else "node.pem"),
        tls_key=tmp_path / ("other.key" if wrong == "key" else "node.key"),
        config=f"[tenant a]\ntoken_file = {tmp_path}/a\n")
    text = refused(daemon)
    hints = {"certificate": ["node.key", "not usable as the TLS certificate"],
             "key": ["other.key", "not usable as the TLS key", "mismatch"],
             "token": ["line 1", "16 to ", "not 15"]}
    for hint in hints[wrong]:
        assert hint in text, text
    assert token not in text
    assert not (daemon.dirs[0] / "larder.super").exists()


@pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl")
def test_client_certificates(serve, tmp_path):
    """Certificates instead of tokens: each tenant is who its says, and nobody
    else comes in, by whatever the session calls itself."""
    make_certificate(tmp_path, "ca")
    make_certificate(tmp_path, "other-ca")
    for name in ("node", "engine-a", "engine-b", "stranger"):
        make_certificate(tmp_path, name, "ca")
    make_certificate(tmp_path, "forged", "other-ca")
    daemon = serve(
        tls="on", tls_cert=tmp_path / "node.pem",
        tls_key=tmp_path / "node.key", tls_client_ca=tmp_path / "ca.pem",
        config="[tenant a]\ncert = engine-a\n[tenant b]\ncert = engine-b\n"
               "[tenant none]\ndram = 8M\n")

    def node(tenant, who):
        more = {} if who is None else {"tls_cert": tmp_path / f"{who}.pem",
                                       "tls_key": tmp_path / f"{who}.key"}
        return capi.Node(daemon.url("tcp", tls="on", tenant=tenant,
                                    tls_ca=tmp_path / "ca.pem",
                                    timeout_ms=5000, **more))

    def refused(tenant, who):
        with pytest.raises(capi.Error) as error:
            node(tenant, who)
        return error.value

    def failures(reason):
        return daemon.value("larder_auth_failures_total", reason=reason)

    with node("a", "engine-a") as a, node("b", "engine-b") as b:
        assert a.put("k", b"of a") == capi.OK
        assert a.get("k")[2] == b"of a"
        assert b.get("k")[0] == capi.MISS, "each has a tenant of its own"
    # Another's certificate, one of nobody's, and a tenant without one.
    for tenant, who in (("a", "engine-b"), ("b", "engine-a"),
                        ("a", "stranger"), ("none", "engine-a"),
                        ("default", "engine-a"), ("nobody", "engine-a")):
        before = (failures("certificate"), failures("tenant"))
        error = refused(tenant, who)
        assert error.status == capi.E_DENIED, (tenant, who, str(error))
        assert tenant in str(error)
        after = (failures("certificate"), failures("tenant"))
        assert sum(after) == sum(before) + 1, (tenant, who)
    # None, and one that another authority has signed: not even a hello.
    for who in (None, "forged"):
        before = failures("tls")
        error = refused("a", who)
        # The daemon's alert may be lost with the connection that it closes.
        assert error.status in (capi.E_DENIED, capi.E_OFFLINE), str(error)
        assert (error.status == capi.E_OFFLINE
                or "certificate" in str(error)), str(error)
        until(lambda: failures("tls") == before + 1)
    with node("a", "engine-a") as a:
        assert a.get("k")[2] == b"of a"


@pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl")
def test_renewed_certificates(serve, tmp_path):
    """SIGHUP reads the files again: who connects then sees the new ones, and
    who has connected goes on. Files that do not go together change nothing."""
    for name in ("ca", "new-ca"):
        make_certificate(tmp_path, name)
    live = tmp_path / "live"
    live.mkdir()
    for ca in ("ca", "new-ca"):
        make_certificate(tmp_path, f"node-of-{ca}", ca)
        make_certificate(tmp_path, f"engine-of-{ca}", ca)

    def install(ca, *kinds):
        for kind, source in (("pem", f"node-of-{ca}.pem"),
                             ("key", f"node-of-{ca}.key"),
                             ("clients", f"{ca}.pem")):
            if kind in kinds:
                shutil.copy(tmp_path / source, live / kind)

    def node(ca):
        return capi.Node(daemon.url(
            "tcp", tls="on", tenant="a", tls_ca=tmp_path / f"{ca}.pem",
            tls_cert=tmp_path / f"engine-of-{ca}.pem",
            tls_key=tmp_path / f"engine-of-{ca}.key", timeout_ms=5000))

    def refused(ca):
        with pytest.raises(capi.Error) as error:
            node(ca)
        return error.value.status in (capi.E_DENIED, capi.E_OFFLINE)

    def reload(outcome):
        before = daemon.value("larder_reloads_total", outcome=outcome)
        daemon.signal(signal.SIGHUP)
        until(lambda: daemon.value("larder_reloads_total",
                                   outcome=outcome) == before + 1,
              text=daemon.log)

    install("ca", "pem", "key", "clients")
    text = "[tenant a]\ncert = engine-of-ca\n"
    daemon = serve(tls="on", tls_cert=live / "pem", tls_key=live / "key",
                   tls_client_ca=live / "clients", config=text)
    with node("ca") as first:
        assert first.put("k", b"of a") == capi.OK
        # Half of it is there: the old ones stay, and it is said.
        install("new-ca", "pem")
        reload("failed")
        until(lambda: "nothing was changed" in daemon.log())
        assert str(live / "key") in daemon.log()
        with node("ca") as again:
            assert again.get("k")[2] == b"of a"
        install("new-ca", "key", "clients")
        daemon.write_config(text.replace("engine-of-ca", "engine-of-new-ca"))
        reload("ok")
        with node("new-ca") as again:
            assert again.get("k")[2] == b"of a"
        assert refused("ca")
        assert first.get("k")[2] == b"of a", "it had come in before"


def test_tenants_come_and_go(serve, tmp_path):
    daemon = serve(config=config(tmp_path))
    a = daemon.enter("tcp", "a", A)
    space = a.space("s")
    assert a.put_one(space, K, b"abc") == w.OK

    def reload(text):
        before = daemon.value("larder_reloads_total", outcome="ok")
        daemon.write_config(text)
        daemon.signal(signal.SIGHUP)
        until(lambda: daemon.value("larder_reloads_total",
                                   outcome="ok") > before)

    only_b = config(tmp_path).split("[tenant b]")[1]
    token_file(tmp_path, "c", "c" * 20)
    reload("[tenant b]" + only_b
           + f"[tenant c]\ntoken_file = {tmp_path}/c\n")
    peer = daemon.connect("tcp")
    assert peer.hello("a", A).status == w.E_DENIED
    c = daemon.enter("tcp", "c", "c" * 20)
    assert c.get(c.space("s"), [K]) == [None]
    assert a.get(space, [K]) == [b"abc"], "its session stays"
    reload(config(tmp_path))
    again = daemon.enter("tcp", "a", A)
    assert again.get(again.space("s"), [K]) == [b"abc"]


@pytest.fixture
def open_folder():
    """A folder that other users may look into, for sockets."""
    path = tempfile.mkdtemp(prefix="larder-")
    os.chmod(path, 0o755)
    yield path
    shutil.rmtree(path)


def as_user(uid, work):
    """Runs it in a process of another user."""
    def child():
        os.setgroups([])
        os.setgid(uid)
        os.setuid(uid)
        return work()

    return in_child(child)


root = pytest.mark.skipif(os.geteuid() != 0,
                          reason="other users: NOT tested without root")


@root
def test_uids(open_folder, serve, tmp_path):
    """The kernel says who it is. A long list counts to its end."""
    many = ",".join(map(str, [*range(1, 70), 54321]))
    daemon = serve(config=config(
        tmp_path, more="[tenant u]\nuids = 54321,54322\n"
        f"[tenant many]\nuids = {many}\n"
        "[tenant all]\nuids = any\n"
        "[tenant both]\nuids = 54321\n"
        f"token_file = {token_file(tmp_path, 'both', 'both-' * 5)}\n"),
        socket=f"{open_folder}/sock", socket_mode="0666")

    def hello(tenant, token=None):
        with w.Peer(daemon.socket) as peer:
            return peer.hello(tenant, token).status

    for uid, tenant, token, want in (
            (54321, "u", None, w.OK), (54322, "u", None, w.OK),
            (54323, "u", None, w.E_DENIED), (54323, "all", None, w.OK),
            (54321, "many", None, w.OK), (54322, "many", None, w.E_DENIED),
            (54321, "default", None, w.E_DENIED),
            (54321, "a", None, w.E_DENIED), (54321, "a", A, w.OK),
            (54321, "both", None, w.E_DENIED),
            (54321, "both", "both-" * 5, w.OK),
            (54322, "both", "both-" * 5, w.E_DENIED),
            (0, "u", None, w.OK), (0, "both", "both-" * 5, w.OK),
            (0, "both", None, w.E_DENIED), (0, "a", None, w.E_DENIED)):
        assert as_user(uid, lambda: hello(tenant, token)) == want, (
            uid, tenant, token)
    assert daemon.value("larder_auth_failures_total", reason="uid") >= 2


@root
def test_operator_is_not_everybody(open_folder, serve, tmp_path):
    """Verbs and figures of the whole node: only for root and the daemon's own
    user."""
    daemon = serve(uids="54321", socket=f"{open_folder}/sock",
                   socket_mode="0666", config=config(tmp_path))

    def work():
        peer = w.Peer(daemon.socket).enter()
        for verb in (b"pause", b"resume", b"takeover", b"frobnicate"):
            reply = peer.ask(w.ADMIN, verb)
            assert reply.status == w.E_DENIED and "root" in reply.text
        text = peer.ask(w.METRICS).text
        assert 'tenant="default"' in text and 'tenant="a"' not in text
        fresh = w.Peer(daemon.socket)
        fresh.start(w.ADMIN, b"pause")
        assert fresh.ended(), "before it came in"
        return True

    assert as_user(54321, work)
    with daemon.admin_peer() as peer:
        space = peer.space()
        assert peer.put_one(space, K, b"abc") == w.OK, "it is not paused"


@root
def test_socket_mode(open_folder, serve):
    daemon = serve(socket=f"{open_folder}/sock")
    assert os.stat(daemon.socket).st_mode & 0o777 == 0o660

    def work():
        try:
            w.Peer(daemon.socket)
        except PermissionError:
            return True
        return False

    assert as_user(54321, work)


# ---- memory ----------------------------------------------------------------

def extents_of(segs):
    return {(extent, generation) for extent, generation, _, _ in segs}


def test_extents_belong_to_one_tenant(two):
    """What a's sessions were handed is not handed to b, whatever b asks."""
    def work():
        a = w.Peer(two.socket).enter("a", A).attach()
        b = w.Peer(two.socket).enter("b", B).attach()
        mine, yours = a.space("s"), b.space("s")
        hers, his = set(), set()
        for i in range(30):
            value = value_of(f"a{i}", 300000)
            r = a.reserve(mine, key_of(f"a{i}"), len(value))
            hers |= extents_of(r.segs)
            a.write_segs(r.segs, value)
            a.commit(r.lease, crc32c(value))
            r = b.reserve(yours, key_of(f"b{i}"), len(value))
            his |= extents_of(r.segs)
            b.commit(r.lease, 0, w.ABORT)
        assert hers and his and not hers & his
        handed = 0
        for extent in range(64):
            for generation in range(4):
                for peer, allowed in ((b, his), (a, hers)):
                    reply = peer.ask(w.EXTENT,
                                     extent_body(extent, generation))
                    if (extent, generation) not in allowed:
                        assert reply.status == w.E_STALE, (
                            extent, generation, "is handed out")
                    elif reply.status == w.OK:
                        handed += 1
                        size = w.struct.unpack("<IIQQ", reply.body)[2]
                        memory = w.mmap.mmap(reply.fds[0], size)
                        if peer is b:
                            marker = value_of("a0", 300000)[:4096]
                            assert memory.find(marker) < 0
                        memory.close()
                    reply.close_fds()
        assert handed == len(hers) + len(his)
        # As it is now, without naming a generation: its own, and all of them.
        for peer, own in ((a, hers), (b, his)):
            found, extent = set(), 0
            while (reply := peer.ask(w.EXTENT, extent_body(
                    extent, 2**32 - 1))).status != w.E_INVALID:
                assert reply.status in (w.OK, w.E_STALE)
                if reply.status == w.OK:
                    found.add(w.struct.unpack("<IIQQ", reply.body)[:2])
                reply.close_fds()
                extent += 1
            assert extent > 1 and found >= own
            assert not found & (hers | his) - own
        # A foreign lease is nothing either.
        lease = a.lease(mine, key_of("a0"))
        assert b.ring_ask(w.RELEASE, ends_body(
            [(lease.lease, 0, 0)])).status == w.E_INVALID
        return True

    assert in_child(work)


def test_extents_change_hands_clean(serve, tmp_path):
    """a has all the memory; b comes and has a share: what b gets is asked back
    from a's sessions first, and is made anew."""
    daemon = serve(config=config(tmp_path), dram="32M")
    size = 400000

    def revokes(peer):
        """Reads what the daemon says; gives the extents it wants back."""
        peer.ask(w.PING)
        out = [w.struct.unpack("<IIQQ", f.body)[:2] for f in peer.told
               if f.opcode == w.REVOKE]
        peer.told.clear()
        return out

    def work():
        a = w.Peer(daemon.socket).enter("a", A).attach()
        b = w.Peer(daemon.socket).enter("b", B).attach()
        mine, yours = a.space("s"), b.space("s")
        marker = b"only a may see this" * 20
        filled = marker * (size // len(marker))
        crc = crc32c(filled)
        for i in range(100):
            r = a.reserve(mine, key_of(f"a{i}"), len(filled))
            assert r.status == w.OK
            a.write_segs(r.segs, filled)
            assert a.commit(r.lease, crc).status == w.OK
        hers = set(a.extents)
        assert len(hers) >= 2
        assert not revokes(a)
        his, wanted, refused = set(), set(), 0
        for i in range(40):
            reply = b.ring_ask(w.RESERVE, batch_body(
                yours, [save_row(key_of(f"b{i}"), size)]), arg=300)
            r = reply.result
            if r.status == w.OK:
                assert not extents_of(r.segs) & hers, "a's very memory"
                his |= extents_of(r.segs)
                for piece in extents_of(r.segs):
                    assert b.extent(*piece).find(marker) < 0, "a's bytes"
                b.commit(r.lease, 0, w.ABORT if i % 2 else w.PLAIN)
            else:
                assert r.status in (w.E_FULL, w.E_DEADLINE), r.status
                refused += 1
            # a answers late: until then nobody gets it.
            new = set(revokes(a)) - wanted
            assert not {x for x, _ in his} & {x for x, _ in wanted | new}
            if i % 4 == 3:
                for extent, generation in wanted | new:
                    if (extent, generation) in a.extents:
                        a.extents.pop((extent, generation)).close()
                    assert a.ask(w.REVOKED, extent_body(
                        extent, generation)).status == w.OK
                    hers.discard((extent, generation))
                wanted = set()
            else:
                wanted |= new
        assert his, "b never got any memory"
        # What a has left is still right, and lies in what it has left.
        found = 0
        for i in range(100):
            value, cause = a.shm_get(mine, key_of(f"a{i}"))
            assert value in (None, filled), cause
            found += value is not None
        assert found > 0
        return True

    assert in_child(work)
    assert daemon.value("larder_reclaimed_extents_total") > 0
