"""The findings of a port as SARIF and as a page.

Holds `port.report.sarif` and `port.report.html`.
"""

import json
from html.parser import HTMLParser

from toprope import port
from toprope.port.finding import Ported
from toprope.port.registry import all_rules
from toprope.port.report.html import html
from toprope.port.report.sarif import root_of, sarif

PROGRAM = '''"""<script>alert(1)</script> & more"""
import torch
import triton

x = x.cuda()  # \U0001f600 first
y = torch.cuda.memory_allocated(), x.cuda(1)
'''


def files():
    return [port.port(PROGRAM.encode(), "a b/model.py"), Ported("old.py", skipped="it is Python 2")]


def test_sarif_says_where_each_place_is():
    log = json.loads(json.dumps(sarif(files(), "1.0", all_rules().values())))
    (run,) = log["runs"]
    told = run["tool"]["driver"]["rules"]
    assert [each["id"] for each in told] == sorted({each["ruleId"] for each in run["results"]})
    lines = PROGRAM.splitlines()
    for each in run["results"]:
        assert told[each["ruleIndex"]]["id"] == each["ruleId"]
        place = each["locations"][0]["physicalLocation"]
        region = place["region"]
        assert place["artifactLocation"]["uri"] == "a%20b/model.py"
        text = lines[region["startLine"] - 1][region["startColumn"] - 1 : region["endColumn"] - 1]
        assert text == region["snippet"]["text"]
    assert {each["level"] for each in run["results"]} == {"note", "error"}
    assert run["invocations"][0]["toolExecutionNotifications"][0]["message"]["text"] == "skipped: it is Python 2"


class Reader(HTMLParser):
    """Collects tags and text, and holds that every tag is closed."""

    def __init__(self):
        super().__init__()
        self.open, self.tags, self.text = [], [], []

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag not in ("meta", "input"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


def test_the_page_is_whole_and_shows_what_the_file_says():
    reader = Reader()
    reader.feed(html(files(), "my <repository>"))
    assert reader.open == []
    assert [tag for tag, _ in reader.tags].count("script") == 1
    shown = "".join(reader.text)
    assert "toprope port: my <repository>" in shown
    assert "skipped: it is Python 2" in shown
    rows = [attributes for tag, attributes in reader.tags if tag == "tr" and "data-kind" in attributes]
    found = files()[0].findings
    assert [(row["data-rule"], row["data-kind"]) for row in rows] == [
        (each.rule.code, str(each.kind)) for each in found
    ]
    assert "x = x.to(portable.device())" in shown
    assert ("td", {"class": "code old"}) in reader.tags
    assert not any(name in attributes for _, attributes in reader.tags for name in ("src", "href"))


def test_sarif_names_files_from_the_projects_folder_wherever_it_is_run(tmp_path, monkeypatch):
    (tmp_path / ".git").mkdir()
    (tmp_path / "src" / "a b").mkdir(parents=True)
    file = tmp_path / "src" / "a b" / "model.py"
    file.write_text(PROGRAM)
    monkeypatch.chdir(tmp_path / "src")
    ported = [port.port(PROGRAM.encode(), "a b/model.py"), Ported("a b/old.py", skipped="it is Python 2")]
    (run,) = sarif(ported, "1.0", all_rules().values(), root_of(each.path for each in ported))["runs"]
    assert run["originalUriBaseIds"]["SRCROOT"]["uri"] == f"{tmp_path.as_uri()}/"
    places = [each["locations"][0]["physicalLocation"]["artifactLocation"] for each in run["results"]]
    assert {(each["uri"], each["uriBaseId"]) for each in places} == {("src/a%20b/model.py", "SRCROOT")}
    notes = run["invocations"][0]["toolExecutionNotifications"]
    assert notes[0]["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == "src/a%20b/old.py"


def test_sarif_says_where_a_rule_is_explained():
    asked = port.port(b"import torch\n\nprint(torch.cuda.is_available())\n", "asked.py")
    (run,) = sarif([*files(), asked], "1.0", all_rules().values())["runs"]
    told = {each["id"]: each for each in run["tool"]["driver"]["rules"]}
    assert all(f"toprope explain {code}" in each["help"]["text"] for code, each in told.items())
    assert told["TR001"]["helpUri"] == "https://docs.pytorch.org/docs/stable/cuda.html"
    assert "helpUri" not in told["TR006"]
