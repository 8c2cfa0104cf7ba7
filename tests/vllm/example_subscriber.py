"""A subscriber that does what vLLM's example does
(examples/features/kv_events/kv_events_subscriber.py, 0.32), written anew: the
fields that it must find, a REQ socket for what it missed, three parts in each
answer. As a program: drops the second message on purpose, and prints a JSON
line for each event, replayed or not.

    python example_subscriber.py PUB REPLAY TOPIC
"""
import json
import os
import sys
import threading
from typing import Any


def types(msgspec):
    class Event(msgspec.Struct, omit_defaults=True, tag=True):
        pass

    class BlockStored(Event):
        block_hashes: list[bytes | int]
        parent_block_hash: bytes | int | None
        token_ids: list[int]
        block_size: int
        lora_id: int | None
        medium: str | None
        lora_name: str | None
        extra_keys: list[tuple[Any, ...] | None] | None = None
        group_idx: int | None = None
        kv_cache_spec_kind: str | None = None
        kv_cache_spec_sliding_window: int | None = None
        locality: str | None = None

    class BlockRemoved(Event):
        block_hashes: list[bytes | int]
        medium: str | None
        group_idx: int | None = None
        locality: str | None = None

    class AllBlocksCleared(Event):
        pass

    class Batch(msgspec.Struct, array_like=True, omit_defaults=True):
        ts: float
        events: list[BlockStored | BlockRemoved | AllBlocksCleared]

    return Batch


def main(pub, replay, topic):
    import msgspec
    import zmq
    decoder = msgspec.msgpack.Decoder(types(msgspec))
    context = zmq.Context()
    sub = context.socket(zmq.SUB)
    sub.connect(pub)
    sub.setsockopt_string(zmq.SUBSCRIBE, topic)
    asks = context.socket(zmq.REQ)
    asks.connect(replay)
    # Ends with who started it.
    threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)),
                     daemon=True).start()
    print(json.dumps({"ready": True}), flush=True)
    seen, last = 0, -1

    def tell(payload, replayed):
        for event in decoder.decode(payload).events:
            print(json.dumps({
                "type": type(event).__name__, "replayed": replayed,
                "medium": getattr(event, "medium", None),
                "tokens": len(getattr(event, "token_ids", ()))}), flush=True)

    while True:
        _, number, payload = sub.recv_multipart()
        number, seen = int.from_bytes(number, "big"), seen + 1
        if seen == 2:
            continue  # lost on its way
        if last >= 0 and number > last + 1:
            asks.send((last + 1).to_bytes(8, "big"))
            assert asks.poll(60000)
            _, first, answer = asks.recv_multipart()
            assert int.from_bytes(first, "big") == last + 1
            tell(answer, True)
        tell(payload, False)
        last = number


if __name__ == "__main__":
    main(*sys.argv[1:])
