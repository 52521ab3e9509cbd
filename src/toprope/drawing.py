"""SVG figures and HTML pages with one theme for light and dark. Pure.

A figure is one file without scripts or links. It follows the reader's `prefers-color-scheme`, and has a title and a
description for screen readers. Fixed are the rules of SVG and of XML 1.0 (which characters may be in it, ids that are
unique on a page); colours, fonts and widths are free, but both themes need every colour.

Every figure and HTML page of toprope is drawn with it: `cores`, `tiers`, `flow`, `port`, reports and scripts. Figures
of docs/figures are compared with what it draws, so a change of looks changes them too (scripts/report_figure.py,
scripts/call_figure.py). Tests: tests/base/test_drawing.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from string import Template
from unicodedata import east_asian_width
from xml.etree.ElementTree import Element, tostring

__all__ = ["Attributes", "Drawing", "escaped", "fit", "number", "page", "series", "text_width"]

Attributes = Mapping[str, str | float | None]

_PALETTE = {
    "page": ("#ffffff", "#14161a"),
    "ink": ("#16181d", "#f2f3f5"),
    "faint": ("#50555f", "#b4bac4"),
    "band": ("#eef0f3", "#22262d"),
    "box": ("#e3effb", "#1f3550"),
    "alarm": ("#b3261e", "#ff8a80"),
}
_SERIES = (
    ("#9cc9f0", "#1f5b8f"), ("#f6c08a", "#8f5516"), ("#a9d9a4", "#2e6b34"), ("#dcb6ea", "#6d3f85"),
    ("#f3a9ad", "#8c353c"), ("#8fd6d2", "#1d6a67"), ("#e6d579", "#6e6110"), ("#c3c3c3", "#5a5a5a"),
)  # fmt: skip
_PALETTE.update({f"s{place}": colours for place, colours in enumerate(_SERIES)})

_FONT = "system-ui,-apple-system,'Segoe UI',Roboto,'Helvetica Neue',Arial,sans-serif"
_FIGURE_STYLE = (
    f".page,.chip{{fill:$page}}text{{fill:$ink;font:12px {_FONT}}}.title{{font-size:17px;font-weight:600}}"
    ".strong{font-weight:600}.small{fill:$faint;font-size:11px;font-weight:400}.tick{stroke:$faint}"
    ".hatch{stroke:$ink;stroke-width:1.2;stroke-opacity:.35;fill:none}"
    + "".join(f".s{place}{{fill:$s{place}}}" for place in range(len(_SERIES)))
)
_PAGE_STYLE = (
    f":root{{color-scheme:light dark}}body{{font:15px/1.5 {_FONT};max-width:72rem;margin:1.5rem auto;padding:0 1rem;"
    "background:$page;color:$ink}"
    "pre{white-space:pre-wrap;font:13px/1.5 ui-monospace,Menlo,Consolas,monospace;padding:.8rem;"
    "border-radius:4px;background:$band}"
    "figure{margin:1rem 0;overflow-x:auto}svg{max-width:100%;height:auto}"
)

_CHARACTER, _WIDE_CHARACTER = 7.1, 12.5  # pixels of a character at a font size of 12 pixels
_FORBIDDEN = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")  # XML 1.0, production 2
_SUFFIX = "\0"  # after each id until `Drawing.svg` knows the suffix; no text contains it, as XML forbids it


def _clean(text: str) -> str:
    return _FORBIDDEN.sub("\ufffd", text)


def _element(tag: str, attributes: Attributes, text: str = "", *, id: str = "") -> Element:
    """An SVG element; attributes that are None are left out."""
    element = Element(tag)
    for name, value in attributes.items():
        if value is not None:
            element.set(name, _clean(value) if isinstance(value, str) else number(value))
    if id:
        element.set("id", id + _SUFFIX)
    element.text = _clean(text) or None
    return element


def _data(data: Attributes | None) -> dict[str, str | float | None]:
    return {f"data-{name}": value for name, value in (data or {}).items()}


def escaped(text: str) -> str:
    """Text for HTML; characters that XML forbids become U+FFFD."""
    return escape(_clean(text))


def number(value: float) -> str:
    """A coordinate with at most two decimals."""
    return f"{value:.2f}".rstrip("0").rstrip(".")


def series(place: int) -> str:
    """The CSS class of the colour of a series; after eight the colours repeat."""
    return f"s{place % len(_SERIES)}"


def text_width(text: str) -> float:
    """Pixels that text takes at a font size of 12 pixels, estimated upwards."""
    wide = sum(east_asian_width(each) in "WF" for each in text)
    return _CHARACTER * (len(text) - wide) + _WIDE_CHARACTER * wide


def fit(text: str, width: float) -> str:
    """Text shortened with an ellipsis to a width in pixels; "" if no character fits."""
    if text_width(text) <= width:
        return text
    text = text[: max(int(width / _CHARACTER), 0)]
    while text and text_width(text) + _CHARACTER > width:
        text = text[:-1]
    return text.rstrip(" ,") + "…" if text else ""


def _themed(rules: str) -> str:
    """CSS for light and dark from rules with `$name` for colours."""
    coloured = []
    for selector, body in re.findall(r"([^{}]+)\{([^{}]*)\}", rules):
        colours = [each for each in body.split(";") if "$" in each]
        coloured += [f"{selector}{{{';'.join(colours)}}}"] if colours else []
    light, dark = ({name: colours[theme] for name, colours in _PALETTE.items()} for theme in (0, 1))
    dark_rules = Template("".join(coloured)).substitute(dark)
    return f"{Template(rules).substitute(light)}@media (prefers-color-scheme:dark){{{dark_rules}}}"


class Drawing:
    """An SVG figure; what is added later is drawn over what is there.

    Rectangles of the class `hatched` get a hatch on top.

    Args:
        title: headline of the figure, for screen readers; the figure draws its own.
        style: CSS rules, with `$page`, `$ink`, `$faint`, `$band`, `$box`, `$alarm` and `$s0` to `$s7` for colours.

    Attributes:
        description: what the figure shows, for screen readers.
        width, height: size in pixels.
    """

    def __init__(self, title: str, style: str = "") -> None:
        self.title = title
        self.description = ""
        self.width = self.height = 0.0
        self._style = style
        self._elements: list[Element] = []
        self._hatched = False

    def add(self, tag: str, kind: str, attributes: Attributes, *, text: str = "", tooltip: str = "") -> Element:
        """Add an element.

        Args:
            tag: its SVG name.
            kind: its CSS classes.
            attributes: others; those that are None are left out.
            text: its content.
            tooltip: its `<title>`.
        """
        element = _element(tag, {"class": kind or None, **attributes}, text)
        if tooltip:
            element.append(_element("title", {}, tooltip))
        self._elements.append(element)
        return element

    def rect(
        self, x: float, y: float, width: float, height: float, kind: str, *, rx: float | None = None,
        data: Attributes | None = None, tooltip: str = "",
    ) -> None:  # fmt: skip
        """Add a rectangle with `data-` attributes."""
        place = {"x": x, "y": y, "width": width, "height": height, "rx": rx}
        self.add("rect", kind, {**_data(data), **place}, tooltip=tooltip)
        if "hatched" in kind.split():
            self._hatched = True
            self.add("rect", "", {**place, "pointer-events": "none"}).set("fill", f"url(#hatch{_SUFFIX})")

    def path(
        self, kind: str, *steps: str | float, data: Attributes | None = None, tooltip: str = ""
    ) -> None:  # fmt: skip
        """Add a path of commands and coordinates."""
        d = " ".join(step if isinstance(step, str) else number(step) for step in steps)
        self.add("path", kind, {**_data(data), "d": d}, tooltip=tooltip)

    def text(self, x: float, y: float, text: str, kind: str = "", anchor: str | None = None, *, note: str = "") -> None:
        """Add a line of text.

        Args:
            x, y: where its baseline begins, or ends or has its middle by `anchor`.
            text: the text.
            kind: its CSS classes.
            anchor: "middle", "end" or None.
            note: small text after it.
        """
        element = self.add("text", kind, {"x": x, "y": y, "text-anchor": anchor}, text=text)
        if note:
            element.append(_element("tspan", {"class": "small"}, note))

    def legend(
        self, x: float, y: float, keys: Iterable[tuple[str, str]], *, swatch: float = 12, right: float = 720
    ) -> float:
        """Add swatches with texts, in as many lines as they need up to `right`, and return the y below them.

        Args:
            x, y: top left corner.
            keys: CSS classes and text of each; text without classes has no swatch.
            swatch: width of a swatch.
            right: where a line ends.
        """
        left = x
        for kind, text in keys:
            indent = swatch + 5 if kind else 0.0
            step = indent + text_width(text) + 16
            if x + step > right and x > left:
                x, y = left, y + 20
            if kind:
                self.rect(x, y, swatch, 12, kind, rx=2)
            self.text(x + indent, y + 10, text, "small")
            x += step
        return y + 20

    def time_axis(self, left: float, y: float, width: float, labels: Sequence[str]) -> None:
        """Add ticks at even distances with their labels below; an empty label has no tick."""
        for place, label in enumerate(labels):
            if label:
                x = left + width * place / (len(labels) - 1)
                self.path("tick", "M", x, y, "v", 5)
                self.text(x, y + 18, label, "small", anchor="end" if place == len(labels) - 1 else "middle")

    def svg(self, suffix: str = "") -> str:
        """The figure as text.

        Args:
            suffix: what ends its ids, so that figures of one page do not share any.
        """
        width, height = number(self.width), number(self.height)
        head = [_element(tag, {}, text, id=tag) for tag, text in self._names()]
        head.append(_element("style", {}, _themed(_FIGURE_STYLE + self._style)))
        if self._hatched:
            head.append(_element("pattern", {"width": 7, "height": 7, "patternUnits": "userSpaceOnUse"}, id="hatch"))
            head[-1].append(_element("path", {"class": "hatch", "d": "M-1,1 l2,-2 M0,7 l7,-7 M6,8 l2,-2"}))
        head.append(_element("path", {"class": "page", "d": f"M0 0H{width}V{height}H0z"}))
        size = {"viewBox": f"0 0 {width} {height}", "width": width, "height": height}
        root = _element("svg", {"xmlns": "http://www.w3.org/2000/svg", **size, "role": "img"}, "\n")
        root.set("aria-labelledby", " ".join(f"{tag}{_SUFFIX}" for tag, _ in self._names()))
        root.extend([*head, *self._elements])
        for element in root:
            element.tail = "\n"
        return tostring(root, encoding="unicode").replace(_SUFFIX, suffix) + "\n"

    def _names(self) -> list[tuple[str, str]]:
        return [(tag, text) for tag, text in (("title", self.title), ("desc", self.description)) if text]


def page(title: str, *parts: Drawing | str, style: str = "", script: str = "") -> str:
    """An HTML page that loads nothing.

    Args:
        title: its headline.
        parts: figures and HTML, from top to bottom.
        style: CSS that follows the CSS of all pages, with colours as in `Drawing`.
        script: JavaScript at the end of the page.
    """
    body = "\n".join(
        part if isinstance(part, str) else f"<figure>\n{part.svg(str(place))}</figure>"
        for place, part in enumerate(parts)
    )
    end = f"\n<script>{script}</script>" if script else ""
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escaped(title)}</title>\n<style>{_themed(_PAGE_STYLE + style)}</style>\n</head>\n<body>\n"
        f"<h1>{escaped(title)}</h1>\n{body}{end}\n</body>\n</html>\n"
    )
