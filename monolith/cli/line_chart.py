"""Draws lines over time as an SVG, with nothing but text.

Example:
    >>> svg = draw_lines("AUC", "hours", {"online": [(1, 0.8), (2, 0.9)]})
    >>> svg.count("<polyline"), "online" in svg
    (1, True)
"""

import html
from collections.abc import Mapping, Sequence

_WIDTH, _HEIGHT = 760, 360
_LEFT, _RIGHT, _TOP, _BOTTOM = 60, 110, 40, 45
_COLORS = ("#2a7f62", "#c7702e", "#7a8794", "#c9ced3", "#4b6cb7", "#8e5ea2")
_NUM_TICKS = 5


def draw_lines(title: str, x_name: str, lines: Mapping[str, Sequence[tuple[float, float]]]) -> str:
    """Returns the SVG; each line has its name at its end.

    Args:
        title: Stands above.
        x_name: What the horizontal axis means.
        lines: Points of each line, from left to right; at least one point altogether.
    """
    points = [point for line in lines.values() for point in line]
    low_x, high_x = min(x for x, _ in points), max(x for x, _ in points)
    low_y, high_y = min(y for _, y in points), max(y for _, y in points)
    span_x, span_y = (high_x - low_x) or 1.0, (high_y - low_y) or 1.0

    def place(x: float, y: float) -> tuple[float, float]:
        return (
            _LEFT + (x - low_x) / span_x * (_WIDTH - _LEFT - _RIGHT),
            _HEIGHT - _BOTTOM - (y - low_y) / span_y * (_HEIGHT - _TOP - _BOTTOM),
        )

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" '
        'font-family="sans-serif" font-size="12" fill="#333">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="#fff"/>',
        f'<text x="{_LEFT}" y="22" font-size="15">{html.escape(title)}</text>',
    ]
    for i in range(_NUM_TICKS + 1):
        x, y = low_x + span_x * i / _NUM_TICKS, low_y + span_y * i / _NUM_TICKS
        (left, height), (at, _) = place(low_x, y), place(x, low_y)
        parts.append(
            f'<line x1="{left:.1f}" y1="{height:.1f}" x2="{_WIDTH - _RIGHT}" y2="{height:.1f}" '
            'stroke="#eee"/>'
            f'<text x="{left - 6:.1f}" y="{height + 4:.1f}" text-anchor="end">{y:.3f}</text>'
            f'<text x="{at:.1f}" y="{_HEIGHT - 24}" text-anchor="middle">{x:.3g}</text>'
        )
    middle = (_LEFT + _WIDTH - _RIGHT) / 2
    parts.append(
        f'<text x="{middle}" y="{_HEIGHT - 7}" text-anchor="middle">{html.escape(x_name)}</text>'
    )
    last_height = float(_HEIGHT)
    # From below, so that names of lines that end near each other are moved apart.
    for i, (name, line) in sorted(enumerate(lines.items()), key=lambda item: item[1][1][-1][1]):
        color = _COLORS[i % len(_COLORS)]
        placed = [place(x, y) for x, y in line]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in placed)
        last_height = min(placed[-1][1], last_height - 14)
        parts.append(
            f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="2"/>'
            f'<text x="{_WIDTH - _RIGHT + 8}" y="{last_height + 4:.1f}" fill="{color}">'
            f"{html.escape(name)}</text>"
        )
    return "\n".join([*parts, "</svg>", ""])
