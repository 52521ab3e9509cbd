"""Stand-in for the C++ compiler, for tests of src/toprope/sim/build.py."""

import itertools
import os
from pathlib import Path

import pytest

from toprope.sim import build

SOURCES = sorted(path for path in (Path(build.__file__).parent / "csrc").rglob("*.cpp"))
TORCH = build.Torch("9.9.9+test", "0123abc", Path("/nowhere/torch"))


def sources(call: list[str]) -> list[str]:
    """The file that one call of the compiler compiles."""
    named = {"-c", "-include"}
    return [path for option, path in itertools.pairwise(call) if option in named and path != "/dev/null"]


class Compiler:
    """A script that stands for a C++ compiler: it writes down how it was called and makes a file of one line."""

    def __init__(self, folder: Path, *, name: str = "c++", before: str = "", last: str = 'echo made > "$out"') -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.log = folder / f"{name}.log"
        self.path = folder / name
        self.path.write_text(
            f'#!/bin/sh\nline=$(printf "%s\\t" "$@")\necho "$line" >> {self.log}\n{before}\nout=\n'
            f'while [ $# -gt 0 ]; do [ "$1" = -o ] && out=$2; shift; done\n{last}\n'
        )
        self.path.chmod(0o755)

    @property
    def calls(self) -> list[list[str]]:
        if not self.log.exists():
            return []
        return [line.rstrip("\t").split("\t") for line in self.log.read_text().splitlines()]

    @property
    def units(self) -> dict[str, list[str]]:
        """The sources of each object file."""
        return {Path(call[call.index("-o") + 1]).stem: sources(call) for call in self.calls if "-c" in call}

    @property
    def compiled(self) -> list[str]:
        return sorted(source for call in self.calls if "-c" in call for source in sources(call))

    @property
    def linked(self) -> list[str]:
        return [Path(call[call.index("-o") + 1]).name for call in self.calls if "-shared" in call]


def prepare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that builds are kept in, empty; no compiler is named and none is on PATH."""
    for name in [name for name in os.environ if name.startswith("TOPROPE_")]:
        monkeypatch.delenv(name)
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    monkeypatch.setenv("TOPROPE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(build.Torch, "imported", classmethod(lambda cls: TORCH))
    return tmp_path / "cache" / "sim"


def named_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Compiler:
    """A compiler that is named in CXX."""
    made = Compiler(tmp_path / "tools")
    monkeypatch.setenv("CXX", str(made.path))
    return made


def folders(cache: Path) -> list[Path]:
    return sorted(path for path in cache.iterdir() if path.is_dir()) if cache.is_dir() else []
