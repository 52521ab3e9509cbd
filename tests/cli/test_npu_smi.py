"""The simulated npu-smi: its text against recorded layouts, and through the eyes of public tools.

Holds `cli.npu_smi` and `cli.smi`. The measure is outputs of the vendor's tool from public threads, and public tools
that read them.
"""

import os
import re
import stat
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toprope import __version__
from toprope.cli import npu_smi
from toprope.cli.npu_smi import answer, main
from toprope.cli.smi.machine import Machine, machine
from toprope.errors import UsageError
from toprope.sim.metrics import cards
from toprope.sim.metrics.cards import CardState, ProcessState
from toprope.sim.spec import MAX_CARDS, SimSpec

pytestmark = [pytest.mark.native, pytest.mark.process]

# Lines as npu-smi printed them on real cards (figures and addresses are those of the machines they came from).
RECORDED = {
    # https://github.com/1Panel-dev/1Panel/issues/9472, npu-smi 24.1.1; processes: 25.2.0 on an A3
    "910B4": """
+------------------------------------------------------------------------------------------------+
| npu-smi 24.1.1                   Version: 24.1.1                                               |
+---------------------------+---------------+----------------------------------------------------+
| NPU   Name                | Health        | Power(W)    Temp(C)           Hugepages-Usage(page)|
| Chip                      | Bus-Id        | AICore(%)   Memory-Usage(MB)  HBM-Usage(MB)        |
+===========================+===============+====================================================+
| 0     910B4               | OK            | 88.2        30                0    / 0             |
| 0                         | 0000:C1:00.0  | 0           0    / 0          26838/ 32768         |
+===========================+===============+====================================================+
+---------------------------+---------------+----------------------------------------------------+
| NPU     Chip              | Process id    | Process name             | Process memory(MB)      |
+===========================+===============+====================================================+
| 0       0                 | 576489        | python                   | 26838                   |
+===========================+===============+====================================================+
""",
    # https://github.com/vllm-project/vllm-ascend/issues/2534 and its sisters, npu-smi 25.x on an Atlas A3
    "910_9391": """
+------------------------------------------------------------------------------------------------+
| npu-smi 25.2.0                   Version: 25.2.0                                               |
+---------------------------+---------------+----------------------------------------------------+
| NPU   Name                | Health        | Power(W)    Temp(C)           Hugepages-Usage(page)|
| Chip  Phy-ID              | Bus-Id        | AICore(%)   Memory-Usage(MB)  HBM-Usage(MB)        |
+===========================+===============+====================================================+
| 0     Ascend910           | OK            | 162.8       37                0    / 0             |
| 0     0                   | 0000:9C:00.0  | 0           0    / 0          3133 / 65536         |
+------------------------------------------------------------------------------------------------+
| 0     Ascend910           | OK            | -           37                0    / 0             |
| 1     1                   | 0000:9E:00.0  | 0           0    / 0          2876 / 65536         |
+===========================+===============+====================================================+
| 1     Ascend910           | OK            | 167.1       38                0    / 0             |
| 0     2                   | 0000:37:00.0  | 0           0    / 0          3116 / 65536         |
+===========================+===============+====================================================+
+---------------------------+---------------+----------------------------------------------------+
| NPU     Chip              | Process id    | Process name             | Process memory(MB)      |
+===========================+===============+====================================================+
| No running processes found in NPU 0                                                            |
+===========================+===============+====================================================+
| 1       0                 | 990711        | python                   | 3116                    |
+===========================+===============+====================================================+
""",
    # an Atlas 300I Pro with npu-smi 25.2.0: NPU IDs by slot, memory as DDR
    "310P3": """
+--------------------------------------------------------------------------------------------------------+
| npu-smi 25.2.0                                   Version: 25.2.0                                       |
+-------------------------------+-----------------+------------------------------------------------------+
| NPU     Name                  | Health          | Power(W)     Temp(C)           Hugepages-Usage(page) |
| Chip    Device                | Bus-Id          | AICore(%)    Memory-Usage(MB)                        |
+===============================+=================+======================================================+
| 0       310P3                 | OK              | NA           48                0     / 0             |
| 0       0                     | 0000:01:00.0    | 0            1851 / 21527                            |
+===============================+=================+======================================================+
| 32      310P3                 | OK              | NA           50                0     / 0             |
| 0       1                     | 0000:02:00.0    | 0            1852 / 21527                            |
+===============================+=================+======================================================+
+-------------------------------+-----------------+------------------------------------------------------+
| NPU     Chip                  | Process id      | Process name             | Process memory(MB)        |
+===============================+=================+======================================================+
| 0       0                     | 990711          | python                   | 1851                      |
+===============================+=================+======================================================+
| No running processes found in NPU 32                                                                   |
+===============================+=================+======================================================+
""",
    # npu-smi 25.6.rc1 on an Ascend 950
    "950DT_9591": """
+------------------------------------------------------------------------------------------------------------------+
| npu-smi 25.6.rc1                                 Version: 25.6.rc1                                               |
+--------+------------------+---------------+----------------------------------------------------------------------+
| NPU ID | Name             | Health        | Power(W)              Temp(C)                  Hugepages-Usage(page) |
|        |                  | Bus-Id        | NPU Util(%)           Memory-Usage(MB)         HBM-Usage(MB)         |
+========+==================+===============+======================================================================+
| 0      | Ascend950DT      | OK            | 380.7                 44                       0     / 0             |
|        |                  | NA            | 0                     0     / 0                6632  / 86016         |
+===========================+===============+======================================================================+
+---------------------------+---------------+----------------------------------------------------------------------+
| NPU ID                    | Process id    | Process name       | Process memory(MB)    | Process id in container |
+===========================+===============+======================================================================+
| 0                         | 3621066       | python             | 6632                  | NA                      |
+===========================+===============+======================================================================+
""",
}

# What was measured on those machines and is not simulated, and what stands for it here.
NOT_SIMULATED = {
    "910B4": [
        (r"88\.2        30", "-           - "), ("0000:C1:00.0", "NA          "),
        (r"\| 0           0    /", "| -           0    /"),
    ],
    "910_9391": [
        (r"(162\.8|167\.1) ", "-     "), (r"-           3[78]", "-           - "),
        (r"0000:(9C|9E|37):00\.0", "NA          "), (r"\| 0           0    /", "| -           0    /"),
    ],
    "310P3": [
        (r"NA           (48|50)", "NA           NA"), (r"0000:0\d:00\.0", "NA          "),
        (r"\| 0            185", "| NA           185"),
    ],
    "950DT_9591": [
        (r"380\.7                 44", "NA                    NA"),
        (r"\| 0                     0     /", "| NA                    0     /"),
    ],
}  # fmt: skip


def process(pid: int, name: str = "python", **mib: int) -> ProcessState:
    """A process that holds memory of cards, in MiB by card: card0=5."""
    held = [mib.get(f"card{card}", 0) * 2**20 + (2**19 if f"card{card}" in mib else 0) for card in range(MAX_CARDS)]
    return ProcessState(pid, name, 1, tuple(held))


def run_of(spec: str, *processes: ProcessState, unhealthy: dict[int, int] | None = None) -> Machine:
    """A machine whose cards are held by these processes."""
    made = SimSpec.parse(spec)
    states = [
        CardState(
            card,
            sum(each.reserved[card] for each in processes),
            (unhealthy or {}).get(card, 0),
            tuple(each for each in processes if each.reserved[card]),
        )
        for card in range(made.count)
    ]
    return machine(made, states)


MACHINES = {
    "910B4": run_of("910B4", process(576489, card0=26838)),
    "910_9391": run_of("910Cx3", process(990711, card2=3116)),
    "310P3": run_of("310P3x2", process(990711, card0=1851)),
    "950DT_9591": run_of("950DT_9591,hbm=86016MiB", process(3621066, card0=6632)),
}


@pytest.mark.parametrize("chip", RECORDED)
def test_the_overview_is_the_recorded_one_but_for_what_is_not_simulated(chip: str) -> None:
    wanted = RECORDED[chip].lstrip("\n")
    for pattern, instead in NOT_SIMULATED[chip]:
        assert re.search(pattern, wanted)
        wanted = re.sub(pattern, instead, wanted)
    # what other processes held there, and what the driver keeps, which is counted here next to what processes hold
    wanted = re.sub(r"(3133|2876) / 65536", "2796 / 65536", wanted).replace("1852 / 21527", "0    / 21527")
    wanted = wanted.replace("3116 / 65536", "5912 / 65536").replace("26838/ 32768", "29408/ 32768")
    seen = answer(["info"], MACHINES[chip]).splitlines()
    lines = wanted.splitlines()
    assert [line for place, line in enumerate(seen) if place != 1] == [
        line for place, line in enumerate(lines) if place != 1
    ]
    # the first line names a version, and says that nothing of this is measured
    assert f"(simulated by toprope {__version__})" in seen[1]
    assert [len(seen[1]), seen[1].index("Version:"), seen[1][-1]] == [len(lines[1]), lines[1].index("Version:"), "|"]


@given(st.sampled_from(["910B3", "910C", "310P3", "950DT_9591", "910A"]), st.integers(1, 16), st.data())
def test_every_table_is_straight(chip: str, count: int, data: st.DataObject) -> None:
    held = st.dictionaries(st.integers(0, count - 1).map("card{}".format), st.integers(0, 20000), min_size=1)
    names = st.text("abcdefghijklmnop()_.: ", max_size=15)
    drawn = data.draw(st.lists(st.tuples(st.integers(1, 4_194_304), names, held), max_size=4))
    seen = answer(["info"], run_of(f"{chip}x{count}", *(process(pid, name, **mib) for pid, name, mib in drawn)))
    assert {len(line) for line in seen.splitlines()} == {len(seen.splitlines()[0])}
    assert all(line[0] == line[-1] and line[0] in "+|" for line in seen.splitlines())


def test_two_processes_on_one_card_are_both_shown_and_their_sum_is_the_cards() -> None:
    seen = answer(["info"], run_of("910B3x2", process(12, card1=100), process(7, "sglang::schedul", card1=28)))
    assert (
        "| 1       0                 | 7             | sglang::schedul          | 28                      |\n" in seen
    )
    assert (
        "| 1       0                 | 12            | python                   | 100                     |\n" in seen
    )
    assert seen.index(" 7  ") < seen.index(" 12  ")
    assert "| 0                         | NA            | -           0    / 0          3242 / 65536         |" in seen
    assert "No running processes found in NPU 0" in seen


def test_mapping_of_one_chip_and_of_two() -> None:
    assert answer(["info", "-m"], MACHINES["910B4"]) == (
        "\tNPU ID                         Chip ID                        Chip Logic ID                  Chip Name\n"
        "\t0                              0                              0                              Ascend 910B4\n"
        "\t0                              1                              -                              Mcu\n"
    )
    rows = [line.split() for line in answer(["info", "-m"], MACHINES["910_9391"]).splitlines()]
    assert rows[1:] == [
        ["0", "0", "0", "0", "Ascend910"], ["0", "1", "1", "1", "Ascend910"], ["0", "2", "-", "-", "Mcu"],
        ["1", "0", "2", "2", "Ascend910"], ["1", "1", "-", "-", "Mcu"],
    ]  # fmt: skip
    assert answer(["info", "-m"], MACHINES["950DT_9591"]).split()[-5:] == ["0", "0", "0", "0", "Ascend950DT"]


def test_the_list_begins_with_the_number_of_npus() -> None:
    seen = answer(["info", "-l"], MACHINES["910_9391"])
    assert seen.startswith("\tTotal Count                    : 2\n\n\tNPU ID                         : 0\n")
    assert seen.count("Chip Count                     : 2") == 1
    assert seen.count("Chip Count                     : 1") == 1


def fields(text: str) -> dict[str, str]:
    return {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in text.splitlines())}


@pytest.mark.parametrize("kind", ["board", "common", "health", "memory", "power", "proc-mem", "temp", "usages"])
@pytest.mark.parametrize("chip", RECORDED)
def test_every_subject_has_an_answer_on_every_chip(chip: str, kind: str) -> None:
    device = MACHINES[chip].devices[-1]
    whole = answer(["info", "-t", kind, "-i", str(device.npu)], MACHINES[chip])
    assert whole.startswith(f"\tNPU ID                         : {device.npu}\n")
    assert "Chip Count                     : 1\n" in whole
    one = answer(["info", "-c", str(device.chip), "-i", str(device.npu), "-t", kind], MACHINES[chip])
    assert one.endswith("\n")
    assert all(line.startswith("\t") or not line for line in (whole + one).splitlines())


def test_memory_and_usages_are_the_cards_and_the_rest_is_not_made_up() -> None:
    memory = fields(answer(["info", "-t", "memory", "-i", "0"], MACHINES["910B4"]))
    assert (memory["HBM Capacity(MB)"], memory["HBM Temperature(C)"]) == ("32768", "NA")
    usages = fields(answer(["info", "-t", "usages", "-i", "0", "-c", "0"], MACHINES["910B4"]))
    assert usages["HBM Usage Rate(%)"] == "89"
    assert {value for name, value in usages.items() if name.startswith(("Aicore", "Aivector", "NPU"))} == {"NA"}
    ddr = fields(answer(["info", "-t", "usages", "-i", "0"], MACHINES["310P3"]))
    assert (ddr["DDR Capacity(MB)"], ddr["DDR Usage Rate(%)"]) == ("21527", "8")
    assert "HBM Capacity(MB)" not in ddr
    common = fields(answer(["info", "-t", "common", "-i", "0"], MACHINES["910B4"]))
    assert (common["Aicore Count"], common["Temperature(C)"]) == ("20", "NA")


def test_processes_of_one_npu() -> None:
    seen = answer(["info", "-t", "proc-mem", "-i", "1"], run_of("910B3x2", process(7, card1=3)))
    assert "\tProcess id:7       Process name:python            Process memory(MB):3\n" in seen
    assert "\tNo process in device.\n" in answer(["info", "-t", "proc-mem", "-i", "0"], run_of("910B3"))


def test_a_card_that_is_not_well_is_critical_and_says_with_which_code() -> None:
    sick = run_of("910B3x2", unhealthy={1: 507033})
    assert "| 1     910B3               | Critical      |" in answer(["info"], sick)
    health = fields(answer(["info", "-t", "health", "-i", "1", "-c", "0"], sick))
    assert (health["Health Status"], health["Error Code"]) == ("Critical", "507033")
    assert fields(answer(["info", "-t", "health", "-i", "0"], sick))["Health Status"] == "OK"
    assert fields(answer(["info", "-t", "health", "-i", "0"], MACHINES["950DT_9591"]))["Health"] == "OK"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["info", "-t", "board", "-i", "1"], "there is no NPU 1."),
        (["info", "-t", "board", "-i", "x"], "there is no NPU x."),
        (["info", "-t", "board", "-i", "0", "-c", "3"], "NPU 0 has no chip 3."),
        (["info", "-t", "topo", "-i", "0"], "This device does not support querying topo"),
        (["info", "-t", "board"], "is no command"),
        (["info", "-t", "board", "-i"], "is no command"),
        (["info", "-i", "0"], "is no command"),
        (["info", "watch"], "is no command"),
        (["set", "-t", "reset", "-i", "0"], "is no command"),
    ],
)
def test_what_there_is_not_is_an_error(words: list[str], told: str) -> None:
    with pytest.raises(UsageError, match=re.escape(told)):
        answer(words, MACHINES["910B4"])


def test_help_and_version() -> None:
    assert answer(["-v"], MACHINES["910B4"]) == "npu-smi version: 25.5.0\n"
    for words in ([], ["-h"], ["--help"], ["info", "-h"]):
        assert answer(words, MACHINES["910B4"]).startswith("Usage: npu-smi info ")


# ---- as public tools read it


def logic_ids(text: str) -> dict[tuple[int, int], int]:
    """(NPU, chip) -> device, as vllm-ascend, gpustack and others read `info -m`: rows without a logic id are left."""
    found = {}
    for line in text.splitlines()[1:]:
        npu, chip, logic = line.split()[:3]
        if logic.isdigit():
            found[int(npu), int(chip)] = int(logic)
    return found


@pytest.mark.parametrize("spec", ["910B3x3", "910Cx5", "310P3x3"])
def test_processes_are_found_on_their_device(spec: str) -> None:
    """As vllm-ascend binds CPUs: rows "| npu chip | pid | ..." of `info`, mapped by `info -m`."""
    made = run_of(spec, process(41, card0=5), process(42, card2=6))
    mapped = logic_ids(answer(["info", "-m"], made))
    assert sorted(mapped.values()) == list(range(SimSpec.parse(spec).count))
    seen = {}
    for line in answer(["info"], made).splitlines():
        parts = [part.strip() for part in line.strip("|").split("|")]
        if len(parts) > 1 and re.fullmatch(r"\d+\s+\d+", parts[0]) and parts[1].isdigit():
            npu, chip = parts[0].split()
            seen[int(parts[1])] = mapped[int(npu), int(chip)]
    assert seen == {41: 0, 42: 2}


@pytest.mark.parametrize(
    ("spec", "capacity", "kept"),
    [("910B3x2", 65536, 3113), ("910Cx2", 65536, 2796), ("310P3x2", 21527, 0), ("910B3x2,hbm=1GiB", 1024, 0)],
)
def test_memory_is_the_last_pair_of_a_devices_second_row(spec: str, capacity: int, kept: int) -> None:
    """As nputop and many scripts read it: the last "used / total" of the row."""
    pairs = []
    for line in answer(["info"], run_of(spec, process(41, card1=77))).splitlines():
        if re.match(r"\|\s*\d+\s+\d*\s*\|\s*(NA|[0-9A-F]+:[0-9A-F:.]+)\s*\|", line):
            pairs.append(tuple(map(int, re.findall(r"(\d+)\s*/\s*(\d+)", line)[-1])))
    assert pairs == [(kept, capacity), (kept + 77, capacity)]


def test_the_number_of_cards_is_on_the_first_line_of_the_list() -> None:
    """As deepspeed counts accelerators."""
    assert int(answer(["info", "-l"], run_of("910B3x8")).strip().split("\n")[0].split(":")[1].strip()) == 8


def software_version(npu: str, machine: Machine) -> str:
    """As verl reads it, from a card whose number it assumes."""
    text = answer(["info", "-t", "board", "-i", npu], machine)
    return next(line.split(":")[1].strip() for line in text.splitlines() if "Software Version" in line)


def test_verl_6756_npu_1_is_not_there_on_every_machine() -> None:
    """https://github.com/verl-project/verl/issues/6756: a parser assumes that there is an NPU 1."""
    assert software_version("1", run_of("910B3x2")) == "25.5.0"
    for spec in ("910B3", "910Cx2", "310P3x4"):
        with pytest.raises(UsageError, match=re.escape("there is no NPU 1.")):
            software_version("1", run_of(spec))


# ---- as a program finds it


def test_the_launcher_needs_neither_the_programs_python_nor_its_variables(tmp_path: Path) -> None:
    folder = tmp_path / "a run's folder}"
    folder.mkdir()
    tools = npu_smi.install(folder, SimSpec.parse("910B3x2,hbm=1GiB"))
    launcher = tools / "npu-smi"
    assert launcher.stat().st_mode & stat.S_IXOTH
    done = subprocess.run(
        [launcher, "info", "-l"], env={}, cwd="/", stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("\tTotal Count                    : 2\n")
    done = subprocess.run(
        [launcher, "info", "-t", "memory", "-i", "3"], env={"TOPROPE_SIM": "910B4x4", "PYTHONPATH": "/nowhere"},
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert "HBM Capacity(MB)               : 32768" in done.stdout


def test_a_wrong_question_ends_with_status_1_and_an_error(tmp_path: Path) -> None:
    launcher = npu_smi.install(tmp_path, SimSpec()) / "npu-smi"
    done = subprocess.run([launcher, "info", "-t", "board", "-i", "1"], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("npu-smi: there is no NPU 1.")
    shell = f"{launcher} info | head -1"
    done = subprocess.run(["sh", "-c", shell], capture_output=True, text=True, timeout=60)
    assert (done.stderr, len(done.stdout)) == ("", 99)


def test_it_loads_neither_torch_nor_the_command_line(tmp_path: Path) -> None:
    code = (
        "import sys; from toprope.cli.npu_smi import main; status = main(['info']); "
        "print(status, sorted({'torch', 'typer', 'click', 'numpy', 'rich'} & set(sys.modules)))"
    )
    variables = {**os.environ, "TOPROPE_SIM": "910B3", "TOPROPE_RUN_DIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], env=variables, capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines()[-1] == "0 []", done.stderr


def test_the_cards_file_is_read_and_the_dead_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TOPROPE_SIM", "910B3")
    monkeypatch.setenv("TOPROPE_RUN_DIR", str(tmp_path))
    started = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    living = struct.pack("<QQ32s16Q", os.getpid(), started, b"me", 3 * 2**20, *[0] * 15)
    reused = struct.pack("<QQ32s16Q", os.getpid(), started + 1, b"another", 5 * 2**20, *[0] * 15)
    gone = struct.pack("<QQ32s16Q", 2**22 + 5, 1, b"gone", 7 * 2**20, *[0] * 15)
    (tmp_path / cards.FILE).write_bytes(bytes(16 * 64) + living + reused + gone)
    begin = time.monotonic()
    assert main(["info"]) == 0
    assert time.monotonic() - begin < 30
    seen = capsys.readouterr().out
    assert re.findall(r"\| 0 +0 +\| (\d+) +\| (\w+) +\| (\d+) ", seen) == [(str(os.getpid()), "me", "3")]
    assert "3116 / 65536" in seen
