"""The connector with loads in the step (load_layers) on the CPU, for what they
ask of vLLM: requests that are scheduled while their KV is on its way, and loads
that fail when the forward has used them. The GPU's part is not here: the
forward waits for the whole load.

With a file `wrong` in $LARDER_TEST_FOLDER nothing is loaded, the forward is not
told, and the load fails at its end.
"""
import os
import pathlib
import threading

from larder_kv import _lib
from larder_kv.engine import layers as loads
from larder_kv.vllm import layers
from larder_kv.vllm.connector import LarderConnector

WRONG = pathlib.Path(os.environ["LARDER_TEST_FOLDER"]) / "wrong"


class Whole:
    """In the place of _lib.Layers."""

    def __init__(self, layout, parts):
        self._over = threading.Event()
        self._over.set()
        self._status = _lib.OK

    def begin(self):
        self._over.clear()
        self._wrong = WRONG.exists()

    def load(self, space, layout, move):
        self._status = (_lib.E_IO if self._wrong
                        else space.load(layout, move))
        self._over.set()
        return self._status

    def fail(self):
        self._status = _lib.E_IO
        self._over.set()

    def wait(self, layer, stream, timeout_ms):
        assert self._over.wait(timeout_ms / 1000)
        return _lib.OK if self._wrong else self._status

    def close(self):
        pass


def _as_on_a_gpu(refusal):
    return lambda config, kv, described, url, cuda: refusal(
        config, kv, described, url, True)


_lib.Layers = Whole
layers.refusal = _as_on_a_gpu(layers.refusal)
loads._stream = lambda: 0
layers.PAUSE_SECONDS = 0.0


class InStepConnector(LarderConnector):
    pass
