"""What the scheduler's side knows of a request."""
from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

from larder_kv.engine.explain import Record
from larder_kv.vllm.request import Prompt, Switches

if TYPE_CHECKING:
    from vllm.v1.request import Request

    from larder_kv.engine.early import Early
    from larder_kv.engine.handoff import Handoff
    from larder_kv.engine.lookup import Lookup


class Tracked:
    """A request, from its arrival to its end."""

    __slots__ = ("request", "prompt", "switches", "loads", "saves", "tables",
                 "saved", "behind", "preemptions", "lookup", "claimed",
                 "local", "loading", "landed", "record", "until", "asked",
                 "turn", "early", "blocks", "lost", "gives", "unsure",
                 "sides")

    def __init__(self, request: Request, switches: Switches):
        self.request = request
        self.switches = switches
        self.prompt = Prompt(request)
        self.loads = self.saves = True
        self.loading: bytes | None = None  # its entry in Scheduler.loading
        self.landed: bytes | None = None  # and in Scheduler.landed
        self.gives: Handoff | None = None  # the prefill side's, until its end
        # Whether it gives and takes a hand-off, until its prompt is named.
        self.sides: tuple[bool, bool] | None = None
        self.record = Record(request.request_id, request.num_tokens)
        self.reset()

    def reset(self) -> None:
        """At its arrival, and when it was preempted."""
        self.preemptions = self.request.num_preemptions
        self.tables: list[list[int]] = []
        self.saved = 0  # chunks that need not be saved any more
        self.unsure = False  # whether that is so: its lookup will say
        self.behind = False  # more could be, if less were held
        self.claimed = False
        self.until = 0.0  # it waits so long for the store, whatever for
        self.asked = 0.0  # when vLLM first wanted to know
        self.turn = 0.0  # it waits so long for its turn; 0: not crowded out
        self.local = 0
        self.blocks: list[tuple[int, array]] = []  # that it loads
        self.lost = False  # and a rank could not
        self.lookup: Lookup | None = None
        self.early: Early | None = None  # its load, if that has begun
