"""Lines as an SVG."""

import xml.etree.ElementTree

from monolith.cli import line_chart


def find(svg, name):
    return xml.etree.ElementTree.fromstring(svg).findall(f"{{*}}{name}")


def test_points_lie_where_they_should():
    svg = line_chart.draw_lines("AUC", "hours", {"up": [(0, 0.5), (1, 1.0)], "flat": [(0, 0.75)]})
    flat, up = sorted((line.get("points") for line in find(svg, "polyline")), key=len)
    (x0, y0), (x1, y1) = (map(float, point.split(",")) for point in up.split())
    x, y = map(float, flat.split(","))
    assert (x, y) == (x0, (y0 + y1) / 2)
    assert x0 < x1
    assert y0 > y1  # Heights count from above.


def test_names_of_lines_that_end_together_stay_apart():
    names = ["a", "b", "c"]
    svg = line_chart.draw_lines("t", "x", {name: [(0, 0.5), (1, 0.5)] for name in names})
    heights = [float(text.get("y")) for text in find(svg, "text") if text.text in names]
    assert len(heights) == 3
    assert min(b - a for a, b in zip(sorted(heights), sorted(heights)[1:], strict=False)) >= 14


def test_text_is_escaped_and_one_point_is_enough():
    svg = line_chart.draw_lines("a < b & c", "x", {"<": [(1, 1)]})
    assert next(text.text for text in find(svg, "text")) == "a < b & c"
