"""What a worker reports of its saves."""
from types import SimpleNamespace

import pytest

from larder_kv import _lib
from larder_kv.engine.counts import Counts
from larder_kv.engine.mover import Mover


@pytest.mark.parametrize("item, skipped, failed, done", [
    (_lib.OK, 0, 0, True), (_lib.OK, 2, 0, True),  # without blocks
    (_lib.DECLINED, 2, 0, False), (_lib.E_FULL, 0, 1, False),
    (_lib.E_FULL, 1, 1, False)])
def test_done(item, skipped, failed, done):
    """Only what can be loaded: it is announced to routers."""
    request = _lib.Move(item=item, skipped=skipped, failed=failed)
    worker = SimpleNamespace(_fill=lambda move, ms: (_lib.OK, request),
                             counts=Counts())
    assert Mover._save(worker, SimpleNamespace(request_id="r"), 10) is done
