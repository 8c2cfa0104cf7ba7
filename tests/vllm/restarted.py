"""What most proofs begin with: an engine computes and ends, and another one
starts on the same node."""
import contextlib
from types import SimpleNamespace

import rig


@contextlib.contextmanager
def restarted(version, kind, folder, compute, *, via=(), **args):
    """told: what compute(told, engine) noted of the first engine; about: its
    space; node, store, and engine, the second one, which reaches the node by
    node.url(*via)."""
    told = SimpleNamespace()
    with contextlib.ExitStack() as stack:
        told.node = stack.enter_context(rig.node(folder))
        with rig.engine(version, kind, told.node.url(), **args) as engine:
            compute(told, engine)
            told.about = engine.ask("inside", "space")
        told.engine = stack.enter_context(rig.engine(
            version, kind, told.node.url(*via), **args))
        told.store = stack.enter_context(rig.Store(told.node.url(),
                                                   told.about))
        yield told
