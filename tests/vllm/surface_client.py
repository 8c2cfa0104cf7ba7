"""The Python API with arrays of numpy and tensors of torch: no copy is made of
either."""
import larder_kv
import numpy
import pytest
import torch


@pytest.fixture
def space():
    with larder_kv.open("embed:?dram=64M") as node:
        with node.space("arrays", chunk_tokens=16) as one:
            yield one


@pytest.mark.parametrize("dtype", [numpy.uint8, numpy.float32, numpy.float64])
def test_arrays(space, dtype):
    given = numpy.random.default_rng(1).integers(0, 99, (4, 50)).astype(dtype)
    chain = space.chain(numpy.arange(16, dtype=numpy.uint32))
    assert chain == space.chain(numpy.arange(16, dtype=numpy.int64))
    assert space.put(chain, [given]) == [larder_kv.Status.OK]
    into = numpy.zeros_like(given)
    [got] = space.get(chain, [into])
    assert got.hit and got.length == given.nbytes
    assert numpy.array_equal(into, given)
    with space.stage(chain) as lease:
        [piece] = lease.views(0)
        there = numpy.frombuffer(piece, dtype).reshape(given.shape)
    del piece
    assert numpy.array_equal(there, given)  # it keeps what it needs


def test_arrays_that_cannot_be_taken(space):
    chain = space.chain(range(16))
    with pytest.raises(BufferError):
        space.put(chain, [numpy.zeros((4, 4))[:, :2]])
    fixed = numpy.zeros(4)
    fixed.flags.writeable = False
    space.put(chain, [fixed])
    with pytest.raises(BufferError):
        space.get(chain, [fixed])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn,
                                   torch.int64])
def test_tensors(space, dtype):
    given = torch.arange(200).reshape(4, 50).to(dtype)
    chain = space.chain(range(16))
    assert space.put(chain, [[given[:2], given[2:]]]) == [larder_kv.Status.OK]
    into = torch.zeros_like(given)
    [got] = space.get(chain, [into])
    assert got.hit and got.length == given.numel() * given.element_size()
    assert torch.equal(into.view(torch.uint8), given.view(torch.uint8))


def test_tensors_that_cannot_be_taken(space):
    chain = space.chain(range(16))
    with pytest.raises(BufferError):
        space.put(chain, [torch.zeros(4, 4).t()[:2]])
    with pytest.raises(TypeError, match="only one on the CPU"):
        space.put(chain, [torch.zeros(4, device="meta")])
