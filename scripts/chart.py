#!/usr/bin/env python3
"""Draws the throughput of a cold sequential read from a result of scripts/bench, as SVG.

Usage: chart.py [RESULT [CHART]]   (the defaults are target/bench/result.json and target/bench/chart.svg)
"""
import json
import pathlib
import sys
from xml.sax.saxutils import escape

BENCH = pathlib.Path(__file__).resolve().parents[1] / "target" / "bench"
PEERS = {"zarr2": "zarr-python 2", "zarr3": "zarr-python 3", "zarr3-fused": "zarr-python 3, fused", "zarrs": "zarrs",
         "tensorstore": "TensorStore"}

# row and column of the result, label, color; without a column, the best library
BARS = [
    ("cat", "zarrfs", "zarrfs, cat", "#2f7ed8"),
    ("cat", "direct", "zarrfs --direct-io, cat", "#15559e"),
    ("cat", "null", "FUSE file from memory, cat", "#8a94a0"),
    ("memory", None, "best library, into memory", "#d9822b"),
    ("file", None, "best library, to a raw file", "#b3541e"),
    ("cat", "plain", "plain file in the page cache, cat", "#5f9e6e"),
]
LEFT, PLOT, RIGHT, BAR, STEP, GAP = 120, 500, 150, 11, 13, 14
# readable on white and on near-black
TEXT = "#7b8490"


def seconds(rows, row, column):
    """Returns the median of a row and column. Without a column, returns that of the best library, and its name."""
    columns = {column: ""} if column else PEERS
    found = [(rows.get(row, {}).get(c, {}).get("median"), name) for c, name in columns.items()]
    return min((f for f in found if f[0]), default=(None, ""))


def text(x, y, content, anchor="start", extra=""):
    return f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}"{extra}>{escape(content)}</text>'


def bars_of(array):
    """Returns the bars of an array: label, color, GB/s and the name of the library."""
    found = ((*seconds(array["rows"], row, column), label, color) for row, column, label, color in BARS)
    return [(label, color, array["bytes"] / s / 1e9, peer) for s, peer, label, color in found if s]


def chart(result):
    arrays = {name: bars for name, array in result["arrays"].items() if (bars := bars_of(array))}
    labels = {label for bars in arrays.values() for label, *_ in bars}
    used = [(label, color) for _, _, label, color in BARS if label in labels]
    # a plain file is several times as fast as the others, so its bar may be longer than the plot
    inside = [gb for bars in arrays.values() for label, _, gb, _ in bars if not label.startswith("plain")]
    most = max(inside, default=1) * 1.08
    body = []
    y = 62 + 16 * ((len(used) + 1) // 2)
    top = y
    for name, bars in arrays.items():
        body.append(text(LEFT - 8, y + STEP * len(bars) / 2 + 4, name, "end", ' font-weight="600"'))
        for _, color, gb, peer in bars:
            width = min(gb / most, 1) * PLOT
            body.append(f'<rect x="{LEFT}" y="{y:g}" width="{width:.1f}" height="{BAR}" fill="{color}"/>')
            if gb > most:
                # a slanted gap shows that the bar is longer
                x = LEFT + PLOT - 16
                body.append(f'<path d="M{x} {y + BAR:g}l4 -{BAR}h4l-4 {BAR}z" fill="#fff" fill-opacity=".85"/>')
            label = f"{gb:.{2 if gb > 0.1 else 3}f} {peer}".rstrip()
            body.append(text(LEFT + width + 5, y + BAR - 2, label, extra=' font-size="10"'))
            y += STEP
        y += GAP
    grid = [f'<path d="M{LEFT} {top - 4}V{y - GAP + 2:g}" stroke="{TEXT}"/>']
    tick = next(t for t in (0.25, 0.5, 1, 2, 5, 10) if most / t < 9)
    for i in range(1, int(most / tick) + 1):
        x = LEFT + i * tick / most * PLOT
        grid.append(f'<path d="M{x:.1f} {top - 4}V{y - GAP + 2:g}" stroke="{TEXT}" stroke-opacity=".25"/>')
        grid.append(text(x, y + 2, f"{i * tick:g}", "middle", ' font-size="10"'))
    machine = result["machine"]
    width, height = LEFT + PLOT + RIGHT, y + 30
    head = [
        text(12, 22, "Cold sequential read, GB/s of decoded bytes (longer is better)", extra=' font-size="14"'
             ' font-weight="600"'),
        text(12, 40, f"{result['mib']} MiB arrays, medians of {result['rounds']}; {machine['cores']} cores, "
             f"{machine['cpu']}, Linux {machine['kernel'].split('-')[0]}; stores in the page cache"),
    ]
    for i, (label, color) in enumerate(used):
        x, at = 12 + 260 * (i % 2), 58 + 16 * (i // 2)
        head.append(f'<rect x="{x}" y="{at - 9}" width="10" height="10" fill="{color}"/>')
        head.append(text(x + 16, at, label))
    foot = text(LEFT, height - 8, "GB/s", extra=' font-size="10"')
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height:g}" width="{width}" height="{height:g}" '
        f'font-family="sans-serif" font-size="12" fill="{TEXT}">', *head, *grid, *body, foot, "</svg>", ""])


def main():
    result = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else BENCH / "result.json"
    out = pathlib.Path(sys.argv[2]) if len(sys.argv) > 2 else BENCH / "chart.svg"
    out.write_text(chart(json.loads(result.read_text())))


if __name__ == "__main__":
    main()
