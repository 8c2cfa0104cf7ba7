"""Two tenants with tokens, for tests of what each may see and use."""
import random

import pytest

import wireclient as w
from wireclient import key_of

BOTH = ("unix", "tcp")
both = pytest.mark.parametrize("transport", BOTH)
A = "token-of-a-0123456789abcdef01234567"
B = "token-of-b-0123456789abcdef01234567"
K = key_of("the same key")


def token_file(folder, name, *tokens):
    path = folder / name
    path.write_text("".join(t + "\n" for t in tokens))
    path.chmod(0o600)
    return path


def config(tmp_path, a="", b="", more=""):
    return (f"[tenant a]\ntoken_file = {token_file(tmp_path, 'a', A)}\n{a}\n"
            f"[tenant b]\ntoken_file = {token_file(tmp_path, 'b', B)}\n{b}\n"
            + more)


def value_of(name, size=5000):
    return random.Random(name).randbytes(size)


def fill(peer, space, name, count, size):
    """Saves so many; gives the names of those that were stored."""
    stored = []
    values = [value_of(f"{name} {i}", size) for i in range(4)]
    for i in range(count):
        value = values[i % 4]
        key = f"{name} {i}"
        status = (peer.shm_put(space, key_of(key), value) if peer.ring
                  else peer.put_one(space, key_of(key), value))
        assert status in (w.OK, w.E_FULL), status
        if status == w.OK:
            stored.append(key)
    return stored
