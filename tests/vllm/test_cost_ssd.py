"""Proof 7: hits that would lose are declined, with the reason counted, and
those that win are taken. The node has so little DRAM that hits come from its
SSD tier, whose reads can be made slow (slow_reads.c)."""
import contextlib
import pathlib
import statistics
import struct
import subprocess

import pytest

pytest.register_assert_rewrite("faults")

import faults
import rig
from daemon import until

TOKENS, COUNT = 3000, 24
PROMPTS = [rig.prompt(f"cost {i}", TOKENS + i) for i in range(COUNT)]
HIT = rig.whole(TOKENS, faults.CHUNK)
SLOW = 4 << 20  # bytes a second; 2 KiB a token: far slower than computing


class Told:
    def throttle(self, per_second):
        self.limit.write_bytes(struct.pack("=Q", per_second))

    def ask_all(self):
        """Every prompt alone, in its turn; none is in the engine's cache."""
        found = []
        for ids in PROMPTS:
            rig.fresh(self.engine)
            found.append(faults.ask(self.engine, ids))
        return found


@pytest.fixture(scope="module")
def told(version, tmp_path_factory):
    told = Told()
    folder = tmp_path_factory.mktemp("cost")
    told.limit = folder / "limit"
    told.throttle(0)
    library = folder / "slow_reads.so"
    subprocess.run(
        ["cc", "-shared", "-fPIC", "-O2", "-o", library,
         pathlib.Path(__file__).with_name("slow_reads.c"), "-ldl"], check=True)
    with contextlib.ExitStack() as stack:
        with rig.engine(version, "dense", larder=False) as engine:
            told.engine = engine
            faults.ask(engine, rig.prompt("warm up", 3000))
            told.alone = told.ask_all()
        told.node = stack.enter_context(rig.node(
            folder / "node", dirs=1, dram="8M", ssd="1G", io="plain",
            env={"LD_PRELOAD": str(library), "SLOW_READS": str(told.limit)}))
        # As a user has it, with nothing but the address.
        told.engine = stack.enter_context(rig.engine(
            version, "dense", told.node.url(),
            options=dict.fromkeys(rig.PATIENT)))
        faults.ask(told.engine, rig.prompt("warm up", 3000))
        told.cold = told.ask_all()
        faults.written(told.node)
        told.engine.ask("watch", "looks")
        yield told


def ms(answers):
    times = sorted(a["ttft"] * 1e3 for a in answers)
    return (f"{statistics.median(times):6.0f} median {times[-1]:6.0f} slowest")


def test_fast(told, version, figure):
    """What matches is loaded."""
    for _ in range(2):  # the first teaches the node how fast its disk is
        told.engine.ask("watch", "looks")
        with rig.Counted(told.engine) as counted:
            found = told.ask_all()
    looks = told.engine.ask("watch", "looks")
    matched = sum(look["matched"] for look in looks) * faults.CHUNK
    assert matched == COUNT * HIT
    assert counted.external >= 0.99 * matched
    assert sum(look["tier_bytes"][1] for look in looks) > 0
    for answer, wanted in zip(found, told.alone):
        rig.check_same(answer, wanted)
    figure(f"vLLM {version}, {COUNT} prompts of {TOKENS} tokens, ms to the "
           "first token:")
    figure(f"  without Larder             {ms(told.alone)}")
    figure(f"  with Larder, nothing hits  {ms(told.cold)}")
    figure(f"  all from the SSD tier      {ms(found)}")


def declined(engine):
    return engine.counters().get(
        'vllm:larder_missed_requests{"reason": "slower"}', 0)


def test_slow(told, figure):
    """Declined, for it would be slower; and right."""
    told.throttle(SLOW)
    before = declined(told.engine)
    for name in ("at first", "then"):
        told.engine.ask("watch", "looks")
        found = told.ask_all()
        for answer, wanted in zip(found, told.alone):
            rig.check_same(answer, wanted)
        hits = sum(a["cached"] > 0 for a in found)
        figure(f"  SSD at {SLOW >> 20} MiB/s, {name:8}    {ms(found)}, "
               f"{hits} hits")
        reasons = [look["reason"]
                   for look in told.engine.ask("watch", "looks")]
        assert len(reasons) == COUNT
        # How slow it is becomes known by trying; once or twice.
        assert reasons.count("slower") >= COUNT - 3, reasons
    until(lambda: declined(told.engine) - before >= 2 * COUNT - 6)


def test_fast_again(told, figure):
    """A little is tried now and then: what is fast again is used again."""
    told.throttle(0)
    asked = []

    def hits():
        rig.fresh(told.engine)
        ids = PROMPTS[len(asked) % COUNT]
        asked.append(faults.ask(told.engine, ids))
        return asked[-1]["cached"] == HIT

    until(hits, 60)
    figure(f"  fast again: used after {len(asked)} requests")
