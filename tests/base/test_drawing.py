"""The drawing module: any text is well-formed, ids are unique on a page, and both themes have every colour.

Holds `toprope.drawing`.
"""

import re
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toprope.drawing import Drawing, escaped, fit, number, page, series, text_width

NS = "{http://www.w3.org/2000/svg}"
CONTROL = "".join(map(chr, [*range(0x20), 0x7F, 0x85, 0x2028, 0xD800, 0xDFFF, 0xFFFE, 0xFFFF]))
TEXT = st.text(st.characters() | st.sampled_from(CONTROL + "<>&\"'"))


def figure(text: str = "text", style: str = "") -> Drawing:
    drawing = Drawing(text, style)
    drawing.description = text
    drawing.width, drawing.height = 100, 50
    drawing.rect(1, 2, 3.456, 4, "hatched s1", data={"name": text}, tooltip=text)
    drawing.path("edge", "M", 1, 2.5, "H", 7, data={"name": text}, tooltip=text)
    drawing.text(5, 6, text, "small", "middle", note=text)
    drawing.legend(0, 0, [("s0", text)])
    return drawing


def clean(text: str) -> str:
    """The text with U+FFFD for what XML 1.0 forbids."""
    for each in set(text) - set("\t\n\r"):
        if each < " " or "\ud800" <= each <= "\udfff" or each in "\ufffe\uffff":
            text = text.replace(each, "\ufffd")
    return text


def kept(text: str) -> str:
    """The text as a parser of XML returns it: there is one kind of line end."""
    return clean(text).replace("\r\n", "\n").replace("\r", "\n")


@given(TEXT)
def test_any_text_is_well_formed_and_kept(text):
    drawn = figure(text).svg()
    drawn.encode()
    root = ElementTree.fromstring(drawn.encode())
    shown = root.find(f"{NS}text")
    assert (shown.text or "") == kept(text)
    assert "".join(shown.itertext()) == 2 * kept(text)
    rects = [each for each in root.iter(f"{NS}rect") if "data-name" in each.attrib]
    assert [each.get("data-name") for each in rects] == [clean(text)]
    assert [each.findtext(f"{NS}title", "") for each in rects] == [kept(text)]
    assert root.findtext(f"{NS}title", "") == root.findtext(f"{NS}desc", "") == kept(text)


@given(TEXT)
def test_any_text_in_html(text):
    class Reader(HTMLParser):
        seen = ""

        def handle_data(self, data):
            self.seen += data

    reader = Reader()
    reader.feed(f"<p>{escaped(text)}</p>")
    reader.close()
    assert reader.seen == clean(text)
    page(text, figure(text), f"<pre>{escaped(text)}</pre>").encode()


@given(TEXT, st.floats(-50, 500))
def test_fit_keeps_the_begin_of_a_text_and_its_width(text, width):
    short = fit(text, width)
    assert short in ("", text) or (short.endswith("…") and text.startswith(short[:-1]))
    assert not short or text_width(short) <= width
    assert (short == text) == (text_width(text) <= width) or not text


def test_fit():
    assert fit("ReduceScatter", 100) == "ReduceScatter"
    assert fit("ReduceScatter", 60) == "ReduceS…"
    assert fit("waits, for", 50) == "waits…"
    assert fit("a", 5) == fit("abc", 0) == fit("abc", -9) == fit("abc", 8) == ""
    assert text_width("算子") > text_width("abc")
    assert len(fit("算子" * 10, 100)) < len(fit("ab" * 10, 100))


def test_numbers_have_no_needless_digits():
    assert [number(each) for each in (100, 1.0, 2.5, 1 / 3, 1e6)] == ["100", "1", "2.5", "0.33", "1000000"]


def test_ids_are_unique_on_a_page_and_used():
    text = page("two", figure("url(#hatch) title desc"), "<p>between</p>", figure())
    ids = re.findall(r' id="([^"]+)"', text)
    assert len(ids) == len(set(ids)) == 6
    used = re.findall(r'"url\(#([^)]+)\)"', text) + " ".join(re.findall(r'labelledby="([^"]+)"', text)).split()
    assert sorted(used) == sorted(ids)
    assert ">url(#hatch) title desc<" in text
    assert re.findall(r' id="([^"]+)"', figure().svg()) == ["title", "desc", "hatch"]


def test_an_empty_figure_has_what_screen_readers_need():
    drawing = Drawing("Nothing")
    drawing.width, drawing.height = 10, 20.5
    root = ElementTree.fromstring(drawing.svg())
    assert (root.get("role"), root.get("aria-labelledby"), root.get("viewBox")) == ("img", "title", "0 0 10 20.5")
    assert root.findtext(f"{NS}title") == "Nothing"
    assert [each.tag for each in root] == [f"{NS}title", f"{NS}style", f"{NS}path"]


def rules(css: str) -> dict[str, str]:
    return dict(re.findall(r"([^{}]+)\{([^{}]*)\}", css))


def test_light_and_dark_have_the_same_coloured_rules():
    own = ".own{stroke-width:2;fill:$box}.line{stroke-width:3}.own{stroke-width:4}"
    style = ElementTree.fromstring(figure(style=own).svg()).findtext(f"{NS}style")
    light, dark = style.split("@media (prefers-color-scheme:dark){")
    assert "$" not in style
    coloured = re.findall(r"([^{}]+)\{[^{}]*#\w{6}[^{}]*\}", light)
    assert list(rules(dark)) == coloured
    assert {"text", ".page,.chip", ".small", ".s0", ".s7", ".own"} <= set(coloured)
    assert all(rules(light)[name] != body for name, body in rules(dark).items())
    assert rules(dark)[".own"] == "fill:#1f3550"  # lengths are not repeated: they would override later rules
    with pytest.raises(KeyError):
        figure(style=".own{fill:$unknown}").svg()
    assert "prefers-color-scheme:dark" in page("no figure").partition("</style>")[0]


def test_colours_of_series_repeat():
    assert [series(place) for place in (0, 7, 8)] == ["s0", "s7", "s0"]


def test_hatched_rectangles_get_a_hatch_on_top():
    root = ElementTree.fromstring(figure().svg())
    below, above = [each.attrib for each in root.iter(f"{NS}rect")][:2]
    assert above.pop("fill") == "url(#hatch)"
    assert above.pop("pointer-events") == "none"
    assert below == {**above, "class": "hatched s1", "data-name": "text"}
    assert above == {"x": "1", "y": "2", "width": "3.46", "height": "4"}


def test_a_legend_wraps_and_an_axis_leaves_out_empty_labels():
    drawing = Drawing("legend")
    assert drawing.legend(10, 0, [("s0", "x" * 20), ("", "y" * 20), ("s1", "z" * 200)], right=400) == 40
    drawing.time_axis(100, 60, 90, ["0", "1 s", "", "3 s"])
    root = ElementTree.fromstring(drawing.svg())
    places = {each.text[0]: (float(each.get("x")), float(each.get("y"))) for each in root.iter(f"{NS}text")}
    assert [places[name][1] for name in "xyz"] == [10, 10, 30]
    assert places["x"][0] == places["z"][0] == 27
    assert [places[name] for name in "013"] == [(100, 78), (130, 78), (190, 78)]
    assert [each.get("text-anchor") for each in root.iter(f"{NS}text")][3:] == ["middle", "middle", "end"]
    assert len([each for each in root.iter(f"{NS}path") if each.get("class") == "tick"]) == 3


def test_a_page_has_style_and_script_of_its_own():
    text = page("a & b", "<p>", style=".own{}", script="go()")
    assert "<title>a &amp; b</title>" in text
    assert "<h1>a &amp; b</h1>" in text
    assert ".own{}@media (prefers-color-scheme:dark)" in text
    assert text.endswith("<p>\n<script>go()</script>\n</body>\n</html>\n")
    assert "<script" not in page("none")
