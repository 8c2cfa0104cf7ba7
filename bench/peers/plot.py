"""The figures as a plot: two panels of bars, hand-written SVG."""
from xml.sax.saxutils import escape

import table

COLOURS = {"larder shm": "#1f4e9c", "larder tcp": "#6f9fe0",
           "redis unix": "#a32f2f", "redis tcp": "#e08a80",
           "memcached unix": "#2c7a4b", "memcached tcp": "#86c79d",
           "mooncake tcp": "#c9a227", "mooncake shm": "#8a6d12"}
BAR, GAP, TOP, HEIGHT, LEFT, PANEL_GAP = 14, 26, 74, 240, 46, 40


def scale(best, limits):
    most = max([f["value"] for f in best.values()] + list(limits.values()),
               default=1)
    step = next(s for s in (1, 2, 5, 10, 20, 50, 100) if most / s <= 7)
    return step, step * (int(most / step) + 1)


def axis(x, width, step, most):
    parts = []
    for i in range(int(most / step) + 1):
        y = TOP + HEIGHT - HEIGHT * i * step / most
        parts.append(f'<line class="grid" x1="{x}" y1="{y:.1f}" '
                     f'x2="{x + width}" y2="{y:.1f}"/>')
        parts.append(f'<text class="tick" x="{x - 6}" y="{y + 4:.1f}" '
                     f'text-anchor="end">{i * step}</text>')
    return parts


def group(best, limits, names, op, size, x, most):
    """The bars of one size, and the best copy as a line over them."""
    parts = []
    for i, name in enumerate(names):
        figure = best.get((name, op, size))
        if not figure:
            continue
        h = HEIGHT * figure["value"] / most
        label = f"{name}, {op} {table.size_text(size)}: " \
                f"{figure['value']:.2f} GB/s"
        parts.append(
            f'<rect x="{x + i * BAR}" y="{TOP + HEIGHT - h:.1f}" '
            f'width="{BAR - 2}" height="{h:.1f}" '
            f'fill="{COLOURS.get(name, "#777")}"><title>{escape(label)}'
            f'</title></rect>')
    limit = limits.get((op, size))
    if limit:
        y = TOP + HEIGHT - HEIGHT * limit / most
        parts.append(f'<line class="limit" x1="{x - 4}" y1="{y:.1f}" '
                     f'x2="{x + len(names) * BAR + 2}" y2="{y:.1f}"/>')
    parts.append(f'<text class="tick" x="{x + len(names) * BAR / 2}" '
                 f'y="{TOP + HEIGHT + 18}" text-anchor="middle">'
                 f'{table.size_text(size)}</text>')
    return parts


def legend(names, width):
    parts, x, y = [], LEFT, TOP + HEIGHT + 44
    for name in names:
        if x + 130 > width:
            x, y = LEFT, y + 20
        parts.append(f'<rect x="{x}" y="{y - 10}" width="12" height="12" '
                     f'fill="{COLOURS.get(name, "#777")}"/>'
                     f'<text x="{x + 17}" y="{y}">{escape(name)}</text>')
        x += 130
    parts.append(f'<line class="limit" x1="{LEFT}" y1="{y + 16}" '
                 f'x2="{LEFT + 24}" y2="{y + 16}"/>'
                 f'<text x="{LEFT + 30}" y="{y + 20}">the best '
                 f'single-thread copy of this machine</text>')
    return parts, y + 34


def svg(best, limits, args):
    names = table.titles(best)
    step, most = scale(best, limits)
    panel = len(args.sizes) * (len(names) * BAR + GAP)
    width = LEFT + 2 * panel + PANEL_GAP + 16
    parts = []
    for n, op in enumerate(("get", "put")):
        x = LEFT + n * (panel + PANEL_GAP)
        parts += axis(x, panel, step, most)
        parts.append(f'<text class="head" x="{x}" y="{TOP - 14}">{op}, '
                     f'GB/s</text>')
        for i, size in enumerate(args.sizes):
            parts += group(best, limits, names, op, size,
                           x + GAP / 2 + i * (len(names) * BAR + GAP), most)
    more, height = legend(names, width)
    style = ("text{font:12px sans-serif;fill:#222}.head{font-weight:bold}"
             ".tick{font-size:11px;fill:#555}.grid{stroke:#ddd}"
             ".limit{stroke:#000;stroke-width:1.5;stroke-dasharray:4 3}")
    title = (f'<text class="head" x="{LEFT}" y="24">One client, batches of '
             f'{args.batch}, contents verified, buffers cold</text>')
    return (f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" '
            f'height="{height}" viewBox="0 0 {width:.0f} {height}" role="img" '
            f'aria-label="Larder beside other stores, GB/s">'
            f"<style>{style}</style>"
            f'<rect width="100%" height="100%" fill="#fff"/>{title}\n'
            + "\n".join(parts + more) + "\n</svg>\n")
