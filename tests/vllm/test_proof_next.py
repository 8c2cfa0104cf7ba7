"""Proof 3, a hybrid of linear-attention states and full attention (Qwen3-Next:
blocks of 640 tokens). vLLM offers the state at a prompt's last boundary only:
a prompt that shares all of it hits, one that shares less misses."""
import pathlib

import pytest

import rig
from restarted import restarted

CHUNK = 640
PROMPTS = {n: rig.prompt(f"next {n}", n) for n in (700, 1400, 3000, 6500)}


def compute(told, engine):
    told.own = {}
    for n, ids in PROMPTS.items():
        with rig.Counted(engine) as counted:
            engine.ask_one(ids)
        assert counted.computed == n
        told.own[n] = engine.ask_one(ids)
    told.longer = PROMPTS[3000] + rig.prompt("more", 300)
    told.own["longer"] = engine.ask_one(
        told.longer, kv_transfer_params={"larder": {"skip_save": True}})


@pytest.fixture(scope="module")
def told(version, tmp_path_factory):
    with restarted(version, "next", tmp_path_factory.mktemp("node"),
                   compute) as told:
        yield told


def hit(told, tokens):
    return rig.hit(told.engine, PROMPTS[tokens],
                   rig.whole(tokens - 1, CHUNK))


NEWER = pytest.mark.versions("0.29.0", "0.32.0")


@NEWER
def test_groups(told):
    rules = [rule for _, rule, _, _ in told.about["groups"]]
    assert sorted(rules) == [0, 2, 2, 2]
    assert told.about["chunk_tokens"] == CHUNK


@NEWER
@pytest.mark.parametrize("tokens", PROMPTS)
def test_restart(told, tokens):
    assert told.own[tokens]["cached"] == rig.whole(tokens - 1, CHUNK)
    rig.check_same(hit(told, tokens), told.own[tokens])


@NEWER
def test_longer_prompt(told):
    """One that goes on from a stored prompt hits its last boundary."""
    assert told.own["longer"]["cached"] == 2560
    rig.check_same(rig.hit(told.engine, told.longer, 2560),
                   told.own["longer"])


@NEWER
def test_prompt_that_shares_less_misses(told):
    """2,000 of 3,000 tokens are shared; their states are not kept, neither by
    vLLM nor here."""
    ids = PROMPTS[3000][:2000] + rig.prompt("other", 500)
    rig.hit(told.engine, ids, 0,
            kv_transfer_params={"larder": {"skip_save": True}})


@NEWER
@pytest.mark.parametrize("tokens", [1400, 3000])
def test_sees_one_bit(told, tokens):
    """The test of the test: of the states only the last are there, of the
    attention all pages; one sign bit in any of them is seen."""
    ids = PROMPTS[tokens]
    last = (tokens - 1) // CHUNK - 1
    found = 0
    for group, (_, rule, _, _) in enumerate(told.about["groups"]):
        for chunk in range(last + 1):
            if rule == 2 and chunk < last:
                assert told.store.has(ids, chunk, group) == 0
                continue
            with told.store.flipped(ids, chunk, group):
                assert not rig.same(hit(told, tokens), told.own[tokens])
            found += 1
    assert found == 3 + last + 1
    rig.check_same(hit(told, tokens), told.own[tokens])


@pytest.mark.versions("0.24.0")
def test_old_version_is_refused(version):
    """vLLM 0.24 computes wrong tokens for such models: one line, at start."""
    if "avx512f" not in pathlib.Path("/proc/cpuinfo").read_text():
        pytest.skip("vLLM 0.24 itself fails with experts on this CPU")
    with pytest.raises(rig.EngineError) as raised:
        rig.engine(version, "next", "unix:/nowhere/sock",
                   enable_prefix_caching=True, mamba_cache_mode="align")
    lines = [line for line in str(raised.value).splitlines()
             if "larder: this vLLM computes wrong tokens" in line]
    assert lines and "use vLLM 0.27 or later" in lines[0]
