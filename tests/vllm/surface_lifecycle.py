"""What vLLM's own suites for hand-offs ask of a connector, on vLLM's own
scheduler: a request's life on either side, both ways, loads that fail, and
that nothing of them stays in the prefix cache (test_surface.py). The list is in
docs/guide/handoff.md. The workers are played: they copy pages for real, from
and to a real node, and compute nothing."""
import contextlib
import time

import pytest
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import (get_request_block_hasher,
                                         init_none_hash)
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager

import rig
from surface import config_of, dense, full_of, kv_of
from surface_handoff import PREFILL, Memory
from surface_keys import tokens_of
from surface_requests import BLOCKS, LONG, until

__all__ = ["dense"]  # a fixture
BLOCK = 128
SAID = 7  # every token that is sampled


class Engine:
    """One side: vLLM's scheduler with the connector, and a worker's memory."""

    def __init__(self, path, url, blocks=BLOCKS, policy="recompute", **options):
        config = config_of(path, max_num_batched_tokens=512,
                           kv_transfer_config={
            "kv_connector": "LarderConnector", "kv_role": "kv_both",
            "kv_connector_module_path": "larder_kv.vllm",
            "kv_load_failure_policy": policy,
            "kv_connector_extra_config": dict(
                rig.PATIENT, url=url, **options)})
        config.cache_config.num_gpu_blocks = blocks
        init_none_hash(sha256)
        self.hasher = get_request_block_hasher(BLOCK, sha256)
        self.vllm = Scheduler(
            config, kv_of(full_of(config), blocks=blocks),
            StructuredOutputManager(config), block_size=BLOCK,
            hash_block_size=BLOCK, log_stats=True)
        self.side = self.vllm.connector._scheduler
        self.side.config = config
        self.memory = Memory(self.side)
        self.answers = {}  # of requests that have ended
        self.held = False  # loads do not end
        self.fails = set()  # loads that do, badly
        self.late = []  # loads that were begun

    def close(self):
        self.memory.close()
        self.vllm.connector.shutdown()

    def add(self, tokens, name, params=None, max_tokens=1, **more):
        request = Request(name, tokens, SamplingParams(
            max_tokens=max_tokens, ignore_eos=True,
            extra_args={"kv_transfer_params": params} if params else None),
            None, block_hasher=self.hasher, **more)
        self.vllm.add_request(request)
        return request

    def step(self):
        """A step of the engine. Gives how many tokens each request computed."""
        out = self.vllm.schedule()
        loads, saves = (out.kv_connector_metadata.loads,
                        out.kv_connector_metadata.saves)
        self.late += loads
        done, failed = set(), set()
        while self.late and not self.held:
            move = self.late.pop()
            done.add(move.request_id)
            if move.request_id in self.fails:
                failed.add(move.request_id)
            else:
                self.memory.load(move)
        for move in saves:
            self.memory.run(move, False)
        names = list(out.num_scheduled_tokens)
        sampled = [[SAID] if self.whole(name) else [] for name in names]
        result = self.vllm.update_from_output(out, ModelRunnerOutput(
            names, {name: i for i, name in enumerate(names)}, sampled,
            kv_connector_output=KVConnectorOutput(
                finished_recving=done, failed_recving=failed)))
        for one in result.values():
            for answer in one.outputs:
                if answer.finish_reason is not None:
                    self.answers[answer.request_id] = answer
        return out.num_scheduled_tokens

    def whole(self, name):
        request = self.vllm.requests[name]
        return request.num_computed_tokens >= request.num_tokens

    def run(self, name, steps=200):
        """Until it has ended. Gives the tokens that it computed."""
        count, end = 0, time.monotonic() + LONG
        while name not in self.answers:
            count += self.step().get(name, 0)
            assert time.monotonic() < end
            time.sleep(0.001)
        return count

    def steps_until(self, what):
        end = time.monotonic() + LONG
        while not what():
            self.step()
            assert time.monotonic() < end
            time.sleep(0.001)

    def ids(self, name):
        return self.vllm.kv_cache_manager.get_block_ids(name)[0]

    def idle(self, taken=True):
        """Nothing is left of any request. taken: what was handed off, too: else
        the node holds it for 30 s."""
        self.step()
        vllm = self.vllm
        assert not (vllm.requests or vllm.running or vllm.waiting
                    or vllm.kv_holding_waiting or vllm.finished_req_ids)
        pool = vllm.kv_cache_manager.block_pool
        assert pool.get_num_free_blocks() == pool.num_gpu_blocks - 1
        side = self.side
        assert not (side.requests or side.loading or side.landed or side.ended)
        if taken:
            until(lambda: side.node.stats().dram_leased_chunks == 0)

    def reset(self):
        assert self.vllm.reset_prefix_cache()
        self.memory.pages.fill_(3)


@pytest.fixture
def engines(dense, tmp_path, monkeypatch):
    """engines(): a prefill and a decode engine, on a node of their own."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    # clean=False: it holds for 30 s what was handed off and nobody took.
    with rig.node(tmp_path / "node", clean=False) as node:
        with contextlib.ExitStack() as stack:
            def make(**decode):
                return [stack.enter_context(contextlib.closing(Engine(
                    dense, node.url(), **more))) for more in ({}, decode)]
            yield make
        node.stop()


def handed(prefill, tokens, name="p"):
    """The prefill engine's answer."""
    assert prefill.add(tokens, name, dict(PREFILL)) and prefill.run(name)
    params = prefill.answers[name].kv_transfer_params
    assert params["do_remote_prefill"] and params["larder"]["handoff"]
    return params


# ---- the prefill side's life ----


@pytest.mark.parametrize("count", [20, 128, 300, 1100])
def test_prefill(engines, count):
    """Shorter than a block, a block, in one step, in several: its answer has
    what the decode side needs, and not one block is held after it."""
    prefill, _ = engines()
    handed(prefill, tokens_of(count, count))
    prefill.idle(taken=False)


def test_prefill_of_what_it_has(engines):
    """A prompt in its own cache is handed off like any."""
    prefill, decode = engines()
    tokens = tokens_of(1, 700)
    first = handed(prefill, tokens)
    assert prefill.add(tokens, "q", dict(PREFILL)) and prefill.run("q") < 128
    again = prefill.answers["q"].kv_transfer_params
    assert (again["larder"]["handoff"]["key"]
            == first["larder"]["handoff"]["key"])
    decode.add(tokens, "d", again)
    assert decode.run("d") == 1
    prefill.idle(taken=False)
    decode.idle(taken=False)


@pytest.mark.parametrize("steps", [0, 1, 2])
def test_prefill_is_aborted(engines, steps):
    """Queued, in its first step, in its second: it answers nothing, holds
    nothing, and nobody waits for it."""
    prefill, _ = engines()
    prefill.add(tokens_of(2, 1100), "p", dict(PREFILL))
    for _ in range(steps):
        prefill.step()
    prefill.vllm.finish_requests("p", RequestStatus.FINISHED_ABORTED)
    assert "p" not in prefill.answers
    prefill.idle()


def test_prefill_that_says_more_than_a_token(engines):
    """It is a request as any other that computes, and may go on."""
    prefill, _ = engines()
    prefill.add(tokens_of(3, 300), "p", dict(PREFILL), max_tokens=4)
    prefill.run("p")
    assert prefill.answers["p"].kv_transfer_params["larder"]["handoff"]
    prefill.idle(taken=False)


# ---- the decode side's life ----


@pytest.mark.parametrize("count", [20, 128, 300, 512, 1100])
def test_decode(engines, count):
    """It waits for its KV, holds blocks only then, and computes one token. The
    pages are those that the prefill engine had."""
    prefill, decode = engines()
    tokens = tokens_of(4, count)
    params = handed(prefill, tokens)
    request = decode.add(tokens, "d", params, max_tokens=3)
    decode.held = True
    decode.steps_until(lambda: decode.late)
    assert request.status == RequestStatus.WAITING_FOR_REMOTE_KVS
    assert decode.vllm.running == []
    ids = decode.ids("d")
    decode.held = False
    decode.step()
    used = -(-count // BLOCK)
    assert (decode.memory.pages[ids[:used]]
            == prefill.memory.pages[1:1 + used]).all()
    assert decode.run("d") == 3
    assert len(request.output_token_ids) == 3
    decode.idle()


def test_decode_beside_others(engines):
    """What waits for its KV holds up nobody."""
    prefill, decode = engines()
    tokens = tokens_of(5, 500)
    decode.held = True
    decode.add(tokens, "d", handed(prefill, tokens))
    decode.steps_until(lambda: decode.late)
    decode.add(tokens_of(6, 200), "other", max_tokens=3)
    decode.run("other")
    assert "d" not in decode.answers
    decode.held = False
    assert decode.run("d") == 1
    decode.idle()


def test_decode_caches_no_page_before_it_came(engines):
    """A request with the same prompt, meanwhile, finds nothing in the engine's
    own cache; afterwards it does."""
    prefill, decode = engines()
    tokens = tokens_of(7, 700)
    params = handed(prefill, tokens)
    decode.held = True
    decode.add(tokens, "d", params)
    decode.steps_until(lambda: decode.late)
    manager = decode.vllm.kv_cache_manager
    other = Request("other", tokens, SamplingParams(max_tokens=1), None,
                    block_hasher=decode.hasher)
    assert manager.get_computed_blocks(other)[1] == 0
    decode.held = False
    decode.run("d")
    assert manager.get_computed_blocks(other)[1] == 5 * BLOCK
    decode.idle()


def test_decode_without_room(engines):
    """Its blocks are another's: it waits, then loads as any."""
    prefill, decode = engines(blocks=9)
    tokens = tokens_of(8, 700)
    params = handed(prefill, tokens)
    decode.add(tokens_of(9, 500), "long", max_tokens=12)
    decode.step()
    request = decode.add(tokens, "d", params)
    until(lambda: decode.side.requests["d"].lookup.done)
    decode.step()
    assert request.status == RequestStatus.WAITING and not decode.late
    decode.run("long")
    assert decode.run("d") == 1
    decode.idle()


@pytest.mark.parametrize("when", ["queued", "staged", "loading"])
def test_decode_is_aborted(engines, when):
    """While it loads, vLLM keeps its blocks until that is over, and hears of
    it once."""
    prefill, decode = engines()
    tokens = tokens_of(10, 700)
    decode.held = True
    decode.add(tokens, "d", handed(prefill, tokens))
    if when != "queued":
        until(lambda: decode.side.requests["d"].lookup.done)
    if when == "loading":
        decode.steps_until(lambda: decode.late)
    decode.vllm.finish_requests("d", RequestStatus.FINISHED_ABORTED)
    pool = decode.vllm.kv_cache_manager.block_pool
    free = pool.get_num_free_blocks() == pool.num_gpu_blocks - 1
    assert free == (when != "loading")
    decode.held = False
    decode.step()
    decode.idle()


def test_decode_is_refused_before_it_is_queued(engines):
    """What the API server refuses it sends once more, to be aborted at once,
    so that connectors hear of it (abort_immediately)."""
    prefill, decode = engines()
    tokens = tokens_of(11, 700)
    request = decode.add(tokens, "d", handed(prefill, tokens),
                         abort_immediately=True)
    assert request.abort_immediately
    decode.vllm.finish_requests("d", RequestStatus.FINISHED_ABORTED)
    decode.idle()


# ---- both ways ----


def test_turns(engines):
    """What the decode engine said goes back with the next turn: the prefill
    engine loads it, and computes only what is new."""
    prefill, decode = engines()
    tokens = tokens_of(12, 500)
    said = 20
    decode.add(tokens, "d", handed(prefill, tokens), max_tokens=said)
    decode.run("d")
    turn = tokens + [SAID] * said + tokens_of(13, 200)
    prefill.reset()
    prefill.add(turn, "q", dict(PREFILL))
    assert prefill.run("q") == len(turn) - 512  # whole chunks
    params = prefill.answers["q"].kv_transfer_params
    decode.add(turn, "e", params)
    assert decode.run("e") == 1
    for one in (prefill, decode):
        one.idle()


def test_both_sides_at_once(engines):
    """A request that takes a hand-off, and is handed on."""
    prefill, decode = engines()
    tokens = tokens_of(14, 600)
    params = dict(handed(prefill, tokens), do_remote_decode=True)
    decode.add(tokens, "d", params)
    assert decode.run("d") == 1
    on = decode.answers["d"].kv_transfer_params
    prefill.reset()
    prefill.add(tokens, "q", on)
    assert prefill.run("q") == 1
    for one in (prefill, decode):
        one.idle()


# ---- loads that fail ----


@pytest.mark.parametrize("policy", ["recompute", "fail"])
def test_a_load_fails(engines, policy):
    """It is computed, all of it, whatever the policy: the connector sets it,
    since it never claims again what has failed. Others go on."""
    prefill, decode = engines(policy=policy)
    bad, good = tokens_of(15, 500), tokens_of(16, 400)
    decode.add(bad, "bad", handed(prefill, bad, "p"))
    decode.add(good, "good", handed(prefill, good, "q"))
    decode.fails = {"bad"}
    assert decode.run("bad") == 500
    assert decode.run("good") in (0, 1)  # or it had ended before
    assert all(one.finish_reason.name == "LENGTH"
               for one in decode.answers.values())
    decode.idle()


def test_what_failed_is_in_no_cache(engines):
    """Neither the engine's own, where the next one with this prompt would find
    it, nor is what was computed instead lost for it."""
    prefill, decode = engines()
    tokens = tokens_of(17, 700)
    params = handed(prefill, tokens)
    decode.fails, decode.held = {"d"}, True
    decode.add(tokens, "d", params)
    decode.steps_until(lambda: decode.late)
    other = Request("other", tokens, SamplingParams(max_tokens=1), None,
                    block_hasher=decode.hasher)
    manager = decode.vllm.kv_cache_manager
    decode.held = False
    while "d" in decode.vllm.requests and not decode.vllm.running:
        assert manager.get_computed_blocks(other)[1] == 0
        decode.step()
    decode.run("d")
    assert manager.get_computed_blocks(other)[1] == 5 * BLOCK  # computed
    decode.idle()


def test_blocks_of_a_load_that_failed(engines):
    """Told of as bad blocks, as releases before 0.30 do: the request is
    computed from the first of them on, and the others are kept."""
    prefill, decode = engines()
    tokens = tokens_of(18, 700)
    decode.held = True
    decode.add(tokens, "d", handed(prefill, tokens))
    decode.steps_until(lambda: decode.late)
    ids = decode.ids("d")
    out = decode.vllm.schedule()
    decode.vllm.update_from_output(out, ModelRunnerOutput(
        [], {}, kv_connector_output=KVConnectorOutput(
            finished_recving={"d"}, invalid_block_ids={ids[2]})))
    decode.late.clear()
    decode.held = False
    assert decode.run("d") == 700 - 2 * BLOCK
    decode.idle()


def test_a_node_that_is_gone(engines):
    """Between the answer and the decode side's arrival: it computes."""
    prefill, decode = engines()
    tokens = tokens_of(19, 500)
    params = handed(prefill, tokens)
    decode.side.finder.tails or decode.side.handoffs.tails()
    for space in (decode.side.space, decode.side.finder.tails.space):
        space.reset(20000)
    decode.add(tokens, "d", params)
    assert decode.run("d") == 500
    decode.idle()
