"""Checks of installed software that does not fit together: torch_npu, CANN, NNAL, Python. Pure.

Called by `diagnosis`. Which releases fit is the vendor's table, device/host/versions.toml; which packages exist and
what they need is device/host/software.toml. Errors are kept apart by texts of the loader, of torch and of torch_npu:
they change with a release of these. Tests: tests/device/test_doctor.py, tests/device/test_doctor_threads.py.
"""

from __future__ import annotations

from collections.abc import Iterator

from toprope.device.doctor.finding import Finding
from toprope.device.host import software
from toprope.device.host import versions as table
from toprope.device.host.libraries import codes, missing_library, missing_module
from toprope.device.host.machine import Facts
from toprope.messages import Message, joined

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
                Message(
                    "torch_npu {torch_npu} is installed; here the simulated card takes its place.",
                    torch_npu=facts.packages["torch-npu"],
                ),
                (Message("run toprope doctor outside of toprope run, and without TOPROPE_SIM, to examine it"),),
                problem=False,
            )
        return
    if examination is not None and examination.torch_npu_error:
        yield explain_torch_npu(examination.torch_npu_error, facts)
    elif examination is not None and examination.ended and examination.doing == "import torch_npu":
        yield Finding(
            "torch-npu-crash",
            Message("torch_npu cannot be loaded: {ended} while it was imported.", ended=examination.ended),
            (
                "toprope doctor --wait 300, if the machine is merely slow",
                Message("npu-smi info: does the driver answer?"),
                Message("torch, torch_npu and CANN of versions that do not belong together crash like this"),
            ),
        )
    elif "torch-npu" not in facts.packages and not (examination is not None and examination.torch_npu_file):
        yield from _no_torch_npu(facts)
    elif examination is not None and examination.absent.get("npu") == "torch_npu is not installed":
        yield explain_torch_npu(Message("there is no module of this name, only what pip noted of it"), facts)


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
            Message(
                "torch_npu cannot be loaded: Python finds its source in the current folder, not the installed package."
            ),
            (Message("change to another folder"),),
            looked_at=facts.examination.torch_npu_file if facts.examination is not None else "",
            sources=(_FAQ,),
        )
    if "undefined symbol" in error:
        return Finding(
            "torch-npu-symbols",
            Message(
                "torch_npu cannot be loaded: it was built for other versions than those that are here. {error}",
                error=_short(error),
            ),
            _release_advice(facts) or (Message("install a torch_npu for this torch, and the CANN that goes with it"),),
        )
    if "get_npu_backend" in error:
        return Finding(
            "torchair",
            Message(
                "torch_npu cannot be loaded: it and its torchair do not belong together. {error}", error=_short(error)
            ),
            (
                Message(
                    "pip uninstall torch-npu (and a torchair that was installed by itself), then install "
                    "one release again"
                ),
                *_release_advice(facts),
            ),
            sources=("https://github.com/Ascend/pytorch/issues/37",),
        )
    if "Two accelerators cannot be used" in error:
        return Finding(
            "two-accelerators",
            Message(
                "torch_npu cannot be loaded: this torch is built for CUDA and sees a GPU, and a process has one only."
            ),
            (
                Message("install the CPU build of torch for the NPU"),
                Message("for CUDA: TORCH_DEVICE_BACKEND_AUTOLOAD=0, or uninstall torch-npu"),
            ),
        )
    do = tuple(f"toprope doctor {code}" for code in codes(error))
    module = missing_module(error)
    if module:
        do = (Message("install the Python package that has the module {module}", module=module),)
    return Finding(
        "torch-npu-broken",
        Message("torch_npu cannot be loaded: {error}", error=_short(error)),
        do or _release_advice(facts) or (Message("install torch_npu again, of the release for this torch"),),
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
            Message("{name}={folder} names a folder that is not there.", name=name, folder=folder),
            (Message("source {script} in a fresh shell", script=found.set_env),)
            if found is not None and found.set_env
            else (Message("install {package}, or unset {name}", package=package, name=name),),
        )
    home = next((name for name in software.variables_of("CANN") if facts.environment.get(name)), "")
    if home and "ASCEND_OPP_PATH" not in facts.environment and not facts.broken_paths:
        yield Finding(
            "environment",
            Message(
                "{home} is set and ASCEND_OPP_PATH is not: only a part of CANN's environment is "
                "loaded, and torch_npu refuses it.",
                home=home,
            ),
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
            Message(
                "torch {torch} and torch_npu {release} do not belong together: the first two numbers must be the same.",
                torch=torch,
                release=release,
            ),
            (
                Message(
                    "install torch-npu {torch}.* or torch {release}.*", torch=_dotted(torch), release=_dotted(release)
                ),
            ),
            sources=(table.source(),),
        )
        return
    cann, wanted = facts.package("CANN"), table.cann_for(release)
    if wanted is None:
        last = table.newest()
        yield Finding(
            "not-in-table",
            Message(
                "the vendor's table does not list torch_npu {release}; the newest: {torch_npu}, CANN {cann}.",
                release=release,
                torch_npu=last.torch_npu,
                cann=last.cann,
            ),
            looked_at=f"CANN {cann.version}" if cann is not None and cann.version else "",
            sources=(table.source(),),
            problem=False,
        )
    elif cann is not None and cann.version and not table.same_cann(cann.version, wanted):
        yield Finding(
            "cann-skew",
            Message(
                "torch_npu {release} is made for CANN {wanted}, and CANN {version} is installed.",
                release=release,
                wanted=wanted,
                version=cann.version,
            ),
            (*_release_advice(facts), Message("or install CANN {wanted}", wanted=wanted)),
            sources=(table.source(), "https://github.com/Ascend/pytorch/issues/37"),
            problem=not works,
        )
    pythons = table.pythons_for(torch)
    if pythons and _dotted(facts.python) not in pythons:
        yield Finding(
            "python-skew",
            Message(
                "torch_npu for torch {torch} is built for Python {pythons}; this is {python}.",
                torch=_dotted(torch),
                pythons=joined(", ", pythons),
                python=facts.python,
            ),
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
            Message(
                "Python packages that CANN imports are not installed: {missing}. Operators then fail "
                "with 500001, EH9999 or E40021, or end the process.",
                missing=joined(", ", missing),
            ),
            (f"pip install {' '.join(missing)}",),
            sources=("https://github.com/Ascend/pytorch/issues/7",),
        )
    if others:
        yield Finding(
            "python-packages-listed",
            Message(
                "CANN's list names more Python packages, which few programs need: {others}.",
                others=joined(", ", others),
            ),
            problem=False,
        )


def _missing(library: str, facts: Facts) -> Finding:
    """The finding about a library without which torch_npu cannot be loaded, by its package."""
    package = software.package_of(library)
    what = Message("torch_npu cannot be loaded: {library} is missing.", library=library)
    if package == "driver":
        do = (
            Message("mount /usr/local/Ascend/driver/lib64 from the host into the container")
            if facts.ascend.container
            else Message("install the driver of the cards"),
            Message("LD_LIBRARY_PATH needs /usr/local/Ascend/driver/lib64/driver and .../common"),
        )
        return Finding("driver-library", Message("{what} It belongs to the driver.", what=what), do, sources=(_FAQ,))
    if package in ("CANN", "NNAL"):
        return _not_loaded(what, package, facts)
    what += Message(" It belongs to neither CANN, NNAL nor the driver.")
    return Finding("library-missing", what, (Message("install what has {library}", library=library),))


def _not_loaded(what: str, package: str, facts: Facts) -> Finding:
    """Finding about a missing library of CANN or NNAL: not installed, environment not loaded, or incomplete."""
    found = facts.package(package)
    name, thread = ("cann", 262) if package == "CANN" else ("nnal", 152)
    sources = (f"https://github.com/vllm-project/vllm-ascend/issues/{thread}", _FAQ)
    if found is None:
        wanted = table.cann_for(facts.packages.get("torch-npu", ""))
        do = [
            Message(
                "install {package}{version}, then source its set_env.sh",
                package=package,
                version=f" {wanted}" if wanted else "",
            )
        ]
        if not facts.ascend.cards:
            do.append(Message("or, on a machine without an NPU: pip uninstall torch-npu"))
        return Finding(
            f"no-{name}",
            Message("{what} It belongs to {package}, which is not installed here.", what=what, package=package),
            tuple(do),
            "",
            sources,
        )
    where = Message(
        "{package}{version} is installed in {folder}",
        package=package,
        version=f" {found.version}" if found.version else "",
        folder=found.folder,
    )
    script = _set_env(facts, package)
    loaded = [each for each in software.variables_of(package) if facts.environment.get(each)]
    if not loaded:
        text = Message("{what} {where}, but its environment is not loaded in this shell.", what=what, where=where)
        return Finding(f"{name}-not-loaded", text, (f"source {script}",), "", sources)
    return Finding(
        f"{name}-incomplete",
        Message(
            "{what} {where} and its environment is loaded, but the library is not found there.", what=what, where=where
        ),
        (
            Message("source {script} last, after everything that sets LD_LIBRARY_PATH", script=script),
            Message("otherwise install {package} again", package=package),
        ),
        joined(", ", (f"{each}={facts.environment[each]}" for each in loaded)),
        sources,
    )


def _no_torch_npu(facts: Facts) -> Iterator[Finding]:
    """The finding about a machine with cards or CANN, and no torch_npu."""
    cann = facts.package("CANN")
    if not facts.ascend.cards and cann is None:
        return
    torch = facts.packages.get("torch", "")
    there = [Message("{cards} cards are in /dev", cards=len(facts.ascend.cards))] if facts.ascend.cards else []
    there += [Message("{version} is installed", version=f"CANN {cann.version}".strip())] if cann is not None else []
    releases = table.releases_for(torch, cann.version) if torch and cann is not None else ()
    wanted = f"=={releases[0]}" if releases else f"=={_dotted(torch)}.*" if torch else ""
    yield Finding(
        "no-torch-npu",
        Message("torch_npu is not installed in this Python, and {there}.", there=joined(" and ", there)),
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
    return (
        Message(
            "for torch {torch} and CANN {version} install torch-npu {releases}",
            torch=torch,
            version=cann.version,
            releases=joined(" or ", releases),
        ),
    )


def _set_env(facts: Facts, package: str) -> str:
    found = facts.package(package)
    return found.set_env if found is not None and found.set_env else Message("set_env.sh of {package}", package=package)


def _short(error: str) -> str:
    """An error's first 300 characters, without torch_npu's line of its own code."""
    text = " ".join(error.split()).partition(" [ERROR] ")[0]
    if text == error and len(text) <= 300:
        return error  # which may be a Message
    return text if len(text) <= 300 else text[:300] + " ..."


def _dotted(version: str) -> str:
    return ".".join(map(str, table.minor(version)))
