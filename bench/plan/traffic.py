#!/usr/bin/env python3
"""Made-up traffic of many kinds, as traces for `larder plan`.

bench/plan/traffic.py KIND [SEED] [--requests N] > TRACE
bench/plan/traffic.py --list
"""
import argparse
import heapq
import math
import random
import sys


class Ids:
    """New blocks, numbered as they come."""

    def __init__(self):
        self.next = 0

    def take(self, count):
        self.next += count
        return list(range(self.next - count, self.next))


def zipf(n, s):
    """Draws 0 to n - 1, the first ones more often."""
    total, sums = 0.0, []
    for i in range(n):
        total += (i + 1) ** -s
        sums.append(total)
    return sums


def pick(r, sums):
    return r.choices(range(len(sums)), cum_weights=sums)[0]


# Each kind yields requests: (seconds, blocks). All blocks are full, as those
# are that a node stores, unless it says otherwise.

def few(r, n):
    """40 sessions, each as likely as any other to go on, up to 150 blocks"""
    ids, live = Ids(), [[] for _ in range(40)]
    for i in range(n):
        s = r.randrange(40)
        if len(live[s]) > 150:
            live[s] = []
        live[s] = live[s] + ids.take(r.randint(1, 8))
        yield i * 0.5, live[s]


def uniform(r, n):
    """single blocks of 5,000, each as likely as any other"""
    for i in range(n):
        yield i * 0.05, [r.randrange(5000)]


def single_zipf(r, n):
    """single blocks of 20,000, Zipf 0.7"""
    sums = zipf(20000, 0.7)
    order = r.sample(range(20000), 20000)
    for i in range(n):
        yield i * 0.05, [order[pick(r, sums)]]


def chain_zipf(r, n):
    """6,000 chains of up to 16 blocks, Zipf 0.7"""
    sums, ids = zipf(6000, 0.7), Ids()
    chains = [ids.take(r.randint(1, 16)) for _ in range(6000)]
    r.shuffle(chains)
    for i in range(n):
        yield i * 0.05, chains[pick(r, sums)]


def stack(r, n, blocks=1):
    """single blocks by how long ago they were used: what LRU is best for"""
    ids, recent = Ids(), []
    for i in range(n):
        at = int(math.exp(r.random() * math.log(20000))) - 1
        if at < len(recent):
            chain = recent.pop(-1 - at)
        else:
            chain = ids.take(r.randint(1, blocks))
        recent.append(chain)
        yield i * 0.05, chain


def stack_chains(r, n):
    """the same with chains of up to 30 blocks"""
    return stack(r, n, 30)


def chats(r, n, live=600, seconds=60, gone=0.15, first=8):
    """600 chats at a time that go on about every minute"""
    ids, due, out = Ids(), [], 0
    system = ids.take(2)
    for _ in range(live):
        heapq.heappush(due, (r.random() * seconds, r.random(), []))
    while out < n:
        at, _, chain = heapq.heappop(due)
        if not chain or len(chain) > 200 or r.random() < gone:
            chain = system + ids.take(r.randint(1, 2 * first))
        else:
            chain = chain + ids.take(r.randint(1, 4))
        yield at, chain
        out += 1
        heapq.heappush(due, (at + r.lognormvariate(math.log(seconds), 0.7),
                             r.random(), chain))


def documents(r, n, docs=400, length=60):
    """questions on documents; which are in fashion changes"""
    ids, sums = Ids(), zipf(docs, 0.9)
    all_docs = [ids.take(r.randint(length // 3, length * 2))
                for _ in range(docs)]
    for i in range(n):
        if r.random() < 0.01:
            j = r.randrange(docs)
            all_docs[j] = ids.take(r.randint(length // 3, length * 2))
        if r.random() < 0.02:
            a, b = r.randrange(docs), r.randrange(docs)
            all_docs[a], all_docs[b] = all_docs[b], all_docs[a]
        yield i * 0.4, all_docs[pick(r, sums)] + ids.take(r.randint(1, 4))


def once(r, n):
    """no request comes again"""
    ids = Ids()
    for i in range(n):
        yield i * 0.3, ids.take(r.randint(1, 40))


def once_prompt(r, n):
    """no request comes again, but all begin with one of three prompts"""
    ids = Ids()
    prompts = [ids.take(k) for k in (3, 10, 40)]
    for i in range(n):
        yield i * 0.3, r.choice(prompts) + ids.take(r.randint(1, 20))


def loop(r, n):
    """600 chains, one after the other, round and round"""
    ids = Ids()
    chains = [ids.take(r.randint(1, 40)) for _ in range(600)]
    for i in range(n):
        yield i * 0.3, chains[i % 600]


def loop_single(r, n):
    """3,000 single blocks, round and round"""
    for i in range(n):
        yield i * 0.05, [i % 3000]


def hot_scan(r, n):
    """half on 200 hot chains, half on a scan"""
    ids = Ids()
    hot = [ids.take(r.randint(1, 10)) for _ in range(200)]
    for i in range(n):
        yield i * 0.1, (r.choice(hot) if r.random() < 0.5
                        else ids.take(r.randint(1, 10)))


def slide(r, n):
    """a working set of 500 chains that slides"""
    ids = Ids()
    chains = [ids.take(r.randint(1, 12)) for _ in range(500)]
    for i in range(n):
        if r.random() < 0.1:
            chains.pop(0)
            chains.append(ids.take(r.randint(1, 12)))
        yield i * 0.1, r.choice(chains)


def sessions(r, n, returns, live=300, flip=None):
    """Sessions that begin short or long; returns(short, turn): the chance that
    one goes on, which changes at each multiple of flip requests."""
    ids, due, out = Ids(), [], 0
    for _ in range(live):
        heapq.heappush(due, (r.random() * 60, r.random(), None, 0, False))
    while out < n:
        at, _, chain, turn, short = heapq.heappop(due)
        odd = flip is not None and out // flip % 2 == 1
        if chain is None or r.random() >= returns(short != odd, turn):
            short, turn = r.random() < 0.5, 0
            chain = ids.take(r.randint(1, 3) if short else r.randint(20, 30))
        else:
            chain = chain + ids.take(r.randint(1, 3) if short
                                     else r.randint(5, 9))
        yield at, chain
        out += 1
        heapq.heappush(due, (at + 20 + r.expovariate(1 / 40.0), r.random(),
                             chain[:200], turn + 1, short))


def change(r, n):
    """short sessions come back and long ones do not; from the middle on the
    other way round"""
    return sessions(r, n, lambda s, t: 0.85 if s else 0.02, flip=n // 2)


def changes(r, n):
    """the same, every 2,000 requests"""
    return sessions(r, n, lambda s, t: 0.85 if s else 0.02, flip=2000)


def changes_fast(r, n):
    """the same, every 300 requests"""
    return sessions(r, n, lambda s, t: 0.85 if s else 0.02, flip=300)


def learned_then_stack(r, n):
    """chats that can be told apart, then recency only"""
    half = n // 2
    last = 0.0
    for at, chain in sessions(r, half, lambda s, t: 0.85 if s else 0.02):
        last = at
        yield at, chain
    for at, chain in stack(r, n - half, 30):
        yield last + at * 6, [b + 10**7 for b in chain]


def bursts(r, n):
    """chats, all requests of ten minutes in ten seconds"""
    for at, chain in chats(r, n):
        yield at // 600 * 600 + at % 600 / 60, chain


def agents(r, n):
    """tasks that begin with 100 blocks of tools, go on step by step, branch
    into up to five, and end"""
    ids = Ids()
    tools = [ids.take(100), ids.take(60)]
    tasks, at = [], 0.0
    for _ in range(n):
        at += r.expovariate(4)
        if len(tasks) < 60 or r.random() < 0.03:
            tasks.append(r.choice(tools) + ids.take(r.randint(1, 10)))
        i = r.randrange(len(tasks))
        chain = tasks[i] + ids.take(r.randint(1, 4))
        if r.random() < 0.02:
            tasks += [chain + ids.take(1) for _ in range(r.randint(1, 4))]
        tasks[i] = chain
        yield at, chain
        if r.random() < 0.06:
            tasks.pop(i)
        if len(tasks) > 150:
            tasks.pop(r.randrange(150))


def mix(r, n):
    """chats by the minute, a batch on documents by the second, single blocks"""
    parts = [((t, [("a", b) for b in c]) for t, c in chats(r, n, live=200)),
             ((t * 0.3, [("b", b) for b in c]) for t, c in documents(r, n)),
             ((t * 4, [("c", b) for b in c]) for t, c in uniform(r, n))]
    number = {}
    for i, (at, chain) in enumerate(heapq.merge(*parts, key=lambda x: x[0])):
        if i >= n:
            return
        yield at, [number.setdefault(b, len(number)) for b in chain]


def tenants(r, n):
    """one that returns after seconds and one after a quarter of an hour"""
    parts = [((t, [2 * b for b in c])
              for t, c in chats(r, n, live=40, seconds=4)),
             ((t, [2 * b + 1 for b in c])
              for t, c in chats(r, n, live=400, seconds=900))]
    for i, x in enumerate(heapq.merge(*parts, key=lambda x: x[0])):
        if i >= n:
            return
        yield x


def no_time(r, n):
    """chats, all timestamps 0"""
    return ((0, c) for _, c in chats(r, n))


def back_in_time(r, n):
    """chats, timestamps in no order"""
    return ((r.random() * 3600, c) for _, c in chats(r, n))


def seconds(r, n):
    """chats, timestamps a thousandth"""
    return ((t / 1000, c) for t, c in chats(r, n))


def micros(r, n):
    """chats, timestamps a thousandfold"""
    return ((t * 1000, c) for t, c in chats(r, n))


def partial(r, n):
    """chats whose last block is not full, and is another one the next time"""
    return ((t, c + [10**9 + i]) for i, (t, c) in enumerate(chats(r, n)))


def shuffled(r, n):
    """chats, requests in random order"""
    all_of_them = list(chats(r, n))
    times = [t for t, _ in all_of_them]
    r.shuffle(all_of_them)
    return ((t, c) for t, (_, c) in zip(times, all_of_them))


def hashes(r, n):
    """chats, ids are hashes"""
    salt = r.getrandbits(64) | 1
    return ((t, [(b + 1) * salt % 2**63 for b in c]) for t, c in chats(r, n))


def memoryless(r, n):
    """2,000 chats, each as likely as any other to go on"""
    ids, live = Ids(), [[] for _ in range(2000)]
    for i in range(n):
        s = r.randrange(2000)
        if not live[s] or len(live[s]) > 100 or r.random() < 0.3:
            live[s] = []
        live[s] = live[s] + ids.take(r.randint(1, 12))
        yield i * 0.1, live[s]


# Kind, and how many requests unless it is said.
KINDS = {
    "few": (few, 4000),
    "uniform": (uniform, 20000),
    "stack": (stack, 20000),
    "stack-chains": (stack_chains, 12000),
    "memoryless": (memoryless, 12000),
    "single-zipf": (single_zipf, 40000),
    "chain-zipf": (chain_zipf, 20000),
    "chats": (chats, 12000),
    "chats-short": (chats, 700),
    "documents": (documents, 8000),
    "documents-long": (documents, 30000),
    "once": (once, 5000),
    "once-prompt": (once_prompt, 5000),
    "loop": (loop, 8000),
    "loop-single": (loop_single, 40000),
    "hot-scan": (hot_scan, 15000),
    "slide": (slide, 15000),
    "change": (change, 16000),
    "changes": (changes, 16000),
    "changes-fast": (changes_fast, 16000),
    "then-stack": (learned_then_stack, 16000),
    "bursts": (bursts, 12000),
    "agents": (agents, 6000),
    "mix": (mix, 12000),
    "tenants": (tenants, 12000),
    "no-time": (no_time, 12000),
    "back-in-time": (back_in_time, 12000),
    "seconds": (seconds, 12000),
    "micros": (micros, 12000),
    "shuffled": (shuffled, 12000),
    "hashes": (hashes, 12000),
    "partial": (partial, 12000),
}


def write(kind, seed, requests, out):
    make, usual = KINDS[kind]
    r = random.Random(f"{kind} {seed}")
    for at, chain in make(r, requests or usual):
        tokens = len(chain) * 512 - (r.randrange(1, 512) if make is partial
                                     else 0)
        out.write('{"timestamp": %d, "input_length": %d, "output_length": 100, '
                  '"hash_ids": [%s]}\n'
                  % (at * 1000, tokens, ", ".join(map(str, chain))))


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("kind", nargs="?", choices=KINDS)
    p.add_argument("seed", nargs="?", type=int, default=1)
    p.add_argument("--requests", type=int)
    p.add_argument("--list", action="store_true")
    args = p.parse_args()
    if args.list or args.kind is None:
        for kind, (make, usual) in KINDS.items():
            text = " ".join(make.__doc__.split())
            print(f"{kind:14} {usual:6} requests: {text}")
        return
    write(args.kind, args.seed, args.requests, sys.stdout)


if __name__ == "__main__":
    main()
