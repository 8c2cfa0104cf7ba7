"""A server with real SGLang, and another one after it, on one node."""
import concurrent.futures
import contextlib
import types

import pytest

import rig

LONG, SHORT = 2100, 1000  # 131 and 62 whole pages: a call has up to 128
PROMPTS = {"long": rig.prompt("long", LONG), "short": rig.prompt("s", SHORT)}


def whole(count):
    """Tokens of a prompt that can come from a cache: the last one is always
    computed."""
    return (count - 1) // rig.PAGE * rig.PAGE


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    folder = tmp_path_factory.mktemp("proof")
    with contextlib.ExitStack() as stack:
        node = stack.enter_context(rig.node(folder))
        first = stack.enter_context(rig.server(folder, node.url()))
        cold = {}
        for name, ids in PROMPTS.items():
            cold[name] = first.ask(ids)
            assert cold[name].cached == 0
        rig.stored(node, LONG // rig.PAGE + SHORT // rig.PAGE)
        yield types.SimpleNamespace(folder=folder, node=node, server=first,
                                    cold=cold, stack=stack)


def from_storage(told, name, tokens=None, **fields):
    """A hit of the store gives the cold run's answer, to the last bit."""
    told.server.flush()
    answer = told.server.ask(PROMPTS[name], **fields)
    wanted = whole(len(PROMPTS[name])) if tokens is None else tokens
    assert answer.tokens("storage") == wanted
    assert answer == told.cold[name]
    return answer


def test_device_hit(told):
    answer = told.server.ask(PROMPTS["short"])
    assert answer.tokens("device") == whole(SHORT)
    assert answer == told.cold["short"]


@pytest.mark.parametrize("name", PROMPTS)
def test_flushed_and_prefetched(told, name):
    answer = from_storage(told, name)
    assert answer.meta["cached_tokens_details"]["storage_backend"] == (
        "LarderStorage")
    from_storage(told, name)  # its threads are others after each flush


def test_a_byte_flipped_in_the_store_is_a_miss(told):
    with rig.Store(told.node, told.server) as store:
        ids = PROMPTS["short"]
        piece = store.page_bytes(ids, 20)[4096:4160]
        assert rig.flip_in_memory(told.node, piece) == 1
        from_storage(told, "short", 20 * rig.PAGE)
        # What was computed instead is saved, and found again.
        rig.daemon.until(lambda: all(store.exists(ids)))
    from_storage(told, "short")


@pytest.mark.parametrize("field", ["extra_key", "cache_salt"])
def test_salts_are_apart(told, field):
    ids = PROMPTS["short"]
    for salt in (f"{field} a", f"{field} b"):
        told.server.flush()
        answer = told.server.ask(ids, **{field: salt})
        assert answer.cached == 0 and answer == told.cold["short"]
    told.server.flush()
    rig.daemon.until(
        lambda: told.server.flush() or told.server.ask(
            ids, **{field: f"{field} a"}).tokens("storage") == whole(SHORT))
    from_storage(told, "short")  # that of no salt is still its own


def test_tenants_are_apart(told):
    told.server.flush()
    told.server.detach()
    told.server.attach(url=told.node.url(tenant="other"))
    answer = told.server.ask(PROMPTS["short"])
    assert answer.cached == 0 and answer == told.cold["short"]
    told.server.flush()
    told.server.detach()
    told.server.attach()
    from_storage(told, "short")


def test_several_at_once(told):
    told.server.flush()
    many = {f"s{i}": rig.prompt(f"several {i}", 400) for i in range(6)}
    alone = {name: told.server.ask(ids) for name, ids in many.items()}
    with rig.Store(told.node, told.server) as store:
        rig.daemon.until(lambda: all(
            all(store.exists(ids)) for ids in many.values()))
    told.server.flush()
    with concurrent.futures.ThreadPoolExecutor(len(many)) as pool:
        got = dict(zip(many, pool.map(told.server.ask, many.values())))
    for name, answer in got.items():
        assert answer.tokens("storage") == whole(400), name
        # Rows of one matrix are rounded by how many there are.
        for one, other in zip(answer.logprobs, alone[name].logprobs):
            assert abs(float(one) - float(other)) < 0.05, name


def test_close_releases(told):
    """Nothing of the backend is left in the server after it is detached."""
    told.server.flush()
    told.server.detach()
    assert "larder: closed; pages: " in told.server.log()
    answer = told.server.ask(PROMPTS["short"])
    assert answer.cached == 0 and answer == told.cold["short"]
    told.server.attach()
    from_storage(told, "short")


def test_another_process(told):
    told.server.end()
    told.server = told.stack.enter_context(
        rig.server(told.folder, told.node.url()))
    for name in PROMPTS:
        from_storage(told, name)


def test_the_node_has_restarted(told):
    """What was only on its disk comes back as well."""
    with rig.larder_kv.open(told.node.url()) as node:
        node.flush()
    told.node.stop()
    told.node.start()
    rig.daemon.until(
        lambda: told.server.flush() or told.server.ask(
            PROMPTS["long"]).tokens("storage") == whole(LONG))
    from_storage(told, "short")
