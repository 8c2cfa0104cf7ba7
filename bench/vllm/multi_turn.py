#!/usr/bin/env python3
"""Conversations that grow: each turn sends all that was said before.

    bench/vllm/multi_turn.py --url http://127.0.0.1:8000 --model small \\
        --state FILE --turns 3

Prompts are token ids, so that what the model answered is in the next prompt as
it was. FILE keeps the conversations: run it again, after a restart of the
server, and they go on. Prints one JSON object for each turn.
"""
import argparse
import concurrent.futures
import http.client
import json
import pathlib
import random
import statistics
import time
import urllib.parse

VOCABULARY = 2048


def words(seed, count):
    draw = random.Random(seed)
    return [draw.randrange(3, VOCABULARY) for _ in range(count)]


def ask(args, prompt):
    """Seconds until the first token, seconds in all, and the answer."""
    where = urllib.parse.urlsplit(args.url)
    connection = http.client.HTTPConnection(where.hostname, where.port,
                                            timeout=120)
    body = json.dumps({
        "model": args.model, "prompt": prompt, "max_tokens": args.answer,
        "temperature": 0, "ignore_eos": True, "stream": True,
        "return_token_ids": True})
    began = time.perf_counter()
    connection.request("POST", "/v1/completions", body,
                       {"Content-Type": "application/json"})
    answer = connection.getresponse()
    if answer.status != 200:
        raise RuntimeError(answer.read().decode()[:500])
    first, tokens = None, []
    for line in answer:
        if not line.startswith(b"data: ") or b"[DONE]" in line:
            continue
        told = json.loads(line[6:])
        if "choices" not in told:  # an error in the middle of an answer
            raise RuntimeError(json.dumps(told)[:500])
        found = told["choices"][0].get("token_ids")
        if found:
            first = first or time.perf_counter() - began
            tokens += found
    connection.close()
    return first, time.perf_counter() - began, tokens


def turn(args, conversations, number):
    """One turn of every conversation."""
    prompts = []
    for i, said in enumerate(conversations):
        size = args.first if number == 0 else args.more
        prompts.append(said + words(f"{args.seed} {i} {number}", size))
    began = time.perf_counter()
    with concurrent.futures.ThreadPoolExecutor(args.at_once) as pool:
        answers = list(pool.map(lambda p: ask(args, p), prompts))
    seconds = time.perf_counter() - began
    for said, prompt, (_, _, tokens) in zip(conversations, prompts, answers):
        said[:] = prompt + tokens
    firsts = [first * 1000 for first, _, _ in answers]
    sent = sum(map(len, prompts))
    return {"turn": number + 1, "prompt_tokens": sent,
            "ttft_ms_mean": statistics.mean(firsts),
            "ttft_ms_median": statistics.median(firsts),
            "ttft_ms_max": max(firsts), "seconds": seconds,
            "tokens_per_s": (sent + args.answer * len(prompts)) / seconds}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--url", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--state", required=True, type=pathlib.Path)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--conversations", type=int, default=8)
    parser.add_argument("--at-once", type=int, default=2)
    parser.add_argument("--first", type=int, default=3000,
                        help="tokens that a conversation begins with")
    parser.add_argument("--more", type=int, default=500,
                        help="tokens that each later turn adds")
    parser.add_argument("--answer", type=int, default=48,
                        help="tokens of each answer")
    parser.add_argument("--seed", default="conversation")
    args = parser.parse_args()
    if args.state.exists():
        state = json.loads(args.state.read_text())
    else:
        state = {"turns": 0,
                 "conversations": [[] for _ in range(args.conversations)]}
    for _ in range(args.turns):
        print(json.dumps(turn(args, state["conversations"], state["turns"])),
              flush=True)
        state["turns"] += 1
        args.state.write_text(json.dumps(state))


if __name__ == "__main__":
    main()
