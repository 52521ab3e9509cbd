"""Folders that are left alone, and [tool.toprope.port].

Holds `port.project.folders` and `port.config`.
"""

import json

import pytest

from toprope.cli import main
from toprope.errors import SettingError
from toprope.port import config
from toprope.port.project.folders import Pattern, why_left_alone
from toprope.port.scan import find, survey
from toprope.settings import Settings


@pytest.fixture
def tree(tmp_path):
    for name in (
        "a.py", "third_party/apex/x.py", "logs/2024-10-09_run/train.py", "runs/speedrun.sh", "records/__init__.py",
        "records/2024-10-09/y.py", "sub/module/z.py", "tools/old/gen_a.py",
    ):  # fmt: skip
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("x.cuda()\n")
    (tmp_path / ".gitmodules").write_text('[submodule "m"]\n\tpath = sub/module\n\turl = https://example.com/m\n')
    return tmp_path


def names(folder, files):
    return sorted(str(file.relative_to(folder)) for file in files)


def test_vendored_folders_submodules_and_records_are_named_and_left_alone(tree):
    found = survey([tree])
    assert names(tree, found.files) == [
        "a.py", "records/2024-10-09/y.py", "records/__init__.py", "runs/speedrun.sh", "tools/old/gen_a.py",
    ]  # fmt: skip
    left = {str(each.path.relative_to(tree)): (each.reason, each.files) for each in found.left_alone}
    assert left == {
        "third_party": ("code of others, by its name", 1),
        "logs": ("records of old runs: 2024-10-09_run", 1),
        "sub/module": ("a git submodule", 1),
    }


def test_what_is_asked_for_is_looked_at(tree):
    assert names(tree, find([tree / "third_party"])) == ["third_party/apex/x.py"]
    found = survey([tree], include=[Pattern("third_party", tree), Pattern("sub/*", tree)])
    assert [str(each.path.relative_to(tree)) for each in found.left_alone] == ["logs"]
    (tree / "tools" / ".git").mkdir()
    assert why_left_alone(tree / "tools") == "a repository of its own"


@pytest.mark.parametrize(
    ("glob", "path", "matches"),
    [
        ("old", "tools/old/gen.py", True), ("old/", "tools/old/gen.py", True), ("tools/old", "tools/old/gen.py", True),
        ("/old", "tools/old/gen.py", False), ("gen_*.py", "tools/old/gen_a.py", True),
        ("tools/*.py", "tools/old/a.py", False),
        ("tools/**/*.py", "tools/old/a.py", True), ("tools/**/*.py", "tools/a.py", True),
        ("**/old", "tools/old/a.py", True),
        ("ol", "old/a.py", False), ("[ab].py", "a.py", True), ("[!ab].py", "a.py", False), ("?.py", "ab.py", False),
        ("*", "a.py", True), ("a.py", "../a.py", False),
    ],
)  # fmt: skip
def test_globs(tmp_path, glob, path, matches):
    assert Pattern(glob, tmp_path).matches(tmp_path / path) is matches


def test_the_table_of_the_project_is_read_from_where_the_code_is(tree, capsys, monkeypatch):
    (tree / "pyproject.toml").write_text(
        '[tool.toprope]\nlog = "INFO"\n[tool.toprope.port]\nignore = ["tr007"]\nexclude = ["old", "none/*"]\n'
        'include = ["third_party"]\nchip = "310P3"\ntorch_npu = "2.7.1"\nvendor = true\n'
    )
    monkeypatch.chdir(tree.parent)
    told = config.read([tree / "tools"])
    assert (told.ignore, told.chip, told.torch_npu, told.vendor, told.folder) == (
        ("TR007",),
        "310P3",
        "2.7.1",
        "",
        tree,
    )
    assert main(["port", str(tree), "--format", "json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["operators"]["chip"] == "310P3"
    assert facts["operators"]["torch_npu"].startswith("torch_npu 2.7.1 ")
    assert (facts["findings"], facts["ignored"]) == ([], 4)
    assert {each["reason"] for each in facts["left_alone"]} == {
        "excluded", "a git submodule", "records of old runs: 2024-10-09_run",
    }  # fmt: skip
    assert main(["port", str(tree), "--ignore", "TR098", "--chip", "910B3"]) == 0
    said = capsys.readouterr().out
    assert "the pattern 'none/*' matches nothing" in said
    assert "  converted      4" in said
    monkeypatch.chdir(tree)
    assert Settings.load().log == "INFO"  # the other settings stay what they are


def test_exclude_on_the_command_counts_from_the_working_directory(tree, capsys, monkeypatch):
    monkeypatch.chdir(tree)
    assert main(["port", ".", "--exclude", "tools/**,records", "--include", "logs"]) == 0
    said = capsys.readouterr().out
    assert ".: 3 files" in said
    assert "left alone     1   tools/old: excluded" in said
    assert "--include 'GLOB'" in said


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ('exclud = ["a"]', "has no key 'exclud'"), ("exclude = 'a'", "exclude in .* is 'a'"),
        ("torch-npu = '2.7.1'", "has no key 'torch-npu'"), ("vendor = 3", "vendor in .* is 3"),
        ("select = [1]", r"select in .* is \[1\]"), ("chip = ''", "chip in .* is ''"),
    ],
)  # fmt: skip
def test_a_wrong_table_is_one_error_with_what_to_do(tree, table, said):
    (tree / "pyproject.toml").write_text(f"[tool.toprope.port]\n{table}\n")
    with pytest.raises(SettingError, match=said) as raised:
        config.read([tree])
    if "no key" in said:
        assert ("write exclude" if "exclud" in said else "write torch_npu") in str(raised.value)
    (tree / "pyproject.toml").write_text("[tool.toprope]\nport = 3\n")
    with pytest.raises(SettingError, match="is no table"):
        config.read([tree])
