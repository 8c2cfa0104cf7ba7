#!/usr/bin/env python3
"""What bench/gpu/run.py measured, as markdown.

    bench/gpu/report.py FILE.json... [--docs]

Several files are put together, later ones win. --docs writes between the marks
<!-- gpu --> and <!-- end of gpu --> of bench/results/gpu.md. Then `make
performance` takes docs/performance.md and its picture from there.
"""
import argparse
import json
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(HERE))

import faults
import load
import nohit
import pressure
import ttft
from proof import middle

SIZES = {"8b": "Qwen3-8B", "32b": "Qwen3-32B"}


def row(*cells):
    return "| " + " | ".join(str(c) for c in cells) + " |"


def head(*cells):
    return [row(*cells), row("---", *["---:"] * (len(cells) - 1))]


def size(number):
    for unit, name in ((1 << 20, "MiB"), (1 << 10, "KiB")):
        if number and number >= unit and number % unit == 0:
            return f"{number // unit} {name}"
    return str(number)


def copies_lines(found):
    lines = head("copy, scattered segments of", "", "GB/s",
                 "contiguous pinned", "ratio")
    for f in found["figures"]:
        ratio = f.get("ratio")
        lines.append(row(size(f.get("bytes")), f.get("variant") or "",
                         f.get("value"), f.get("limit") or "",
                         f"{ratio:.2f}" if ratio else ""))
    return lines


def equality_lines(found):
    lines = head("model", "tokens", "own hit", "Larder hit, engine restarted",
                 "logprobs equal", "flipped sign bits noticed")
    for name, mine in found.items():
        if not isinstance(mine, dict) or "prompts" not in mine:
            continue
        flips = mine.get("flips", [])
        seen = f"{sum(f['noticed'] for f in flips)} of {len(flips)}"
        for i, note in enumerate(mine["prompts"]):
            equal = note.get("equal")
            lines.append(row(
                name, f"{note['tokens']:,}", note.get("own_hit", ""),
                note.get("hit_tokens", ""),
                "bit by bit" if equal else "" if equal is None else "NO",
                "" if i else seen))
    return lines


def ms(mine, name):
    took = ttft.seconds(mine, name)
    return f"{took * 1000:,.0f}" if took == took else ""


def even(mine, name):
    took = ttft.even(mine, name)
    return f"{took * 1000:,.1f}" if took == took else ""


def even_row(name, tokens, mine):
    """A line of what is judged."""
    native = ttft.even(mine, "native")
    cells = [even(mine, "native")]
    for hit in ("dram", "restart"):
        took, own = ttft.even(mine, hit), ttft.even(mine, ttft.OWN[hit])
        link = (own + mine["bytes"] / ttft.LINK) * 1000
        copy = ttft.link(mine, hit) * 1000
        cells += [even(mine, ttft.OWN[hit]), even(mine, hit),
                  f"{link:,.1f}" if link == link else "",
                  f"{copy:,.1f}" if copy == copy else "",
                  f"{took / native:.2f}" if took / native == took / native
                  else ""]
    return row(name, f"{int(tokens):,}", *cells)


def ttft_lines(results):
    lines = head("first token, ms", "tokens", "GB", *(
        ttft.NAMES[name] for name in PLOTTED))
    more = head("with the same time to launch, ms", "tokens", "native offload "
                "hit", "own hit", "Larder, DRAM", "own + GB ÷ 50 GB/s",
                "the driver's copy", "÷ native", "own hit, restarted",
                "Larder, restarted", "own + GB ÷ 50 GB/s",
                "the driver's copy", "÷ native")
    for short, name in SIZES.items():
        for tokens, mine in results.get(f"ttft-{short}", {}).get(
                "rows", {}).items():
            cells = [ms(mine, n) for n in PLOTTED]
            why = ttft.why(mine.get("ssd", {}))
            if cells[-1] and why != "-":
                cells[-1] += f" ({why})"
            lines.append(row(name, f"{int(tokens):,}",
                             f"{mine['bytes'] / 1e9:.1f}", *cells))
            more.append(even_row(name, tokens, mine))
    lines += ["", *more]
    for short, name in SIZES.items():
        rows = list(results.get(f"ttft-{short}", {}).get(
            "rows", {}).values())
        mine = rows[1] if len(rows) > 1 else {}
        if "steps" in mine.get("restart", {}):
            hits = [ttft.usual(mine) + more for more
                    in ttft.rest(mine["restart"])]
            if len(hits) >= ttft.HITS:
                lines += ["", f"{name}, first hit after an engine's start "
                          f"{hits[0] * 1000:.0f} ms, the tenth "
                          f"{hits[ttft.HITS - 1] * 1000:.0f} ms."]
    return lines


def nohit_lines(found):
    lines = head("no hits", "prompt tokens/s", "from", "to", "lost")
    for mode, rounds in found["rounds"].items():
        rates = [r["tokens_per_s"] for r in rounds]
        if rates:
            lost = found.get(f"lost_{mode}")
            lines.append(row(
                nohit.TEXT[mode], f"{middle(rates):,.0f}",
                f"{min(rates):,.0f}", f"{max(rates):,.0f}",
                "" if lost is None else f"{100 * lost:.2f} %"))
    return lines


def under_way(mine, answer):
    """Mean and p99 of the time per token; and of how many requests tokens were
    being made, on average."""
    steps = mine.get("tpots")
    if not steps:
        return "", "", ""
    return (f"{sum(steps) / len(steps) * 1000:.2f} ms",
            f"{mine['tpot_p99'] * 1000:.2f} ms",
            f"{sum(steps) * (answer - 1) / mine['seconds']:.1f}")


def load_lines(found):
    texts = {
        "fill": f"first of each of {found['groups']} groups",
        "queries": f"{found['groups']} groups × {found['queries']}",
        "paced": f"one each {found.get('every', 0) * 1000:.0f} ms",
        "batch": f"{found['long']:,} in, {found['long_answer']:,} out, "
                 f"{found['batch']} at once",
        "batch again": "the same again"}
    lines = head("under load", "", "first token p50", "p99",
                 "per token p50", "mean", "p99", "answers under way", "requests/min",
                 "tokens from the store", "own cache")
    for kind in load.PASSES:
        for name, text in load.NAMES.items():
            mine = found["passes"].get(name, {}).get(kind)
            if mine is not None:
                lines.append(row(
                    texts[kind], text, f"{mine['ttft_p50'] * 1000:,.0f} ms",
                    f"{mine['ttft_p99'] * 1000:,.0f} ms",
                    f"{mine['tpot'] * 1000:.2f} ms", *under_way(
                        mine, found["long_answer"] if "batch" in kind
                        else found["answer"]),
                    f"{mine['per_minute']:,.1f}", f"{mine['external']:,}",
                    f"{mine['local']:,}"))
    return lines


def faults_lines(found):
    lines = head("while requests run, the node is", "model", "requests",
                 "wrong", "errors", "slowest", "hits again after")
    for fault, text in (("kill", "killed and started 1 s later"),
                        ("stop", "stopped for 3 s")):
        for model in faults.MODELS:
            note = found.get(model, {}).get(fault, {})
            if "wrong" in note:
                again = note.get("recovered_s")
                lines.append(row(
                    text, model, note["requests"], note["wrong"],
                    note["errors"], f"{note['slowest']:.1f} s",
                    "never" if again is None else f"{again:.1f} s"))
    return lines


def pressure_lines(found):
    lines = head("too many at once", "Larder", "requests", "given up",
                 "preempted", "tokens hit", "errors", "logprobs apart",
                 "then one by one: hits, wrong")
    for model in pressure.MODELS:
        one = found.get(model, {})
        for name in ("without", "with"):
            note = one.get(name)
            if note:
                lines.append(row(
                    model, name, note["requests"], note["given_up"],
                    note["preempted"], f"{note['hit_tokens']:,}",
                    note["errors"], f"{note['apart']:.3f}",
                    f"{one['hits']} of {one['asked']}, {one['wrong']}"
                    if name == "with" and "wrong" in one else ""))
    return lines


def checks(results):
    bad = [(stage, name, c) for stage, found in results.items()
           for part in [found, *(v for v in found.values()
                                 if isinstance(v, dict))]
           for name, c in part.get("checks", {}).items()
           if not c["good"]]
    lines = []
    for stage, name, c in bad:
        more = (f"{c['value']:.4g}, at most {c['limit']:.4g} wanted "
                if "value" in c else "")
        lines.append(f"- not held ({stage}): {name}: {more}({c['text']})")
    return lines


PARTS = {"copy": copies_lines, "equality": equality_lines,
         "nohit": nohit_lines, "load": load_lines, "faults": faults_lines,
         "pressure": pressure_lines}


def markdown(results):
    lines = []
    for stage in ("copy", "equality", "ttft", "nohit", "load", "faults",
                  "pressure"):
        if stage == "ttft":
            keys = [f"ttft-{s}" for s in SIZES if f"ttft-{s}" in results]
            if keys:
                lines += ttft_lines(results) + [""]
        else:
            keys = [stage] if stage in results else []
            needed = {"copy": "figures", "nohit": "rounds", "load": "passes"}
            if keys and needed.get(stage, "date") in results[stage]:
                lines += PARTS[stage](results[stage]) + [""]
        for key in keys:
            found = results[key]
            lines += [f"`{key}`: {found.get('date')}, commit "
                      f"{found.get('commit')}, {found.get('device')}."
                      + (" Not finished." if "stopped" in found else ""), ""]
    return lines + checks(results)


def put(path, lines):
    begin, end = "<!-- gpu -->\n", "<!-- end of gpu -->"
    text = path.read_text()
    if begin not in text or end not in text:
        sys.exit(f"{path} has no marks {begin.strip()} and {end}")
    before, rest = text.split(begin)
    path.write_text(before + begin + "\n".join(lines) + "\n" + end
                    + rest.split(end, 1)[1])


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("files", nargs="+", type=pathlib.Path)
    parser.add_argument("--docs", action="store_true")
    args = parser.parse_args()
    results = {}
    for path in args.files:
        results.update(json.loads(path.read_text()))
    lines = markdown(results)
    print("\n".join(lines))
    if args.docs:
        put(ROOT / "bench/results/gpu.md", lines)


if __name__ == "__main__":
    main()
