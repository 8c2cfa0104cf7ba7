"""Run inside an engine's process by Engine.ask("watch", NAME): looks at every
page that is saved or loaded, and lets something happen at a chosen moment.

Pages are found by this file's own walk over vLLM's tensors, which shares
nothing with the layout that the connector made of them."""
import hashlib
import importlib
import os
import threading
import time


def _scheduler(llm):
    return llm.llm_engine.engine_core.engine_core.scheduler


def _worker(llm):
    from vllm.distributed.kv_transfer import get_kv_transfer_group

    return get_kv_transfer_group()._worker


# ---- ranks ----


def _in_rank(worker, of, call, only, args):
    if only is not None and worker.rank != only:
        return None
    return getattr(importlib.import_module(of), call)(worker, **args)


def ranks(llm, call, of="watch", only=None, **args):
    """What looks at a worker, in the process of each of them; only: in that
    rank's. of: the file that has it. Answers one thing for each."""
    return llm.collective_rpc(_in_rank, args=(of, call, only, args))


# ---- every page ----


class Pages:
    """What was saved under each name, and whether loads gave just that. A
    chunk may be computed and saved twice, with other bytes each time (vLLM
    rounds by what else is in a batch): a load must give all pages of one of
    these, not pages of both."""

    def __init__(self, worker):
        self.worker = worker
        self.saved = {}  # (key, group): [{place in the chunk: digest}]
        self.found = dict(saves=0, loads=0, pages=0, failed=0, unknown=0,
                          wrong=[])
        self.lock = threading.Lock()
        self.run, self.save = worker._run, worker._save
        worker._run, worker._save = self.loaded, self.saves

    def tensors(self, group):
        worker = self.worker
        layers = worker._kv.kv_cache_groups[group.index].layer_names
        for name in layers:
            cache = worker._caches[name]
            for one in cache if isinstance(cache, (list, tuple)) else [cache]:
                yield one

    def digest(self, group, block):
        import torch

        found = hashlib.sha256()
        for tensor in self.tensors(group):
            parts = tensor.shape[0] // self.worker._kv.num_blocks
            assert parts * self.worker._kv.num_blocks == tensor.shape[0]
            page = tensor[block * parts:(block + 1) * parts]
            found.update(page.contiguous().view(torch.uint8).numpy())
        return found.hexdigest()

    def walk(self, move):
        """((key, group), {place in the chunk: digest}) of all that a move
        touches."""
        size = self.worker.model.chunk_tokens
        for chunk in range(move.begin // size, -(-move.end // size)):
            at = (chunk - move.first_key) * 32
            key = move.keys[at:at + 32]
            for group, (first, ids) in zip(self.worker.model.groups,
                                           move.tables):
                blocks = size // group.block_tokens
                pages = {}
                for place in range(blocks):
                    i = chunk * blocks + place - first
                    if 0 <= i < len(ids) and ids[i] != 0:
                        pages[place] = self.digest(group, ids[i])
                if pages:
                    yield (key, group.index), pages

    def saves(self, move, timeout_ms):
        seen = list(self.walk(move))
        with self.lock:
            self.found["saves"] += 1
            for name, pages in seen:
                known = self.saved.setdefault(name, [])
                if pages not in known:
                    known.append(pages)
        return self.save(move, timeout_ms)

    def loaded(self, move, timeout_ms, load):
        status, request = self.run(move, timeout_ms, load)
        if load and status != 0:
            self.found["failed"] += 1
        elif load:
            self.compare(move)
        return status, request

    def compare(self, move):
        found = self.found
        for name, pages in list(self.walk(move)):
            with self.lock:
                known = self.saved.get(name)
                found["pages"] += len(pages)
                if known is None:
                    found["unknown"] += 1
                elif not any(pages.items() <= one.items() for one in known):
                    found["wrong"].append(
                        [move.request_id, name[0].hex(), name[1]])
        found["loads"] += 1


_pages = None


def pages(llm):
    """Looks at all pages from now on; what was found begins anew, what was
    saved stays known."""
    global _pages
    if _pages is None:
        _pages = Pages(_worker(llm))
    _pages.found.update(saves=0, loads=0, pages=0, failed=0, unknown=0,
                        wrong=[])


def found(llm):
    return _pages.found


# ---- moments ----


def state(pid):
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii") as file:
            return file.read().rpartition(")")[2].split()[0]
    except OSError:
        return "X"


def strike(pid, number):
    """Sends a signal, and waits until it has done its work."""
    os.kill(pid, number)
    wanted = {9: "ZX", 19: "TZX"}.get(number)
    end = time.monotonic() + 10
    while wanted and state(pid) not in wanted:
        assert time.monotonic() < end, f"{pid} did not take signal {number}"
        time.sleep(0.001)


_struck = []


def at_load(llm, pid, number, nth=1):
    """Before the workers begin the nth load from now, which is claimed and
    has its blocks, the process gets a signal; once."""
    worker = _worker(llm)
    start = type(worker).start_loads
    left = [nth]
    _struck.clear()

    def struck(step):
        left[0] -= len(step.loads)
        if left[0] <= 0:
            del worker.start_loads
            strike(pid, number)
            _struck.extend(move.request_id for move in step.loads)
        start(worker, step)

    worker.start_loads = struck


def no_strike(llm):
    """If it did not come yet, it does not come any more; gives whether."""
    return vars(_worker(llm)).pop("start_loads", None) is not None


def struck(llm):
    """Whose loads it was that at_load() waited for."""
    return list(_struck)


_gate = threading.Event()
_waiting = []


def hold_loads(llm):
    """Loads begin, and do not go on until let_go()."""
    worker = _worker(llm)
    run = worker._run
    _gate.clear()
    _waiting.clear()

    def held(move, timeout_ms, load):
        if load:
            _waiting.append(move.request_id)
            assert _gate.wait(60), "let_go() did not come"
        return run(move, timeout_ms, load)

    worker._run = held
    worker._held = run


def held(llm):
    return list(_waiting)


def let_go(llm):
    worker = _worker(llm)
    worker._run = worker._held
    _gate.set()


def lie(llm, on):
    """From now on a load that fails is reported as one that did not."""
    worker = _worker(llm)
    vars(worker).pop("_tell", None)
    if on:
        tell = worker._tell
        worker._tell = lambda move, good: tell(move, True)


# ---- what is left ----


def left(llm):
    """What the connector and vLLM still know of requests."""
    scheduler = _scheduler(llm)
    ours = scheduler.connector._scheduler
    return {"vllm": len(scheduler.requests), "tracked": len(ours.requests),
            "loading": len(ours.loading), "ended": len(ours.ended)}


_looks = []


def looks(llm):
    """Keeps every lookup from now on; gives those since the last call."""
    ours = _scheduler(llm).connector._scheduler
    if "_look_up" not in vars(ours):
        look_up = ours._look_up

        def kept(t, *told):
            look_up(t, *told)
            if t.lookup is not None:
                _looks.append(t.lookup)

        ours._look_up = kept
    given = [{"id": k.request_id, "limit": k.limit, "matched": k.matched,
              "chunks": k.chunks, "reason": k.reason, "done": k.done,
              "tier_bytes": list(k.tier_bytes)} for k in _looks]
    _looks.clear()
    return given
