"""The shortest program: vLLM on Larder, one prompt.

    python examples/vllm_offline.py --model PATH

Run it twice. The second run is a new process and loads what the first one
computed: from this host's node, which the first run started if there was none
(it says so, and how to end it).
"""
import argparse
import time

from vllm import LLM, SamplingParams

LARDER = {"kv_connector": "LarderConnector",
          "kv_connector_module_path": "larder_kv.vllm",
          "kv_role": "kv_both",
          "kv_load_failure_policy": "recompute"}
PROMPT = "A larder is a cool room where food is kept for later. " * 100


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", required=True, help="a path, or a name")
    args = parser.parse_args()

    llm = LLM(model=args.model, kv_transfer_config=LARDER)
    began = time.perf_counter()
    [output] = llm.generate(PROMPT, SamplingParams(max_tokens=8,
                                                   temperature=0))
    seconds = time.perf_counter() - began
    print("tokens:", *output.outputs[0].token_ids)
    print(f"prompt: {len(output.prompt_token_ids)} tokens, of which "
          f"{output.num_cached_tokens} were loaded; {seconds:.2f} s")


if __name__ == "__main__":
    main()
