"""Members that talk to each other by TLS: what is said between them cannot be
read, and who has no certificate of theirs is refused, by name."""
import shutil
import signal
import socket
import ssl
import threading

import pytest

from capi import OK, Node
from certificates import make_certificate
from daemon import free_port, refused, secret_file, until

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None,
                                reason="no openssl")
MARK = b"nobody else may read this " * 400
COUNT = 8


class Listener:
    """Passes connections on to a port, and keeps what was said."""

    def __init__(self, port):
        self.port, self.heard = port, bytearray()
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.own = self.socket.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            near = self.socket.accept()[0]
            try:
                far = socket.create_connection(("127.0.0.1", self.port))
            except OSError:  # it is not there yet
                near.close()
                continue
            for a, b in (near, far), (far, near):
                threading.Thread(target=self.copy, args=(a, b),
                                 daemon=True).start()

    def copy(self, source, sink):
        try:
            while data := source.recv(1 << 16):
                self.heard += data
                sink.sendall(data)
        except OSError:
            pass
        for end in (source, sink):
            end.close()


@pytest.fixture
def made(tmp_path):
    """Certificates of an authority and of another one, for two and for one."""
    for ca in ("ca", "other-ca"):
        make_certificate(tmp_path, ca)
    for name in ("a", "b"):
        make_certificate(tmp_path, name, "ca")
    make_certificate(tmp_path, "forged", "other-ca")
    return tmp_path


def tls(folder, name, ca="ca"):
    return {"cluster_tls": "on", "cluster_cert": folder / f"{name}.pem",
            "cluster_key": folder / f"{name}.key",
            "cluster_ca": folder / f"{ca}.pem"}


def pair(serve, folder, with_tls):
    """Two members; what a says to b, and hears, goes through a listener."""
    ports = free_port(), free_port()
    spy = Listener(ports[1])
    both = {"cluster_secret": secret_file(folder / "secret"),
            "cluster_ramp_s": 0}
    nodes = []
    for name, second in ("a", spy.own), ("b", ports[1]):
        nodes.append(serve(
            name=name, member_name=name,
            cluster=f"static:a=127.0.0.1:{ports[0]},b=127.0.0.1:{second}",
            **both, **(tls(folder, name) if with_tls else {})))
    for node in nodes:
        until(lambda n=node: n.value("larder_peer_well") == 1,
              text=node.log)
    return nodes, spy, ports


@pytest.mark.parametrize("with_tls", [True, False])
def test_nobody_reads_it(serve, made, with_tls):
    (a, b), spy, _ = pair(serve, made, with_tls)
    with Node(a.url()) as node:
        for i in range(COUNT):
            assert node.put(f"k{i}", MARK) == OK
    until(lambda: a.value("larder_peer_shards_total", event="sent") > 0)
    with Node(b.url()) as node:
        for i in range(COUNT):
            until(lambda i=i: node.get(f"k{i}", timeout_ms=5000)[2] == MARK,
                  30, text=b.log)
    assert len(spy.heard) > len(MARK)
    assert (MARK[:64] in spy.heard) == (not with_tls)


def test_who_is_refused(serve, made):
    """Without TLS, by its name; with a certificate of somebody else; and TLS
    where the other has none, by where it comes from."""
    ports = {name: free_port() for name in "abcd"}
    members = "static:" + ",".join(f"{n}=127.0.0.1:{p}"
                                   for n, p in ports.items())
    both = {"cluster": members, "cluster_secret": secret_file(made / "secret")}
    a = serve(name="a", member_name="a", **both, **tls(made, "a"))
    b = serve(name="b", member_name="b", **both, **tls(made, "b"))
    c = serve(name="c", member_name="c", **both)
    d = serve(name="d", member_name="d", **both, **tls(made, "forged"))
    until(lambda: a.value("larder_peer_well") == 1 and
          b.value("larder_peer_well") == 1)
    until(lambda: "member 'c' comes without TLS, which 'a' requires" in a.log())
    until(lambda: "member 'c' comes without TLS" in c.log())
    until(lambda: "it speaks TLS, and this member does not" in c.log())
    until(lambda: "certificate" in d.log() and "certificate" in a.log())
    assert a.value("larder_peer_well") == 1
    assert c.value("larder_peer_well") == d.value("larder_peer_well") == 0


def test_options_that_belong_together(serve, made):
    options = tls(made, "a") | {
        "cluster": "static:a=127.0.0.1:1", "member_name": "a",
        "cluster_secret": secret_file(made / "secret")}
    assert "cluster_ca" in refused(serve(
        start=False, **options | {"cluster_ca": ""}))
    assert "nowhere" in refused(serve(
        start=False, name="two", **options | {"cluster_cert": "/nowhere"}))


def test_certificates_are_read_again(serve, made):
    """After a reload both ends of new connections show the new one."""
    (a, b), _, ports = pair(serve, made, True)

    def shown():
        context = ssl.create_default_context(cafile=made / "ca.pem")
        context.load_cert_chain(made / "b.pem", made / "b.key")
        with socket.create_connection(("127.0.0.1", ports[0])) as plain:
            with context.wrap_socket(plain,
                                     server_hostname="127.0.0.1") as secure:
                return secure.getpeercert(True)

    before = shown()
    make_certificate(made, "a", "ca")
    a.process.send_signal(signal.SIGHUP)
    until(lambda: shown() != before)
    # What a calls b with now is of an authority that b does not know.
    make_certificate(made, "a", "other-ca")
    a.process.send_signal(signal.SIGHUP)
    until(lambda: a.log().count("reloaded") == 2)
    b.signal(signal.SIGKILL)
    b.process.wait()
    b.start()
    until(lambda: "certificate" in b.log())
    until(lambda: a.value("larder_peer_well") == 0)
