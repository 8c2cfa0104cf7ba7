"""What the tests of hostile peers share."""
import os
import random
import struct

import pytest

import wireclient as w
from wireclient import (batch_body, crc32c, ends_body, extent_body, hello_body,
                        key_of, match_body, name_row, save_row, space_body,
                        stage_body)

BOTH = ("unix", "tcp")
both = pytest.mark.parametrize("transport", BOTH)
SEED = int(os.environ.get("LARDER_SEED", "4"))
TOKEN = "0123456789abcdef0123456789abcdef"
K = key_of("fields")


def value_of(key, size=5000):
    return random.Random(key).randbytes(size)


def with_token(serve, tmp_path, **options):
    path = tmp_path / "token"
    path.write_text(TOKEN + "\n")
    path.chmod(0o600)
    daemon = serve(config=f"[tenant default]\ntoken_file = {path}\n",
                   start=False, **options)
    daemon.token = TOKEN
    return daemon.start()


def plausible(space=0):
    """A well-formed body for every opcode."""
    key = key_of("k")
    names = batch_body(space, [name_row(key)])
    save = batch_body(space, [save_row(key, 3, crc32c(b"abc"))])
    return {
        w.HELLO: hello_body(), w.AUTH: bytes(32), w.PING: b"",
        w.ATTACH: w.attach_body(), w.EXTENT: extent_body(0, 1),
        w.REVOKE: extent_body(0, 1), w.REVOKED: extent_body(0, 1),
        w.SPACE: space_body("space"), w.RESET: struct.pack("<I", space),
        w.MATCH: match_body(space, [key]), w.EXISTS: names, w.REMOVE: names,
        w.STAGE: stage_body(space, [key]),
        w.FLUSH: struct.pack("<I", 0), w.STATS: b"", w.METRICS: b"",
        w.REPORT: names, w.GET: names, w.PUT: save, w.LEASE: names,
        w.RELEASE: ends_body([(0, 0, 0)]), w.RESERVE: save,
        w.COMMIT: ends_body([(0, 0, 0)]), w.ADMIN: b"frobnicate",
    }
