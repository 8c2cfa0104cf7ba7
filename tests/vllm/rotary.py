"""The connector in a vLLM whose rotary embeddings are made by torch: the kernel
of its CPU build takes heads for tokens where a model has MLA, so that what a
token's KV becomes depends on which others are computed in the same step."""
from larder_kv.vllm import LarderConnector
from vllm.model_executor.layers.rotary_embedding.base import RotaryEmbedding

__all__ = ["LarderConnector"]
RotaryEmbedding.forward_cpu = RotaryEmbedding.forward_native
