"""Engines of different shapes share KV: what one rank saved, two read, and the
reverse, by tensor and by pipeline parallelism, and so do engines that group
their layers in other ways. The whole prefix is claimed, and the pages are those
that the writer had, byte for byte. What the reader answers is no further from
its own cold run than two cold runs are apart, one of each shape."""
import contextlib

import pytest

import rig

CHUNK = 256
LENGTH = 2100
BIND = {"VLLM_CPU_OMP_THREADS_BIND": "0|1", "VLLM_USE_SPINLOOP_EXT": "1"}
# As in test_proof_tp.py and test_proof_pp.py.
SHAPES = {
    "one": {},
    "tp2": dict(tensor_parallel_size=2, start_timeout=900, env=BIND),
    "pp2": dict(pipeline_parallel_size=2, start_timeout=900, env=BIND,
                enforce_eager=False,
                compilation_config={"mode": 1, "backend": "eager"}),
    # One group of all layers; with the hybrid manager Gemma 3 has six.
    "off": dict(disable_hybrid_kv_cache_manager=True),
}
# What each kind's engines are, in the order they run: every one saves a prompt
# of its own, and loads those of all before it, which saved and went. One that
# comes twice is, the second time, a reader of what came between.
RUNS = {"dense": ("tp2", "one", "pp2", "tp2"),
        "gemma3": ("one", "off", "tp2", "one"),
        "mixed": ("pp2", "one", "off"), "mla": ("one", "tp2", "one")}
# What a hit may differ by, in times of what the shapes differ by themselves.
SLACK = 1.25
# A prompt that leaves the store alone.
ASIDE = {"larder": {"skip_load": True, "skip_save": True}}


@pytest.fixture(autouse=True)
def described(version):
    if not version.startswith("0.32"):
        pytest.skip("pages of earlier releases are not described")


def merged(answers, which):
    found = {}
    for answer in answers:
        for name, digest in answer[which].items():
            assert found.setdefault(name, digest) == digest, (
                "two ranks hold different bytes for one head")
    return found


def heads(engine):
    answers = engine.ask("watch", "ranks", call="heads", of="shapes")
    return merged(answers, 0), merged(answers, 1)


def apart(one, other):
    """The largest difference of two answers' logprobs, as far as their tokens
    are the same."""
    most = 0.0
    for i, (a, b) in enumerate(zip(one["logprobs"], other["logprobs"])):
        if one["tokens"][:i] != other["tokens"][:i]:
            break
        b = dict(map(tuple, b))
        most = max([most, *(abs(float.fromhex(value) - float.fromhex(b[token]))
                            for token, value in a if token in b)])
    return most


def check_answer(engine, prompt, hit, theirs, what, figure):
    """theirs: the writer's cold run."""
    rig.fresh(engine)
    cold = engine.ask_one(prompt, logprobs=20, kv_transfer_params=ASIDE)
    assert cold["cached"] == 0
    shapes, off = apart(theirs, cold), apart(hit, cold)
    figure(f"{what}: a hit is {off:.3g} off the reader's cold run, the "
           f"writer's is {shapes:.3g}")
    assert off <= SLACK * shapes, what


@pytest.mark.parametrize("kind", RUNS)
def test_shapes(version, kind, tmp_path, figure):
    options = {"load": "always"} if kind == "mla" else {}
    wanted = rig.whole(LENGTH - 1, CHUNK)
    saved, names = {}, set()  # by shape: prompt, digests, answer
    with contextlib.ExitStack() as stack:
        node = stack.enter_context(rig.node(tmp_path))
        for shape in RUNS[kind]:
            with rig.engine(version, kind, node.url(), options=options,
                            **SHAPES[shape]) as engine:
                names.add(engine.ask("inside", "space")["descriptor"])
                assert len(names) == 1, "the name depends on the shape"
                heads(engine)
                for writer, (prompt, digests, theirs) in saved.items():
                    hit = rig.hit(engine, prompt, wanted, logprobs=20)
                    _, loaded = heads(engine)
                    assert loaded, f"{shape} loaded nothing of {writer}"
                    wrong = [name for name, digest in loaded.items()
                             if digests.get(name) != digest]
                    assert not wrong, (
                        f"{shape} got {len(wrong)} of {len(loaded)} heads that "
                        f"{writer} did not have: {wrong[:3]}")
                    if kind != "mla":  # its cold runs differ: rotary.py
                        check_answer(engine, prompt, hit, theirs,
                                     f"{kind}, {writer} -> {shape}", figure)
                if shape in saved:
                    continue
                prompt = rig.prompt(f"shapes {kind} {shape}", LENGTH)
                answer = engine.ask_one(prompt, logprobs=20)
                saved[shape] = prompt, heads(engine)[0], answer
                assert saved[shape][1]


def test_sees_one_bit(version, tmp_path):
    """The test of the test: another bit in the store is another page."""
    prompt = rig.prompt("shapes bit", LENGTH)
    with contextlib.ExitStack() as stack:
        node = stack.enter_context(rig.node(tmp_path))
        engine = stack.enter_context(rig.engine(version, "dense", node.url()))
        heads(engine)
        engine.ask_one(prompt)
        digests, _ = heads(engine)
        store = stack.enter_context(rig.Store(
            node.url(), engine.ask("inside", "space")))
        for shard in (0, store.shards - 1):
            with store.flipped(prompt, 1, shard=shard):
                rig.hit(engine, prompt, rig.whole(LENGTH - 1, CHUNK))
                _, loaded = heads(engine)
                assert [digests[n] == d for n, d in loaded.items()].count(
                    False) == 1
