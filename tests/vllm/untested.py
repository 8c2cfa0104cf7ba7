"""The connector, which believes that this vLLM was not tested. LARDER_TEST_BAD:
and it takes half of each page for the whole."""
import os

from larder_kv.vllm import LarderConnector, model, versions

__all__ = ["LarderConnector"]
versions.TESTED = ()

if os.environ.get("LARDER_TEST_BAD"):
    _page = model._page
    model._page = lambda *given: (_page(*given)[0], _page(*given)[1] // 2)
