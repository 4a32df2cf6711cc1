"""A line chart as SVG, without a library: few points, both axes logarithmic."""

import math
from xml.sax.saxutils import escape

_WIDTH, _HEIGHT = 780, 420
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 250, 44, 50
_COLORS = ("#1b6ca8", "#c0392b", "#7f8c8d", "#2e8b57", "#8e44ad", "#b9770e")


def ticks(low, high):
    """1, 2 and 5 times powers of ten, from at most `low` to at least `high`."""
    steps = [m * 10.0**e for e in range(-4, 10) for m in (1, 2, 5)]
    first = max(i for i, step in enumerate(steps) if step <= low)
    last = min(i for i, step in enumerate(steps) if step >= high)
    return steps[first : last + 1]


class _Scale:
    """From values to pixels."""

    def __init__(self, low, high, from_pixel, to_pixel):
        self._low = math.log(low)
        self._factor = (to_pixel - from_pixel) / ((math.log(high) - self._low) or 1)
        self._from_pixel = from_pixel

    def __call__(self, value):
        return self._from_pixel + (math.log(value) - self._low) * self._factor


def _text(x, y, text, anchor="middle", extra=""):
    return '<text x="%.1f" y="%.1f" text-anchor="%s"%s>%s</text>' % (x, y, anchor, extra, escape(text))


def _line(x1, y1, x2, y2):
    return '<line x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f" stroke="#ddd"/>' % (x1, y1, x2, y2)


def _grid(scale_x, scale_y, xs, marks, x_label, y_label):
    right, bottom = _WIDTH - _RIGHT, _HEIGHT - _BOTTOM
    drawn = []
    for mark in marks:
        drawn.append(_line(_LEFT, scale_y(mark), right, scale_y(mark)))
        drawn.append(_text(_LEFT - 8, scale_y(mark) + 4, "%g" % mark, "end"))
    for x in xs:
        drawn.append(_line(scale_x(x), _TOP, scale_x(x), bottom))
        drawn.append(_text(scale_x(x), bottom + 20, "%g" % x))
    drawn.append(_text((_LEFT + right) / 2, _HEIGHT - 10, x_label))
    middle = (_TOP + bottom) / 2
    drawn.append(_text(18, middle, y_label, extra=' transform="rotate(-90 18 %.1f)"' % middle))
    return drawn


def _spread_out(places, distance):
    """Moves labels down so that none lies on another; `places` are (y, label index)."""
    moved = {}
    last = -math.inf
    for y, index in sorted(places):
        last = max(y, last + distance)
        moved[index] = last
    return moved


def line_chart(title, x_label, y_label, series):
    """`series` is a list of (name, {x: y}); all numbers positive. Returns the text of the file."""
    xs = sorted({x for _, points in series for x in points})
    ys = [y for _, points in series for y in points.values()]
    marks = ticks(min(ys), max(ys))
    scale_x = _Scale(xs[0], xs[-1], _LEFT + 12, _WIDTH - _RIGHT - 12)
    scale_y = _Scale(marks[0], marks[-1], _HEIGHT - _BOTTOM, _TOP)
    drawn = [
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d" height="%d" '
        'font-family="sans-serif" font-size="13">' % (_WIDTH, _HEIGHT, _WIDTH, _HEIGHT),
        '<rect width="100%" height="100%" fill="white"/>',
        _text(_LEFT, 24, title, "start", ' font-weight="bold"'),
        *_grid(scale_x, scale_y, xs, marks, x_label, y_label),
    ]
    ends = [(scale_y(points[max(points)]) + 4, i) for i, (_, points) in enumerate(series)]
    label_at = _spread_out(ends, 16)
    for i, (name, points) in enumerate(series):
        color = _COLORS[i % len(_COLORS)]
        places = [(scale_x(x), scale_y(points[x])) for x in sorted(points)]
        path = " ".join("%.1f,%.1f" % place for place in places)
        drawn.append('<polyline points="%s" fill="none" stroke="%s" stroke-width="2"/>' % (path, color))
        drawn += ['<circle cx="%.1f" cy="%.1f" r="3.5" fill="%s"/>' % (*p, color) for p in places]
        drawn.append(_text(_WIDTH - _RIGHT + 6, label_at[i], name, "start", ' fill="%s"' % color))
    return "\n".join([*drawn, "</svg>", ""])
