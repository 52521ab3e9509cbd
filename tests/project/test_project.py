"""The project's own files: version, constraints, Makefile, README, set-up, contents of wheel and sdist, CI."""

import importlib.util
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile

import pytest

import toprope

pytestmark = pytest.mark.process

ROOT = pathlib.Path(__file__).resolve().parents[2]


def read(name):
    return (ROOT / name).read_text(encoding="utf-8")


def tracked():
    done = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, timeout=60)
    if done.returncode:
        pytest.skip("not a git checkout")
    return [ROOT / name for name in done.stdout.decode().split("\0") if name and (ROOT / name).is_file()]


PROJECT = tomllib.loads(read("pyproject.toml"))["project"]


def names(requirements):
    return {re.split(r"[<>=\[; ]", each)[0].lower().replace("_", "-") for each in requirements}


def test_one_version():
    newest = re.search(r"^## \[([^\]]+)\]", read("CHANGELOG.md"), re.MULTILINE)
    assert PROJECT["version"] == toprope.__version__ == newest[1]


def test_torch_is_an_extra_with_a_plain_lower_bound_and_torch_npu_no_dependency():
    assert PROJECT["optional-dependencies"]["torch"] == ["torch>=2.10"]
    assert "torch" not in names(PROJECT["dependencies"])
    everything = names(sum(PROJECT["optional-dependencies"].values(), PROJECT["dependencies"]))
    assert not everything & {"torch-npu", "torchvision"}


def test_constraints_pin_what_is_used():
    pins = re.findall(r"^([A-Za-z0-9_.-]+)==(\S+)$", read("constraints.txt"), re.MULTILINE)
    lines = [line for line in read("constraints.txt").splitlines() if line and not line.startswith("#")]
    assert len(pins) == len(lines) == len({name.lower() for name, _ in pins})
    extras = PROJECT["optional-dependencies"]
    used = names(PROJECT["dependencies"] + extras["dev"] + extras["cluster"] + extras["images"] + extras["ui"])
    assert used <= names(name for name, _ in pins)
    assert dict(pins)["torch"] == re.search(r"^TORCH \?= torch==(\S+)$", read("Makefile"), re.MULTILINE)[1]


def make(*arguments):
    # As from a shell: `make test` would pass its own flags on to these.
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("MAKE") and name != "MFLAGS"
    }
    return subprocess.run(["make", *arguments], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("target", ["setup", "demo", "test", "soak", "lint", "bench", "docs", "contract", "clean"])
def test_make_has_the_target(target):
    done = make("--dry-run", "--always-make", target)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


def test_make_demo_is_the_main_job():
    done = make("--dry-run", "demo")
    assert done.stdout.splitlines()[-1] == ".venv/bin/toprope run --chip 910B3 examples/digits_npu.py"
    assert (ROOT / "examples" / "digits_npu.py").exists()


def test_readme_begins_with_the_two_commands():
    blocks = re.findall(r"```sh\n(.*?)```", read("README.md"), re.DOTALL)
    commands = [line.split("#")[0].strip() for line in blocks[0].splitlines() if line.strip()]
    assert commands == ["make demo", "make test"]
    assert len(read("README.md").split("```sh")[0].splitlines()) < 10


def bare_machine(tmp_path, *tools):
    """A copy of what setup reads, and a PATH that has the named tools only."""
    shutil.copytree(ROOT / "scripts", tmp_path / "clone" / "scripts")
    shutil.copy(ROOT / "constraints.txt", tmp_path / "clone")
    (tmp_path / "bin").mkdir()
    for tool in ("sh", "dirname", *tools):
        (tmp_path / "bin" / tool).symlink_to(shutil.which(tool))
    return {"PATH": str(tmp_path / "bin")}


@pytest.mark.parametrize(
    ("missing", "said"),
    [
        ("python", "there is no python3."),
        ("version", "toprope needs 3.11 or newer."),
        ("venv", "python3 has no venv module."),
        ("g++", "there is no g++,"),
    ],
)
def test_setup_says_what_the_machine_lacks_and_makes_nothing(tmp_path, missing, said):
    environment = bare_machine(tmp_path)
    if missing != "python":  # a python3 that fails at the one question where the machine lacks something
        question = {"version": "version_info", "venv": "ensurepip"}.get(missing, "no question")
        file = tmp_path / "bin" / "python3"
        file.write_text(f'#!/bin/sh\ncase "$*" in *"{question}"*) exit 1;; esac\n')
        file.chmod(0o755)
    done = subprocess.run(
        [shutil.which("sh"), "scripts/setup.sh"],
        cwd=tmp_path / "clone",
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 3
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 2
    assert done.stderr.splitlines()[1].startswith("  do  ")
    assert done.stdout == ""
    assert not (tmp_path / "clone" / ".venv").exists()


def contract(folder, *parts):
    return subprocess.run(["sh", "scripts/contract.sh", *parts], cwd=folder, capture_output=True, text=True, timeout=60)


def test_the_contract_is_skipped_aloud_and_never_run_whole(tmp_path):
    clone = tmp_path / "clone"
    shutil.copytree(ROOT / "scripts", clone / "scripts")
    assert "skipped, ../shared/contract/run is not here" in contract(clone, "sim").stdout
    run = tmp_path / "shared" / "contract" / "run"
    run.parent.mkdir(parents=True)
    run.write_text("import sys; print('ran', sys.argv[1:]); sys.exit(len(sys.argv) - 2)")
    (clone / ".venv" / "bin").mkdir(parents=True)
    (clone / ".venv" / "bin" / "python").symlink_to(shutil.which("python3"))
    assert "skipped, CONTRACT_PARTS" in contract(clone).stdout
    ran = contract(clone, "sim", "device")
    assert (ran.stdout, ran.returncode) == ("ran ['sim', 'device']\n", 1)


def built(folder, *copied, kind):
    """The archive of a kind ("wheel" or "sdist") that setuptools makes of copied files."""
    for name in copied:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / name)
    shutil.copytree(ROOT / "src", folder / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    build = f"from setuptools import build_meta; build_meta.build_{kind}('.')"
    done = subprocess.run([sys.executable, "-c", build], cwd=folder, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    (archive,) = [*folder.glob("toprope-*.whl"), *folder.glob("toprope-*.tar.gz")]
    return archive


def package_files(source):
    files = (file.relative_to(source) for file in source.glob("toprope/**/*") if file.is_file())
    return {str(file) for file in files if file.parts[1] != "docs" or file.suffix == ".md"}  # the pages without figures


def test_the_wheel_has_every_file_of_the_package(tmp_path):
    wheel = built(tmp_path, "pyproject.toml", "README.md", "LICENSE", kind="wheel")
    names = {name for name in zipfile.ZipFile(wheel).namelist() if name.startswith("toprope/")}
    assert names == package_files(tmp_path / "src")


def test_the_sdist_has_the_package_and_what_its_own_tests_need(tmp_path):
    # setuptools adds tests/test*.py by itself, without helpers and folders
    tests = [
        file.relative_to(ROOT).as_posix()
        for name in ("project", "helpers")
        for file in (ROOT / "tests" / name).glob("*.py")
    ]
    others = [
        "pyproject.toml",
        "README.md",
        "LICENSE",
        "MANIFEST.in",
        "Makefile",
        "constraints.txt",
        "scripts/setup.sh",
        ".ci/run",
    ]
    sdist = built(tmp_path, *others, *tests, kind="sdist")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {name.removeprefix("src/") for name in names} >= package_files(tmp_path / "src")
    assert names >= {*tests, *others}


def test_the_classifiers_name_the_python_that_is_tested():
    pythons = re.findall(r"Python :: (3\.\d+)", "\n".join(PROJECT["classifiers"]))
    assert PROJECT["requires-python"] == f">={pythons[0]}"


FORBIDDEN = {
    "a path of the machine it was written on": re.compile("/" + r"work/(main|shared)|/" + r"tmp/house|/root/\."),
    "the host of a package registry": re.compile(
        # PyTorch's own, of builds for CUDA, is what `toprope port` looks for
        r"https?://[^\s)>\"']*" + r"py" + r"pi|index" + r"-url[ =]+https?://(?!download\.pytorch\.org/)"
    ),
    "an emoji": re.compile("[\U0001f300-\U0001faff\u2705\u274c\u26a0]"),
    "a conflict marker": re.compile(r"^(<{7}|>{7}) ", re.MULTILINE),
}


@pytest.mark.parametrize("what", sorted(FORBIDDEN))
def test_no_tracked_file_holds(what):
    bad = []
    for file in tracked():
        try:
            text = file.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        bad += [f"{file.relative_to(ROOT)}: {hit[0]!r}" for hit in FORBIDDEN[what].finditer(text)]
    assert bad == []


DEMO = ROOT / "src" / "toprope" / "images" / "demo" / "model"
"""The only weights in the repository: the demo model, which is part of the package."""


def test_no_large_or_built_file_is_tracked():
    for file in tracked():
        assert file.stat().st_size < 2**20, file
        assert file.suffix not in (".so", ".o", ".pyc", ".pt", ".whl"), file
        assert file.suffix != ".safetensors" or file.is_relative_to(DEMO), file
    assert sum(file.stat().st_size for file in DEMO.rglob("*") if file.is_file()) < 2_000_000


def test_ci_is_executable_and_stops_at_the_first_failure():
    assert (ROOT / ".ci" / "run").stat().st_mode & 0o111
    lines = read(".ci/run").splitlines()
    assert lines[0] == "#!/usr/bin/env bash"
    assert "set -euo pipefail" in lines
    assert lines[-2:] == ["make test", "make check"]


def test_torch_is_imported_without_the_card_that_a_test_has_named(request, tmp_path, monkeypatch):
    """The card stayed for the modules after it; which test that was depended on what had imported torch before."""
    conftest = request.config.pluginmanager.getplugin(str(ROOT / "tests" / "conftest.py"))
    (tmp_path / "torch.py").write_text("import os\ncard = os.environ.get('TOPROPE_SIM')\n")
    monkeypatch.setenv("TOPROPE_SIM", "910B3")
    finder = conftest.WithoutCard()
    spec = finder.find_spec("torch", [str(tmp_path)])
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.card is None
    assert os.environ["TOPROPE_SIM"] == "910B3"
    assert finder.find_spec("numpy") is None
