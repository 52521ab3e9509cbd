"""`toprope run` in real processes, one of which loads torch: input and output, signals, variables, exit statuses.

Holds `cli.run` and `cli.launch.child_process`; test_run_card, test_run_failed and test_run_trace have the rest.
"""

import ctypes
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from device_stand_ins import in_python
from toprope.cli.launch import child_process
from toprope.cli.launch.child_process import SITE, environment_for, make_toolkit, run_program, without_run
from toprope.cli.launch.select_target import Choice
from toprope.sim.spec import SimSpec

pytestmark = [pytest.mark.native, pytest.mark.process]


def reset_signals() -> None:
    """In the child: the tests may run in the background of a shell that ignores Ctrl-C, which programs inherit."""
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


class World:
    """A folder with programs, and `toprope run` started in it with a temporary folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.temporary = folder / "tmp"
        self.temporary.mkdir()

    def program(self, code: str, name: str = "program.py") -> str:
        (self.folder / name).write_text(textwrap.dedent(code))
        return name

    def start(self, *words: str, **variables: str) -> subprocess.Popen[str]:
        names = ("TOPROPE", "PYTHON", "TORCH", "ASCEND")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(names)}
        return subprocess.Popen(
            [sys.executable, "-m", "toprope", "run", *words],
            cwd=self.folder, env=kept | {"TMPDIR": str(self.temporary)} | variables, text=True, start_new_session=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, preexec_fn=reset_signals,
        )  # fmt: skip

    def run(self, *words: str, stdin: str = "", **variables: str) -> subprocess.CompletedProcess[str]:
        process = self.start(*words, **variables)
        out, err = process.communicate(stdin, timeout=60)
        return subprocess.CompletedProcess(words, process.returncode, out, err)

    def stub(self, name: str, code: str, distribution: str = "") -> None:
        """Install a stub package in the folder `stubs`."""
        (self.folder / "stubs" / name).mkdir(parents=True)
        (self.folder / "stubs" / name / "__init__.py").write_text(textwrap.dedent(code))
        if distribution:
            info = self.folder / "stubs" / f"{name}-2.13.0.dist-info"
            info.mkdir()
            (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 2.13.0\n")


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path)
    yield world
    assert list(world.temporary.iterdir()) == [], "the folder of the run was left behind"


CPU = "toprope: ran with the CPU (--device cpu), "
UNTOUCHED = (
    "toprope: the program did not touch the card: none of its processes loaded it (it comes with `import torch`)\n"
)
SHOW = "import os, json; print(json.dumps(dict(os.environ)))"


# ---- input, output, exit status


def test_output_is_the_programs_and_the_report_is_on_stderr(world: World) -> None:
    program = world.program("import sys; print(sys.argv[1:], sys.stdin.read()); sys.stderr.write('its own\\n')")
    done = world.run("--device", "cpu", program, "a", "--chip", "910B3", "--", "-q", stdin="typed")
    assert done.returncode == 0
    assert done.stdout == "['a', '--chip', '910B3', '--', '-q'] typed\n"
    first, second = done.stderr.splitlines()
    assert first == "its own"
    assert second.startswith(CPU)


@pytest.mark.parametrize("status", [1, 2, 3, 77])
def test_the_exit_status_is_the_programs(world: World, status: int) -> None:
    done = world.run("--device", "cpu", world.program(f"raise SystemExit({status})"))
    assert done.returncode == status
    assert done.stderr.startswith(CPU)


@pytest.mark.parametrize(
    "words",
    [
        ["-m", "program", "-m", "x"],
        ["-mprogram", "-m", "x"],
        ["--", "program.py", "-m", "x"],
        [sys.executable, "program.py", "-m", "x"],
    ],
)
def test_every_kind_of_program(world: World, words: list[str]) -> None:
    world.program("import sys; print(sys.argv[1:])")
    done = world.run("--device=cpu", "-q", *words)
    assert (done.returncode, done.stdout, done.stderr) == (0, "['-m', 'x']\n", "")


def test_json_is_one_line_on_stderr(world: World) -> None:
    done = world.run("--json", "--device", "cpu", world.program("print(1); raise SystemExit(4)"))
    assert (done.returncode, done.stdout) == (4, "1\n")
    facts = json.loads(done.stderr)
    assert (facts["device"], facts["exit_status"], facts["simulated"]) == ("cpu", 4, [])
    assert 0 < facts["seconds"] < 60


# ---- bad input: one message, nothing started


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["trian.py"], "there is no file 'trian.py'."),
        (["--device", "sim", "--trace", "no/such/t.json", "sh", "-c", "echo started"], "the trace cannot be written"),
        (["--device", "sim", "--trace", "/", "sh", "-c", "echo started"], "the trace cannot be written to /:"),
        (["--device", "cpu", "--trace", "t.json", "sh", "-c", "echo started"], "--trace t.json records the simulated"),
        (["-m", "no.such"], "there is no module 'no.such'"),
        (["no-such-command"], "there is no program 'no-such-command'"),
        (["--chip", "910Z9", "program.py"], "910Z9"),
        (["--count", "0", "program.py"], "0 is not a number of cards."),
        (["--hbm", "64G", "program.py"], "'64G' is not a size."),
        (["--chip", "910B3", "--device", "cpu", "program.py"], "--chip and --device cpu contradict each other"),
        (["--quiet", "--json", "program.py"], "--quiet and --json contradict each other."),
    ],
)
def test_bad_input(world: World, words: list[str], message: str) -> None:
    world.program("print('started')")
    done = world.run(*words)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("toprope: ")
    assert message in done.stderr.splitlines()[0]
    assert "Traceback" not in done.stderr


def test_a_real_card_where_there_is_none(world: World) -> None:
    done = world.run("--device", "npu", world.program("print('started')"))
    assert (done.returncode, done.stdout) == (3, "")
    assert "torch_npu is not installed" in done.stderr


def test_a_program_that_cannot_be_executed(world: World) -> None:
    (world.folder / "noise").write_bytes(b"\x00\x01\x02")
    (world.folder / "noise").chmod(0o755)
    done = world.run("--device", "cpu", "./noise")
    assert done.returncode == 2
    assert done.stderr.startswith("toprope: './noise' cannot be started: Exec format error.")


# ---- signals


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT])
def test_a_program_killed_by_a_signal(world: World, number: signal.Signals) -> None:
    done = world.run("--device", "cpu", world.program(f"import os; os.kill(os.getpid(), {int(number)})"))
    assert done.returncode == -number
    assert done.stderr.startswith(CPU)


WAITS = """
    import os, signal, sys, time
    def handle(number, frame):
        os.write(1, f"got {signal.Signals(number).name}\\n".encode())  # print may be at work when the signal comes
        os._exit(9)
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
        signal.signal(number, handle)
    print("ready", flush=True)
    time.sleep(60)
"""


def test_a_signal_that_comes_before_the_program_is_started_reaches_it(monkeypatch):
    start = subprocess.Popen

    def started_late(*words, **options):
        os.kill(os.getpid(), signal.SIGTERM)
        return start(*words, **options)

    monkeypatch.setattr(child_process.subprocess, "Popen", started_late)
    assert run_program([sys.executable, "-c", "import time; time.sleep(100)"], os.environ) == -signal.SIGTERM


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_signals_are_forwarded(world: World, number: signal.Signals) -> None:
    process = world.start("--device", "cpu", world.program(WAITS))
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (9, f"got {number.name}\n")
    assert err.startswith(CPU)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGQUIT])
def test_the_program_decides_about_ctrl_c(world: World, number: signal.Signals) -> None:
    process = world.start("--device", "cpu", world.program(WAITS))
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    os.killpg(process.pid, number)  # a terminal sends it to the whole group
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (9, f"got {number.name}\n")
    assert err.startswith(CPU)


def test_ctrl_c_ends_a_program_that_does_not_care(world: World) -> None:
    process = world.start("--device", "cpu", world.program("import time; print('ready', flush=True); time.sleep(60)"))
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGINT
    assert "KeyboardInterrupt" in err
    assert CPU in err


def test_what_nohup_ignores_the_program_ignores_too(world: World) -> None:
    program = world.program("import signal; print(signal.getsignal(signal.SIGHUP) is signal.SIG_IGN)")
    nohup = (
        "import os, signal, sys; signal.signal(signal.SIGHUP, signal.SIG_IGN); os.execv(sys.executable, sys.argv[1:])"
    )
    command = [sys.executable, "-m", "toprope", "run", "-q", "--device", "cpu", program]
    done = subprocess.run(
        [sys.executable, "-c", nohup, *command], cwd=world.folder, capture_output=True, text=True, timeout=60
    )
    assert done.stdout == "True\n"
    assert world.run("-q", "--device", "cpu", program).stdout == "False\n"


# ---- what a program is given


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_variables_without_a_simulated_card(world: World, device: str) -> None:
    done = world.run(
        "--device", device, world.program(SHOW), TOPROPE_SIM="910B3x4", PYTHONPATH="/somewhere", MINE="kept"
    )
    given = json.loads(done.stdout)
    assert given["TOPROPE_DEVICE"] == device
    assert given["PYTHONPATH"] == f"{SITE}{os.pathsep}/somewhere"
    assert given["MINE"] == "kept"
    assert not {"TOPROPE_SIM", "TOPROPE_RUN_DIR", "TORCH_DEVICE_BACKEND_AUTOLOAD", "ASCEND_RT_VISIBLE_DEVICES"} & set(
        given
    )


def test_variables_with_a_simulated_card(world: World) -> None:
    done = world.run("--chip", "910b2", "--count", "2", "--hbm", "1MiB", world.program(SHOW), TOPROPE_DEVICE="cpu")
    given = json.loads(done.stdout)
    assert SimSpec.parse(given["TOPROPE_SIM"]) == SimSpec("910B2", 2, 2**20, force=True)
    assert given["TOPROPE_DEVICE"] == "npu"
    assert Path(given["TOPROPE_RUN_DIR"]).parent == world.temporary
    assert given["PYTHONPATH"] == SITE
    assert "TORCH_DEVICE_BACKEND_AUTOLOAD" not in given
    assert done.stderr.startswith(UNTOUCHED)
    assert "910B2 (24 cube / 48 vector cores, 1.0 MiB, set by the user), 2 of it" in done.stderr


def test_the_users_own_autoload_switch_is_handed_on() -> None:
    base = {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    assert environment_for(Choice("sim", SimSpec()), base, "/f")["TORCH_DEVICE_BACKEND_AUTOLOAD"] == "0"


def test_a_run_on_a_real_card_has_a_folder_for_notes() -> None:
    environment = environment_for(Choice("npu"), {}, "/f")
    assert environment["TOPROPE_RUN_DIR"] == "/f"
    assert not {"TOPROPE_SIM", "PATH"} & environment.keys()


def test_an_index_in_the_users_device_is_kept() -> None:
    assert environment_for(Choice("npu"), {"TOPROPE_DEVICE": "npu:1"}, "/f")["TOPROPE_DEVICE"] == "npu:1"
    assert environment_for(Choice("sim", SimSpec()), {"TOPROPE_DEVICE": "npu:1"}, "/f")["TOPROPE_DEVICE"] == "npu:1"
    assert environment_for(Choice("cuda"), {"TOPROPE_DEVICE": "npu:1"}, "/f")["TOPROPE_DEVICE"] == "cuda"


@pytest.mark.parametrize(("device", "hidden"), [("cpu", True), ("cuda", True), ("npu", False)])
def test_a_real_card_is_hidden_where_there_is_to_be_none(device: str, hidden: bool) -> None:
    given = environment_for(Choice(device), {"ASCEND_RT_VISIBLE_DEVICES": "1,2"}, "/f", real_installed=True)
    assert given["ASCEND_RT_VISIBLE_DEVICES"] == ("" if hidden else "1,2")
    given = environment_for(Choice(device), {"ASCEND_RT_VISIBLE_DEVICES": "1,2"}, "/f")
    assert given["ASCEND_RT_VISIBLE_DEVICES"] == "1,2"


def test_what_an_outer_run_set_is_taken_away() -> None:
    users = {"PYTHONPATH": "/a:/b", "PATH": "/usr/bin:/bin"}
    outer = environment_for(Choice("sim", SimSpec()), users, "/f", trace=True)
    assert (outer["PATH"], outer["TOPROPE_TRACE"]) == ("/f/bin:/usr/bin:/bin", "1")
    assert without_run(outer) == users
    assert environment_for(Choice("cpu"), outer, "/g")["PATH"] == "/g/bin:/usr/bin:/bin"
    assert "TOPROPE_TRACE" not in environment_for(Choice("sim", SimSpec()), outer, "/g")
    assert "PATH" not in environment_for(Choice("sim", SimSpec()), {}, "/f")
    assert without_run({"PYTHONPATH": SITE}) == {}
    assert without_run({"PYTHONPATH": ""}) == {}


FINDERS = """
    import sys, json
    print([type(one).__name__ for one in sys.meta_path if type(one).__module__.startswith("toprope")], flush=True)
"""
ALL = "['ParallelFinder', 'TorchFinder', 'CardFinder', 'FacadeFinder']\n"


def test_children_and_their_children_have_the_finders(world: World) -> None:
    world.program(FINDERS, "child.py")
    program = world.program(
        """
        import multiprocessing, os, subprocess, sys
        import child
        if __name__ == "__main__":
            subprocess.run([sys.executable, "child.py"], check=True)
            subprocess.run(["sh", "-c", f"cd / && {sys.executable} {os.getcwd()}/child.py"], check=True)
            process = multiprocessing.get_context("spawn").Process(target=print, args=("spawned",))
            process.start()
            process.join()
        """
    )
    done = world.run("-q", "--chip", "910B3", program)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == ALL * 4 + "spawned\n"
    assert (
        world.run("-q", "--device", "cpu", "child.py").stdout == "['TorchFinder', 'ParallelFinder', 'FacadeFinder']\n"
    )


def test_a_command_has_the_finders(world: World) -> None:
    (world.folder / "test_it.py").write_text(
        "import sys\ndef test_it():\n    assert any(type(one).__name__ == 'CardFinder' for one in sys.meta_path)\n"
    )
    pytest_command = Path(sys.executable).with_name("pytest")
    done = world.run("--chip", "910B3", str(pytest_command), "-q", "-p", "no:cacheprovider", "test_it.py")
    assert done.returncode == 0, done.stdout
    assert "1 passed" in done.stdout


def test_a_users_sitecustomize_is_run_after_ours(world: World) -> None:
    (world.folder / "own").mkdir()
    world.program(FINDERS, "own/sitecustomize.py")
    done = world.run("-q", "--chip", "910B3", world.program("print('program')"), PYTHONPATH=str(world.folder / "own"))
    # the first line is toprope's own process, which is outside the run
    assert (done.stdout, done.stderr) == ("[]\n" + ALL + "program\n", "")


@pytest.mark.slow
def test_a_run_in_a_run(world: World) -> None:
    inner = [sys.executable, "-m", "toprope", "run", "-q"]
    program = world.program(SHOW)
    done = world.run("-q", "--chip", "910B2", *inner, program)
    assert json.loads(done.stdout)["PYTHONPATH"] == SITE
    assert json.loads(done.stdout)["TOPROPE_SIM"].startswith("910B2")
    done = world.run("-q", "--chip", "910B2", *inner, "--device", "cpu", program)
    assert "TOPROPE_SIM" not in json.loads(done.stdout)


def test_processes_that_outlive_the_program_do_not_hold_it_up(world: World) -> None:
    program = world.program(
        """
        import subprocess, sys
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"],
                         stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        """
    )
    start = time.monotonic()
    process = world.start("--chip", "910B3", program)
    process.communicate(timeout=60)
    assert time.monotonic() - start < 100
    os.killpg(process.pid, signal.SIGKILL)


# ---- auto


def test_auto_without_torch_npu_is_the_simulated_card_and_says_so(world: World) -> None:
    done = world.run(world.program("print(1)"))
    assert (done.returncode, done.stdout) == (0, "1\n")
    assert done.stderr.startswith(UNTOUCHED)
    assert "  chosen        by itself: torch_npu is not installed\n" in done.stderr


def test_auto_with_a_torch_npu_that_cannot_be_loaded_explains(world: World) -> None:
    world.stub("torch", "")
    world.stub(
        "torch_npu", "raise ImportError('libhccl.so: cannot open shared object file: No such file')", "torch-npu"
    )
    stubs = str(world.folder / "stubs")
    done = world.run(world.program(FINDERS), PYTHONPATH=stubs)
    assert (done.returncode, done.stdout) == (0, ALL)
    assert "by itself: torch_npu 2.13.0 is installed but cannot be loaded: libhccl.so is missing\n" in done.stderr
    done = world.run("--device", "npu", "program.py", PYTHONPATH=stubs)
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr.startswith("toprope: there is no Ascend card that works.\n")
    assert "set_env.sh" in done.stderr


@pytest.mark.soak
def test_auto_with_a_real_card_takes_it(world: World) -> None:
    properties = 'lambda index: types.SimpleNamespace(name="Ascend910B3", total_memory=2**36)'
    world.stub("torch_npu", f"{in_python(2)}npu.get_device_properties = {properties}\n", "torch-npu")
    program = world.program(
        "import os, torch_npu; print(torch_npu.torch.npu.device_count(), os.environ['TOPROPE_DEVICE'])"
    )
    stubs = str(world.folder / "stubs")
    for words in ([], ["--device", "npu"]):
        done = world.run(*words, program, PYTHONPATH=stubs)
        assert (done.returncode, done.stdout) == (0, "2 npu\n")
        assert done.stderr.startswith("toprope: ran with the real card, 2 x Ascend910B3 (torch_npu 2.13.0), ")
    done = world.run("--count", "2", program, PYTHONPATH=stubs)
    assert done.returncode == 2
    assert "add --device sim" in done.stderr


@pytest.mark.slow
def test_npu_smi_is_there_with_a_simulated_card_and_only_then(world: World) -> None:
    done = world.run("-q", "--chip", "910B3", "--count", "3", "npu-smi", "info", "-l")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("\tTotal Count                    : 3\n")
    done = world.run("-q", "--chip", "910B3", "sh", "-c", "npu-smi info -t board -i 1")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("npu-smi: there is no NPU 1.")
    done = world.run("-q", "--device", "cpu", "sh", "-c", "command -v npu-smi || echo none")
    assert done.stdout
    assert str(world.temporary) not in done.stdout


def test_a_trace_of_a_program_that_loads_no_card_is_empty_and_says_so(world: World) -> None:
    (world.folder / "t.json").write_text("what was there")
    program = world.program("print(open('t.json').read())")
    done = world.run("--chip", "910B3", "--trace", "t.json", program)
    assert done.stdout == "what was there\n", "it is not touched before the program has ended"
    assert done.stderr.endswith("  trace         t.json is empty: no process loaded the card\n")
    assert json.loads((world.folder / "t.json").read_text())["traceEvents"] == []


@pytest.mark.slow
def test_the_log_setting_acts_in_a_program(tmp_path):
    """TOPROPE_LOG was read and shown, and nothing acted on it."""
    program = tmp_path / "program.py"
    program.write_text("import logging\nlogging.getLogger('toprope').info('heard')\n")
    heard = {}
    for level in ("", "INFO", "ERROR"):
        done = subprocess.run(
            [sys.executable, "-m", "toprope", "run", "--device", "cpu", "--quiet", str(program)],
            env={**os.environ, "TOPROPE_LOG": level}, capture_output=True, text=True, timeout=60, check=True,
        )  # fmt: skip
        heard[level] = "toprope: INFO: heard" in done.stderr
    assert heard == {"": False, "INFO": True, "ERROR": False}


@pytest.mark.native
def test_extensions_that_deepspeed_links_to_cann_and_torch_npu_can_be_linked_and_loaded(tmp_path: Path) -> None:
    make_toolkit(tmp_path)
    home = environment_for(Choice("sim", SimSpec()), {}, str(tmp_path))["ASCEND_HOME_PATH"]
    (tmp_path / "a.c").write_text("int three(void) { return 3; }\n")
    subprocess.run(
        ["cc", "-shared", "-fPIC", "a.c", f"-L{home}/lib64", "-lascendcl", "-ltorch_npu", "-o", "a.so"],
        cwd=tmp_path, timeout=60, check=True,
    )  # fmt: skip
    assert ctypes.CDLL(str(tmp_path / "a.so")).three() == 3


def test_deepspeed_found_no_variable_of_set_env_in_a_run(tmp_path: Path) -> None:
    make_toolkit(tmp_path)
    environment = environment_for(Choice("sim", SimSpec()), {}, str(tmp_path))
    home = Path(environment["ASCEND_HOME_PATH"])
    assert "there is no CANN here" in (home / "README").read_text()
    assert all(
        Path(environment[name]).is_dir() for name in ("ASCEND_TOOLKIT_HOME", "ASCEND_OPP_PATH", "TOOLCHAIN_HOME")
    )
    inner = environment_for(Choice("cpu"), environment, "/f")
    assert "ASCEND_HOME_PATH" not in inner
    own = environment_for(Choice("sim", SimSpec()), {"ASCEND_HOME_PATH": "/opt/cann"}, str(tmp_path))
    assert (own["ASCEND_HOME_PATH"], "ASCEND_OPP_PATH" in own) == ("/opt/cann", False)
