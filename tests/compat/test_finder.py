"""The facade finders, each case in a Python process of its own, with stubs for torch and for real packages.

Holds src/toprope/compat/finder.py, torch_import.py and distribution.py.
"""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from toprope.cli.launch.child_process import SITE
from toprope.compat.distribution import same_name

pytestmark = pytest.mark.process

STUB_TORCH = """
import os
AUTOLOAD = os.environ.get("TORCH_DEVICE_BACKEND_AUTOLOAD")
if os.environ.get("TORCH_DEVICE_BACKEND_AUTOLOAD", "1") == "1":
    from importlib.metadata import entry_points
    for backend in entry_points(group="torch.backends"):
        if not backend.module.startswith("toprope"):
            backend.load()()
"""


def install(
    folder: Path, name: str, code: str, distribution: str = "", version: str = "1.0", backend: str = ""
) -> None:
    """Write a package, and its metadata, as pip would."""
    (folder / name).mkdir(parents=True)
    (folder / name / "__init__.py").write_text(textwrap.dedent(code))
    if distribution:
        info = folder / f"{distribution.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n")
        if backend:
            (info / "entry_points.txt").write_text(f"[torch.backends]\n{name} = {backend}\n")


@pytest.fixture
def packages(tmp_path: Path) -> Path:
    """A folder of packages with a stub torch 2.13.0+cpu, in front of the module path of `python`."""
    install(tmp_path / "packages", "torch", STUB_TORCH, "torch", "2.13.0+cpu")
    return tmp_path / "packages"


@pytest.fixture
def stand_in(tmp_path: Path) -> str:
    """Code that adds a facade `stand_in`, for the distribution `stand-in`, to the table."""
    folder = tmp_path / "facades" / "stand_in"
    (folder / "part").mkdir(parents=True)
    (folder / "__init__.py").write_text("from .part import VALUE\n")
    (folder / "part" / "__init__.py").write_text("VALUE = 7\n")
    return (
        "from toprope.compat import finder, install, uninstall\n"
        f"finder.FACADES['stand_in'] = finder.Facade('stand_in', {str(folder)!r}, 'stand-in', 'torch')\n"
    )


def python(code: str, *folders: Path | str, **variables: str) -> list[str]:
    """The lines that a new Python prints for this code; it must succeed and say nothing on stderr."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("TOPROPE", "PYTHON", "TORCH"))}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env=kept | {"PYTHONPATH": os.pathsep.join(map(str, folders))} | variables,
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


FAKE_SIM = """
import sys, types
sim = types.ModuleType("toprope.sim")
sim._autoload = lambda: print("the card is installed, torch is there:", "torch" in sys.modules)
sys.modules["toprope.sim"] = sim
"""


# ---- at the end of the path


def test_a_facade_is_importable_and_gone_without_the_finder(stand_in: str, packages: Path) -> None:
    code = stand_in + textwrap.dedent("""
        import importlib.util, sys
        before = list(sys.meta_path)
        print(importlib.util.find_spec("stand_in"))
        install()
        install()
        print(len(sys.meta_path) - len(before))
        import stand_in.part
        print(stand_in.VALUE, stand_in.part.VALUE, stand_in.__name__)
        print(stand_in.__toprope__, stand_in.__spec__.loader.__toprope__)
        uninstall()
        print(sys.meta_path == before, "stand_in" in sys.modules)
        del sys.modules["stand_in"], sys.modules["stand_in.part"]
        print(importlib.util.find_spec("stand_in"))
    """)
    assert python(code, packages) == ["None", "2", "7 7 stand_in", "True True", "True True", "None"]


def test_a_real_package_wins_even_when_it_comes_later_on_the_path(
    stand_in: str, packages: Path, tmp_path: Path
) -> None:
    install(tmp_path / "late", "stand_in", "VALUE = 'real'", "stand-in", "9.9")
    code = stand_in + textwrap.dedent(f"""
        import sys
        install()
        sys.path.append({str(tmp_path / "late")!r})
        import stand_in, importlib.metadata
        print(stand_in.VALUE, importlib.metadata.version("stand-in"))
        print([one.version for one in importlib.metadata.distributions(name="stand-in")])
        import importlib.util
        print(importlib.util.find_spec("stand_in.part"))
        try:
            import stand_in.part
        except ModuleNotFoundError as error:
            print(error)
    """)
    assert python(code, packages) == ["real 9.9", "['9.9']", "None", "No module named 'stand_in.part'"]


def test_a_missing_part_names_the_api_and_has_no_spec(stand_in: str, packages: Path) -> None:
    code = stand_in + textwrap.dedent("""
        install()
        import importlib, importlib.util
        print(importlib.util.find_spec("stand_in.absent"), importlib.util.find_spec("stand_in.part.absent"))
        def attempt(action):
            try:
                action()
            except ModuleNotFoundError as error:
                print(error.name, "|", error)
        def statement():
            import stand_in.absent
        def inner():
            from stand_in.part.absent import something
        attempt(statement)
        attempt(inner)
        attempt(lambda: importlib.import_module("stand_in.absent"))
        try:
            from stand_in import absent
        except ImportError as error:
            print(error)
    """)
    lines = python(code, packages)
    assert lines[0] == "None None"
    assert lines[1] == "stand_in.absent | No module named 'stand_in.absent': toprope's stand_in does not have this API"
    assert lines[2].startswith("stand_in.part.absent | No module named 'stand_in.part.absent': toprope's stand_in")
    assert lines[3] == lines[1]
    assert lines[4].startswith("cannot import name 'absent' from 'stand_in'")


def test_importlib_metadata_shows_a_facade_with_torchs_version(stand_in: str, packages: Path) -> None:
    code = stand_in + textwrap.dedent("""
        install()
        import importlib.metadata as metadata, sys
        print(metadata.version("stand-in"), metadata.version("Stand_In"), metadata.metadata("stand.in")["Name"])
        print(metadata.packages_distributions()["stand_in"])
        print("stand-in" in {one.name for one in metadata.distributions()})
        print(metadata.distribution("stand-in").files, list(metadata.distribution("stand-in").entry_points))
        print([one.name for one in metadata.distributions(path=[sys.path[0]]) if one.name == "stand-in"])
        print("torch" in sys.modules)
    """)
    assert python(code, packages) == ["2.13.0 2.13.0 stand-in", "['stand-in']", "True", "None []", "[]", "False"]


def test_no_torch_no_distribution(stand_in: str, tmp_path: Path) -> None:
    code = stand_in + textwrap.dedent("""
        finder.FACADES["stand_in"].version_from = "no-such-distribution"
        install()
        import importlib.metadata as metadata
        try:
            metadata.version("stand-in")
        except metadata.PackageNotFoundError as error:
            print("not found:", error.name)
    """)
    assert python(code) == ["not found: stand-in"]


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [("torch_npu", "Torch-NPU", True), ("torch.npu", "torch--npu", True), ("torch", "torch-npu", False)],
)
def test_names_of_distributions(one: str, other: str, same: bool) -> None:
    assert same_name(one, other) is same


def test_importing_the_finder_imports_nothing_heavy() -> None:
    code = """
        import sys
        import toprope.compat
        heavy = ("torch", "numpy", "importlib.metadata", "inspect", "dataclasses", "email", "typer", "subprocess")
        print([name for name in heavy if name in sys.modules])
    """
    assert python(code) == ["[]"]


# ---- in front: the simulated card


@pytest.fixture
def real_npu(packages: Path) -> Path:
    """A real torch_npu, as a machine without CANN has it: torch loads it with itself, and that fails."""
    broken = 'raise ImportError("libhccl.so: cannot open shared object file: No such file or directory")'
    install(packages, "torch_npu", broken, "torch-npu", "2.12.0", backend="torch_npu:_autoload")
    return packages


CARD = (
    FAKE_SIM
    + """
from toprope.compat import finder, install, uninstall
import os
finder.FACADES["torch_npu"] = finder.Facade("torch_npu", os.environ["FACADE"], "torch-npu", "torch")
install(simulated_card=True)
"""
)


@pytest.fixture
def facade(tmp_path: Path) -> str:
    install(tmp_path / "facade", "torch_npu", "NAME = 'the facade'\n")
    return str(tmp_path / "facade" / "torch_npu")


def test_the_card_comes_with_torch_and_a_broken_torch_npu_is_not_asked(real_npu: Path, facade: str) -> None:
    code = (
        CARD
        + """
import torch, importlib.metadata
print("during the import:", torch.AUTOLOAD, "after it:", os.environ.get("TORCH_DEVICE_BACKEND_AUTOLOAD"))
print(type(torch.__loader__).__name__, torch.__spec__.loader is torch.__loader__)
import torch_npu
print(torch_npu.NAME, importlib.metadata.version("torch-npu"))
uninstall()
print([type(one).__module__ for one in sys.meta_path if type(one).__module__.startswith("toprope")])
"""
    )
    assert python(code, real_npu, FACADE=facade) == [
        "the card is installed, torch is there: True",
        "during the import: 0 after it: None",
        "SourceFileLoader True",
        "the facade 2.13.0",
        "[]",
    ]


@pytest.mark.parametrize(("value", "installed"), [("0", False), ("1", True), ("no", False)])
def test_the_users_own_switch_is_heeded_and_kept(packages: Path, facade: str, value: str, installed: bool) -> None:
    code = CARD + 'import torch; print(os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"])'
    lines = python(code, packages, FACADE=facade, TORCH_DEVICE_BACKEND_AUTOLOAD=value)
    assert lines == ["the card is installed, torch is there: True"] * installed + [value]


def test_the_switch_is_put_back_when_torch_cannot_be_imported(tmp_path: Path, facade: str) -> None:
    install(tmp_path / "packages", "torch", "raise OSError('no libtorch')")
    code = (
        CARD
        + """
try:
    import torch
except OSError as error:
    print(error, "TORCH_DEVICE_BACKEND_AUTOLOAD" in os.environ, "torch" in sys.modules)
"""
    )
    assert python(code, tmp_path / "packages", FACADE=facade) == ["no libtorch False False"]


def test_other_backends_are_loaded_as_torch_does(real_npu: Path, facade: str) -> None:
    install(real_npu, "other", "def start():\n    print('other backend')", "other", backend="other:start")
    assert python(CARD + "import torch", real_npu, FACADE=facade) == [
        "the card is installed, torch is there: True",
        "other backend",
    ]


def test_another_backend_that_fails_fails_in_torchs_own_words(packages: Path, facade: str) -> None:
    install(packages, "other", "def start():\n    raise OSError('no driver')", "other", backend="other:start")
    code = (
        CARD
        + """
try:
    import torch
except RuntimeError as error:
    print(error, "|", error.__cause__)
"""
    )
    assert python(code, packages, FACADE=facade)[-1] == (
        "Failed to load the backend extension: other. You can disable extension auto-loading with "
        "TORCH_DEVICE_BACKEND_AUTOLOAD=0. | no driver"
    )


def test_too_late_beside_a_real_torch_npu(packages: Path) -> None:
    install(packages, "torch_npu", "")
    code = """
        import sys, torch_npu
        from toprope.compat import install
        before = list(sys.meta_path)
        try:
            install(simulated_card=True)
        except RuntimeError as error:
            print(error.what, before == sys.meta_path)
    """
    assert python(code, packages) == ["a real torch_npu is already loaded in this process. True"]


# ---- sitecustomize


def test_the_site_folder_has_one_file() -> None:
    assert [path.name for path in Path(SITE).iterdir() if path.name != "__pycache__"] == ["sitecustomize.py"]


def test_the_next_sitecustomize_is_run(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.users_own = __file__\n")
    code = """
        import sys, sitecustomize
        print(sys.users_own == sitecustomize.__file__)
        print([type(one).__name__ for one in sys.meta_path if type(one).__module__.startswith("toprope")])
    """
    assert python(code, SITE, tmp_path) == ["True", "['ParallelFinder', 'FacadeFinder']"]


def test_the_folder_for_counters_is_forgotten_when_it_is_gone(tmp_path: Path) -> None:
    code = "import os; print('TOPROPE_RUN_DIR' in os.environ)"
    assert python(code, SITE, TOPROPE_RUN_DIR=str(tmp_path)) == ["True"]
    assert python(code, SITE, TOPROPE_RUN_DIR=str(tmp_path / "gone")) == ["False"]


def test_no_other_sitecustomize_is_fine(packages: Path) -> None:
    assert python("print('torch_npu' in __import__('toprope.compat.finder').compat.finder.FACADES)", SITE) == ["True"]


def test_a_users_sitecustomize_that_fails_is_reported_by_python_itself(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("raise ValueError('his own matter')\n")
    done = subprocess.run(
        [sys.executable, "-c", "import sys; print(any(type(x).__name__ == 'FacadeFinder' for x in sys.meta_path))"],
        env={"PYTHONPATH": os.pathsep.join([SITE, str(tmp_path)])}, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.stdout == "True\n"
    assert "ValueError: his own matter" in done.stderr


def test_a_python_without_toprope_gets_it_by_location() -> None:
    # -S leaves out site-packages, where toprope is installed; sitecustomize is then imported by hand
    done = subprocess.run(
        [sys.executable, "-S", "-c", "import sitecustomize, toprope, sys; print(toprope.__file__)"],
        env={"PYTHONPATH": SITE}, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert (done.stdout.strip(), done.stderr) == (str(Path(SITE).parent.parent / "__init__.py"), "")


def test_a_failure_is_one_line_and_breaks_nothing(tmp_path: Path) -> None:
    # a copy of the folder whose package cannot be imported
    site = tmp_path / "toprope" / "compat" / "site"
    site.mkdir(parents=True)
    (site / "sitecustomize.py").write_bytes((Path(SITE) / "sitecustomize.py").read_bytes())
    (tmp_path / "toprope" / "__init__.py").write_text("raise OSError('unreadable\\nfile')\n")
    (tmp_path / "sitecustomize.py").write_text("print('his own')\n")
    done = subprocess.run(
        [sys.executable, "-c", "print('alive')"],
        env={"PYTHONPATH": os.pathsep.join([str(site), str(tmp_path)])}, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "his own\nalive\n")
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("toprope: process ")
    assert "unreadable file" in done.stderr


def test_it_costs_a_python_process_little() -> None:
    code = """
        import sys
        heavy = ("torch", "importlib.metadata", "inspect", "dataclasses", "pathlib", "tomllib", "subprocess")
        print([name for name in heavy if name in sys.modules])
    """
    # without our folder first, so that what this environment's own .pth files import is not held against it
    before = python(code)
    assert python(code, SITE) == before


# ---- no card at all


@pytest.mark.parametrize("device", ["cpu", "cuda", "cuda:1"])
def test_torch_has_an_npu_that_says_no_in_a_run_without_cards(packages: Path, device: str) -> None:
    code = """
        import torch, sys
        print(torch.npu.is_available(), torch.npu.device_count(), torch.npu is sys.modules["torch.npu"])
        torch.npu.manual_seed_all(1), torch.npu.empty_cache()
        for action in (lambda: torch.npu.set_device(0), torch.npu.Stream):
            try:
                action()
            except RuntimeError as error:
                print(str(error).split(".")[2])
        print(hasattr(torch.npu, "FloatTensor"))
    """
    assert python(code, SITE, packages, TOPROPE_DEVICE=device) == [
        "False 0 True", "set_device needs an NPU and there is none", "Stream needs an NPU and there is none", "False",
    ]  # fmt: skip


def test_a_torch_with_an_npu_keeps_it(packages: Path) -> None:
    (packages / "torch" / "__init__.py").write_text("npu = 'its own'\n")
    assert python("import torch; print(torch.npu)", SITE, packages, TOPROPE_DEVICE="cpu") == ["its own"]


@pytest.mark.parametrize("device", ["npu", ""])
def test_torch_is_left_alone_in_a_run_with_a_real_card(packages: Path, device: str) -> None:
    assert python("import torch; print(hasattr(torch, 'npu'))", SITE, packages, TOPROPE_DEVICE=device) == ["False"]


def test_a_real_torch_npu_is_left_to_give_torch_its_npu(packages: Path) -> None:
    install(packages, "torch_npu", "import torch; assert not hasattr(torch, 'npu'); torch.npu = 'real'")
    code = "import torch, torch_npu; print(torch.npu)"
    assert python(code, SITE, packages, TOPROPE_DEVICE="cpu") == ["real"]
