#!/usr/bin/env python3
"""A small OpenAI-compatible proxy before a prefill and a decode engine.

    proxy.py --prefill http://127.0.0.1:8100 --decode http://127.0.0.1:8200 \\
             [--port 8000] [--concurrent]

Completions and chat completions go to the prefill engine first, with one token
to answer, and then to the decode engine with the kv_transfer_params of that
answer. --concurrent asks both at once: the decode engine waits for the prefill
engine's KV by itself. If one engine is down, the other one serves the request as
any other. All other paths go to the decode engine.
"""
import argparse
import contextlib
import http.client
import json
import sys
import threading
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

PREFILL = {"do_remote_decode": True, "do_remote_prefill": False,
           "remote_engine_id": None, "remote_block_ids": None,
           "remote_host": None, "remote_port": None}
EARLY = {"do_remote_prefill": True, "do_remote_decode": False}
GENERATES = ("/v1/completions", "/v1/chat/completions")
HOPS = {"connection", "keep-alive", "transfer-encoding", "content-length",
        "host", "accept-encoding"}


class Down(Exception):
    """An engine gave no answer, or one that says that it cannot."""


def send(engine, method, path, headers, body, timeout):
    """The engine's answer, as far as its head."""
    to = http.client.HTTPConnection(engine.hostname, engine.port,
                                    timeout=timeout)
    try:
        to.request(method, path, body, headers)
        answer = to.getresponse()
    except (OSError, http.client.HTTPException) as error:
        to.close()
        raise Down(str(error)) from None
    if answer.status >= 500:
        to.close()
        raise Down(f"status {answer.status}")
    return to, answer


def for_prefill(body):
    """The request that makes an engine the prefill side."""
    asked = {k: v for k, v in body.items()
             if k not in ("stream_options", "min_tokens")}
    asked.update(stream=False, max_tokens=1, kv_transfer_params=PREFILL)
    if "max_completion_tokens" in asked:
        asked["max_completion_tokens"] = 1
    return asked


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self.pass_on([self.server.decode, self.server.prefill], None)

    def do_POST(self):
        data = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if urlsplit(self.path).path not in GENERATES:
            self.pass_on([self.server.decode, self.server.prefill], data)
            return
        try:
            body = json.loads(data)
            assert isinstance(body, dict)
        except (ValueError, AssertionError):
            self.send_error(400, "the body is no JSON object")
            return
        self.request_id = self.headers.get("X-Request-Id") or str(uuid.uuid4())
        if self.server.concurrent:
            threading.Thread(target=self.prefill, args=(body,),
                             daemon=True).start()
            params = EARLY
        else:
            params = self.prefill(body)
        given = dict(body, kv_transfer_params=params) if params else body
        self.pass_on([self.server.decode], json.dumps(given).encode(),
                     json.dumps(body).encode())

    def sent_headers(self):
        found = {k: v for k, v in self.headers.items()
                 if k.lower() not in HOPS}
        if hasattr(self, "request_id"):
            found["X-Request-Id"] = self.request_id
        return found

    def prefill(self, body):
        """The kv_transfer_params of its answer; None: there are none, and the
        request goes on without."""
        try:
            to, answer = send(self.server.prefill, "POST", self.path,
                              self.sent_headers(),
                              json.dumps(for_prefill(body)).encode(),
                              self.server.timeout_s)
            with contextlib.closing(to):
                found = json.loads(answer.read())
            return found.get("kv_transfer_params") or None
        except (Down, ValueError, OSError,
                http.client.HTTPException) as error:
            print(f"proxy: no prefill: {error}", file=sys.stderr, flush=True)
            return None

    def pass_on(self, engines, data, plain=None):
        """To the first engine that answers. plain: what the prefill engine is
        asked if the decode engine does not."""
        tries = [(one, data) for one in engines]
        if plain is not None:
            tries.append((self.server.prefill, plain))
        for engine, body in tries:
            try:
                to, answer = send(engine, self.command, self.path,
                                  self.sent_headers(), body,
                                  self.server.timeout_s)
            except Down as error:
                print(f"proxy: {engine.netloc}: {error}", file=sys.stderr,
                      flush=True)
                continue
            with contextlib.closing(to):
                self.copy(answer)
            return
        self.send_error(502, "no engine answers")

    def copy(self, answer):
        """Streams it, piece by piece as it comes."""
        self.send_response(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in HOPS | {"date", "server"}:
                self.send_header(name, value)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        while piece := answer.read1(65536):
            self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
            self.wfile.flush()
        self.wfile.write(b"0\r\n\r\n")

    def log_message(self, format, *args):
        pass


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--prefill", required=True, type=urlsplit)
    parser.add_argument("--decode", required=True, type=urlsplit)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--concurrent", action="store_true")
    parser.add_argument("--timeout", type=float, default=600)
    given = parser.parse_args()
    server = ThreadingHTTPServer((given.host, given.port), Handler)
    server.daemon_threads = True
    server.prefill, server.decode = given.prefill, given.decode
    server.concurrent, server.timeout_s = given.concurrent, given.timeout
    print(f"proxy: http://{given.host}:{server.server_address[1]}",
          flush=True)
    with contextlib.suppress(KeyboardInterrupt):
        server.serve_forever()


if __name__ == "__main__":
    main()
