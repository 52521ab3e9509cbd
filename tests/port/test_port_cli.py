"""`toprope port` on trees: what is found, written, refused and skipped, and how it ends.

Holds `cli.port` and `port.scan`.
"""

import json
import os
import resource
import subprocess
import sys

import pytest

import toprope
from toprope.cli import main
from toprope.port.scan import find, port_files, project_in

pytestmark = pytest.mark.process

PROGRAM = "import torch\n\nmodel.cuda()\nscaler = torch.cuda.amp.GradScaler()\nprint(torch.cuda.get_arch_list())\n"
PORTED = (
    "import torch\nfrom toprope.device import portable\n\nmodel.to(portable.device())\n"
    "scaler = portable.GradScaler()\nprint(torch.cuda.get_arch_list())\n"
)


@pytest.fixture
def tree(tmp_path):
    (tmp_path / "a.py").write_text(PROGRAM)
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "b.py").write_text("x = 1\n")
    return tmp_path


def test_nothing_is_written_unless_asked(tree, capsys):
    assert main(["port", str(tree)]) == 0
    said = capsys.readouterr().out
    lines = said.splitlines()
    assert lines[0] == f"{tree}: 2 files, 1 with sites, 3 sites"
    assert [line.split()[:3] for line in lines[1:4]] == [
        ["converted", "1", "keep"],
        ["to", "review", "1"],
        ["left", "1", "need"],
    ]
    assert "which ported code imports" in lines[4]
    assert "nothing was written" in lines[5]
    assert f"{tree}/a.py:4:10  TR055 R rewritten  " in said
    assert f"{tree}/a.py:5:7  TR043 N  " in said
    assert "a.py:3:" not in said  # P is only counted
    assert (tree / "a.py").read_text() == PROGRAM


def test_diff_check_and_json(tree, capsys):
    assert main(["port", str(tree), "--diff"]) == 0
    said = capsys.readouterr().out
    assert {"-model.cuda()", "+model.to(portable.device())", " print(torch.cuda.get_arch_list())"} <= {
        *said.splitlines()
    }
    assert main(["port", str(tree), "--check"]) == 1
    assert main(["port", str(tree), "--check", "--ignore", "TR043,TR0"]) == 0
    assert main(["port", str(tree / "sub"), "--check"]) == 0
    capsys.readouterr()
    out = tree / "report.json"
    assert main(["port", str(tree), "--format", "json", "--output", str(out), "--select", "tr055"]) == 0
    assert capsys.readouterr().out == ""
    said = json.loads(out.read_text())
    assert (said["files"], said["sites"], said["ignored"]) == (2, {"P": 0, "R": 1, "N": 0}, 2)
    (finding,) = said["findings"]
    assert (finding["rule"], finding["line"], finding["column"], finding["rewritten"]) == ("TR055", 4, 10, True)
    assert finding["before"] == "torch.cuda.amp.GradScaler"
    assert finding["after"] == "portable.GradScaler"
    assert (tree / "a.py").read_text() == PROGRAM


def test_write_keeps_mode_and_backup_and_does_nothing_the_second_time(tree, capsys):
    (tree / "a.py").chmod(0o755)
    (tree / "link.py").symlink_to("a.py")
    assert main(["port", str(tree), "--write", "--backup"]) == 0
    assert "1 file written" in capsys.readouterr().out
    assert (tree / "a.py").read_text() == PORTED
    assert (tree / "a.py").stat().st_mode & 0o777 == 0o755
    assert (tree / "link.py").is_symlink()
    assert (tree / "a.py.orig").read_text() == PROGRAM
    before = (tree / "a.py").stat()
    assert main(["port", str(tree), "--write", "--backup"]) == 0
    assert "0 files written" in capsys.readouterr().out
    assert (tree / "a.py").stat().st_mtime_ns == before.st_mtime_ns
    assert (tree / "a.py.orig").read_text() == PROGRAM
    assert sorted(each.name for each in tree.iterdir()) == ["a.py", "a.py.orig", "link.py", "sub"]


def test_a_dirty_tree_is_refused(tree, capsys):
    def git(*arguments):
        subprocess.run(
            ["git", "-c", "user.name=n", "-c", "user.email=e", *arguments], cwd=tree, check=True, capture_output=True
        )

    git("init", "-q")
    assert main(["port", str(tree), "--write"]) == 2  # git does not know the file
    git("add", ".")
    git("commit", "-qm", "x")
    (tree / "sub" / "b.py").write_text("x = 2\n")
    assert main(["port", str(tree), "--write"]) == 2
    said = capsys.readouterr().err
    assert "changes that are not committed" in said
    assert "sub/b.py" in said
    assert (tree / "a.py").read_text() == PROGRAM
    assert main(["port", str(tree), "--write", "--allow-dirty"]) == 0
    assert (tree / "a.py").read_text() == PORTED
    git("commit", "-qam", "x")
    (tree / "a.py").write_text(PROGRAM)
    git("commit", "-qam", "x")
    (tree / "untracked.txt").write_text("x")
    assert main(["port", str(tree), "--write"]) == 0
    assert (tree / "a.py").read_text() == PORTED


def test_bad_files_are_skipped_with_the_reason_and_the_rest_is_done(tree, capsys):
    (tree / "loop").symlink_to(tree)
    (tree / "gone.py").symlink_to(tree / "nowhere")
    (tree / "two.py").write_text("print 'cuda'\n")
    (tree / "broken.py").write_text("cuda(\n")
    (tree / "gbk.py").write_bytes("# coding: gbk\ns = '日本'; x.cuda()\n".encode("gbk"))
    (tree / "large.py").write_bytes(b"# cuda\n" * 750_000)
    (tree / "locked.py").write_text("x.cuda()\n")
    (tree / "locked.py").chmod(0o444)
    (tree / ".venv").mkdir()
    (tree / ".venv" / "c.py").write_text("x.cuda()\n")
    (tree / "env").mkdir()
    (tree / "env" / "pyvenv.cfg").write_text("")
    (tree / "env" / "d.py").write_text("x.cuda()\n")
    (tree / "script").write_text("#!/usr/bin/env python3\nx.cuda()\n")
    os.mkfifo(tree / "pipe")
    assert main(["port", str(tree), "--write"]) == 3
    said = capsys.readouterr().out
    reasons = dict(line.split(": skipped, ") for line in said.splitlines() if ": skipped, " in line)
    assert {name.rpartition("/")[2]: reason for name, reason in reasons.items()} == {
        "two.py": "it is Python 2 (line 1: Missing parentheses in call to 'print'. Did you mean print(...)?)",
        "broken.py": "line 1: '(' was never closed",
        "large.py": "it has 5.2 MB: taken for a generated file",
        "locked.py": "it is read-only",
        "gone.py": "it cannot be read: No such file or directory",
    }
    assert (tree / "a.py").read_text() == PORTED
    assert (tree / "gbk.py").read_bytes().decode("gbk").endswith("s = '日本'; x.to(portable.device())\n")
    assert (tree / "locked.py").read_text() == (tree / ".venv" / "c.py").read_text() == "x.cuda()\n"
    assert (tree / "env" / "d.py").read_text() == "x.cuda()\n"
    assert (tree / "script").read_text().endswith("x.to(portable.device())\n")


def test_wrong_calls(tree, capsys):
    assert main(["port", str(tree), "--write", "--check"]) == 2
    assert main(["port", str(tree / "nothing")]) == 2
    assert main(["port", str(tree), "--select", "TR9"]) == 2
    assert main(["port", str(tree), "--output", str(tree / "no" / "folder")]) == 2
    said = capsys.readouterr().err
    assert "exclude each other" in said
    assert "nothing is not there" in said
    assert "there is no rule 'TR9'" in said


def test_several_processes_say_the_same(tmp_path):
    for number in range(8):
        (tmp_path / f"{number}.py").write_text(PROGRAM * (number + 1))
    (tmp_path / "own.py").write_text("class Graph:\n    def cuda(self):\n        return self\n")
    (tmp_path / "use.py").write_text("from own import Graph\n\nGraph().cuda()\n")
    files = find([tmp_path])
    assert project_in(files).owners("cuda") == ["Graph"]
    seen = []
    one = list(port_files(files, progress=seen.append))
    two = list(port_files(files, jobs=2))
    assert seen == list(range(1, 11))
    assert one == two
    assert not one[-1].changed


def test_the_room_loads_no_torch():
    code = (
        "import sys\nfrom toprope.cli import main\nstatus = main(['port', sys.argv[1], '--check'])\n"
        "assert not {'torch', 'numpy', 'rich'} & set(sys.modules)\nsys.exit(status)"
    )
    done = subprocess.run([sys.executable, "-c", code, toprope.__file__], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_backup_that_did_not_fit_on_the_disk_was_taken_for_the_old_file_from_then_on(tree, capsys):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        status = main(["port", str(tree / "a.py"), "--write", "--backup", "--output", "/dev/null"])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert status == 3
    assert (tree / "a.py").read_text() == PROGRAM
    assert not (tree / "a.py.orig").exists()
    assert main(["port", str(tree / "a.py"), "--write", "--backup"]) == 0
    assert (tree / "a.py.orig").read_text() == PROGRAM
