"""Tables as SVG, by hand: bars of medians, or lines over a number. Readable on light and on dark pages."""
import math
from html import escape

# One set of colours of middle tone, since a picture in a page does not always learn whether the page is dark.
STYLE = """<style>
text { font: 12px system-ui, sans-serif; fill: #768390 } .title { font-weight: 600; font-size: 13px } .small { font-size: 11px }
.brig { fill: #2f81f7; stroke: #2f81f7 } .floor { fill: #8c959f; stroke: #8c959f } .peer { fill: #bf8700; stroke: #bf8700 }
.axis { stroke: #768390; stroke-opacity: .4 }
.line { fill: none; stroke-width: 2 } .task { stroke-dasharray: 5 3 }
.p1 { stroke: #db6d28; fill: #db6d28 } .p2 { stroke: #2da44e; fill: #2da44e } .p3 { stroke: #8957e5; fill: #8957e5 } .p4 { stroke: #db61a2; fill: #db61a2 }
</style>"""
WIDTH, ROW, NUMBERS = 760, 20, 100
# A page has its own fonts: the width of a wide one, for each character of 12 px and of 11 px.
LETTER, SMALL = 7.0, 6.5


def number(value):
    """Three digits that say something, whatever the size."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def title(table):
    return escape(table["title"].replace("`", ""))


def kind(table, name):
    return "brig" if name.startswith("brig") else "floor" if name.startswith(("floor", "outside")) or name == table["floor"] else "peer"


def label(row):
    return row["name"].replace("`", "")


def bars(table, top):
    """One table: a bar a row, from zero, the longest over the whole width. The names take what the longest one needs."""
    out = [f'<text class="title" x="8" y="{top + 14}">{title(table)}</text>']
    rows, top = table["rows"], top + 24
    longest = max(row["median"] for row in rows) or 1
    labels = max(130, 16 + LETTER * max(len(label(row)) for row in rows))
    for row in rows:
        length = max(1, (WIDTH - labels - NUMBERS) * row["median"] / longest)
        out.append(f'<text x="{labels - 8:.0f}" y="{top + 13}" text-anchor="end">{escape(label(row))}</text>')
        out.append(f'<rect class="{kind(table, row["name"])}" stroke="none" x="{labels:.0f}" y="{top + 3}" width="{length:.1f}" height="{ROW - 6}" rx="2"/>')
        out.append(f'<text class="small" x="{labels + length + 6:.1f}" y="{top + 13}">{number(row["median"])} {escape(table["unit"])}</text>')
        top += ROW
    return out, top + 16


def lines(table, top):
    """One table with a number in each row's `at`: a line for each `line`, both axes logarithmic."""
    out = [f'<text class="title" x="8" y="{top + 14}">{title(table)} ({escape(table["unit"])})</text>']
    rows = [row for row in table["rows"] if row["median"] > 0]
    names = list(dict.fromkeys(row["line"] for row in rows))
    # At the end of a line: its name and its last number.
    height, left, right = 200, 70, WIDTH - 16 - SMALL * (max(map(len, names)) + 7)
    low, high = min(row["median"] for row in rows) / 1.3, max(row["median"] for row in rows) * 1.3
    first, last = min(row["at"] for row in rows), max(row["at"] for row in rows)
    bottom = top + 30 + height

    def across(at):
        return left + (right - left) * (math.log(at / first) / math.log(last / first) if last > first else 0.5)

    def up(value):
        return bottom - height * math.log(value / low) / math.log(high / low)

    for at in sorted({row["at"] for row in rows}):
        out.append(f'<line class="axis" x1="{across(at):.1f}" x2="{across(at):.1f}" y1="{bottom}" y2="{bottom - height}"/>')
        out.append(f'<text class="small" x="{across(at):.1f}" y="{bottom + 16}" text-anchor="middle">{at:g}</text>')
    for tick in (step * 10.0 ** exponent for exponent in range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1) for step in (1, 2, 5)):
        if low <= tick <= high:
            y = up(tick)
            out.append(f'<line class="axis" x1="{left}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}"/>')
            out.append(f'<text class="small" x="{left - 6}" y="{y + 4:.1f}" text-anchor="end">{tick:g}</text>')
    colours, ends = iter(["p1", "p2", "p3", "p4"] * 3), []
    for name in names:
        css = kind(table, name)
        css = next(colours) if css == "peer" else css
        points = sorted((row["at"], row["median"]) for row in rows if row["line"] == name)
        dashed = " task" if "task" in name else ""
        path = " ".join(f"{across(at):.1f},{up(value):.1f}" for at, value in points)
        out.append(f'<polyline class="{css} line{dashed}" style="fill:none" points="{path}"/>')
        out += [f'<circle class="{css}" cx="{across(at):.1f}" cy="{up(value):.1f}" r="3"/>' for at, value in points]
        ends.append((up(points[-1][1]), across(points[-1][0]), f"{name} {number(points[-1][1])}"))
    lowest = 0
    for y, x, words in sorted(ends):  # names do not cover each other, and have the order of their lines
        lowest = max(y, lowest + 14)
        out.append(f'<text class="small" x="{x + 8:.1f}" y="{lowest + 4:.1f}">{escape(words)}</text>')
    return out, bottom + 36


def svg(tables):
    """One picture of all tables that want one, or None."""
    parts, top = [], 10
    for table in tables:
        if table["rows"] and table["plot"]:
            drawn, top = (lines if table["plot"] == "lines" else bars)(table, top)
            parts += drawn
    if not parts:
        return None
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {top}" width="{WIDTH}" height="{top}" role="img">'
    return "\n".join([head, STYLE, *parts, "</svg>"]) + "\n"
