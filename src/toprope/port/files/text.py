"""The port of files that are not Python, line by line.

Called through `port.files`: one function for each kind of file. The rules' texts are in `rules`. Tests:
tests/port/test_port_unseen_second.py, tests/port/test_port_unseen.py, tests/port/test_port_files.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator
from functools import cache, partial
from pathlib import PurePath

from toprope.port.files.kinds import FileKind
from toprope.port.files.packages import PACKAGES
from toprope.port.files.pins import ended, needed, old_pins
from toprope.port.files.rules import BUILD, COMMAND, CONFIG, IMAGE, OPTION, PACKAGE, PIN, RULES, SHELL, TOOL, TOOLKIT
from toprope.port.files.sources import port_source
from toprope.port.files.toolkit import build_commands, given_cards, toolkit
from toprope.port.finding import Finding, Ported, folded
from toprope.port.ignore import ignored_text_lines, is_ignored
from toprope.port.rule import Rule
from toprope.port.syntax.edits import Edit, render

__all__ = ["port_text", "text_rules", "twin_of"]

_WORDS = {
    FileKind.DOCUMENT: re.compile(rb"cuda|nvidia|/cu\d|--gpus|--nv|install|accelerator", re.I),
    FileKind.CONFIG: re.compile(rb"cuda|nccl|nvidia|nvcr\.io|install|/cu\d|accelerator", re.I),
}
"""Bytes without which files of a kind that may be large have no place of a rule. The other kinds are small."""
_IS_CONDA = re.compile(rb"^channels:.*^dependencies:|^dependencies:.*^channels:", re.M | re.S)
_FOR_NPUS = "-npu"
_LINE_END = re.compile(r"\r\n|\r|\n")
_PACKAGES = re.compile(rf"(?<![\w./@-])(?:{PACKAGES})(?![\w-])", re.I | re.X)
_SAME = {
    "onnxruntime-gpu": "onnxruntime", "paddlepaddle-gpu": "paddlepaddle", "tensorflow-gpu": "tensorflow",
    "faiss-gpu": "faiss-cpu",
}  # fmt: skip
"""The same packages without CUDA, which the program imports by the same name."""
_FROM_SOURCE = re.compile(
    r"(?:\bgit\+\S*?/|(?<![\w/])(?:\./)?submodules/)(?P<name>[\w-]*(?:cuda|raster|simple-knn|fused-ssim|nvdiffrast"
    r"|flash-attention|apex|xformers|pytorch3d|kaolin)[\w-]*)(?:[/.@#]\S*)?(?=\s|$|[\"',\]])",
    re.I,
)
"""Packages for CUDA that are built from a repository or a submodule."""
_LOCAL = re.compile(
    r"(?P<kept>\b(?:torch|torchvision|torchaudio|torchtext)\s*==\s*[\d.]+(?:\w*\d)?)(?P<build>\+cu\d+)", re.I
)
_INDEX = re.compile(
    r"^\s*(?P<option>(?:--(?:extra-)?index-url|-i|--find-links|-f)[ =]\s*\S*download\.pytorch\.org/\S*cu\d+\S*)", re.I
)
_SET = re.compile(
    r"\b(?P<name>CUDA_VISIBLE_DEVICES|CUDA_LAUNCH_BLOCKING|PYTORCH_CUDA_ALLOC_CONF)="
    r"(?P<value>\"(?:[^\"\n`$\\]|\$(?!\())*\"|'[^'\n]*'|(?:[\w.,:/@%+-]|\$\{[^}\n$`]*\}|\$\w+|\$[@*#?])*)(?=\s|;|$|&|\|)"
)
"""A value that is taken whole: words and variables. One that a command or a sum makes is reported alone."""

_TWINS = {
    "CUDA_VISIBLE_DEVICES": "ASCEND_RT_VISIBLE_DEVICES", "CUDA_LAUNCH_BLOCKING": "ASCEND_LAUNCH_BLOCKING",
    "PYTORCH_CUDA_ALLOC_CONF": "PYTORCH_NPU_ALLOC_CONF",
}  # fmt: skip
_TWIN = _TWINS["CUDA_VISIBLE_DEVICES"]
_ALLOCATOR = re.compile(
    r"[\"']?(?:(?:max_split_size_mb|garbage_collection_threshold|expandable_segments):[\w.]+,?)+[\"']?"
)
"""Settings that torch_npu's allocator knows; it refuses other settings."""
_VARIABLE = re.compile(
    rf"(?:(?P<set>^\s*ENV\s+)|(?<![\w${{]))(?P<name>{'|'.join(_TWINS)})(?:[\"']?\s*[=:]|[ ])\s*[\w\"'$,:.{{}}-]+"
)
"""A variable that an image, a container or a job is given."""
_SMI = re.compile(r"\bnvidia-smi\b|(?<![\w./$-])nvcc(?=\s+(?:-|[\w./$]*\.cu\b))")
_IMAGE = re.compile(
    r"\bnvidia/cuda\b\S*|\bnvcr\.io/\S+|--gpus[ =][\"']*(?:all|device=)[^\s\"',\]]*|\bnvidia-docker\b"
    r"|--runtime[ =]nvidia\b|\bruntime:\s*nvidia\b"
    r"|\bpytorch/pytorch:\S*cuda\S*|\bdriver:\s*nvidia\b|\bcuda-toolkit\b|\bJimver/cuda\S*"
    r"|^\s+gpu:\s*true\b|^\s+cuda:\s*[\"']\d[\d.]*[\"']",
    re.I,
)
_CONTAINER = re.compile(
    r"\b(?:docker|podman|nerdctl)\b.*?(?P<gpus>--gpus[ =]\S+)"
    r"|^#(?:SBATCH\s+(?P<asked>--(?:gpus|gres)\S*|-G\s*\S+)|PBS\s.*?(?P<pbs>\bn?gpus=\d+)|BSUB\s+(?P<lsf>-gpu\b)"
    r"|\$\s+-l\s+(?P<sge>\S*gpu\S*))|\b(?:srun|sbatch|salloc)\b.*?(?P<job>--(?:gpus[\w-]*|gres)[ =]\S+)",
    re.I,
)
"""GPUs that a container, or a job of Slurm, is given; `--gpus 0` behind a program is the program's own option."""
_RUNNER = re.compile(r"runs-on:.*\b(?:gpu|cuda|nvidia)\b.*|tags:.*\b(?:gpu|cuda)\b.*", re.I)
_TOLD = re.compile(
    r"\bCUDA_VISIBLE_DEVICES=\S*|\bnvidia-smi\b|/whl/cu\d+|\bpytorch-cuda=\S+|--device[ =]cuda\S*|\bcudatoolkit\b"
    r"|--accelerator[ =](?:gpu|cuda)\b"
    r"|--gpus[ =][\"']*(?:all|device=)\S*|\bnvidia/cuda\b\S*|\bnvidia-docker\b|--runtime[ =]nvidia\b"
    r"|\b(?:singularity|apptainer)\b.*?(?P<nv>--nv)(?![\w=-])|\bmodule\s+load\b.*\b(?:cuda|nccl|cudnn)\b\S*"
    r"|\bexport\s+CUDA_HOME=\S*"
)
_SETTING = re.compile(
    r"(?:^|[{,])\s*(?:-\s+)?[\"']?(?P<key>[\w.-]*(?:device|accelerator|backend|map_location)[\w.-]*)[\"']?\s*[:=]\s*"
    r"(?P<value>[\"']?(?:cuda(?::\d+)?|nccl|gpu)[\"']?)\s*(?:[,;#}\]].*)?$",
    re.I,
)
_OPTION = re.compile(
    r"--(?P<key>[\w-]*device|(?:[\w-]*\.)?accelerator)[ =]+[\"']?(?P<value>cuda(?::\d+)?|gpu)(?![\w:/.-])[\"']?"
)
"""A device that a command gives a program."""
_INSTALL = re.compile(r"\b(?:pip3?|conda|mamba|uv)\b.*\binstall\b")
_REMOVES = re.compile(
    r"\b(?:pip3?|conda|mamba|uv|apt(?:-get)?|yum|dnf)\b[^\n;&|]*?\b(?:uninstall|remove|purge)\b(?:\\\r?\n|[^\n;&|])*"
)
"""Packages that a command removes, over the lines that it goes on in."""
_FROM_INDEX = re.compile(
    r"(?:--(?:extra-)?index-url|-i|--find-links|-f)[ =]\s*[\"']?\S*/whl/(?:\S*/)?cu\d+[^\s\"',]*"
    r"|^\s*url\s*=\s*[\"']https?://download\.pytorch\.org/whl/cu\d+[\"']"
)
"""The index of builds for CUDA: an option of pip and its like, or a table of uv and poetry in pyproject.toml."""
_FENCE = re.compile(r"^\s*(?:```|~~~)(?P<language>[\w+-]*)")

_Found = Iterator[tuple[Rule, int, int, tuple[Edit, ...]]]


def text_rules() -> dict[str, Rule]:
    """The rules about such files, by their codes."""
    return {rule.code: rule for rule in RULES}


def port_text(
    data: bytes,
    path: str,
    kind: FileKind,
    leave: Callable[[Finding], bool] | None = None,
    *,
    has_twin: bool = False,
    vendored: bool = False,
    resolved: Collection[str] = (),
    nearby: bytes = b"",
) -> Ported:
    """The port of one file that is neither Python nor a notebook.

    Args:
        data: its bytes.
        path: its name, for the report.
        kind: what it is.
        leave: says of a finding that it is not wanted.
        vendored: whether ported code calls the vendored file, which runs with older releases of torch than toprope.
        resolved: options of the project's commands that ported code resolves: "cuda" there is the device in use.
        has_twin: whether the list for NPUs (`twin_of`) of a list of requirements is there already.
        nearby: the CUDA source of the same name, for a header or a binding.
    """
    if kind is FileKind.CONFIG and _IS_CONDA.search(data):
        kind = FileKind.ENVIRONMENT
    if kind in (FileKind.CUDA, FileKind.CPP):
        return port_source(data, path, cuda=kind is FileKind.CUDA, leave=leave, nearby=nearby)
    ported = Ported(path, data, data)
    ported.lines = data.count(b"\n") + (not data.endswith(b"\n") and bool(data))
    words = _WORDS.get(kind)
    if words is not None and not words.search(data):
        return ported
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        ported.skipped, ported.lines = f"byte {error.start} is not utf-8", 0
        return ported
    findings = []
    lines = _joined(text) if kind is FileKind.REQUIREMENTS else _lines(text)
    removed = [each.span() for each in _REMOVES.finditer(text)] if kind is not FileKind.REQUIREMENTS else []
    for number, start, line in lines:
        for rule, low, high, edits in (*_LOOKS[kind](line, start), *_pins(kind, line, start, vendored=vendored)):
            if any(first <= low < last for first, last in removed):
                continue
            column = low - start + 1
            findings.append(
                Finding(
                    rule,
                    number,
                    column,
                    number,
                    column + high - low,
                    text[low:high],
                    edits,
                    _message(rule, text[low:high], kind, vendored=vendored),
                )
            )
    findings = folded(findings, partial(_said_once, kind))
    settings = [each for each in findings if each.rule is CONFIG]
    if len(settings) > 1:
        settings[0].message = f"{settings[0].before}, and {len(settings) - 1} more in this file: {CONFIG.title}"
        findings = [each for each in findings if each.rule is not CONFIG or each is settings[0]]
    if kind is FileKind.PROJECT and path.endswith(".cfg"):
        findings = [each for each in findings if _SECTION.findall(text[: _start(text, each.line)])[-1:] in _LISTS]
    given = re.compile(rf"--(?:{'|'.join(each.replace('_', '[-_]') for each in resolved) or '(?!)'})[ =]+[\"']?cuda\S*")
    findings = [each for each in findings if not (each.rule in (COMMAND, OPTION) and given.fullmatch(each.before))]
    if kind is FileKind.DOCUMENT:
        findings = [each for each in findings if each.line in _in_fences(text)]
    ignored = ignored_text_lines(text)
    wanted = [each for each in findings if not is_ignored(each, ignored) and (leave is None or not leave(each))]
    ported.ignored = len(findings) - len(wanted)
    if kind is FileKind.SHELL:
        _leave_computed(text, wanted)
    if kind is FileKind.REQUIREMENTS and _LOCK.search(text):
        wanted = _of_lock(wanted)
    ported.findings = sorted(wanted, key=lambda each: (each.line, each.column, each.rule.code))
    made = [edit for each in wanted if each.converted for edit in each.edits]
    if made and all(each.rule is PIN for each in wanted if each.converted):
        made = []  # a list is made for what is built for CUDA; a release alone is only reported
        for each in wanted:
            each.edits = ()
    if made:
        ported.after = render(text, made).encode("utf-8")
        for each in wanted:
            if each.converted:
                (edit,) = each.edits
                each.after = render(text, [edit], min(edit.start, edit.end - len(each.before)), edit.end)
    if kind is FileKind.REQUIREMENTS:
        _put_next_to_it(ported, has_twin, vendored)
    return ported


def _said_once(kind: FileKind, finding: Finding) -> tuple[Rule, str] | None:
    """Return what all places of CUDA's toolkit have in common, or the calls of one tool: they are one line."""
    folds = finding.rule in (TOOL, TOOLKIT) or (finding.rule is IMAGE and kind is FileKind.CONFIG)
    return (finding.rule, "" if finding.rule is TOOLKIT else finding.before) if folds else None


_LOCK = re.compile(r"^#.*\bautogenerated by\b|^#\s*This file is autogenerated|^\s+# via\b", re.M | re.I)
"""Lists that a tool makes: pip-compile, uv. Each package in them is pinned to what belongs to the others."""


def _of_lock(findings: list[Finding]) -> list[Finding]:
    """One line for a list that a tool made: a release changed by hand does not go with the others."""
    if not findings:
        return []
    first = findings[0]
    names = ", ".join(dict.fromkeys(re.split(r"[\s=<>;@\\]", each.before, maxsplit=1)[0] for each in findings[:3]))
    more = f" and {len(findings) - 3} more" if len(findings) > 3 else ""
    first.message = f"{names}{more}: a tool made this list; have it made again for NPUs, without what is CUDA's"
    first.edits = ()
    return [first]


def _leave_computed(text: str, findings: list[Finding]) -> None:
    """Leave a mask whose value the script counts with nvidia-smi, or may set to -1: it hides all NPUs there."""
    for each in findings:
        names = set(re.findall(r"\$\{?(\w+)", each.before)) if each.rule is SHELL else set()
        sets = [found[0] for name in names for found in re.finditer(rf"^[^#\n]*\b{name}=[^\n]*", text, re.M)]
        if any("nvidia-smi" in line or re.search(r"=[\"']?-1\b", line) for line in sets):
            each.edits = ()
            each.message = "its value is counted for CUDA, or may be -1, which hides all NPUs: set their variable apart"


_SECTION = re.compile(r"^\[([\w.]+)", re.M)
_LISTS: tuple[list[str], ...] = ([], ["options"], ["options.extras_require"])
"""Sections of setup.cfg that list what is installed."""


def _start(text: str, number: int) -> int:
    """Return where a line begins."""
    return next(start for line, start, _ in _lines(text) if line == number)


def twin_of(path: PurePath) -> str:
    """The name of the list of requirements for NPUs that belongs to a list."""
    return f"{path.stem}{_FOR_NPUS}{path.suffix}"


def _put_next_to_it(ported: Ported, has_twin: bool, vendored: bool) -> None:
    """Leave a list as it is, for those who have CUDA, and make the list for NPUs next to it.

    Where that is there already it is its user's: it is looked at itself, and what it has of CUDA's is only reported.
    """
    place = PurePath(ported.path)
    text, ported.after = ported.after, ported.before
    if place.stem.lower().endswith(_FOR_NPUS):
        for each in ported.findings:
            each.edits, each.after = (), ""
    elif has_twin:
        ported.findings = [each for each in ported.findings if each.rule is PIN or not each.edits]
        for each in ported.findings:
            each.edits, each.after = (), ""
    elif text != ported.before:
        ported.companion = twin_of(place), _header(place.name, ported).encode() + text + _toprope(text, vendored)


def _toprope(text: bytes, vendored: bool) -> bytes:
    """The requirement that ported code adds to a list: toprope, but with a vendored file."""
    if vendored or re.search(rb"^\s*toprope(?![\w.-])", text, re.M):
        return b""
    end = b"\r\n" if b"\r\n" in text else b"\n"
    return (b"" if not text or text.endswith(b"\n") else end) + b"toprope" + end


def _header(name: str, ported: Ported) -> str:
    """Say in the list for NPUs where it is from, what it is without, and why."""
    end = "\r\n" if b"\r\n" in ported.before else "\n"
    lines = [f"# Made by toprope port from {name}, which stays for CUDA; without what is built for CUDA alone:"]
    pins = {each.line for each in ported.findings if each.rule is PIN}
    for each in ported.findings:
        if each.converted and not (each.rule is BUILD and each.line in pins):
            here = "" if each.after.startswith("#") else f" (here {each.after})"
            lines.append(f"#   {each.before}{here}")
    lines.append("# Add torch_npu, in the release that belongs to the torch of this list.")
    return "".join(f"{line}{end}" for line in lines)


def _lines(text: str) -> Iterator[tuple[int, int, str]]:
    """Each line with its number, from 1, and where it begins."""
    number, start = 1, 0
    for found in _LINE_END.finditer(text):
        yield number, start, text[start : found.start()]
        number, start = number + 1, found.end()
    yield number, start, text[start:]


def _joined(text: str) -> Iterator[tuple[int, int, str]]:
    """Lines as pip joins them: after a backslash a requirement goes on in the next line, a comment does not."""
    first: tuple[int, int] | None = None
    for number, start, line in _lines(text):
        number, begin = first or (number, start)
        if line.endswith("\\") and not line.lstrip().startswith("#"):
            first = number, begin
            continue
        first = None
        yield number, begin, text[begin : start + len(line)]
    if first is not None:
        yield *first, text[first[1] :]


def _message(rule: Rule, text: str, kind: FileKind, *, vendored: bool) -> str:
    if rule is PIN:
        name = re.split(r"\W", text, maxsplit=1)[0]
        if last := ended(name, vendored=vendored):
            return f"{text}: {name} {last} is its last release, and too old for the torch that ported code needs"
        first = ".".join(map(str, needed(name, vendored=vendored)))
        return f"{text}: ported code needs {name} {first} or newer"
    if rule is TOOL and text == "nvcc":
        return "nvcc compiles for CUDA alone"
    if rule is not PACKAGE:
        return ""
    built = _FROM_SOURCE.search(text)
    name = built["name"] if built is not None else _PACKAGES.findall(text)[0]
    extra = f'; an extra is a place for it: cuda = ["{name}"]' if kind is FileKind.PROJECT else ""
    return f"{name} is for CUDA alone{extra}"


def _is_comment(line: str, at: int) -> bool:
    return "#" in line[:at] and not line[:at].rstrip().endswith(("'", '"', "="))


def _named_packages(line: str) -> list[re.Match[str]]:
    """The packages for CUDA in a line, each once."""
    built = list(_FROM_SOURCE.finditer(line))
    return built + [
        each for each in _PACKAGES.finditer(line) if not any(one.start() <= each.start() < one.end() for one in built)
    ]


def _packages(line: str, start: int) -> _Found:
    """A list of requirements, or a table of a project file: packages, and builds for CUDA."""
    index = _INDEX.match(line)
    if index is not None:
        at = start + index.start("option")
        yield (
            BUILD,
            at,
            start + index.end("option"),
            (Edit(at, start + index.end("option"), ("# " + index["option"],)),),
        )
        return
    for found in _LOCAL.finditer(line):
        if not _is_comment(line, found.start()):
            low, high = start + found.start("build"), start + found.end("build")
            yield BUILD, start + found.start(), high, (Edit(low, high, ("",)),)
    for found in _named_packages(line):
        if not _is_comment(line, found.start()):
            yield PACKAGE, start + found.start(), start + found.end(), ()
    if not line.lstrip().startswith("-"):
        yield from _indexes(line, start)


def _pins(kind: FileKind, line: str, start: int, *, vendored: bool) -> _Found:
    """Versions of torch: in lists and tables, and in commands that install it."""
    if (
        kind in (FileKind.REQUIREMENTS, FileKind.ENVIRONMENT, FileKind.PROJECT)
        or _INSTALL.search(line)
        or (
            kind is FileKind.IMAGE and re.match(r"\s*-\s+[\"']?torch", line)  # python_packages of a cog.yaml
        )
    ):
        pins = list(old_pins(line, vendored=vendored))
        is_list = kind in (FileKind.REQUIREMENTS, FileKind.ENVIRONMENT, FileKind.PROJECT)
        for low, high in pins if is_list else pins[:1]:  # one line for a command: torch comes before torchvision
            if not _is_comment(line, low):
                name = re.split(r"\W", line[low:high], maxsplit=1)[0]
                first = ".".join(map(str, needed(name, vendored=vendored)))
                newer = (Edit(start + low, start + high, (f"{name}>={first}",)),)
                is_raised = kind is FileKind.REQUIREMENTS and not ended(name, vendored=vendored)
                yield PIN, start + low, start + high, newer if is_raised else ()


def _requirements(line: str, start: int) -> _Found:
    """A list of requirements for pip: a line that is one for CUDA becomes a comment."""
    bare = line.lstrip()
    found = (
        _PACKAGES.match(bare) or _FROM_SOURCE.match(bare) or re.match(r"[\w.-]+\s*@\s*" + _FROM_SOURCE.pattern, bare)
    )
    if found is None or bare.startswith("#"):
        yield from _packages(line, start)
        return
    at = start + len(line) - len(line.lstrip())
    text = line.strip()
    twin = _SAME.get(re.match(r"[\w-]*", bare)[0].lower())  # type: ignore[index]
    if twin is not None:
        name = len(re.match(r"[\w-]*", bare)[0])  # type: ignore[index]
        yield PACKAGE, at, at + name, (Edit(at, at + name, (twin,)),)
        return
    shown = _LINE_END.split(text)[0].rstrip("\\ \t")
    commented = _LINE_END.sub(lambda end: f"{end[0]}# ", f"# {text}")
    yield PACKAGE, at, at + len(shown), (Edit(at, at + len(text), (commented,)),)


def _toolkit(line: str, start: int, kind: FileKind) -> _Found:
    """CUDA's toolkit in a script, an image or a build, and the cards that a container or a job is given."""
    tools = build_commands(line) if kind is FileKind.BUILD else toolkit(line)
    for rule, places in ((TOOLKIT, tools), (IMAGE, given_cards(line, kind))):
        for low, high in places:
            if not re.search(r"(?:^|\s)#", line[:low]):
                yield rule, start + low, start + high, ()


def _build(line: str, start: int) -> _Found:
    """A build file. A line of a recipe of make is a command; an assignment of make takes no second one behind it."""
    yield from _toolkit(line, start, FileKind.BUILD)
    for rule, low, high, edits in _script(line, start):
        if not (rule is TOOL and line[low - start : high - start] == "nvcc"):  # said by the toolkit's line
            yield rule, low, high, edits if line.startswith("\t") else ()


def _shell(line: str, start: int) -> _Found:
    """A command line."""
    for found in _SET.finditer(line):
        if _is_comment(line, found.start()):
            continue
        at, twin = start + found.end(), _TWINS[found["name"]]
        known = found["name"] != "PYTORCH_CUDA_ALLOC_CONF" or _ALLOCATOR.fullmatch(found["value"])
        if twin not in line:
            edits = (Edit(at, at, (f" {twin}={found['value']}",)),) if known else ()
            yield SHELL, start + found.start(), at, edits
    masked = any(found["name"] == "CUDA_VISIBLE_DEVICES" for found in _SET.finditer(line)) or _TWIN in line
    other = None if masked else re.search(r"\bCUDA_VISIBLE_DEVICES=\S*", line)
    if other is not None and not _is_comment(line, other.start()):
        yield SHELL, start + other.start(), start + other.end(), ()
    for found in _SMI.finditer(line):
        if not _is_comment(line, found.start()):
            yield TOOL, start + found.start(), start + found.end(), ()


def _containers(line: str) -> Iterator[tuple[int, int]]:
    """Find images for CUDA, and GPUs that a container or a job is given."""
    found = [(each.start(), each.end()) for each in _IMAGE.finditer(line) if not _is_comment(line, each.start())]
    for each in _CONTAINER.finditer(line):
        name = next(name for name in ("gpus", "job", "asked", "pbs", "lsf", "sge") if each[name])
        low, high = each.span(name)
        if (name not in ("gpus", "job") or not _is_comment(line, low)) and not any(
            one <= low < other for one, other in found
        ):
            found.append((low, high))
    yield from found


def _image(line: str, start: int) -> _Found:
    containers = list(_containers(line))
    for low, high in containers:
        yield IMAGE, start + low, start + high, ()
    for found in _VARIABLE.finditer(line):
        is_set = found["set"] is not None or found[0][len(found["name"])] != " "
        if is_set and not _is_comment(line, found.start()) and _TWINS[found["name"]] not in line:
            yield SHELL, start + found.start("name"), start + found.end(), ()
    for found in _RUNNER.finditer(line):
        if not _is_comment(line, found.start()):
            yield IMAGE, start + found.start(), start + found.end(), ()
    is_none = re.search(r"\]\(http|\buninstall\b", line)  # a sentence with an address; what is taken away
    for found in () if is_none else _named_packages(line):
        if any(low <= found.start() < high for low, high in containers):
            continue
        if not _is_comment(line, found.start()) and re.search(r"\b(?:pip|conda|uv|apt(?:-get)?)\b.*install|^\s", line):
            yield PACKAGE, start + found.start(), start + found.end(), ()
    yield from _indexes(line, start)
    yield from _toolkit(line, start, FileKind.IMAGE)
    for found in _SMI.finditer(line):
        if not _is_comment(line, found.start()):
            yield TOOL, start + found.start(), start + found.end(), ()


def _script(line: str, start: int) -> _Found:
    """A script: command lines, of which some start containers or install packages."""
    yield from _shell(line, start)
    yield from _toolkit(line, start, FileKind.SHELL)
    for low, high in _containers(line):
        yield IMAGE, start + low, start + high, ()
    for found in _OPTION.finditer(line):
        if not _is_comment(line, found.start()) and _means_cuda(found):
            yield OPTION, start + found.start(), start + found.end(), ()
    yield from _installed(line, start)
    yield from _indexes(line, start)


def _installed(line: str, start: int) -> _Found:
    """The packages for CUDA that a command installs."""
    for found in _named_packages(line) if _INSTALL.search(line) else ():
        if not _is_comment(line, found.start()):
            yield PACKAGE, start + found.start(), start + found.end(), ()


def _indexes(line: str, start: int) -> _Found:
    """The index of builds for CUDA that a command installs from."""
    for found in _FROM_INDEX.finditer(line):
        if not _is_comment(line, found.start()):
            yield BUILD, start + found.start(), start + found.end(), ()


def _document(line: str, start: int) -> _Found:
    installed = list(_installed(line, start))
    for found in _TOLD.finditer(line):
        at = start + found.start()
        if not any(low <= at < high for _, low, high, _ in installed):
            yield COMMAND, at, start + found.end(), ()
    yield from installed


def _means_cuda(found: re.Match[str]) -> bool:
    """Return whether a value is CUDA's name; "gpu" is one of Lightning's accelerators, and no device of torch."""
    return "gpu" not in found["value"].lower() or found["key"].lower().endswith("accelerator")


def _config(line: str, start: int) -> _Found:
    """Settings, and commands that a template of a machine or of a job runs."""
    found = _SETTING.search(line)
    if found is not None and _means_cuda(found):
        yield CONFIG, start + found.start("key"), start + found.end("value"), ()
    for low, high in given_cards(line, FileKind.CONFIG):
        if not _is_comment(line, low):
            yield IMAGE, start + low, start + high, ()
    yield from _installed(line, start)
    yield from _indexes(line, start)


@cache
def _in_fences(text: str) -> frozenset[int]:
    """The numbers of the lines in blocks of code that is not Python."""
    inside, language, lines = False, "", set()
    for number, _, line in _lines(text):
        fence = _FENCE.match(line)
        if fence is not None:
            inside = not inside
            language = fence["language"].lower() if inside else ""
        elif inside and language not in ("python", "py", "pycon"):
            lines.add(number)
    return frozenset(lines)


_LOOKS: dict[FileKind, Callable[[str, int], _Found]] = {
    FileKind.REQUIREMENTS: _requirements,
    FileKind.ENVIRONMENT: _packages,
    FileKind.PROJECT: _packages,
    FileKind.IMAGE: _image,
    FileKind.WORKFLOW: _image,
    FileKind.SHELL: _script,
    FileKind.BUILD: _build,
    FileKind.DOCUMENT: _document,
    FileKind.CONFIG: _config,
}
