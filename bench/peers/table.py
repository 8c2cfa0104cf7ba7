"""The figures as text."""
import re

PEERS = ("redis", "memcached", "mooncake")


def size_text(size):
    return (f"{size >> 20} MiB" if size >= 1 << 20 and size % (1 << 20) == 0
            else f"{size >> 10} KiB")


def titles(best):
    """In the order in which they were measured first."""
    return list(dict.fromkeys(title for title, _, _ in best))


def cell(best, limits, title, op, size):
    figure = best.get((title, op, size))
    if not figure:
        return "-"
    limit = limits.get((op, size))
    ratio = f" {figure['value'] / limit:4.2f}" if limit else ""
    return f"{figure['value']:6.2f}{ratio}"


def best_peer(best, op, size, sockets_only):
    """(GB/s, title) of the fastest that is not Larder."""
    found = [(f["value"], title) for (title, o, s), f in best.items()
             if (o, s) == (op, size) and f["store"] in PEERS
             and not (sockets_only and f["by"] == "shm")]
    return max(found, default=None)


def against_peers(best, args):
    """Larder's shared memory against the fastest peer by a socket, and against
    the fastest of all where that is another."""
    lines = []
    for op in ("get", "put"):
        for size in args.sizes:
            mine = best.get(("larder shm", op, size))
            peers = dict.fromkeys(
                best_peer(best, op, size, sockets_only)
                for sockets_only in (True, False))
            found = [f"{mine['value'] / value:.1f} x {title}"
                     for value, title in filter(None, peers)] if mine else []
            if found:
                lines.append(f"{op} {size_text(size):>8}: larder shm is "
                             + ", ".join(found))
    return lines


def text(best, limits, args):
    """GB/s, and beside it the ratio to the best single-thread copy."""
    columns = [(op, size) for op in ("get", "put") for size in args.sizes]
    lines = ["GB/s, and as a part of the best single-thread copy",
             f"{'':18}" + "".join(f"{op + ' ' + size_text(size):>13}"
                                  for op, size in columns)]
    if limits:
        lines.append(f"{'best copy':18}" + "".join(
            f"{limits.get((op, size), 0):8.2f}{'':5}" for op, size in columns))
    for title in titles(best):
        lines.append(f"{title:18}" + "".join(
            f"{cell(best, limits, title, op, size):>13}"
            for op, size in columns))
    return "\n".join(line.rstrip()
                     for line in lines + [""] + against_peers(best, args))


def write_docs(path, figures):
    """Replaces what stands between the two marks."""
    page = path.read_text(encoding="utf-8")
    block = (f"<!-- figures: begin -->\n```\n{figures}\n```\n"
             "<!-- figures: end -->")
    page, count = re.subn(r"<!-- figures: begin -->.*?<!-- figures: end -->",
                          lambda _: block, page, flags=re.S)
    if count != 1:
        raise SystemExit(f"{path}: the marks of the figures are missing")
    path.write_text(page, encoding="utf-8")
