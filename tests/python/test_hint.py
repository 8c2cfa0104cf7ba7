"""Four real daemons of one cluster: a stage that names the member which has a
prompt finds it there, although that member owns little of it."""
import os
import random
import time
from array import array

import pytest

from daemon import Daemon, free_port, secret_file, until
from larder_kv import _lib
from middle import Middle
from test_stage import CHUNK, MS, Rank
from wireclient import STAGE

CHUNKS = 24
HOSTS = (1, 1, 1, 4)  # the last one has a host for itself


@pytest.fixture
def members(tmp_path):
    ports = [free_port() for _ in range(4)]
    made = [Daemon(
        os.environ["LARDER_PROGRAM"], tmp_path / f"n{i}", member_name=f"n{i}",
        cluster="static:" + ",".join(f"n{k}=127.0.0.{HOSTS[k]}:{port}"
                                     for k, port in enumerate(ports)),
        cluster_secret=secret_file(tmp_path / "secret"), cluster_ramp_s=0,
        peer_match_ms=2000, peer_save="never") for i in range(4)]
    for one in made:
        one.start()
    for one in made:
        until(lambda n=one: n.value("larder_peer_well") == 3)
    yield made
    for one in made:
        one.end()


@pytest.mark.parametrize("named", [
    b"n3", b"address", b"127.0.0.4:5600"])
def test_a_member_that_is_named(members, named):
    """By its name, its address, or its host, where no other has that."""
    if named == b"address":
        named = members[3].given["cluster"].rpartition("=")[2].encode()
    keys = _lib.Keys()
    rank = Rank(members[3].url("unix"), ((_lib.RULE_ALL, 0),), CHUNKS, 1, 0)
    rank.space.chain(array("I", random.Random(1).choices(
        range(2048), k=CHUNKS * CHUNK)), keys)
    rank.save(keys, CHUNKS)
    rank.settle(keys)
    data = keys.data(0, CHUNKS)
    rules = _lib.Layout(CHUNK, [_lib.Group(_lib.RULE_ALL, rank.layout.
                                           chunk_tokens // 2, 0)])
    node = _lib.Node(members[0].url("unix"))
    space = node.space(b"a model", 1, CHUNK)

    def found(**worth):
        lease, match = space.stage(rules, data, CHUNKS, MS,
                                   _lib.StageParams(**worth))
        if lease is not None:
            lease.release()
        return match.chunks

    assert found() < CHUNKS
    assert found(member=b"n9") < CHUNKS
    # A host of three members, a port that none of them has; a host of none.
    assert found(member=b"127.0.0.1:5600") < CHUNKS
    assert found(member=b"127.0.0.9:5600") < CHUNKS
    assert found(member=named) == CHUNKS
    for one in (rules, space, node, rank):
        one.close()


@pytest.mark.parametrize("knows", [True, False])
def test_an_older_daemon_is_told_of_no_member(members, tmp_path, knows):
    """It could not read the request, and the name is advice."""
    rules = _lib.Layout(CHUNK, [_lib.Group(_lib.RULE_ALL, CHUNK // 2, 0)])
    keys = _lib.Keys()
    with Middle(members[0], "tcp", tmp_path, welcome=lambda version, has:
                (version, has if knows else 0)) as middle:
        node = _lib.Node(middle.url)
        space = node.space(b"a model", 1, CHUNK)
        space.chain(array("I", range(CHUNK)), keys)
        for worth in ({}, {"member": b"n1"}):
            assert space.stage(rules, keys.data(0, 1), 1, MS,
                               _lib.StageParams(**worth))[0] is None
        for one in (rules, space, node):
            one.close()
        plain, named = middle.sent(STAGE)
        assert named == plain + (64 if knows else 0)


def asks(node):
    """How often each other member was asked."""
    return [node.value("larder_peer_asks_total", member=f"n{i}")
            for i in range(1, 4)]


def test_what_a_wrong_hint_costs(members):
    """One question to the member that it names, beside those to the owners,
    and nothing after it; to what is no member, none."""
    here = members[0]
    rules = _lib.Layout(CHUNK, [_lib.Group(_lib.RULE_ALL, CHUNK // 2, 0)])
    node = _lib.Node(here.url("unix"))
    space = node.space(b"a model", 1, CHUNK)

    def cost(keys, **worth):
        """Questions to n1, n2 and n3; and requests of this client."""
        before = asks(here), here.value("larder_requests_total", op="stage")
        time.sleep(0.6)  # what nobody had half a second ago is not asked for
        lease, match = space.stage(rules, keys.data(0, keys.count), keys.count,
                                   MS, _lib.StageParams(**worth))
        assert lease is None and match.chunks == 0
        until(lambda: here.value("larder_requests_total", op="stage")
              == before[1] + 1)
        return [now - old for now, old in zip(asks(here), before[0])]

    for seed in range(50):  # of one chunk, whose owners are others than n3
        keys = _lib.Keys()
        space.chain(array("I", random.Random(seed).choices(
            range(2048), k=CHUNK)), keys)
        plain = cost(keys)
        if plain[2] == 0:
            break
    assert plain[2] == 0 and max(plain) == 1
    assert cost(keys, member=b"n3") == [*plain[:2], 1]
    assert cost(keys, member=b"n9") == plain
    assert cost(keys, member=b"127.0.0.9:5600") == plain
    for one in (rules, space, node):
        one.close()
