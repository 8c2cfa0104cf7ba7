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


HEAD_SLICES = 16  # of a model at most, as src/layout/slices.c cuts it


def whole_slices(heads: int, tp: int) -> bool:
    """Whether every slice of the model's KV heads lies whole in one of tp
    ranks. A slice of which ranks hold parts would be saved by nobody."""
    slices = max(n for n in range(1, HEAD_SLICES + 1) if heads % n == 0)
    return slices == heads if tp > heads else slices % tp == 0


@dataclass(frozen=True)
class Slices:
    """How a model is cut, where what is inside its pages is known."""

    heads: int  # KV heads
    model_layers: int
    # What is stored together, whichever of the engine's groups have it: layers
    # of the same rule, window and rows.
    groups: tuple[GroupInfo, ...]
    layers: tuple[tuple[int, ...], ...]  # of each of these, by index
    # Of each of the engine's groups: one of these that has its layers.
    stored_in: tuple[int, ...]
    # Of each: a token's bytes in one head, part by part (K, V).
    # Empty: what a head has in a block is opaque.
    rows: tuple[tuple[int, ...], ...] = ()


@dataclass(frozen=True)
class Model:
    """What the scheduler's and the workers' side must agree on."""

    groups: tuple[GroupInfo, ...]
    chunk_tokens: int
    descriptor: bytes
    shards: int
    replicas: int
    label: str = ""  # of the space, for people: no part of its name
    slices: Slices | None = None  # None: a shard is a rank's,
    opaque: str = ""  # for this reason
    ranks: int = 0  # with bytes of their own; 0: as many as shards
    chunk_bytes: int = 0  # of all shards; follows from the descriptor
    page_tokens: int = 0  # of SGLang's, whose page hashes are the keys

    @property
    def name(self) -> str:
        """Of the space, for people."""
        return hashlib.sha256(self.descriptor).hexdigest()[:12]

    @property
    def has_state(self) -> bool:
        return any(g.rule == _lib.RULE_LAST for g in self.groups)


def stored(model: Model) -> tuple[GroupInfo, ...]:
    """The groups of its space."""
    return model.slices.groups if model.slices else model.groups


def stored_in(model: Model, group: int) -> int:
    """The number in the space of one of the engine's groups. (Of one that is
    stored in several, all have the same rule.)"""
    return model.slices.stored_in[group] if model.slices else group


def _pages(slices: Slices) -> list[_lib.Pages]:
    """Without memory."""
    return [_lib.Pages(heads=slices.heads,
                       row_tokens=1 if slices.rows else group.block_tokens,
                       model_layers=(_lib.c_uint32 * len(layers))(*layers),
                       model_layer_count=len(layers))
            for group, layers in zip(slices.groups, slices.layers)]


def lookup_layout(chunk_tokens: int, groups: tuple[GroupInfo, ...],
                  slices: Slices | None) -> _lib.Layout:
    """A layout without memory. groups: of the space."""
    return _lib.Layout(
        chunk_tokens, [_lib.Group(g.rule, g.block_tokens, g.window_tokens)
                       for g in groups],
        pages=_pages(slices) if slices else (),
        model_layers=slices.model_layers if slices else 0)


def rules(model: Model) -> _lib.Layout:
    """For lookups."""
    return lookup_layout(model.chunk_tokens, stored(model), model.slices)


def stored_blocks(model: Model) -> list[tuple[int, int]]:
    """Of each of the engine's groups: which of a chunk's blocks a save reads,
    the first and the end, as C has it."""
    layout = rules(model)
    found = [(layout.first_block(stored_in(model, i)),
              model.chunk_tokens // g.block_tokens)
             for i, g in enumerate(model.groups)]
    layout.close()
    return found


def bytes_per_token(model: Model, layout_: _lib.Layout) -> float:
    """Of all shards, of groups that need every chunk."""
    return sum(layout_.bytes(i) for i, g in enumerate(stored(model))
               if g.rule == _lib.RULE_ALL) * (
                   model.ranks or model.shards) / model.chunk_tokens
