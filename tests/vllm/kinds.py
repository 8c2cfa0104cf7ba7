"""What the tests of failed loads of other kinds of models, and of several
ranks, share. A load is held in each rank's process when it is claimed and has
its blocks. Then something happens, and the ranks go on, one by one."""
import contextlib
import mmap
import os
import pathlib
import signal
import time

import faults
import rig
from daemon import until
from test_proof_tp import ARGS

CHUNKS = {"mla": 256, "next": 640, "dense": 256, "gemma3": 256}
# Two ranks in turn find out, each second anew, that a stopped node takes no
# saves.
OPTIONS = dict(faults.OPTIONS, load="always", save_ms=1500)
STORED = {f"stored {i}": rig.prompt(f"kinds {i}", n)
          for i, n in enumerate((1400, 2000))}
NEW = {"new": rig.prompt("kinds new", 700)}  # which is never saved
NEEDLE = 64  # bytes by which a shard is found
STEPS = 20  # more than a report takes


def needle(data):
    """A piece of it that is like no other, behind its middle: not of what a
    state's page is filled up with."""
    for at in range(len(data) // 2, len(data) - NEEDLE, NEEDLE):
        if len(set(data[at:at + NEEDLE])) > NEEDLE // 4:
            return data[at:at + NEEDLE]
    raise AssertionError("all bytes are alike")


def flip_in(path, piece):
    """Turns the sign of a number of a piece, wherever a file has it; gives how
    often."""
    size = os.stat(path).st_size
    if size == 0:
        return 0
    count, at = 0, -1
    with open(path, "r+b") as file, mmap.mmap(file.fileno(), size) as memory:
        while (at := memory.find(piece, at + 1)) >= 0:
            memory[at + NEEDLE // 2 + 3] ^= 0x80  # as Store.flip
            count += 1
    return count


def memory_of(pid):
    """The files that are a process's shared memory."""
    for one in pathlib.Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            if os.readlink(one).startswith("/memfd:"):
                yield one


class Kind(faults.Told):
    """A node, an engine whose saves of STORED it has, and its own answers
    before any fault: computed without the store, and as hits."""

    def __init__(self, version, kind, ranks, folder, stack):
        self.ranks = range(ranks)
        self.chunk = CHUNKS[kind]
        self.prompts = dict(STORED, **NEW)
        self.node = stack.enter_context(rig.node(folder, dirs=1))
        self.engine = stack.enter_context(rig.engine(
            version, kind, self.node.url(), options=OPTIONS,
            **(ARGS if ranks > 1 else {})))
        self.about = self.engine.ask("inside", "space")
        # See test_faults_gemma3.
        self.fetches = version != "0.32.0" and len(self.about["groups"]) > 1
        self.every("pages")
        self.right = {name: self.answers(name) for name in self.prompts}
        faults.written(self.node)

    def every(self, call, only=None, **args):
        return self.engine.ask("watch", "ranks", call=call, only=only, **args)

    def answers(self, name):
        """{tokens that were loaded: the answer}. What is saved is what was
        computed in one go: parts of a prompt round otherwise (MLA)."""
        ids = self.prompts[name]
        cold = faults.ask(self.engine, ids, **self.switches(name))
        assert cold["cached"] == 0
        if name in NEW:
            return {0: cold}
        return {0: cold, self.whole(name): rig.hit(
            self.engine, ids, self.whole(name), **faults.ANSWER)}

    def switches(self, name):
        return dict(kv_transfer_params={"larder": {"skip_save": name in NEW}})

    def ask(self, name):
        answer = faults.ask(self.engine, self.prompts[name],
                            **self.switches(name))
        self.check(name, answer)
        return answer

    def whole(self, name):
        return rig.whole(len(self.prompts[name]) - 1, self.chunk)

    def check(self, name, answer):
        known = self.right[name]
        rig.check_same(answer, known.get(answer["cached"], known[0]))

    @contextlib.contextmanager
    def well(self):
        """After each test: the engine computes what is new and hits what was
        stored, nothing is left over, and no page was wrong."""
        self.every("pages")
        yield
        rig.fresh(self.engine)
        assert self.ask("new")["cached"] == 0
        for name in STORED:
            self.hits(name)
        faults.settled(self.node, self.engine)
        for found in self.every("found"):
            assert found["wrong"] == [] and found["unknown"] == 0, found
            assert found["loads"] >= len(STORED)

    # ---- a load ----

    @contextlib.contextmanager
    def claimed(self, name):
        """Asks for it. Inside `with` its load is claimed, and every rank has
        begun it and does not go on. At the end all do."""
        rig.fresh(self.engine)
        self.every("pages")
        self.every("hold_loads")
        try:
            [self.id] = self.engine.add([self.prompts[name]], **faults.ANSWER)
            self.steps_until(lambda: all(self.every("held")))
            yield
        finally:
            self.every("let_go")

    def steps_until(self, what, seconds=60):
        """The request is not answered meanwhile."""
        end = time.monotonic() + seconds
        while not what():
            self.steps(1)
            assert time.monotonic() < end, self.every("found")

    def steps(self, count):
        assert self.engine.run(steps=count) == {}, "it was not held"

    def go(self, rank, field=None):
        """The rank goes on; field: until its load has this end, which is
        reported while others are held."""
        self.every("let_go", only=rank)
        if field:
            self.steps_until(lambda: self.every("found")[rank][field] == 1)
            self.steps(STEPS)

    def answer(self):
        """Of the request that was held. It does not hang."""
        [answer] = self.engine.run(timeout=faults.HANG).values()
        assert answer["id"] == self.id and answer["error"] is None, answer
        self.last = answer
        return answer

    def ends(self, field):
        """How many of a kind of end each rank's load had."""
        return [found[field] for found in self.every("found")]

    # ---- what happens to it ----

    def pieces(self, name, ranks, chunk=-1, group=0):
        """Pieces of the named ranks' shards of a chunk."""
        ids = self.prompts[name]
        chunk %= self.whole(name) // self.chunk
        with rig.Store(self.node.url(), self.about) as store:
            each = max(1, store.shards // len(self.ranks))
            return [needle(store.get(ids, chunk, group, rank * each))
                    for rank in ranks]

    def damage(self, name, ranks, **where):
        """One bit of these ranks' parts is another one, where they lie in the
        node's memory."""
        for piece in self.pieces(name, ranks, **where):
            assert sum(flip_in(path, piece)
                       for path in memory_of(self.node.pid)) > 0

    def damage_on_disk(self, name, ranks, **where):
        """The same in the node's files, while it is down. (Of what a killed
        one was writing it would read all at its start, and find it then.)"""
        pieces = self.pieces(name, ranks, **where)
        faults.written(self.node)
        self.node.stop()
        for piece in pieces:
            assert sum(flip_in(path, piece) for path in
                       self.node.dirs[0].glob("segment-*")) > 0
        self.node.start()

    @contextlib.contextmanager
    def struck(self, fault, name, ranks):
        """The fault is there, for these ranks; at the end the node is well."""
        if fault == "damage":
            self.damage(name, ranks)
        elif fault == "kill":
            self.node.kill()
        else:
            self.node.freeze()
        try:
            yield
        finally:
            if fault == "kill":
                self.node.start()
            elif fault == "stop":
                self.node.signal(signal.SIGCONT)

    @contextlib.contextmanager
    def failing(self, ranks, name):
        """Inside, the load of one request, which is for that prompt, fails in
        these ranks and in no other: as each rank saw it, and as the connector
        counts and logs it. Then all of the prompt was computed, and the answer
        is that. (Where it was fetched before, nothing fails.)"""
        failed = [int(one and not self.fetches) for one in ranks]
        before, said = self.failures(), self.said()
        yield
        assert self.ends("failed") == failed
        assert self.ends("loads") == [1 - one for one in failed]
        rig.check_same(self.last, self.right[name][
            0 if any(failed) else self.whole(name)])
        wanted = [sum(failed), int(any(failed))]

        def seen():
            return [now - was for now, was in zip(self.failures(), before)]

        # A thread counts requests, and vLLM hears of it with a later one.
        until(lambda: seen() == wanted or self.ask("new") is None, 30,
              lambda: f"{seen()} of {wanted}")
        assert self.said() - said == wanted[0]

    def failures(self):
        """Loads that failed, and requests that were computed for it."""
        counters = self.engine.counters()
        return [int(counters.get(f"vllm:larder_{name}", 0)) for name in
                ("load_failures", 'missed_requests{"reason": "load"}')]

    def fails(self, fault, name, ranks):
        """Every rank has begun its load when the fault comes, and these end it
        then. The others have ended theirs before."""
        with self.failing([rank in ranks for rank in self.ranks], name):
            with self.claimed(name):
                for rank in self.ranks:
                    if rank not in ranks:
                        self.go(rank, "loads")
                with self.struck(fault, name, ranks):
                    for rank in ranks:
                        self.go(rank)
                    self.answer()

    def said(self):
        return sum(" failed after " in line
                   for line in self.engine.larder_lines())
