"""Proof 6: preemption, aborts while loads are under way, adapters, salts,
switches, and many requests with shared prefixes, in little memory.

`alone` is an engine with the same settings and without Larder."""
import contextlib
import shutil
import signal

import pytest

pytest.register_assert_rewrite("faults")

import faults
import rig
import watch
from daemon import until

BLOCKS = 128  # of 128 tokens
SETTINGS = dict(max_num_seqs=8, max_num_batched_tokens=128,
                num_gpu_blocks_override=BLOCKS, max_model_len=4096,
                enable_lora=True, max_loras=2, max_lora_rank=8)
PREFIX = 2816


class Told:
    pass


@pytest.fixture(scope="module")
def told(version, tmp_path_factory):
    told = Told()
    told.version, told.folder = version, tmp_path_factory.mktemp("told")
    told.lora = {name: {"name": name, "id": i + 1, "path": path}
                 for i, (name, path) in enumerate(
                     (name, f"{rig.model(version, 'dense')}/{name}")
                     for name in ("lora-a", "lora-b"))}
    with contextlib.ExitStack() as stack:
        told.alone = stack.enter_context(rig.engine(
            version, "dense", larder=False, **SETTINGS))
        told.node = stack.enter_context(rig.node(told.folder / "node",
                                                 dirs=1))
        told.engine = stack.enter_context(rig.engine(
            version, "dense", told.node.url(), options=faults.OPTIONS,
            **SETTINGS))
        told.engine.ask("watch", "pages")
        yield told


@pytest.fixture(autouse=True)
def well(told):
    """After each, nothing is left, and no page was wrong."""
    rig.fresh(told.engine)
    told.engine.ask("watch", "pages")
    yield
    faults.settled(told.node, told.engine)
    faults.right_pages(told.engine, 0)


def ask(told, ids, **args):
    rig.fresh(told.engine)
    return faults.ask(told.engine, ids, **args)


def whole(ids):
    return rig.whole(len(ids) - 1, faults.CHUNK)


# ---- memory ----


def preemptions(engine):
    return engine.counters()["vllm:num_preemptions"]


def test_preemption(told):
    """Eight that fit when they begin, and do not when they have answered:
    computed and saved, and then loaded."""
    prompts = [rig.prompt(f"preempted {i}", 1750 + i) for i in range(8)]
    for wanted in (0, 1):
        before = preemptions(told.engine)
        with faults.asking(told.engine, prompts, max_tokens=300) as found:
            pass
        assert all(len(a["tokens"]) == 300 for a in found)
        assert preemptions(told.engine) > before
        faults.right_pages(told.engine, wanted)
        rig.fresh(told.engine)


def peak(engine, prompts, empty=True):
    """The most blocks in use while these run, all at once."""
    if empty:
        rig.fresh(engine)
    engine.blocks(clear=True)
    with faults.asking(engine, prompts):
        pass
    return engine.blocks()["peak"]


def test_shared_prefixes(told, figure):
    """One loads, the others wait for it and hit locally: no more blocks are
    in use than without Larder."""
    prompts = [rig.prompt("shared", PREFIX) + rig.prompt(f"tail {i}", 100 + i)
               for i in range(8)]
    faults.ask(told.engine, prompts[0])
    own = peak(told.alone, prompts)
    with rig.Counted(told.engine) as counted:
        ours = peak(told.engine, prompts)
    assert counted.external == PREFIX
    assert counted.local >= 7 * PREFIX
    pages = faults.right_pages(told.engine)
    assert (pages["loads"], pages["pages"]) == (1, PREFIX // 128)
    figure(f"vLLM {told.version}, 8 requests that share {PREFIX} tokens: peak "
           f"of {ours} blocks, without Larder {own}")
    assert ours <= 1.1 * own


def test_different_prefixes(told):
    """As many blocks as without Larder where nothing is shared: computed, and
    loaded where the other has it in its own cache."""
    prompts = [rig.prompt(f"different {i}", 1000 + 20 * i) for i in range(8)]
    for loads in (0, 8):
        own = peak(told.alone, prompts, empty=loads == 0)
        ours = peak(told.engine, prompts)
        assert ours <= 1.1 * own
        faults.right_pages(told.engine, loads)


# ---- aborts ----


def in_use(engine):
    blocks = engine.blocks()
    return blocks["total"] - 1 - blocks["free"]


def drive(told):
    """An engine that has nothing to do does no steps either."""
    ids = rig.prompt("drive", 300)
    faults.ask(told.engine, ids)


def steps_until(engine, what):
    until(lambda: engine.run(steps=1) is not None and what(), 30)


@pytest.mark.parametrize("others", [0, 2])
def test_abort_while_it_loads(told, others):
    """Its blocks stay its own until the load has ended; then they are free.
    Others that wait for the same load go on."""
    ids = rig.prompt("aborted", 2000)
    wanted = faults.ask(told.engine, ids)
    rig.fresh(told.engine)
    told.engine.ask("watch", "hold_loads")
    try:
        [name] = told.engine.add([ids])
        steps_until(told.engine, lambda: told.engine.ask("watch", "held"))
        more = told.engine.add([ids] * others, **faults.ANSWER)
        told.engine.run(steps=5)
        told.engine.abort(name)
        told.engine.run(steps=5)
        assert in_use(told.engine) >= 14
    finally:
        told.engine.ask("watch", "let_go")
    ended = told.engine.run(timeout=faults.HANG)
    assert sorted(ended) == sorted(more)
    for answer in ended.values():
        assert answer["error"] is None
        assert answer["tokens"] == wanted["tokens"]
    drive(told)


def test_abort_while_the_node_is_away(told):
    """In the lookup, which has no answer yet."""
    ids = rig.prompt("aborted", 2000)
    watch.strike(told.node.pid, signal.SIGSTOP)
    try:
        names = told.engine.add([ids, ids])
        told.engine.run(steps=5)
        told.engine.abort(*names)
        told.engine.run(steps=5)
        assert in_use(told.engine) == 0
    finally:
        told.node.signal(signal.SIGCONT)
    drive(told)


def test_aborts_at_any_time(told):
    """Prefixes that are in the store, and others; every second one is aborted
    some steps after it came. The others are answered."""
    stored = faults.shared(2, 4, 1024, 200)
    with faults.asking(told.engine, stored):
        pass
    for turn in range(3):
        rig.fresh(told.engine)
        prompts = faults.shared(2, 4, 1024, 200) + [
            rig.prompt(f"abort {turn} {i}", 400 + 200 * i) for i in range(6)]
        names = told.engine.add(prompts, max_tokens=16)
        ended = {}
        for i, name in enumerate(names):
            ended.update(told.engine.run(steps=1 + (i * 7 + turn * 3) % 5))
            if i % 2 == 0 and name not in ended:
                told.engine.abort(name)
                ended[name] = None
        ended.update(told.engine.run(timeout=faults.HANG))
        assert sorted(ended) == sorted(names)
        assert all(a is None or a["error"] is None for a in ended.values())
        drive(told)
    faults.right_pages(told.engine)


# ---- who shares with whom ----


def test_adapters(told):
    """Two adapters and the base, three answers: each hits its own, and only
    that."""
    ids = rig.prompt("adapters", 1500)
    which = [{}] + [{"lora": lora} for lora in told.lora.values()]
    wanted = []
    for args in which:
        rig.fresh(told.alone)
        wanted.append(faults.ask(told.alone, ids, **args))
    assert not any(rig.same(wanted[a], wanted[b])
                   for a, b in ((0, 1), (0, 2), (1, 2)))
    for hit in (0, whole(ids)):
        for args, answer in zip(which, wanted):
            found = ask(told, ids, **args)
            assert found["cached"] == hit
            rig.check_same(found, answer)


def test_another_adapter_of_the_same_name(told):
    """The adapter's content counts, not its name or its path."""
    ids = rig.prompt("swapped", 1500)
    path = told.folder / "adapter"
    wanted = {}
    for name, lora in told.lora.items():
        rig.fresh(told.alone)
        wanted[name] = faults.ask(told.alone, ids, lora=lora)
    for number, (name, hit) in enumerate(
            [("lora-a", 0), ("lora-b", 0), ("lora-a", whole(ids))]):
        shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(told.lora[name]["path"], path)
        # Another number: else vLLM itself keeps the old weights.
        found = ask(told, ids, lora={"name": "swapped", "id": 10 + number,
                                     "path": str(path)})
        assert found["cached"] == hit
        rig.check_same(found, wanted[name])


def test_an_adapter_that_is_changed(told):
    """In its place and under its number, vLLM keeps the old weights: nothing
    is saved or loaded for them under the new ones' name."""
    ids = rig.prompt("changed", 1500)
    path = told.folder / "changed"
    lora = {"name": "changed", "id": 20, "path": str(path)}
    rig.fresh(told.alone)
    wanted = faults.ask(told.alone, ids, lora=told.lora["lora-a"])
    shutil.copytree(told.lora["lora-a"]["path"], path)
    for hit in (0, whole(ids)):
        found = ask(told, ids, lora=lora)
        assert found["cached"] == hit
        rig.check_same(found, wanted)
    for file in path.iterdir():
        file.unlink()
    shutil.copytree(told.lora["lora-b"]["path"], path, dirs_exist_ok=True)

    def seen():
        """Files are not looked at for every request."""
        found = ask(told, ids, lora=lora)
        rig.check_same(found, wanted)
        return found["cached"] == 0

    until(seen)
    assert any("changed in" in line for line in told.engine.larder_lines())
    rig.fresh(told.alone)
    wanted = faults.ask(told.alone, ids, lora=told.lora["lora-b"])
    found = ask(told, ids, lora=dict(lora, id=21))
    assert found["cached"] == 0
    rig.check_same(found, wanted)


def test_salts(told):
    """Two salts never share, nor does one with none."""
    ids = rig.prompt("salted", 1500)
    wanted = faults.ask(told.alone, ids)
    for hit in (0, whole(ids)):
        for args in ({}, {"cache_salt": "one"}, {"cache_salt": "two"}):
            found = ask(told, ids, **args)
            assert found["cached"] == hit
            rig.check_same(found, wanted)


# ---- switches ----


def larder(**switches):
    return {"kv_transfer_params": {"larder": switches}}


def test_skip_save(told):
    ids = rig.prompt("skip save", 700)
    assert ask(told, ids, **larder(skip_save=True))["cached"] == 0
    assert ask(told, ids)["cached"] == 0
    assert ask(told, ids, **larder(skip_save=True))["cached"] == 512


def test_skip_load(told):
    ids = rig.prompt("skip load", 700)
    assert ask(told, ids)["cached"] == 0
    assert ask(told, ids, **larder(skip_load=True))["cached"] == 0
    assert ask(told, ids)["cached"] == 512


def test_ttl(told):
    """It is there, and then it is not."""
    ids = rig.prompt("ttl", 700)
    look = larder(skip_save=True)
    ask(told, ids, **larder(ttl_ms=60000))
    assert ask(told, ids, **look)["cached"] == 512
    ids = rig.prompt("short ttl", 700)
    ask(told, ids, **larder(ttl_ms=1))
    until(lambda: ask(told, ids, **look)["cached"] == 0, 10)


def test_tiers(told):
    """What lies in a tier that was not named is not loaded."""
    ids = rig.prompt("tiers", 700)
    ask(told, ids)
    assert ask(told, ids, **larder(tiers=["ssd"]))["cached"] == 0
    assert ask(told, ids, **larder(tiers=["dram", "ssd"]))["cached"] == 512
    assert ask(told, ids, **larder(tiers=["dram"]))["cached"] == 512


def test_unknown_switch(told):
    """It is said, and the request goes without Larder."""
    ids = rig.prompt("unknown", 700)
    ask(told, ids)
    assert ask(told, ids, **larder(skip_lode=True))["cached"] == 0
    assert any("skip_lode" in line for line in told.engine.larder_lines())
