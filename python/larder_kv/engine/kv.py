"""What a model's KV is, in an engine: its groups, and what is stored of it."""
from __future__ import annotations

import hashlib
from dataclasses import dataclass

from larder_kv import _lib


@dataclass(frozen=True)
class GroupInfo:
    """One of an engine's groups that is stored, and its rule."""

    index: int  # among the engine's groups
    kind: str
    rule: int
    block_tokens: int
    window_tokens: int


@dataclass(frozen=True)
class Model:
    """What the scheduler's and the workers' side must agree on."""

    groups: tuple[GroupInfo, ...]
    chunk_tokens: int
    descriptor: bytes
    shards: int
    replicas: int
    label: str = ""  # of the space, for people: no part of its name

    @property
    def name(self) -> str:
        """Of the space, for people."""
        return hashlib.sha256(self.descriptor).hexdigest()[:12]

    @property
    def has_state(self) -> bool:
        return any(g.rule == _lib.RULE_LAST for g in self.groups)


def rules(model: Model) -> _lib.Layout:
    """A layout without memory: for lookups."""
    return _lib.Layout(model.chunk_tokens,
                       [_lib.Group(g.rule, g.block_tokens, g.window_tokens)
                        for g in model.groups])


def stored_blocks(model: Model) -> list[tuple[int, int]]:
    """Of each group: which of a chunk's blocks a save reads, the first and the
    end, as C has it."""
    layout = rules(model)
    found = [(layout.first_block(i), model.chunk_tokens // g.block_tokens)
             for i, g in enumerate(model.groups)]
    layout.close()
    return found


def bytes_per_token(model: Model, layout_: _lib.Layout) -> float:
    """Of all shards, of groups that need every chunk."""
    return sum(layout_.bytes(i) for i, g in enumerate(model.groups)
               if g.rule == _lib.RULE_ALL) * model.shards / model.chunk_tokens
