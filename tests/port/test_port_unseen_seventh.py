"""What readers called P and found unsafe, or needless, in a seventh round: one part each, by what broke."""

from pathlib import Path
from textwrap import dedent

import pytest

from toprope.port import port
from toprope.port.rule import Kind
from toprope.port.scan import Choice, find, port_files


def looked_at(text, path="a.py", **given):
    """The program afterwards with its findings; a second run must change nothing."""
    done = port(dedent(text).strip("\n").encode() + b"\n", path, **given)
    assert done.skipped == ""
    assert port(done.after, path, **given).after == done.after
    return done


def ported(text, path="a.py", **given):
    return looked_at(text, path, **given).after.decode()


def kinds(text, path="a.py", **given):
    """The class of each finding, by its line and rule."""
    done = looked_at(text, path, **given)
    return {(each.line, each.rule.code): each.label for each in done.findings if each.converted}


def project(folder, choice=None, **files):
    """The port of every file of a project, by its name."""
    for name, text in files.items():
        path = (folder / name.replace("__", "/")).with_suffix(".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dedent(text).strip("\n") + "\n")
    return {Path(each.path).stem: each for each in port_files(find([folder]), choice=choice)}


def after(found, name):
    return found[name].after.decode()


# Texts that are false on another device


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ('if torch.cuda.is_available():\n    print("CUDA available")', "TR001"),
        ('if torch.cuda.is_available():\n    logger.info("GPU is used")', "TR001"),
        ('if torch.cuda.is_available():\n    print(f"on an NVIDIA card, {x}")', "TR001"),
        ('print("CUDA available:", torch.cuda.is_available())', "TR001"),
        ('text = f"CUDA: {torch.cuda.is_available()}"', "TR001"),
        ('print("CUDA" if torch.cuda.is_available() else "CPU")', "TR001"),
        ('name = "CUDA" if torch.cuda.is_available() else "CPU"', "TR001"),
        ('use = torch.cuda.is_available()\nprint("use cuda" if use else "use cpu")', "TR001"),
        ('if not torch.cuda.is_available():\n    print("none")\nelse:\n    print("CUDA")', "TR001"),
        ('print("GPU:", torch.cuda.get_device_name(0))', "TR039"),
        ('print("CUDA memory: %d" % torch.cuda.memory_allocated())', "TR034"),
        ('if torch.cuda.is_available():\n    model.cuda()\n    print("CUDA is used")', "TR001"),
    ],
)
def test_a_rewrite_whose_text_says_cuda_on_an_npu_was_called_safe(text, rule) -> None:
    done = looked_at(f"import torch\n{text}")
    found = next(each for each in done.findings if each.rule.code == rule)
    assert (found.converted, found.kind, found.rule.kind) == (True, Kind.REVIEW, Kind.PRESERVING)
    assert found.said.endswith("is said on other devices too")


@pytest.mark.parametrize(
    "text",
    [
        'if not torch.cuda.is_available():\n    raise RuntimeError("CUDA is not available")',
        'if not torch.cuda.is_available():\n    print("no CUDA")\n    raise SystemExit(1)',
        'if torch.cuda.is_available():\n    print("run with --cuda")',
        'if torch.cuda.is_available():\n    model.cuda()\n    print("an accelerator is used")',
        'print("device:", torch.cuda.get_device_name(0))',
        'assert torch.cuda.is_available(), "CUDA is needed"',
        'print(torch.cuda.memory_allocated("cuda"))',
    ],
)
def test_a_rewrite_whose_text_stays_true_is_safe(text) -> None:
    assert "R" not in kinds(f"import torch\n{text}").values()


def test_what_is_next_to_such_a_text_stays_safe() -> None:
    text = 'import torch\nif torch.cuda.is_available():\n    model.cuda()\n    print("CUDA is used")\n'
    assert kinds(text) == {(2, "TR001"): "R", (3, "TR007"): "P"}


# Profilers: what is recorded, and the names of its figures

RECORDS = """
import torch
from torch.profiler import ProfilerActivity, profile
def run(model, x):
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as prof:
        model(x)
    return prof
"""
SHOWS = """
from records import run
def show(model, x):
    prof = run(model, x)
    print(prof.key_averages().table(sort_by="self_cuda_time_total"))
    return sum(each.cuda_time_total for each in prof.key_averages())
"""


def test_what_is_recorded_and_its_figures_are_converted_together_across_files(tmp_path) -> None:
    found = project(tmp_path, records=RECORDS, shows=SHOWS)
    assert "activities=portable.profiler_activities()" in after(found, "records")
    assert 'sort_by=portable.profiler_key("self_cuda_time_total")' in after(found, "shows")
    assert 'getattr(each, portable.profiler_key("cuda_time_total"))' in after(found, "shows")
    assert {each.label for each in found["shows"].findings} == {"R"}


# Parentheses


@pytest.mark.parametrize(
    ("before", "expected"),
    [
        ('d = ("cuda" if torch.cuda.is_available() else "cpu")', "d = portable.name()"),
        ('f(("cuda:1" if torch.cuda.is_available() else "cpu"))', "f(portable.name(1))"),
        ('def f():\n    return ("cuda" if torch.cuda.is_available() else "cpu")', "    return portable.name()"),
        (
            'd = (\n    torch.device("cuda")\n    if torch.cuda.is_available()\n    else torch.device("cpu")\n)',
            "d = portable.device()",
        ),
        ('d = ("cuda" if torch.cuda.is_available() else "cpu", 1)', "d = (portable.name(), 1)"),
        ('d = ("cuda" if torch.cuda.is_available() else "cpu",)', "d = (portable.name(),)"),
        ('print ("cuda" if torch.cuda.is_available() else "cpu")', "print (portable.name())"),
        ('d = f"{("cuda" if torch.cuda.is_available() else "cpu")}"', None),
        ('d = ("cuda" if torch.cuda.is_available() else "cpu").upper()', "d = portable.name().upper()"),
        ('d = ("cuda" if torch.cuda.is_available() else "cpu") # a', "d = portable.name() # a"),
        ('d = (  # a\n    "cuda" if torch.cuda.is_available() else "cpu"\n)', "    portable.name()"),
    ],
)
def test_parentheses_of_a_choice_stayed_around_one_call(before, expected) -> None:
    done = port(f"import torch\n{before}\n".encode(), "a.py")
    if not done.skipped:
        compile(done.after, "a.py", "exec")
        assert expected is None or expected in done.after.decode().splitlines()


# Numbers of cards for a DataParallel in another file

WRAPS = "import torch\ndef wrap(model):\n    return torch.nn.DataParallel(model)\n"
TRAINS = """
import torch
from wraps import wrap
from sizes import SIZE
cards = torch.cuda.device_count()
batch = SIZE * torch.cuda.device_count()
if torch.cuda.device_count() > 1:
    rate = 0.1 * cards
print(torch.cuda.device_count())
"""
SIZES = "import torch\nSIZE = 8 * torch.cuda.device_count()\n"


def test_a_batch_was_scaled_by_all_cards_although_data_parallel_of_another_file_stays(tmp_path) -> None:
    found = project(tmp_path, wraps=WRAPS, trains=TRAINS, sizes=SIZES, other=SIZES)
    assert "cards = max(1, torch.cuda.device_count())" in after(found, "trains")
    assert "batch = SIZE * max(1, torch.cuda.device_count())" in after(found, "trains")
    assert "print(portable.device_count())" in after(found, "trains")
    assert "SIZE = 8 * max(1, torch.cuda.device_count())" in after(found, "sizes")
    assert "SIZE = 8 * portable.device_count()" in after(found, "other")
    message = next(each.message for each in found["sizes"].findings if each.rule.code == "TR024")
    assert message.endswith("since DataParallel in wraps.py stays, and one card does all the work")


@pytest.mark.parametrize(
    "wraps",
    [
        WRAPS.replace("DataParallel", "parallel.DistributedDataParallel"),
        "import torch\ndef is_wrapped(model):\n    return isinstance(model, torch.nn.DataParallel)\n",
        f"{WRAPS}torch.distributed.init_process_group()\n",
    ],
    ids=["one process a card", "only asked about", "both ways"],
)
def test_a_batch_is_scaled_where_no_data_parallel_is_made(tmp_path, wraps) -> None:
    found = project(tmp_path, wraps=wraps, trains=TRAINS, sizes=SIZES.replace("wrap", "x"))
    assert "batch = SIZE * portable.device_count()" in after(found, "trains")


def test_a_number_that_is_also_asked_whether_it_is_0_stays() -> None:
    text = """
    import torch
    model = torch.nn.DataParallel(model)
    cards = torch.cuda.device_count()
    if cards == 0:
        raise RuntimeError("no card")
    batch = 8 * cards
    """
    assert "cards = torch.cuda.device_count()" in ported(text)


# Devices behind a question that stays CUDA's

BOTH = """
import torch
def move(x):
    if {question}:
        device = torch.device("cuda:0")
        x = x.to(0)
    return x
"""


@pytest.mark.parametrize("question", ["torch.backends.cuda.is_built()", "torch.cuda.get_arch_list()"])
def test_a_device_behind_a_question_that_stays_was_converted(question) -> None:
    text = BOTH.format(question=question)
    assert ported(text) == text.strip("\n") + "\n"


def test_a_device_behind_how_torch_was_built_was_converted() -> None:
    text = 'import torch\nif torch.version.cuda is not None:\n    device = torch.device("cuda:0")\n'
    assert ported(text) == text


def test_a_device_behind_a_question_that_a_person_keeps_was_converted(tmp_path) -> None:
    text = BOTH.format(question="torch.cuda.is_available()")
    kept = text.replace("():\n        device", "():  # toprope: ignore\n        device")
    assert ported(kept) == kept.strip("\n") + "\n"
    later = after(project(tmp_path, Choice(ignore=("TR001",)), a=text), "a")  # rules may be taken one after another
    assert "x.to(portable.device(0))" in later


def test_a_device_behind_an_answer_of_another_file_that_stays_was_converted(tmp_path) -> None:
    asks = "import torch\nHAS_CUDA = torch.cuda.is_available()\n"
    guards = "from asks import HAS_CUDA\nif HAS_CUDA:\n    import cupy\n"
    by_name = "import torch\nfrom asks import HAS_CUDA\ndef f(x):\n    return x.to(0) if HAS_CUDA else x\n"
    by_attribute = "import asks\nimport torch\nd = torch.device(0) if asks.HAS_CUDA else torch.device('cpu')\n"
    files = {"asks": asks, "guards": guards, "by_name": by_name, "by_attribute": by_attribute}
    found = project(tmp_path, **files)
    assert {name: after(found, name) for name in files} == files
    said = {each.held_back for each in found["by_name"].findings}
    assert said == {"it stays with HAS_CUDA, an answer about CUDA alone for the sake of guards.py"}
    (tmp_path / "guards.py").unlink()
    found = project(tmp_path, **{name: text for name, text in files.items() if name != "guards"})
    assert all("portable" in each.after.decode() for each in found.values())


def test_a_device_that_another_file_chooses_by_such_an_answer_stays_with_all_moves(tmp_path) -> None:
    asks = "import torch\nHAS_CUDA = torch.cuda.is_available()\n"
    guards = "from asks import HAS_CUDA\nif HAS_CUDA:\n    import cupy\n"
    chooses = """
    import torch
    from asks import HAS_CUDA
    device = torch.device(0) if HAS_CUDA else torch.device("cpu")
    def move(x, y):
        return x.cuda() + y.to(device)
    """
    assert "portable" not in after(project(tmp_path, asks=asks, guards=guards, chooses=chooses), "chooses")


def test_a_table_by_kinds_of_device_was_converted_in_part() -> None:
    text = """
    import torch
    device = "cuda" if torch.cuda.is_available() else "cpu"
    waits = {"cuda": torch.cuda.synchronize, "cpu": lambda: None}[device]
    """
    assert "portable" not in ported(text)
    other = 'import torch\nwaits = {"cuda": torch.cuda.synchronize(), "name": "a"}\n'
    assert "portable.synchronize()" in ported(other)


def test_figures_were_converted_although_what_is_recorded_stays() -> None:
    text = """
    import torch
    from torch.profiler import ProfilerActivity, profile
    kinds = [ProfilerActivity.CPU]
    if torch.cuda.is_available():
        kinds.append(ProfilerActivity.CUDA)
    with profile(activities=kinds) as prof:
        run()
    print(prof.key_averages().table(sort_by="cuda_time_total"))
    """
    assert "portable" not in ported(text)
    assert "portable.profiler_key" in ported('import torch\nprint(prof.table(sort_by="cuda_time_total"))')


# A device's text that decides whether the program waits for the device


@pytest.mark.parametrize(
    "uses",
    [
        """
        def run(f, device):
            f(device)
            if device == "cuda":
                torch.cuda.synchronize()
            elif device == "mps":
                torch.mps.synchronize()
        def main():
            default_device = "cuda" if torch.cuda.is_available() else "cpu"
            run(f, default_device)
        """,
        """
        default_device = "cuda" if torch.cuda.is_available() else "cpu"
        def main(parser):
            parser.add_argument("--device", default=default_device)
            args = parser.parse_args()
            device_sync = torch.cuda.synchronize if args.device == "cuda" else (lambda: None)
            device_sync = torch.mps.synchronize if args.device == "mps" else device_sync
            device_sync()
        """,
    ],
)
def test_a_default_was_safe_although_nothing_waits_for_a_device_of_another_name(uses) -> None:
    done = looked_at(f"import torch\n{dedent(uses)}")
    assert "default_device = portable.name()" in done.after.decode()
    found = next(each for each in done.findings if each.rule.code == "TR003")
    assert found.label == "R"
    assert found.said.endswith("waits for the device only where its text is as CUDA's")


@pytest.mark.parametrize("asked", ['device == "cuda"', "torch.cuda.is_available()"])
def test_a_default_is_safe_where_the_wait_is_converted_with_it(asked) -> None:
    text = f"""
    import torch
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if {asked}:
        torch.cuda.synchronize()
    """
    assert kinds(text)[2, "TR003"] == "P"


# Tests: assertions, skips, and the project's own operators


@pytest.mark.parametrize(
    "asserts", ["assert torch.cuda.is_available()", "self.assertTrue(torch.cuda.is_available())",
                "assertions.assertTrue(torch.cuda.is_available(), 'none')"],
)  # fmt: skip
def test_an_assertion_stayed_next_to_what_was_converted(asserts) -> None:
    text = f"""
    import unittest
    import torch
    class Tests(unittest.TestCase):
        def test_values(self):
            {asserts}
            x = torch.ones(2).cuda()
    """
    assert "torch.cuda" not in ported(text, "test_values.py")
    text = text.replace("x = torch", "y = run(cuda_graph=1, x=torch")
    text = text.replace(".cuda()\n", ".cuda())\n")
    assert "torch.cuda.is_available()" in ported(text, "test_values.py")


def test_an_assertion_of_a_set_up_stayed_next_to_what_was_converted() -> None:
    text = """
    import unittest
    import torch
    class Tests(unittest.TestCase):
        def setUp(self):
            self.assertTrue(torch.cuda.is_available())
        def test_values(self):
            x = torch.ones(2).cuda()
    """
    assert "self.assertTrue(portable.is_available())" in ported(text, "test_values.py")


SKIPPED = """
import torch
from package import testing
@testing.requires_cuda
def test_values():
    assert torch.cuda.is_available()
    x = torch.ones(2).cuda()
"""
REQUIRES = 'import pytest\nimport torch\nrequires_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="")\n'


def test_an_assertion_was_converted_although_the_decorator_skips_the_test(tmp_path) -> None:
    files = {"package____init__": "", "test_values": SKIPPED}
    stays = f"{REQUIRES}if torch.cuda.is_available():\n    import cupy\n"
    used = f"{SKIPPED}@testing.requires_cuda\ndef test_kernel():\n    import cupy\n"
    found = project(tmp_path, **files | {"test_values": used}, package__testing=stays)
    assert "portable" not in after(found, "test_values")
    found = project(tmp_path, **files, package__testing=REQUIRES)  # it stays: nothing in its file is converted with it
    assert "portable" not in after(found, "test_values")
    assert "portable" not in after(found, "testing")
    used = f"{REQUIRES}@requires_cuda\ndef test_it():\n    x = torch.ones(2).cuda()\n"
    found = project(tmp_path, **files, package__testing=used)
    assert "torch.cuda" not in after(found, "test_values")
    assert "torch.cuda" not in after(found, "testing")


def test_a_decorator_of_another_package_skips_without_cuda() -> None:
    text = SKIPPED.replace("from package", "from other")
    assert ported(text, "test_values.py") == text.strip("\n") + "\n"
    said = [each.held_back for each in looked_at(text, "test_values.py").findings]
    assert "it stays with requires_cuda, which skips it without CUDA" in said


BUILDS = """
from setuptools import setup
from torch.utils.cpp_extension import BuildExtension, CUDAExtension
setup(ext_modules=[CUDAExtension("package._C", ["a.cu"])], cmdclass={"build_ext": BuildExtension})
"""
RUNS = "import torch\nimport package\ndef run():\n    x = torch.ones(2).cuda()\n    return package.operator(x)\n"


@pytest.mark.parametrize("name", ["test_operator", "run_tests", "tests__run"])
def test_a_move_in_a_test_of_the_projects_own_operators_was_called_safe(tmp_path, name) -> None:
    stem = name.rpartition("__")[2]
    found = project(tmp_path, setup=BUILDS, package__move=RUNS.replace("package.operator(x)", "x"), **{name: RUNS})
    assert [each.label for each in found[stem].findings] == ["R"]
    assert found[stem].findings[0].said.endswith("builds operators for CUDA: look whether this needs one of them")
    assert [each.label for each in found["move"].findings] == ["P"]
    (tmp_path / "setup.py").unlink()
    found = project(tmp_path, **{name: RUNS})
    assert [each.label for each in found[stem].findings] == ["P"]


# Options of the program's own


@pytest.mark.parametrize(
    "text",
    [
        'getattr(args, "cuda", False)',
        'if hasattr(self.opt, "cuda"):\n    pass',
        'setattr(args, "cuda", True)',
        'vars(args)["cuda"]',
        'args.__dict__["cuda"]',
        'config = vars(args)\nprint(config["cuda"], config.get("cuda"))',
        'flags.DEFINE_boolean("cuda", True, "use it")',
        "run(args.cuda)",
    ],
)
def test_a_flag_of_the_program_was_reported_as_a_device(text) -> None:
    begin = 'import torch\nparser.add_argument("--cuda", action="store_true")\nargs = parser.parse_args()\n'
    assert looked_at(f"{begin}{text}").findings == []


@pytest.mark.parametrize(
    "text", ['getattr(row, "cuda")', 'versions["cuda"]', 'config["cuda"]', 'config.get("cuda")', 'f("a", "cuda")']
)
def test_a_text_that_names_no_flag_is_reported(text) -> None:
    assert [each.rule.code for each in looked_at(f"import torch\n{text}").findings] == ["TR101"]
