"""examples/pd/proxy.py between engines that break off."""
import contextlib
import importlib.util
import json
import pathlib
import threading
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

import pytest

PROXY = pathlib.Path(__file__).resolve().parents[2] / "examples/pd/proxy.py"


def load():
    spec = importlib.util.spec_from_file_location("proxy", PROXY)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@contextlib.contextmanager
def served(handler, **more):
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    vars(server).update(more)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield urlsplit(f"http://127.0.0.1:{server.server_address[1]}")
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class Engine(BaseHTTPRequestHandler):
    """Answers with server.status; one that dies sends a part of its body."""

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        body = json.dumps({"by": self.server.name}).encode()
        self.send_response(self.server.status)
        self.send_header("Content-Length",
                         str(len(body) + (100 if self.server.dies else 0)))
        self.end_headers()
        self.wfile.write(body)
        self.close_connection = True

    def log_message(self, format, *args):
        pass


@pytest.mark.parametrize("prefill, decode, by", [
    ((200, False), (500, True), "prefill"),
    ((200, False), (503, False), "prefill"),
    ((200, True), (200, False), "decode"),
    ((500, True), (200, False), "decode")])
def test_an_engine_that_dies_while_it_answers(prefill, decode, by):
    """The other one serves the request."""
    with contextlib.ExitStack() as stack:
        engines = {name: stack.enter_context(served(
            Engine, name=name, status=status, dies=dies))
            for name, (status, dies) in (("prefill", prefill),
                                         ("decode", decode))}
        at = stack.enter_context(served(
            load().Handler, concurrent=False, timeout_s=10, **engines))
        answer = stack.enter_context(urllib.request.urlopen(
            urllib.request.Request(
                f"{at.geturl()}/v1/completions", b'{"prompt": "x"}',
                {"Content-Type": "application/json"}), timeout=20))
        assert json.load(answer) == {"by": by}
