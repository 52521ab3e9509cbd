"""Write the operators of each release of torch_npu to src/toprope/support/operators_by_release.toml.

    python scripts/operator_support OP_PLUGIN PYTORCH [WHEEL ...]

OP_PLUGIN and PYTORCH are clones of Ascend/op-plugin and Ascend/pytorch with their branches (bare ones are enough), and
WHEEL published torch-npu wheels, which are read and never imported. A release is a branch of Ascend/pytorch
(v2.7.1-7.2.0: release 7.2.0 for torch 2.7.1), which pins a commit of op-plugin; a branch without a release
(v2.7.1) counts as "master". torch itself must be installed: it says which operators are composed of others.

Run by hand. `repository` reads git, `kernels` the vendor's lists, `host_code` his C++, `structure` the installed torch.
`toprope.support.operators_on_card` reads the table, whose letters are described in `HEAD`; a new letter needs a case
there. Fixed by the vendor: names of branches and releases, COMPATIBILITY.en.md, and the submodule that pins op-plugin.

No test runs it. scripts/operator_draw.py checks the table with another parser, tests/support/test_operators_on_card.py
holds it.
"""

from __future__ import annotations

import re
import sys
import zipfile
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import yaml

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from operator_support import structure
from operator_support.host_code import HostCode, functions_with_host_code
from operator_support.kernels import NEW, OLD, Kernel, of_torch_npu, of_wheel, op_plugin
from operator_support.repository import Repository

TARGET = Path(__file__).resolve().parents[2] / "src" / "toprope" / "support" / "operators_by_release.toml"
COMPATIBILITY = "COMPATIBILITY.en.md"
DISABLE = "TORCH_NPU_FALLBACK_CPU_DISABLE"
FIRST = (5, 0)
HEAD = """\
# Which operators of torch have a kernel in which release of torch_npu. Written by scripts/operator_support: not edited.
# docs/operators_by_release.md explains it; toprope.support.operators_on_card reads it.
#
# [[release]]  one branch of Ascend/pytorch each, with the commit of Ascend/op-plugin that it pins; in this order their
#              letters stand in the histories (blanks are for the eye: one group for each release)
# [[history]]  operators that share a history:
#                n  kernel of aclnn, the newer interface  o  only of aclop, the older one (compiled when first used)
#                h  registered, and computes on the host  d  the same for the dtypes in [dtypes]
#                c  the same on chips before the 910B     a  the same for some arguments
#                u  registered, and its C++ is not stored
#                -  no kernel
# [host_code]  where the newest release has the code of h, d, c and a
# [structure]  what torch does with an operator that has no kernel: leaves it to its out= variant (delegates), composes
#              it of others (composed), or hands it to the fallback (host; nowhere: there is no kernel for the CPU)
"""


@dataclass
class Release:
    """A branch of Ascend/pytorch, or a wheel, with what it has kernels for."""

    release: str
    torch: str
    branch: str
    pytorch: str
    op_plugin: str
    date: str
    versions: list[str]
    can_refuse: bool
    kernels: dict[str, str] = field(default_factory=dict)
    dtypes: dict[str, str] = field(default_factory=dict)
    places: dict[str, str] = field(default_factory=dict)


def _releases(pytorch: Repository, plugin: Repository) -> Iterator[Release]:
    """Yield the releases: branches of Ascend/pytorch with the commits that they pin."""
    versions = defaultdict(list)
    for version, branch in re.findall(
        r"^\|\s*(\S+)\s*\|\s*(v\S+)\s*\|", pytorch.text("master", COMPATIBILITY), re.MULTILINE
    ):
        versions[branch].append(version)
    for branch in pytorch.branches():
        match = re.fullmatch(r"v(2\.\d+\.\d+)(?:-(\d+\.\d+\.\w+))?", branch)
        name = match[2] or "master" if match else "master"
        if branch != "master" and (match is None or match[1] < "2.1" or _order(name)[:2] < FIRST):
            continue
        commit = pytorch.commit(branch)
        pinned = pytorch.submodule(commit, "third_party/op-plugin")
        if not pinned or not plugin.has(pinned):
            sys.stderr.write(f"{branch}: the commit of op-plugin that it pins is not stored; left out\n")
            continue
        refuses = bool(pytorch.containing(commit, DISABLE, "torch_npu/csrc"))
        newest = _newest_torch(pytorch, commit) if branch == "master" else ""
        torch_version = newest or (match[1] if match else "")
        yield Release(
            name, torch_version, branch, commit[:8], pinned[:8], pytorch.date(commit), versions[branch], refuses
        )


def _newest_torch(pytorch: Repository, commit: str) -> str:
    """The oldest torch that master builds for: it has no branch of its own yet."""
    return min(re.findall(r"^(\d+\.\d+\.\d+)", pytorch.text(commit, "version.txt"), re.MULTILINE), key=_order)


def _order(name: str) -> tuple[float, ...]:
    """Sorts 5.0.rc3 < 5.0.0 < 26.1.0 < master."""
    if name == "master":
        return (1000.0,)
    first, second, third = name.split(".")
    return float(first), float(second), float(third) if third.isdigit() else float(third[2:]) / 100 - 1


def _of_wheel(path: Path, plugin: Repository) -> tuple[Release, dict[str, Kernel]]:
    """A release read from its wheel, with its kernels."""
    version = path.name.split("-")[1]
    with zipfile.ZipFile(path) as files:
        data = yaml.load(
            files.read("torch_npu/csrc/aten/npu_native_functions_by_codegen.yaml"), Loader=yaml.CSafeLoader
        )
        commit = re.findall(r"git_version = '(\w+)'", files.read("torch_npu/version.py").decode())[0]
        day = "-".join(f"{part:02}" for part in max(one.date_time[:3] for one in files.infolist()))
        library = files.read("torch_npu/lib/libtorch_npu.so")
    head = plugin.commit("master")[:8]  # the C++ of op-plugin is not in the wheel: master's stands in for it
    release = Release(version, version, path.name, commit[:8], head, day, [version], DISABLE.encode() in library)
    return release, of_wheel(data)


def _fill(
    release: Release, kernels: dict[str, Kernel], code: list[HostCode], stored: frozenset[str] | None = None
) -> None:
    """Set what a release has kernels for; `stored` are those whose C++ was searched, None for all."""
    by_name = defaultdict(list)
    for one in code:
        by_name[one.interface, re.sub(r"_symint$", "", one.function)].append(one)
    for name, kernel in kernels.items():
        if re.match(r"_?npu_|\w+_with_format|unsafe_empty_with|copy_memory_", name):
            continue  # torch_npu's own
        interface = NEW if NEW in kernel.interfaces else OLD
        found = _matching(by_name[interface, _function(name, kernel.schema)], kernel.schema)
        letter = {NEW: "n", OLD: "o"}[interface]
        if found is not None and found.when != "CANN":
            letter = {"always": "h", "chip": "c", "arguments": "a"}.get(found.when, "d")
            release.places[name] = f"{found.path}:{found.line}"
            if letter == "d":
                release.dtypes[name] = found.when
        release.kernels[name] = letter if stored is None or name in stored else "u"


def _function(name: str, schema: str) -> str:
    """torch's name of the C++ function: isin_out for isin.Tensor_Tensor_out."""
    keyword_only = schema.partition("->")[0].partition("*,")[2]
    return name.partition(".")[0] + ("_out" if re.search(r"\(\w+!\)", keyword_only) else "")


def _matching(codes: list[HostCode], schema: str) -> HostCode | None:
    kinds = ""
    for part in re.split(r",\s*(?![^\[]*\])", schema.partition(") ->")[0]):
        kind = part.split()[0] if part.strip() and part.strip() != "*" else ""
        if kind:
            tensor = kind.startswith("Tensor")
            kinds += "L" if tensor and "[]" in kind else "T" if tensor else "S" if re.match(r"Scalar\b", kind) else "o"
    return next((code for code in codes if code.parameters == kinds), None)


def _lines(releases: list[Release], torch_structure: structure.Structure) -> Iterator[str]:
    """Yield the lines of the table."""
    yield HEAD
    for one in releases:
        yield "[[release]]"
        for key in ("release", "torch", "branch", "pytorch", "op_plugin", "date", "versions", "can_refuse"):
            value = getattr(one, key)
            text = str(value).lower() if isinstance(value, bool) else repr(value).replace("'", '"')
            yield f"{key} = {text}"
        yield ""
    groups = defaultdict(list)
    for name in sorted({name for one in releases for name in one.kernels}):
        letters, previous = "", ""
        for one in releases:
            letters += " " * (bool(previous) and previous != one.release) + one.kernels.get(name, "-")
            previous = one.release
        groups[letters].append(name)
    for letters, names in sorted(groups.items(), key=lambda item: (-len(item[1]), item[0])):
        yield "[[history]]"
        yield f'letters = "{letters}"'
        yield from _names("operators", names)
    yield "[dtypes]"
    yield from _latest(releases, "dtypes")
    yield "\n[host_code]"
    yield from _latest(releases, "places")
    yield "\n[structure]"
    yield f'torch = "{torch_structure.version}"'
    for title in ("composed", "host", "nowhere"):
        yield from _names(title, getattr(torch_structure, title))
    yield "[structure.delegates]"
    by_variant = defaultdict(list)
    for name, variant in torch_structure.delegates.items():
        by_variant[variant].append(name)
    for variant, names in sorted(by_variant.items()):
        yield f'"{variant}" = "{" ".join(names)}"'


def _latest(releases: list[Release], table: str) -> Iterator[str]:
    found: dict[str, str] = {}
    for one in releases:
        found.update(getattr(one, table))
    yield from (f'"{name}" = "{value}"' for name, value in sorted(found.items()))


def _names(title: str, names: list[str]) -> Iterator[str]:
    yield f'{title} = """'
    line = ""
    for name in names:
        if len(line) + len(name) > 117:
            yield line.rstrip()
            line = ""
        line += f"{name} "
    yield from (line.rstrip(), '"""\n')


def _main() -> None:
    if len(sys.argv) < 3:
        sys.stderr.write("usage: python scripts/operator_support OP_PLUGIN PYTORCH [WHEEL ...]\n")
        raise SystemExit(2)
    plugin, pytorch = Repository(Path(sys.argv[1])), Repository(Path(sys.argv[2]))
    torch_structure = structure.read()
    releases = list(_releases(pytorch, plugin))
    codes: dict[tuple[str, str], list[HostCode]] = {}
    for one in releases:
        short = one.torch.rpartition(".")[0]
        key = (one.op_plugin, short)
        if key not in codes:
            codes[key] = functions_with_host_code(plugin, one.op_plugin, short)
        kernels = {**op_plugin(plugin, one.op_plugin, short), **of_torch_npu(pytorch, one.pytorch)}
        _fill(one, kernels, codes[key])
        sys.stderr.write(f"{one.branch}: {len(one.kernels)} operators\n")
    for path in map(Path, sys.argv[3:]):
        one, kernels = _of_wheel(path, plugin)
        short = one.torch.rpartition(".")[0]
        stored = {**op_plugin(plugin, one.op_plugin, short), **of_torch_npu(pytorch, pytorch.commit("master"))}
        _fill(one, kernels, functions_with_host_code(plugin, one.op_plugin, short), frozenset(stored))
        sys.stderr.write(f"{one.branch}: {len(one.kernels)} operators\n")
        releases.append(one)
    releases.sort(key=lambda one: (_order(one.release) if one.release != one.torch else (999.0,), _order(one.torch)))
    TARGET.write_text("\n".join(_lines(releases, torch_structure)) + "\n", encoding="utf-8")


if __name__ == "__main__":
    _main()
