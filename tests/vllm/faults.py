"""What the tests of faults, of pressure and of cost share."""
import contextlib
import functools
import random
import signal
import time

import rig
import watch
from daemon import until

CHUNK = 256
# Bounded, and long enough for a busy machine: a lookup that comes late is no
# fault here.
OPTIONS = dict(lookup_ms=3000, save_ms=3000, load_ms=3000)
ANSWER = dict(max_tokens=8)
AWAY = 2  # seconds that a stopped node is away
HANG = 240  # seconds after which a request counts as one that hangs
FAULTS = ("kill", "restart", "stop", "end", "full")

STORED = {f"stored {i}": rig.prompt(f"stored {i}", 1100 + 130 * i)
          for i in range(6)}
# Of these the store knows nothing when the fault comes.
NEW = {f"{fault} {i}": rig.prompt(f"{fault} {i}", 900 + 150 * i)
       for fault in FAULTS for i in range(6)}
# One whose saves are under way when it comes.
LONG = {fault: rig.prompt(fault, 6000) for fault in FAULTS}


PROMPTS = dict(STORED, **NEW, **LONG)


class Answers(dict):
    """{name: answer} to PROMPTS of an engine without Larder, one at a time;
    each is made when it is first asked for."""

    def __init__(self, version, kind):
        self._start = lambda: rig.engine(version, kind, larder=False)
        self._engine = None

    @contextlib.contextmanager
    def used(self):
        try:
            yield self
        finally:
            engine, self._engine = self._engine, None
            if engine is not None:
                engine.close()

    def __missing__(self, name):
        self._engine = self._engine or self._start()
        self[name] = ask(self._engine, PROMPTS[name])
        return self[name]


answers = functools.cache(Answers)


def ask(engine, ids, **args):
    """One prompt, alone, which must be answered in time."""
    [answer] = engine.generate([ids], timeout=HANG, **dict(ANSWER, **args))
    assert answer["error"] is None, answer
    return answer


@contextlib.contextmanager
def asking(engine, prompts, **args):
    """While these are computed something else happens: what is inside `with`.
    The answers are in the list that it gives, at its end."""
    engine.send("generate", prompts=prompts, deadline=HANG,
                **dict(ANSWER, **args))
    found = []
    try:
        yield found
    finally:
        found.extend(engine.receive(HANG + 15))
    assert [a["error"] for a in found] == [None] * len(found)


def settled(node, engine, seconds=20):
    """Nothing is left of requests: not in the connector, not in vLLM, and the
    node holds nothing for them."""
    last = {}
    held = ("larder_leases", "larder_reservations", "larder_held_chunks",
            "larder_quarantined_leases")

    def free():
        last.update(engine.ask("watch", "left"))
        blocks = engine.blocks()
        # One is the null block, which is nobody's.
        last["blocks"] = blocks["total"] - 1 - blocks["free"]
        metrics = node.metrics()
        last.update({name: metrics.sum(name) for name in held})
        return not any(last.values())

    until(free, seconds, lambda: f"still there: {last}")


def written(node, seconds=20):
    """All that was saved is on the node's disks."""
    until(lambda: node.value("larder_dirty_shards") == 0
          and node.value("larder_writes_in_flight") == 0, seconds,
          "it was not written")


def shared(families, members, prefix, tail):
    """Prompts of which some share a prefix, in mixed order."""
    found = []
    for i in range(members):
        for k in range(families):
            found.append(rig.prompt(f"family {k}", prefix)
                         + rig.prompt(f"member {k} {i}", tail + 10 * i))
    return found


def right_pages(engine, loads=1):
    """What watch.pages found: loads, and each page was one that was saved."""
    found = engine.ask("watch", "found")
    assert found["wrong"] == [] and found["unknown"] == 0, found
    assert found["loads"] >= loads, found
    return found


class Told:
    """A node, an engine whose saves of STORED it has, and the answers of an
    engine without Larder to the same prompts."""

    chunk = CHUNK

    def __init__(self, version, kind, folder, stack, **options):
        self.version, self.kind = version, kind
        self.prompts = PROMPTS
        self.wanted = stack.enter_context(answers(version, kind).used())
        self.node = stack.enter_context(rig.node(
            folder, **dict(dict(dirs=1), **options)))
        self.engine = stack.enter_context(rig.engine(
            version, kind, self.node.url(), options=OPTIONS, max_num_seqs=8))
        self.engine.ask("watch", "pages")
        for name in STORED:
            assert self.ask(name)["cached"] == 0
        written(self.node)

    def check(self, name, answer):
        rig.check_same(answer, self.wanted[name])

    def ask(self, name):
        """Its answer is right, whatever it was made of."""
        answer = ask(self.engine, self.prompts[name])
        self.check(name, answer)
        return answer

    def hits(self, name, seconds=30, times=320):
        """It hits, all of it. It is asked until it does: for so long, since
        the library makes a pause after the node came back (breaker_ms), and
        so often, since each time finds one damaged shard and saves it
        again."""
        end = time.monotonic() + seconds
        asked = 0
        while True:
            rig.fresh(self.engine)
            if self.ask(name)["cached"] == rig.whole(
                    len(self.prompts[name]) - 1, self.chunk):
                return
            asked += 1
            assert asked < times or time.monotonic() < end, (
                f"{name} does not hit")

    @contextlib.contextmanager
    def well(self):
        """Before and after: what was stored hits, nothing is left over, and
        no page was wrong."""
        self.hits("stored 0")
        rig.fresh(self.engine)
        self.engine.ask("watch", "pages")
        yield
        for name in list(STORED)[:3]:
            self.hits(name)
        settled(self.node, self.engine)
        right_pages(self.engine)

    def saves(self):
        return self.node.value("larder_saves_total", outcome="stored")

    def through(self, fault, strike, mend=None):
        """Prompts that hit and prompts that do not, in turn. strike() comes
        in the middle of a long one, mend() in the middle of one while it is
        away. Gives how many hit before, meanwhile and after."""
        names = [name for i in range(6) for name in (
            f"stored {i}", f"{fault} {i}")]
        before = [self.ask(name) for name in names[:4]]
        assert [a["cached"] > 0 for a in before] == [True, False] * 2
        saves = self.saves()
        with asking(self.engine, [self.prompts[fault]]) as found:
            until(lambda: self.saves() > saves)
            strike()
        self.check(fault, found[0])
        away = [self.ask(name) for name in names[4:8]]
        with asking(self.engine, [self.prompts[names[8]]]) as found:
            if mend is not None:
                mend()
        self.check(names[8], found[0])
        after = [self.ask(name) for name in names[9:]]
        return [sum(a["cached"] > 0 for a in part)
                for part in (before, away, after)]

    # ---- what happens to the node ----

    def kill(self):
        self.through("kill", self.node.kill, self.node.start)

    def restart(self):
        def again():
            self.node.kill()
            self.node.start()

        self.through("restart", again)

    def end(self):
        """SIGTERM, as an upgrade does it."""
        self.through("end", self.node.stop, self.node.start)

    def stop(self):
        _, away, _ = self.through(
            "stop", lambda: self.node.signal(signal.SIGSTOP),
            lambda: self.node.signal(signal.SIGCONT))
        assert away == 0

    @contextlib.contextmanager
    def between(self, number):
        """The node gets a signal when a load is claimed and has its blocks,
        and nothing of it has been loaded. Gives what the pages tell of the
        load. At the end the node is back."""
        self.engine.ask("watch", "at_load", pid=self.node.pid, number=number)
        try:
            answer = self.ask("stored 1")
            [struck] = self.engine.ask("watch", "struck")
            assert struck.startswith(answer["id"])
            yield self.engine.ask("watch", "found")
        finally:
            if not self.engine.ask("watch", "no_strike"):
                self.back(number)

    def many(self, number=None):
        """Many at once, with shared prefixes that are in the store. At one of
        the loads the node gets a signal, and a while later it is back. Every
        page that is loaded is compared with what was saved."""
        prompts = shared(4, 6, 1024, 300)
        rig.fresh(self.engine)
        with asking(self.engine, prompts):
            pass
        rig.fresh(self.engine)
        if number is not None:
            self.engine.ask("watch", "at_load", pid=self.node.pid,
                            number=number, nth=6)
        with asking(self.engine, prompts, max_tokens=64) as found:
            if number is not None:
                self.back(number)
        assert all(len(a["tokens"]) == 64 for a in found)
        return right_pages(self.engine)

    def back(self, number):
        """Waits for what a signal does to the node; then it is back."""
        wanted = "Z" if number == signal.SIGKILL else "T"
        until(lambda: watch.state(self.node.pid) == wanted)
        if number == signal.SIGKILL:
            self.node.kill()
            self.node.start()
        else:
            time.sleep(AWAY)
            self.node.signal(signal.SIGCONT)

    def spoil(self, seed=1):
        """Overwrites places in every segment of the disk."""
        draw = random.Random(seed)
        spoiled = 0
        for path in sorted(self.node.dirs[0].glob("segment-*")):
            with open(path, "r+b") as file:
                size = path.stat().st_size
                for at in range(1 << 13, size - 4096, 1 << 16):
                    file.seek(at)
                    file.write(draw.randbytes(64))
                    spoiled += 1
        return spoiled
