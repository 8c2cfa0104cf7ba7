"""Bars as hand-written SVG: panels of groups of bars, one colour a series."""
from xml.sax.saxutils import escape

COLOURS = ["#9aa3ad", "#1f4e9c", "#6f9fe0"]
BAR, GAP, TOP, HEIGHT, LEFT, SPACE = 36, 26, 74, 190, 52, 56
STYLE = ("text{font:12px sans-serif;fill:#222}.head{font-weight:bold}"
         ".tick{font-size:11px;fill:#555}.grid{stroke:#ddd}"
         ".mark{stroke:#000;stroke-dasharray:4 3}")


def _scale(most):
    """The step of an axis, and its end."""
    step = next(s * 10 ** p for p in range(8) for s in (1, 2, 5)
                if most / (s * 10 ** p) <= 6)
    return step, step * (int(most / step) + 1)


def _bar(x, height, value, colour, label):
    y = TOP + HEIGHT - height
    return (f'<rect x="{x}" y="{y:.1f}" width="{BAR - 3}" '
            f'height="{height:.1f}" fill="{colour}"><title>{escape(label)}'
            f'</title></rect><text class="tick" x="{x + BAR / 2 - 1.5}" '
            f'y="{y - 4:.1f}" text-anchor="middle">{value:,.0f}</text>')


def panel(x, title, groups, series, marks=()):
    """groups: (name, [a value for each of series]); marks: (a group's number,
    a text) for a line before that group. Answers the SVG and the width."""
    each = len(series) * BAR + GAP
    width = len(groups) * each
    step, most = _scale(max(max(values) for _, values in groups))
    parts = [f'<text class="head" x="{x}" y="{TOP - 28}">{escape(title)}'
             '</text>']
    for i in range(int(most / step) + 1):
        y = TOP + HEIGHT - HEIGHT * i * step / most
        parts.append(f'<line class="grid" x1="{x}" y1="{y:.1f}" '
                     f'x2="{x + width}" y2="{y:.1f}"/>'
                     f'<text class="tick" x="{x - 6}" y="{y + 4:.1f}" '
                     f'text-anchor="end">{i * step:,}</text>')
    for n, (name, values) in enumerate(groups):
        left = x + n * each + GAP / 2
        for i, value in enumerate(values):
            parts.append(_bar(left + i * BAR, HEIGHT * value / most, value,
                              COLOURS[i], f"{name}, {series[i]}: {value:,.0f}"))
        middle = left + len(values) * BAR / 2
        for k, line in enumerate(name.split("\n")):
            parts.append(f'<text class="tick" x="{middle}" '
                         f'y="{TOP + HEIGHT + 16 + 14 * k}" '
                         f'text-anchor="middle">{escape(line)}</text>')
    for n, text in marks:
        at = x + n * each
        parts.append(f'<line class="mark" x1="{at}" y1="{TOP - 8}" x2="{at}" '
                     f'y2="{TOP + HEIGHT}"/><text class="tick" x="{at + 4}" '
                     f'y="{TOP - 2}">{escape(text)}</text>')
    return parts, width


def svg(title, series, panels):
    """panels: (title, groups, marks)."""
    x, parts = LEFT, []
    for name, groups, marks in panels:
        more, width = panel(x, name, groups, series, marks)
        parts += more
        x += width + SPACE
    width, y = max(x - SPACE + 16, 440), TOP + HEIGHT + 56
    for i, name in enumerate(series):
        parts.append(f'<rect x="{LEFT + 160 * i}" y="{y - 10}" width="12" '
                     f'height="12" fill="{COLOURS[i]}"/><text '
                     f'x="{LEFT + 160 * i + 17}" y="{y}">{escape(name)}'
                     '</text>')
    height = y + 16
    return (f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" '
            f'height="{height}" viewBox="0 0 {width:.0f} {height}" role="img" '
            f'aria-label="{escape(title)}"><style>{STYLE}</style>'
            '<rect width="100%" height="100%" fill="#fff"/>'
            f'<text class="head" x="{LEFT}" y="20">{escape(title)}</text>\n'
            + "\n".join(parts) + "\n</svg>\n")
