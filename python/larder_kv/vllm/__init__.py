"""vLLM on Larder: kv_connector LarderConnector, kv_connector_module_path
larder_kv.vllm."""
from larder_kv.vllm.connector import LarderConnector

__all__ = ["LarderConnector"]
