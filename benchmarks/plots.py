"""Bar charts as SVG, for docs/cost.md: one chart per contest, with medians as bars, least and most as a line."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from xml.sax.saxutils import escape

from benchmarks.measure import Measured

WIDTH = 760
LABEL_WIDTH = 270
NUMBER_WIDTH = 110
BAR_HEIGHT = 22
GAP = 10
TOP = 40
OURS = "#2563eb"
THEIRS = "#9ca3af"


def bar_chart(title: str, measured: Sequence[Measured], *, ours: str) -> str:
    """A complete SVG document, readable on light and on dark pages."""
    height = TOP + len(measured) * (BAR_HEIGHT + GAP)
    most = max(max(one.values) for one in measured)
    rows = [line for number, one in enumerate(measured) for line in _bar(one, number, most, ours)]
    unit = measured[0].unit
    better = "more is better" if unit.more_is_better else "less is better"
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="system-ui, sans-serif"'
    return "\n".join(
        [
            f'{head} font-size="13">',
            "<style>text { fill: #1f2937 } @media (prefers-color-scheme: dark) { text { fill: #e5e7eb } }</style>",
            f'<text x="0" y="18" font-weight="600">{escape(title)} ({unit}, {better})</text>',
            *rows,
            "</svg>\n",
        ]
    )


def _bar(one: Measured, number: int, most: float, ours: str) -> Iterator[str]:
    room = WIDTH - LABEL_WIDTH - NUMBER_WIDTH
    y = TOP + number * (BAR_HEIGHT + GAP)
    middle, text_y = y + BAR_HEIGHT / 2, y + BAR_HEIGHT - 6
    low, median, high = (LABEL_WIDTH + room * value / most for value in (min(one.values), one.median, max(one.values)))
    colour = OURS if one.name.startswith(ours) else THEIRS
    yield f'<text x="{LABEL_WIDTH - 8}" y="{text_y}" text-anchor="end">{escape(one.name)}</text>'
    yield f'<rect x="{LABEL_WIDTH}" y="{y}" width="{median - LABEL_WIDTH:.1f}" height="{BAR_HEIGHT}" fill="{colour}"/>'
    yield f'<path d="M{low:.1f} {middle}H{high:.1f}" stroke="#111827" stroke-width="1.5" opacity="0.6"/>'
    yield f'<text x="{max(high, median) + 6:.1f}" y="{text_y}">{number_text(one.median)}</text>'


def number_text(value: float) -> str:
    """A number with three significant digits or without decimals: the spread makes more digits meaningless."""
    if value >= 10_000:
        return f"{round(value, -3):,.0f}"
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"
