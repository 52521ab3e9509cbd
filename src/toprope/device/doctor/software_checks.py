"""Checks of installed software that does not fit together: torch_npu, CANN, NNAL, Python. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from toprope.device.doctor.finding import Finding
from toprope.device.host import software
from toprope.device.host import versions as table
from toprope.device.host.libraries import codes, missing_library, missing_module
from toprope.device.host.machine import Facts

__all__ = ["environment", "explain_torch_npu", "python_packages", "torch_npu", "versions"]

_FAQ = (
    "https://github.com/Ascend/pytorch/blob/9e73e708ab9350d203475609f36f8a43f6a0c2ab/docs/zh/installation_guide/faq.md"
)


def torch_npu(facts: Facts) -> Iterator[Finding]:
    """Findings about a torch_npu that is missing although there are cards, or that cannot be loaded."""
    examination = facts.examination
    if facts.simulated:
        if "torch-npu" in facts.packages:
            yield Finding(
                "torch-npu-aside",
                f"torch_npu {facts.packages['torch-npu']} is installed; here the simulated card takes its place.",
                ("run toprope doctor outside of toprope run, and without TOPROPE_SIM, to examine it",),
                problem=False,
            )
        return
    if examination is not None and examination.torch_npu_error:
        yield explain_torch_npu(examination.torch_npu_error, facts)
    elif examination is not None and examination.ended and examination.doing == "import torch_npu":
        yield Finding(
            "torch-npu-crash",
            f"torch_npu cannot be loaded: {examination.ended} while it was imported.",
            (
                "toprope doctor --wait 300, if the machine is merely slow",
                "npu-smi info: does the driver answer?",
                "torch, torch_npu and CANN of versions that do not belong together crash like this",
            ),
        )
    elif "torch-npu" not in facts.packages and not (examination is not None and examination.torch_npu_file):
        yield from _no_torch_npu(facts)
    elif examination is not None and examination.absent.get("npu") == "torch_npu is not installed":
        yield explain_torch_npu("there is no module of this name, only what pip noted of it", facts)


def explain_torch_npu(error: str, facts: Facts) -> Finding:
    """The reason why torch_npu cannot be loaded, and its fix.

    Args:
        error: type and text of what its import raised.
        facts: what the machine has; what is known is used.
    """
    library = missing_library(error)
    if library:
        return _missing(library, facts)
    if "No module named 'torch_npu._C'" in error:
        return Finding(
            "source-folder",
            "torch_npu cannot be loaded: Python finds its source in the current folder, not the installed package.",
            ("change to another folder",),
            looked_at=facts.examination.torch_npu_file if facts.examination is not None else "",
            sources=(_FAQ,),
        )
    if "undefined symbol" in error:
        return Finding(
            "torch-npu-symbols",
            f"torch_npu cannot be loaded: it was built for other versions than those that are here. {_short(error)}",
            _release_advice(facts) or ("install a torch_npu for this torch, and the CANN that goes with it",),
        )
    if "get_npu_backend" in error:
        return Finding(
            "torchair",
            f"torch_npu cannot be loaded: it and its torchair do not belong together. {_short(error)}",
            (
                "pip uninstall torch-npu (and a torchair that was installed by itself), then install one release again",
                *_release_advice(facts),
            ),
            sources=("https://github.com/Ascend/pytorch/issues/37",),
        )
    if "Two accelerators cannot be used" in error:
        return Finding(
            "two-accelerators",
            "torch_npu cannot be loaded: this torch is built for CUDA and sees a GPU, and a process has one only.",
            (
                "install the CPU build of torch for the NPU",
                "for CUDA: TORCH_DEVICE_BACKEND_AUTOLOAD=0, or uninstall torch-npu",
            ),
        )
    do = tuple(f"toprope doctor {code}" for code in codes(error))
    module = missing_module(error)
    if module:
        do = (f"install the Python package that has the module {module}",)
    return Finding(
        "torch-npu-broken",
        f"torch_npu cannot be loaded: {_short(error)}",
        do or _release_advice(facts) or ("install torch_npu again, of the release for this torch",),
    )


def environment(facts: Facts) -> Iterator[Finding]:
    """Findings about variables of CANN that name missing folders."""
    if facts.simulated:
        return
    for name, folder in facts.broken_paths.items():
        package = "NNAL" if name in software.variables_of("NNAL") else "CANN"
        found = facts.package(package)
        yield Finding(
            "environment",
            f"{name}={folder} names a folder that is not there.",
            (f"source {found.set_env} in a fresh shell",)
            if found is not None and found.set_env
            else (f"install {package}, or unset {name}",),
        )
    home = next((name for name in software.variables_of("CANN") if facts.environment.get(name)), "")
    if home and "ASCEND_OPP_PATH" not in facts.environment and not facts.broken_paths:
        yield Finding(
            "environment",
            f"{home} is set and ASCEND_OPP_PATH is not: only a part of CANN's environment is loaded, and torch_npu "
            "refuses it.",
            (f"source {_set_env(facts, 'CANN')}",),
        )


def versions(facts: Facts) -> Iterator[Finding]:
    """Compare torch, torch_npu, CANN and Python with the vendor's table."""
    release = facts.packages.get("torch-npu", "")
    if not release or facts.simulated:
        return
    torch = facts.packages.get("torch", "")
    works = facts.examination is not None and bool(facts.examination.of("npu"))
    if torch and table.minor(torch) != table.minor(release):
        yield Finding(
            "torch-skew",
            f"torch {torch} and torch_npu {release} do not belong together: the first two numbers must be the same.",
            (f"install torch-npu {_dotted(torch)}.* or torch {_dotted(release)}.*",),
            sources=(table.source(),),
        )
        return
    cann, wanted = facts.package("CANN"), table.cann_for(release)
    if wanted is None:
        last = table.newest()
        yield Finding(
            "not-in-table",
            f"the vendor's table does not list torch_npu {release}; the newest: {last.torch_npu}, CANN {last.cann}.",
            looked_at=f"CANN {cann.version}" if cann is not None and cann.version else "",
            sources=(table.source(),),
            problem=False,
        )
    elif cann is not None and cann.version and not table.same_cann(cann.version, wanted):
        yield Finding(
            "cann-skew",
            f"torch_npu {release} is made for CANN {wanted}, and CANN {cann.version} is installed.",
            (*_release_advice(facts), f"or install CANN {wanted}"),
            sources=(table.source(), "https://github.com/Ascend/pytorch/issues/37"),
            problem=not works,
        )
    pythons = table.pythons_for(torch)
    if pythons and _dotted(facts.python) not in pythons:
        yield Finding(
            "python-skew",
            f"torch_npu for torch {_dotted(torch)} is built for Python {', '.join(pythons)}; this is {facts.python}.",
            sources=(table.source(),),
            problem=False,
        )


def python_packages(facts: Facts) -> Iterator[Finding]:
    """Findings about missing Python packages that CANN imports."""
    if facts.package("CANN") is None or facts.simulated:
        return
    needed, listed = software.needed_python()
    missing = [name for name in needed if name not in facts.packages]
    others = [name for name in listed if name not in facts.packages]
    if missing:
        yield Finding(
            "python-packages",
            f"Python packages that CANN imports are not installed: {', '.join(missing)}. Operators then fail with "
            "500001, EH9999 or E40021, or end the process.",
            (f"pip install {' '.join(missing)}",),
            sources=("https://github.com/Ascend/pytorch/issues/7",),
        )
    if others:
        yield Finding(
            "python-packages-listed",
            f"CANN's list names more Python packages, which few programs need: {', '.join(others)}.",
            problem=False,
        )


def _missing(library: str, facts: Facts) -> Finding:
    package = software.package_of(library)
    what = f"torch_npu cannot be loaded: {library} is missing."
    if package == "driver":
        do = (
            "mount /usr/local/Ascend/driver/lib64 from the host into the container"
            if facts.ascend.container
            else "install the driver of the cards",
            "LD_LIBRARY_PATH needs /usr/local/Ascend/driver/lib64/driver and .../common",
        )
        return Finding("driver-library", f"{what} It belongs to the driver.", do, sources=(_FAQ,))
    if package in ("CANN", "NNAL"):
        return _not_loaded(what, package, facts)
    what += " It belongs to neither CANN, NNAL nor the driver."
    return Finding("library-missing", what, (f"install what has {library}",))


def _not_loaded(what: str, package: str, facts: Facts) -> Finding:
    """Finding about a missing library of CANN or NNAL: not installed, environment not loaded, or incomplete."""
    found = facts.package(package)
    name, thread = ("cann", 262) if package == "CANN" else ("nnal", 152)
    sources = (f"https://github.com/vllm-project/vllm-ascend/issues/{thread}", _FAQ)
    if found is None:
        wanted = table.cann_for(facts.packages.get("torch-npu", ""))
        do = [f"install {package}{f' {wanted}' if wanted else ''}, then source its set_env.sh"]
        if not facts.ascend.cards:
            do.append("or, on a machine without an NPU: pip uninstall torch-npu")
        return Finding(
            f"no-{name}", f"{what} It belongs to {package}, which is not installed here.", tuple(do), "", sources
        )
    where = f"{package}{f' {found.version}' if found.version else ''} is installed in {found.folder}"
    script = _set_env(facts, package)
    loaded = [each for each in software.variables_of(package) if facts.environment.get(each)]
    if not loaded:
        told = f"{what} {where}, but its environment is not loaded in this shell."
        return Finding(f"{name}-not-loaded", told, (f"source {script}",), "", sources)
    return Finding(
        f"{name}-incomplete",
        f"{what} {where} and its environment is loaded, but the library is not found there.",
        (f"source {script} last, after everything that sets LD_LIBRARY_PATH", f"otherwise install {package} again"),
        ", ".join(f"{each}={facts.environment[each]}" for each in loaded),
        sources,
    )


def _no_torch_npu(facts: Facts) -> Iterator[Finding]:
    cann = facts.package("CANN")
    if not facts.ascend.cards and cann is None:
        return
    torch = facts.packages.get("torch", "")
    there = [f"{len(facts.ascend.cards)} cards are in /dev"] if facts.ascend.cards else []
    there += [f"CANN {cann.version}".strip() + " is installed"] if cann is not None else []
    releases = table.releases_for(torch, cann.version) if torch and cann is not None else ()
    wanted = f"=={releases[0]}" if releases else f"=={_dotted(torch)}.*" if torch else ""
    yield Finding(
        "no-torch-npu",
        f"torch_npu is not installed in this Python, and {' and '.join(there)}.",
        (f"pip install 'torch-npu{wanted}'",),
        looked_at=facts.executable,
        sources=(table.source(),),
        problem=bool(facts.ascend.cards),
    )


def _release_advice(facts: Facts) -> tuple[str, ...]:
    """Return the release of torch_npu for the installed torch and CANN."""
    torch, cann = facts.packages.get("torch", ""), facts.package("CANN")
    if not torch or cann is None or not cann.version:
        return ()
    releases = table.releases_for(torch, cann.version)
    if not releases:
        return ()
    return (f"for torch {torch} and CANN {cann.version} install torch-npu {' or '.join(releases)}",)


def _set_env(facts: Facts, package: str) -> str:
    found = facts.package(package)
    return found.set_env if found is not None and found.set_env else f"set_env.sh of {package}"


def _short(error: str) -> str:
    """An error's first 300 characters, without torch_npu's line of its own code."""
    text = " ".join(error.split()).partition(" [ERROR] ")[0]
    return text if len(text) <= 300 else text[:300] + " ..."


def _dotted(version: str) -> str:
    return ".".join(map(str, table.minor(version)))
