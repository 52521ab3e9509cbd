"""Write the generated half of src/toprope/support/all_blocks.toml from checkouts of the vendor's operators.

    python scripts/barriers.py ops-math=/path/to/checkout ops-nn=... ops-transformer=... opbase=...

The table says which operators need all of their blocks (cores) at once, because their kernels wait for each other;
`toprope.cores` decides with it whether streams can deadlock. A kernel counts as "one block at a time" only where no
file of the vendor that it includes waits for other blocks. It counts as "all blocks at once" where each of its kernel
types says so, or where it belongs to MC2. Others, such as a matrix product with a barrier in one of its tilings, are in
neither list and stay unknown.

Run by hand for a new release of the vendor's operators; the other half of the table is written by hand. The rule to
keep: a doubt leaves an operator in neither list, since "one block" wrongly said would call a deadlock safe. Patterns
follow the vendor's C++ and macros.

No test runs it. tests/cores/test_cores_findings.py holds the table that it writes.
"""

import collections
import re
import subprocess
import sys
import textwrap
from pathlib import Path

PAGE = Path(__file__).resolve().parents[1] / "src/toprope/support/all_blocks.toml"
BEGIN = "# ---- written by scripts/barriers.py from here on\n"
SOURCE = re.compile(r"\.(h|hpp|cpp|cce|asc)$")
WAITS = re.compile(
    r"\bSyncAll\b|KERNEL_TYPE_MIX_AIV|\bIB(?:Set|Wait)\b|\bCrossCoreSetFlag\s*<\s*(?:0x)?0\b|WaitPreBlock|NotifyNextBlock"
    r"|\bHccl(?:Server)?\s*<|DeterCompute|hccl\.h|ffts_cross_core|SyncBlockAll|SoftSync|GroupBarrier|shmem"
)
BATCH = re.compile(r"set(?:Schedule|Sched)Mode\s*\(|sched(?:ule)?Mode", re.IGNORECASE)
COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
INCLUDE = re.compile(r'#\s*include\s*["<]([^">]+)[">]')
# Headers of C++, of Ascend C and of the host's side, which make nothing wait unless a kernel calls it.
KNOWN_OUTSIDE = re.compile(
    r"kernel_(operator|basic|type|tiling)|^(acl|adv_api|ascendc|base|basic_api|exe_graph|graph|impl|lib|opdev|platform"
    r"|register|simt_api|std|tiling)/|cpu_kernel|cpu_types|op_kernel/(platform|math)_util|^[a-z_]+$"
    r"|^(string|math|stdarg|stdint|cxxabi|securec|dlog_pub)\.h$"
)


def git(folder: str, *arguments: str, given: str = "") -> bytes:
    """Run a git command in a checkout; return its output."""
    return subprocess.run(
        ["git", "-C", folder, *arguments], input=given.encode(), capture_output=True, check=True
    ).stdout


def sources(folder: str) -> dict[str, str]:
    """The sources of a checkout's HEAD without comments, by path."""
    listed = git(folder, "ls-tree", "-r", "--name-only", "HEAD").decode().splitlines()
    paths = [path for path in listed if SOURCE.search(path) and not re.search(r"(^|/)(tests|examples)/", path)]
    data = git(folder, "cat-file", "--batch", given="".join(f"HEAD:{path}\n" for path in paths))
    found, at = {}, 0
    for path in paths:
        end = data.index(b"\n", at)
        head = data[at:end].split()
        at = end + 1
        if head[-1] != b"missing":
            found[path] = COMMENT.sub("", data[at : at + int(head[2])].decode("utf-8", "replace"))
            at += int(head[2]) + 1
    return found


def classes(own: dict[str, str], base: dict[str, str]) -> tuple[set[str], set[str], set[str]]:
    """Sort the operators of a repository by the blocks that they need.

    Args:
        own: sources of the repository, by path.
        base: sources of the library that its kernels include (opbase).

    Returns:
        Operators of MC2, which communicate; others that need all of their blocks at once; those that need one at a
        time. Operators of which nothing is certain are in none.
    """
    text = base | own
    by_name = collections.defaultdict(list)
    for path in text:
        by_name[path.rpartition("/")[2]].append(path)
    roots = collections.defaultdict(set)
    for path, source in own.items():
        root, host, _ = path.partition("/op_host/")
        for operator in re.findall(r"OP_ADD\(\s*(\w+)", source) if host else ():
            roots[operator].add(root)
    fused, every, one = set(), set(), set()
    for operator, folders in roots.items():
        kernel = [path for path in own if any(path.startswith(f"{root}/op_kernel/") for root in folders)]
        seen, ahead, outside = set(kernel), list(kernel), set()
        while ahead:
            for name in INCLUDE.findall(text[ahead.pop()]):
                near = by_name.get(name.rpartition("/")[2], [])
                if not near and not KNOWN_OUTSIDE.search(name):
                    outside.add(name)
                for path in near:
                    if path not in seen:
                        seen.add(path)
                        ahead.append(path)
        kinds = {kind for path in seen for kind in re.findall(r"KERNEL_TYPE_\w+", text[path])}
        waits = any(WAITS.search(text[path]) for path in seen)
        host = [path for path in own if any(path.startswith(f"{root}/op_host/") for root in folders)]
        batch = any(BATCH.search(own[path]) for path in host)
        if any(root.startswith("mc2/") and "/3rd/" not in root for root in folders):
            fused.add(operator)
        elif kinds and all(kind.startswith("KERNEL_TYPE_MIX_AIV") for kind in kinds):
            every.add(operator)
        elif kernel and not waits and not batch and not outside:
            one.add(operator)
    return fused, every, one


def row(kinds: set[str], facts: str, source: str) -> str:
    """A row of the table."""
    names = textwrap.fill(" ".join(sorted(kinds)), 118, break_long_words=False)
    return f'\n[[operator]]\nkinds = """\n{names}"""\n{facts}\nsource = "{source}"\n'


def main() -> None:
    """Read the checkouts that the command names, and write the table."""
    folders = dict(each.split("=", 1) for each in sys.argv[1:])
    base = {path: text for path, text in sources(folders.pop("opbase")).items() if "/atvoss/" in path}
    rows: list[tuple[set[str], str, str]] = []
    waiting: set[str] = set()
    for name, folder in folders.items():
        url = f"https://github.com/hicann/{name}/tree/{git(folder, 'rev-parse', 'HEAD').decode().strip()}"
        fused, every, one = classes(sources(folder), base)
        waiting |= fused | every
        rows.append((fused, "sync_all = true\ncommunicates = true", f"{url}/mc2"))
        rows.append((every, "sync_all = true", f"{url} (every kernel of it is MIX_AIV)"))
        rows.append((one, "sync_all = false", f"{url} (nothing that its kernels include waits for other blocks)"))
    rows = [(kinds if "true" in facts else kinds - waiting, facts, source) for kinds, facts, source in rows]
    text = "".join(row(*each) for each in rows if each[0])
    PAGE.write_text(PAGE.read_text(encoding="utf-8").partition(BEGIN)[0] + BEGIN + text, encoding="utf-8")
    sys.stdout.write("".join(f"{len(kinds)} {facts!r} {source}\n" for kinds, facts, source in rows))


if __name__ == "__main__":
    main()
