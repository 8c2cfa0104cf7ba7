"""Larder for Python engines: the binding of liblarder, and connectors.

The connector of vLLM is larder_kv.vllm.LarderConnector.
"""
