"""Proof 4: what the connector costs when nothing hits.

Three engines live at once and take turns: without a connector, with Larder
saving everything, with Larder saving nothing. Each round is many prompts that
nobody has.
"""
import contextlib

import host
import models
from proof import check, middle, table

MODES = {"none": None, "saving": {}, "never": {"save": "never"}}
TEXT = {"none": "no connector", "saving": "Larder, saving all",
        "never": "Larder, save=never"}


def run(proof):
    found = proof.stage("nohit")
    tokens, count, rounds = (600, 4, 3) if proof.tiny else (4096, 16, 7)
    shape = "tiny" if proof.tiny else "qwen3-8b"
    found.update(shape=shape, tokens=tokens, prompts=count,
                 rounds={mode: [] for mode in MODES})
    try:
        rounds_of(proof, found, shape, rounds)
    finally:
        if all(found["rounds"].values()):
            show(found)
        proof.save()


def rounds_of(proof, found, shape, rounds):
    tokens, count = found["tokens"], found["prompts"]
    with contextlib.ExitStack() as stack:
        node = stack.enter_context(proof.node("nohit", proof.args.dram))
        engines = {}
        for mode, options in MODES.items():
            url = None if options is None else node.url
            engines[mode] = stack.enter_context(host.Engine(
                proof, shape, f"nohit {mode}", url, options,
                **proof.room(20)))
        for number in range(-1, rounds):
            proof.clock.need(15, f"round {number}")
            order = list(MODES)
            shift = number % len(order)
            for mode in order[shift:] + order[:shift]:
                one_round(proof, found, engines[mode], mode, number, tokens,
                          count)
        counters = engines["saving"].call("counters")
        found["saved"] = counters.get("vllm:larder_saved_bytes", 0)
        found["counters"] = {name: value for name, value in counters.items()
                             if name.startswith("vllm:larder_")}
        found["lines"] = engines["saving"].larder_lines()[-20:]
        found["computed"] = ((rounds + 1) * count * tokens
                             * models.token_bytes(shape))


def one_round(proof, found, one, mode, number, tokens, count):
    """Round -1 warms up."""
    prompts = [[[f"nohit {mode} {number} {i}", tokens]]
               for i in range(count)]
    with host.Counted(one) as counted:
        took = one.many(prompts, 8, answers=False, max_tokens=1)
    held = one.reset()  # saves that still run are not the next one's
    if number >= 0:
        found["rounds"][mode].append({
            "tokens_per_s": tokens * count / took["seconds"],
            "held_s": held, "external": counted.external,
            "errors": sum(a["error"] is not None for a in took["answers"])})
        proof.save()


def show(found):
    rates = {mode: [r["tokens_per_s"] for r in rounds]
             for mode, rounds in found["rounds"].items()}
    base = middle(rates["none"])
    table(["no hits", "prompt tokens/s", "least", "most", "of none"],
          [[TEXT[mode], f"{middle(mine):,.0f}", f"{min(mine):,.0f}",
            f"{max(mine):,.0f}", f"{middle(mine) / base:.4f}"]
           for mode, mine in rates.items()])
    # Neighbours in time are compared: the machine's mood is in both.
    for mode, limit in (("saving", 0.02), ("never", 0.01)):
        lost = middle([1 - mine / none
                       for mine, none in zip(rates[mode], rates["none"])])
        found[f"lost_{mode}"] = lost
        check(found, f"{TEXT[mode]}: lost", lost, limit,
              "median of the rounds, against no connector")
