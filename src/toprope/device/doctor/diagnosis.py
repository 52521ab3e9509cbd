"""Diagnosis: the reason why there is no NPU, parts that do not fit, and advice. Pure: facts in, findings out.

The order of `checks` is by cause: what has to be fixed first comes first. Called by `cli.doctor` and `cli.devices` with
the facts of `collect`. A finding is added here or in `mask_checks` and `software_checks`; its name is an interface for
programs, its text is translated (locale/zh.po), and a test begins from facts written by hand. Tests:
tests/device/test_doctor.py, tests/device/test_doctor_threads.py.
"""

from __future__ import annotations

from collections.abc import Iterator

from toprope.device.doctor import mask_checks, software_checks
from toprope.device.doctor.finding import Finding
from toprope.device.host.libraries import codes
from toprope.device.host.machine import DeviceResult, Examination, Facts
from toprope.messages import Message, joined

__all__ = ["diagnose"]

AUTOLOAD = "TORCH_DEVICE_BACKEND_AUTOLOAD"


def diagnose(facts: Facts) -> tuple[Finding, ...]:
    """Return the findings for these facts, causes first.

    Example:
        >>> from toprope.device.host.machine import Facts
        >>> [finding.name for finding in diagnose(Facts(python="3.11.7"))]
        ['no-torch']
    """
    checks = (
        _torch, software_checks.torch_npu, _backends, _import, software_checks.environment, mask_checks.masks, _cards,
        _nodes, software_checks.versions, software_checks.python_packages, _health, _devices, _setting, _unfinished,
    )  # fmt: skip
    return tuple(finding for check in checks for finding in check(facts))


def _torch(facts: Facts) -> Iterator[Finding]:
    """Findings about a torch that is missing or cannot be imported."""
    examination = facts.examination
    if examination is not None and examination.torch_error and "torch" in facts.packages:
        yield Finding(
            "torch-broken",
            Message(
                "torch {torch} cannot be imported: {torch_error}",
                torch=facts.packages["torch"],
                torch_error=examination.torch_error,
            ),
            (Message("install torch again (for an NPU the CPU build)"),),
        )
    elif "torch" not in facts.packages and not (examination is not None and examination.torch):
        yield Finding(
            "no-torch",
            Message(
                "torch is not installed in this Python ({executable}).", executable=facts.executable or facts.python
            ),
            (
                Message(
                    "install torch first: for an NPU the CPU build, of the release that the torch-npu you want names"
                ),
            ),
        )


def _import(facts: Facts) -> Iterator[Finding]:
    """`import torch` alone, as programs do it: it loads other packages' backends."""
    examination = facts.examination
    if examination is None:
        return
    broken = [backend.name for backend in examination.backends if backend.error]
    if examination.import_error:
        guilty = (
            joined(" and ", broken) + (Message(" are") if len(broken) > 1 else Message(" is"))
            if broken
            else Message("another package is")
        )
        yield Finding(
            "import-torch",
            Message(
                "`import torch` itself fails while {guilty} like this: torch loads it by itself. With "
                "{autoload}=0 it does not, and there is no npu.",
                guilty=guilty,
                autoload=AUTOLOAD,
            ),
            (Message("until it is fixed: export {autoload}=0", autoload=AUTOLOAD),),
            looked_at=examination.import_error,
            sources=("https://github.com/flagos-ai/FlagTree/issues/1024",),
        )
    elif facts.environment.get(AUTOLOAD) == "0" and examination.torch_npu and not examination.facade:
        yield Finding(
            "autoload-off",
            Message(
                "{autoload}=0 keeps torch from loading torch_npu: there is no npu before a program imports it.",
                autoload=AUTOLOAD,
            ),
            (Message("unset {autoload}, or import torch_npu in the program", autoload=AUTOLOAD),),
            problem=False,
        )


def _backends(facts: Facts) -> Iterator[Finding]:
    """Findings about backends other than torch_npu."""
    for backend in facts.examination.backends if facts.examination is not None else ():
        if backend.error and backend.module == "toprope":
            yield Finding(
                "simulated-card",
                Message(
                    "the simulated card that TOPROPE_SIM asks for cannot be installed: {error}",
                    error=backend.error.partition(": ")[2].partition(" looked at ")[0],
                ),
                (
                    Message("correct TOPROPE_SIM, such as TOPROPE_SIM=910B3x2,hbm=1GiB, or unset it"),
                    Message("or start the program with toprope run --device sim, which sets it itself"),
                ),
            )
        elif backend.error and backend.module != "torch_npu":
            yield Finding(
                "backend-broken",
                Message(
                    "the backend {name} of torch (package {module}) cannot be loaded: {error}",
                    name=backend.name,
                    module=backend.module,
                    error=backend.error,
                ),
                (Message("fix or uninstall the package that has {module}", module=backend.module),),
            )


def _cards(facts: Facts) -> Iterator[Finding]:
    """Findings about a working torch_npu that shows no card."""
    examination = facts.examination
    loaded = examination is not None and bool(examination.torch_npu) and not examination.facade
    if not loaded or facts.simulated or examination is None or examination.of("npu"):
        return
    if "npu" not in examination.absent:
        return  # it crashed or hung before it could say: see _unfinished
    if "npu" in examination.broken:
        yield Finding(
            "torch-npu-broken",
            Message("torch_npu can be imported, and yet there is no NPU: {reason}.", reason=examination.absent["npu"]),
            (*(f"toprope doctor {code}" for code in codes(examination.absent["npu"])), examination.broken["npu"]),
            looked_at=joined(", ", (part for part in (examination.torch_npu_file, facts.ascend.text) if part)),
        )
        return
    why, do = facts.ascend.why_no_card()
    yield Finding(
        "no-card",
        Message("torch_npu works and shows no card: {why}.", why=why),
        (do,),
        looked_at=facts.ascend.text,
        sources=("https://github.com/vllm-project/vllm-ascend/issues/14631",),
    )


def _nodes(facts: Facts) -> Iterator[Finding]:
    """Findings about device files that are missing or may not be opened."""
    machine = facts.ascend
    if machine.refused:
        numbers = joined(", ", (f"/dev/davinci{number}" for number in machine.refused))
        group = machine.owner.partition(":")[2]
        do: tuple[str, ...] = (
            Message("usermod -aG {group} USER, and log in again", group=group),
            Message("in a container: run as a user of that group, or with the capability DAC_OVERRIDE"),
        )
        if group in facts.groups:
            do = (Message("let an administrator give the group read and write (chmod 660)"),)
        yield Finding(
            "permission",
            Message(
                "you may not open {numbers}: owned by {owner}, and {reason}.",
                numbers=numbers,
                owner=machine.owner,
                reason=Message("its mode does not let the group in")
                if group in facts.groups
                else Message("you are not in that group"),
            ),
            do,
            sources=("https://github.com/Project-HAMi/ascend-device-plugin/issues/139",),
        )
    if machine.cards and facts.missing_nodes:
        names = joined(", ", (f"/dev/{name}" for name in facts.missing_nodes))
        yield Finding(
            "shared-nodes",
            Message("there are cards in /dev, but not {names}, which every card needs.", names=names),
            (
                Message(
                    "start the container with {missing_nodes}",
                    missing_nodes=" ".join(f"--device /dev/{name}" for name in facts.missing_nodes),
                ),
            )
            if machine.container
            else (Message("load the driver (npu-smi info must work)"),),
        )
    if machine.cards and machine.container and not machine.driver:
        yield Finding(
            "driver-not-mounted",
            Message(
                "the cards are in this container, but not the driver's files (/usr/local/Ascend/driver/version.info)."
            ),
            (Message("mount /usr/local/Ascend/driver/lib64 and /usr/local/Ascend/driver/version.info from the host"),),
            sources=("https://github.com/PaddlePaddle/PaddleOCR/issues/16162",),
            problem=not _works(facts),
        )


def _health(facts: Facts) -> Iterator[Finding]:
    """Findings from the output of npu-smi."""
    for card in facts.smi_cards or ():
        if card.health.upper() != "OK":
            chip = Message(" chip {chip}", chip=card.chip) if card.chip else ""
            yield Finding(
                "health",
                Message(
                    "npu-smi calls card {npu}{chip} ({name}) {health!r}.",
                    npu=card.npu,
                    chip=chip,
                    name=card.name,
                    health=card.health,
                ),
                (
                    Message(
                        "npu-smi info -t health -i {npu} shows why; reset the card when nobody uses it", npu=card.npu
                    ),
                ),
            )
    if facts.npu_smi_error and facts.ascend.cards:
        yield Finding(
            "npu-smi",
            Message("npu-smi lists no card: {npu_smi_error}", npu_smi_error=facts.npu_smi_error),
            (Message("the driver is not loaded, or not all of it is in this container"),),
            problem=not _works(facts),
        )


def _devices(facts: Facts) -> Iterator[Finding]:
    """Findings about devices that fail at basic operations."""
    for device in facts.examination.devices if facts.examination is not None else ():
        if device.error:
            yield _failed(device, Message("cannot be asked"), device.error)
            continue
        plain = next((each for each in device.dtypes if each.dtype == "float32"), None)
        if plain is not None and not plain.works:
            yield _failed(
                device, Message("does not compute with float32 ({failed})", failed=plain.failed), plain.reason
            )
        if device.step is not None and device.step.error:
            yield _failed(device, Message("cannot train a tiny model"), device.step.error)
        elif device.step is not None and not device.step.learned:
            yield _failed(
                device,
                Message("trains a tiny model wrongly"),
                Message("loss {first:.4g} before, {last:.4g} after", first=device.step.first, last=device.step.last),
            )


def _failed(device: DeviceResult, what: str, error: str) -> Finding:
    """The finding about a device that failed at an operation, with the known meaning of its codes."""
    from toprope.codes import in_text

    known = {each.code: each.means for each in in_text(error)}
    do: tuple[str, ...] = tuple(f"toprope doctor {code}: {known[code]}" for code in codes(error))
    return Finding(
        "device-fails",
        Message("{device} {what}: {error}", device=device.name, what=what, error=error),
        do or (Message("see the error; npu-smi info for the card"),),
    )


def _setting(facts: Facts) -> Iterator[Finding]:
    """Findings about settings that are invalid or name a missing device."""
    refused = facts.examination.refused if facts.examination is not None else {}
    if refused:
        yield Finding(
            "setting",
            Message("a program that leaves the device to what is set gets an error: {what}", what=refused["what"]),
            (refused["do"] or Message("correct what is set, or TOPROPE_DEVICE=cpu"),),
            looked_at=refused["looked_at"],
        )


def _unfinished(facts: Facts) -> Iterator[Finding]:
    """Finding about a child that crashed or hung outside of torch_npu's import, which has its own finding."""
    examination = facts.examination
    if examination is None or not examination.ended or examination.doing == "import torch_npu":
        return
    slow = "did not answer" in examination.ended
    yield Finding(
        "unfinished",
        Message(
            "the search ended early: {ended}, while it was to {doing}.",
            ended=examination.ended,
            doing=examination.doing or Message("start"),
        ),
        (
            Message("give it more time: toprope doctor --wait 300"),
            Message("npu-smi info: does the driver answer, is a card busy?"),
        )
        if slow
        else (Message("try that step by itself in Python to see its error"),),
    )


def _works(facts: Facts) -> bool:
    """True if a real card was found and trained."""
    examination: Examination | None = facts.examination
    return examination is not None and any(
        device.step is not None and device.step.learned and not device.simulated for device in examination.of("npu")
    )
