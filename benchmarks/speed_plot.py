"""Draws the figures of RESULTS.md beside those of the peers, as an SVG for docs/speed.md.

`make site` runs it, and a test tells when the drawing is older than the figures. All numbers are
read from the tables of RESULTS.md; nothing is measured here.

Run: `python -m benchmarks.speed_plot docs/images/speed.svg`.
"""

import dataclasses
import html
import pathlib
import re
import sys

RESULTS = pathlib.Path(__file__).with_name("RESULTS.md")
OURS = "ours"
OUR_NAME = "Monolith"

_WIDTH, _LABELS, _VALUES = 760, 210, 70
_BAR, _STEP, _TITLE, _GAP = 16, 22, 40, 22
_COLORS = {True: "#2a7f62", False: "#b9c2cc"}


@dataclasses.dataclass(frozen=True)
class Panel:
    """One group of bars, which have one scale.

    Attributes:
        title: What is measured.
        unit: In what.
        bars: The contenders and their figures.
    """

    title: str
    unit: str
    bars: list[tuple[str, float]]


def read_table(text: str, section: str, caption: str | None = None) -> list[list[str]]:
    """Returns the first table below a heading, and below a second one if given: header, rows.

    Raises:
        ValueError: There is no such table.
    """
    for heading in filter(None, (section, caption)):
        _, found, text = text.partition(f"# {heading}\n")
        if not found:
            raise ValueError(f"{RESULTS.name} has no section {heading!r}.")
    match = re.search(r"^\|.*?(?=^[^|])", text + "\n.", re.MULTILINE | re.DOTALL)
    if match is None:
        raise ValueError(f"{RESULTS.name} has no table below {caption or section!r}.")
    lines = match[0].splitlines()
    del lines[1]  # What separates the header from the rows.
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def read_panels(text: str) -> list[Panel]:
    """Returns what is drawn."""
    return [
        _read_training(text),
        *(_read_table_speed(text, name) for name in ("lookup + adagrad, zipf", "lookup, zipf")),
        *(_read_checkpoint(text, what) for what in ("save", "restore")),
    ]


def _read_training(text: str) -> Panel:
    header, *rows = read_table(text, "Training steps")
    speed = header.index("examples/s")
    best: dict[str, float] = {}
    for row in rows:
        best[row[0]] = max(_to_number(row[speed]) / 1000, best.get(row[0], 0.0))
    return Panel("Training steps, each in its fastest way", "thousand examples/s", _sort(best))


def _read_table_speed(text: str, name: str) -> Panel:
    caption = "10,000,000 ids, dim 16, one thread"
    header, *rows = read_table(text, "The table and its peers", caption)
    [row] = [row for row in rows if row[0] == name]
    speeds = {
        contender: _to_number(cell)
        for contender, cell in zip(header[1:], row[1:], strict=True)
        if not contender.startswith("ours /")
    }
    shown = name.replace("adagrad", "Adagrad").replace("zipf", "Zipf ids")
    return Panel(f"Table of {caption}: {shown}", "million keys/s", _sort(speeds))


def _read_checkpoint(text: str, what: str) -> Panel:
    header, *rows = read_table(text, "Saving and restoring the table", "Speeds")
    # Rows, not bytes: files differ in size. The column is the one behind that of bytes.
    speed = header.index(f"{what}, MB/s") + 1
    speeds = {row[0]: _to_number(row[speed]) for row in rows if row[speed] != "-"}
    return Panel(f"Checkpoint of 5,000,000 rows: {what}", "million rows/s", _sort(speeds))


def _to_number(cell: str) -> float:
    return float(cell.replace(",", ""))


def _sort(speeds: dict[str, float]) -> list[tuple[str, float]]:
    return sorted(speeds.items(), key=lambda item: -item[1])


def draw(panels: list[Panel]) -> str:
    """Returns the panels one below the other."""
    parts: list[str] = []
    top = _GAP
    for panel in panels:
        parts.append(_text(16, top + 14, f"{panel.title} ({panel.unit})", "title"))
        top += _TITLE - 12
        most = max(value for _, value in panel.bars)
        for name, value in panel.bars:
            length = max(1.0, (_WIDTH - _LABELS - _VALUES) * value / most)
            color = _COLORS[name == OURS]
            parts.append(_text(_LABELS - 8, top + 12, OUR_NAME if name == OURS else name, "name"))
            parts.append(
                f'<rect x="{_LABELS}" y="{top}" width="{length:.1f}" height="{_BAR}" rx="2" '
                f'fill="{color}"/>'
            )
            parts.append(_text(_LABELS + length + 6, top + 12, _show(value), "value"))
            top += _STEP
        top += _GAP
    style = (
        "text{font:13px system-ui,sans-serif;fill:#333}.title{font-weight:600}"
        ".name{text-anchor:end}.value{fill:#555}"
    )
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {top}" role="img">',
            "<title>Measured speeds of Monolith and of its peers; longer is faster</title>",
            f"<style>{style}</style>",
            f'<rect width="{_WIDTH}" height="{top}" rx="6" fill="#fff"/>',
            *parts,
            "</svg>",
            "",
        ]
    )


def _text(x: float, y: float, text: str, kind: str) -> str:
    return f'<text x="{x:.0f}" y="{y:.0f}" class="{kind}">{html.escape(text)}</text>'


def _show(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def main() -> None:
    path = pathlib.Path(sys.argv[1])
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(draw(read_panels(RESULTS.read_text())))


if __name__ == "__main__":
    main()
