"""A subscriber to vLLM's KV events, with vLLM's own decoding.

As a module: Subscriber(python, endpoint) reads them in a process of its own,
which python (that of a vLLM environment) runs. As a program: prints one JSON
object for each event of the endpoint.
"""
import json
import os
import queue
import subprocess
import sys
import threading
import time


class Lines:
    """Another program's lines of JSON. It ends when its stdin does."""

    def __init__(self, *command):
        self._lines = queue.Queue()
        self._process = subprocess.Popen(
            [*map(str, command)], stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, text=True)
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()
        assert self._lines.get(timeout=120) == {"ready": True}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._process.stdin.close()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _read(self):
        for line in self._process.stdout:
            self._lines.put(json.loads(line))
        self._lines.put(None)

    def next(self, timeout):
        """The next one; queue.Empty."""
        line = self._lines.get(timeout=max(0, timeout))
        assert line is not None, "the subscriber has ended"
        return line


class Subscriber(Lines):
    def __init__(self, python, endpoint):
        self.events = []  # all that came
        self.batches = []  # their sequence numbers
        super().__init__(python, "-B", os.path.abspath(__file__), endpoint)

    def until(self, true, timeout=60):
        """Reads on until true() of all events that came. Gives it."""
        end = time.monotonic() + timeout
        while not (found := true()):
            try:
                batch = self.next(end - time.monotonic())
            except queue.Empty:
                raise AssertionError(
                    f"not in {timeout} s; the last events: "
                    f"{self.events[-5:]}") from None
            self.batches.append(batch["sequence"])
            self.events += batch["events"]
        return found


def _plain(value):
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    return value


def main(endpoint):
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # vLLM logs to it
    import msgspec
    import zmq
    from vllm.distributed.kv_events import KVEventBatch

    socket = zmq.Context().socket(zmq.SUB)
    socket.connect(endpoint)
    socket.setsockopt(zmq.SUBSCRIBE, b"")
    # Ends with who started it.
    threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)),
                     daemon=True).start()
    decoder = msgspec.msgpack.Decoder(KVEventBatch)
    print(json.dumps({"ready": True}), file=out, flush=True)
    while True:
        _, sequence, payload = socket.recv_multipart()
        batch = decoder.decode(payload)
        events = [dict({name: _plain(getattr(event, name))
                        for name in event.__struct_fields__},
                       type=type(event).__name__) for event in batch.events]
        print(json.dumps({"sequence": int.from_bytes(sequence, "big"),
                          "events": events}), file=out, flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
