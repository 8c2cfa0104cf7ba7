#!/usr/bin/python3
"""An S3 server for tests: OpenStack Swift with its s3api, in one process.

s3_server.py DIR PORT BUCKET [--conditional] [--secret=S] [CERT KEY]

Debian's python3-swift, on loopback, with everything it keeps below DIR (a file
system with extended attributes). Account, container, object and proxy servers
are the real ones; only what starts them is here. The login is test:tester with
the secret S, or testing. It runs until it is killed.

This Swift refuses conditional puts (501). --conditional has it do them as other
servers do: it looks whether there is one before it takes the new one, and puts
of the same name come one after the other.
"""
import os
import sys

import eventlet

eventlet.monkey_patch()

from eventlet import semaphore, wsgi                        # noqa: E402
from swift.common import utils                              # noqa: E402
from swift.common.middleware.s3api import s3request         # noqa: E402
from swift.common.ring import RingBuilder                   # noqa: E402
from swift.common.swob import Request                       # noqa: E402
from swift.common.wsgi import loadapp                       # noqa: E402

# What /etc/swift/swift.conf would say.
utils.HASH_PATH_PREFIX = b""
utils.HASH_PATH_SUFFIX = b"larder"

STORE = """
[DEFAULT]
swift_dir = {dir}
devices = {dir}/devices
mount_check = false
disable_fallocate = true
log_level = ERROR
[pipeline:main]
pipeline = {kind}-server
[app:{kind}-server]
use = egg:swift#{kind}
recon_cache_path = {dir}
"""

PROXY = """
[DEFAULT]
swift_dir = {dir}
log_level = ERROR
[pipeline:main]
pipeline = {pipeline}
[app:proxy-server]
use = egg:swift#proxy
account_autocreate = true
[filter:catch_errors]
use = egg:swift#catch_errors
[filter:tempauth]
use = egg:swift#tempauth
user_test_tester = {secret} .admin
[filter:s3api]
use = egg:swift#s3api
allow_multipart_uploads = false
auth_pipeline_check = false
location = us-east-1
"""


class Cache:
    """What Swift would ask a memcached for, of this one process."""

    def __init__(self, app):
        self.app, self.values = app, {}

    def __call__(self, env, start_response):
        env["swift.cache"] = self
        return self.app(env, start_response)

    def get(self, key, **_):
        return self.values.get(key)

    def set(self, key, value, **_):
        self.values[key] = value

    def delete(self, key, **_):
        self.values.pop(key, None)


class Conditional:
    """Puts of one name one after the other, and Swift's own If-None-Match."""

    def __init__(self, app):
        self.app, self.locks = app, {}
        check = s3request.S3Request._validate_headers

        def check_without(request):
            value = request.headers.pop("If-None-Match", None)
            check(request)
            if value is not None:
                request.headers["If-None-Match"] = value
        s3request.S3Request._validate_headers = check_without

    def __call__(self, env, start_response):
        if env["REQUEST_METHOD"] != "PUT":
            return self.app(env, start_response)
        with self.locks.setdefault(env["PATH_INFO"], semaphore.Semaphore()):
            return list(self.app(env, start_response))


def listen(port=0):
    return eventlet.listen(("127.0.0.1", port))


def serve(sock, app):
    """In the background."""
    log = open(os.devnull, "w")
    eventlet.spawn(wsgi.server, sock, app, log=log, log_output=False)


def load(folder, name, text, **values):
    path = os.path.join(folder, name + ".conf")
    with open(path, "w") as file:
        file.write(text.format(dir=folder, **values))
    return loadapp(path)


def main():
    folder, port, bucket = os.path.abspath(sys.argv[1]), int(sys.argv[2]), \
        sys.argv[3]
    conditional = "--conditional" in sys.argv[4:]
    secret = next((a[9:] for a in sys.argv[4:] if a.startswith("--secret=")),
                  "testing")
    certificate = [a for a in sys.argv[4:] if not a.startswith("--")]
    os.makedirs(os.path.join(folder, "devices", "one"), exist_ok=True)

    socks = {}
    for kind in ("account", "container", "object"):
        socks[kind] = listen()
        ring = RingBuilder(2, 1, 1)  # 4 parts, 1 copy
        ring.add_dev({"region": 1, "zone": 1, "weight": 1, "device": "one",
                      "ip": "127.0.0.1",
                      "port": socks[kind].getsockname()[1]})
        ring.rebalance()
        ring.get_ring().save(os.path.join(folder, kind + ".ring.gz"))
    for kind, sock in socks.items():
        serve(sock, load(folder, kind, STORE, kind=kind))

    # The bucket, by one that asks nobody.
    inside = load(folder, "inside", PROXY, pipeline="proxy-server",
                  secret=secret)
    request = Request.blank("/v1/AUTH_test/" + bucket,
                            environ={"REQUEST_METHOD": "PUT"})
    answer = request.get_response(inside)
    if answer.status_int // 100 != 2:
        sys.exit(f"{bucket}: {answer.status}")

    app = load(folder, "proxy", PROXY,
               pipeline="catch_errors s3api tempauth proxy-server",
               secret=secret)
    if conditional:
        app = Conditional(app)
    sock = listen(port)
    if certificate:
        sock = eventlet.wrap_ssl(sock, certfile=certificate[0],
                                 keyfile=certificate[1], server_side=True)
    serve(sock, Cache(app))
    print("ready", flush=True)
    while True:
        eventlet.sleep(3600)


main()
