"""Completion in a real shell, and `toprope` alone.

Holds `cli.completion`. Shells that are not installed are skipped.
"""

import os
import re
import shutil
import subprocess
import sys

import pytest

from toprope import chips
from toprope.cli import main
from toprope.cli.app import VERBS

SCRIPT = """
eval "$(toprope completion bash)"
complete -p toprope
COMP_WORDS=("${@}") COMP_CWORD=$(($# - 1)) COMPREPLY=()
_toprope_completion toprope
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """A PATH on which `toprope` is this one."""
    folder = tmp_path_factory.mktemp("bin")
    command = folder / "toprope"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m toprope "$@"\n')
    command.chmod(0o755)
    return f"{folder}{os.pathsep}{os.environ['PATH']}"


def completed(path: str, *words: str, **variables: str) -> list[str]:
    done = subprocess.run(
        ["bash", "--norc", "-c", SCRIPT, "bash", "toprope", *words], capture_output=True, text=True, timeout=120,
        env=os.environ | {"PATH": path} | variables,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    first, *found = done.stdout.splitlines()
    assert first == "complete -o default -F _toprope_completion toprope"
    return found


@pytest.mark.process
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["ca"], {"cache", "calibrate"}),
        (["cache", ""], {"clear"}),
        (["run", "--de"], {"--device"}),
        (["run", "--device", "c"], {"cuda", "cpu"}),
        (["run", "--chip", "910B"], {name for name in chips.names() if name.startswith("910B")}),
        (["completion", ""], {"bash", "zsh", "fish"}),
        (["run", "train"], set()),  # nothing: the shell completes files
    ],
)
def test_bash_completes_verbs_options_values_and_chips(words, expected, path):
    assert set(completed(path, *words)) - {""} == expected


@pytest.mark.process
def test_every_verb_is_completed_in_chinese_too(path):
    assert set(completed(path, "", TOPROPE_LANG="zh")) == set(VERBS)


IN_ZSH = """
compdef() { :; }
_arguments() { print -r -- "$@"; }
_files() { print -r -- files; }
eval "$(toprope completion zsh)"
words=("$@") CURRENT=$#
_toprope_completion
"""
IN_FISH = 'toprope completion fish | source; complete --do-complete "$argv"'


@pytest.mark.process
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["ca"], {"cache", "calibrate"}),
        (["run", "--chip", "310P"], {name for name in chips.names() if name.startswith("310P")}),
        (["run", "tra"], set()),
    ],
)
@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_the_other_shells_complete_the_same(shell, words, expected, path, tmp_path):
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell} here")
    (tmp_path / "train.py").touch()
    given = [IN_ZSH, "zsh", "toprope", *words] if shell == "zsh" else [IN_FISH, " ".join(["toprope", *words])]
    done = subprocess.run(
        [shell, "-f", "-c", *given] if shell == "zsh" else [shell, "--no-config", "-c", *given],
        capture_output=True, text=True, timeout=120, cwd=tmp_path, env=os.environ | {"PATH": path},
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    found = {name for name in (*VERBS, *chips.names()) if re.search(rf"(?<![\w-]){name}(?![\w-])", done.stdout)}
    assert found == expected
    assert "files" in done.stdout or "train.py" in done.stdout or expected


@pytest.mark.parametrize(("shell", "line"), [("zsh", "#compdef toprope"), ("fish", "complete --command toprope")])
def test_the_scripts_of_the_other_shells(shell, line, capsys):
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert script.startswith(line)
    assert f"_TOPROPE_COMPLETE=complete_{shell}" in script
    if command := shutil.which(shell):
        assert subprocess.run([command, "-n", "/dev/stdin"], input=script, text=True, timeout=60).returncode == 0


def test_a_shell_that_is_not_known_is_an_error(capsys):
    assert main(["completion", "csh"]) == 2
    assert "csh" in capsys.readouterr().err


def test_toprope_alone_shows_three_ways_to_begin(capsys):
    assert main([]) == 0
    shown = capsys.readouterr().out
    assert len([line for line in shown.splitlines() if line.startswith("  toprope ")]) == 3
    assert "toprope explain start" in shown
