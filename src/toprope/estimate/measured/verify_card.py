"""Measure an Ascend card: times, memory, operators on the host, refused dtypes and error texts.

A file of its own: Python 3.8 or newer, torch and torch_npu; nothing else is imported. `toprope verify` fills `TABLES`
and writes it out for the user, verification.py reads its result: both must agree on the fields of the JSON (`FORMAT`).
Run it where the card is:

    python verify_card.py [--quick] [--only PART,...] [--device N] [--output verify_card.json] [--overwrite]

It takes about five minutes and writes a JSON file without names of users, machines or folders, which can be attached to
an issue. Each part runs in a process of its own with a limit of time; a failure is noted and the others go on. Ctrl-C
ends it and writes the results so far. Memory is given back at once; nothing on the machine is changed.

Tests: tests/cli/test_cli_verify.py.
"""

# ruff: noqa
# fmt: off
# mypy: ignore-errors

import argparse
import json
import os
import platform
import re
import signal
import subprocess
import sys
import tempfile
import time
import warnings

__all__ = ["main"]

FORMAT = 1
TABLES = {"fallbacks": [], "refusals": [], "toprope": "", "release": ""}  # filled by toprope verify
PARTS = (
    # name, seconds that it may take, environment
    ("identity", 120, {}),
    ("memory", 90, {}),
    ("products", 120, {}),
    ("vector", 120, {}),
    ("launch 1", 90, {"TASK_QUEUE_ENABLE": "1"}),
    ("launch 2", 90, {"TASK_QUEUE_ENABLE": "2"}),
    ("launch 0", 90, {"TASK_QUEUE_ENABLE": "0"}),
    ("copies", 90, {}),
    ("operators", 180, {}),
    ("dtypes", 120, {}),
    ("out of memory", 60, {}),
    ("bad index", 60, {"ASCEND_LAUNCH_BLOCKING": "1"}),
)
ALL = 900  # seconds for everything
MIB = 2**20


class Child:
    """One part, in its own process: every result is a line of JSON in a file, written at once."""

    def __init__(self, options):
        import torch

        self.torch = torch
        self.options = options
        self.file = open(options.state, "a")  # noqa: SIM115 - until the process ends
        torch.npu.set_device(options.device)
        self.device = torch.device("npu", options.device)
        package = sys.modules.get("toprope.sim")
        self.simulated = bool(package and getattr(package, "installed", lambda: None)())
        self.small = options.quick or self.simulated

    def say(self, **facts):
        self.file.write(json.dumps(facts) + "\n")
        self.file.flush()

    def attempt(self, what, function, *arguments):
        """One measurement: what it raises is its result."""
        try:
            return function(*arguments)
        except Exception as error:
            self.say(what=what, error=clean(error))
            return None

    def run(self, part):
        words = part.split()
        getattr(self, "part_" + "_".join(word for word in words if not word.isdigit()))()

    def wait(self):
        self.torch.npu.synchronize()

    # facts

    def part_identity(self):
        torch = self.torch
        self.say(what="simulated", value=self.simulated)
        self.say(what="torch", value=str(torch.__version__))
        module = sys.modules.get("torch_npu")
        self.say(what="torch_npu", value=str(getattr(module, "__version__", "")))
        self.say(what="chip", value=str(torch.npu.get_device_name(self.options.device)))
        self.say(what="python", value=platform.python_version())
        self.say(what="machine", value=platform.machine())
        self.say(what="cpu", value=cpu())
        self.say(what="cann", value=cann())
        self.say(what="driver", value=version_in("/usr/local/Ascend/driver/version.info"))
        self.attempt("cards", lambda: self.say(what="cards", value=torch.npu.device_count()))
        flags = {}
        for name in ("matmul", "conv"):
            flags[name] = bool(getattr(getattr(torch.npu, name, None), "allow_hf32", False))
        self.say(what="hf32", value=flags)

    def part_memory(self):
        torch = self.torch
        properties = torch.npu.get_device_properties(self.options.device)
        self.say(what="total_memory", value=int(properties.total_memory))
        free, total = torch.npu.mem_get_info()
        self.say(what="mem_get_info", free=int(free), total=int(total))
        if self.small:
            return  # a simulated card's memory is this machine's
        low, high = 0, int(total) // (64 * MIB)
        while low < high:
            middle = (low + high + 1) // 2
            try:
                block = torch.empty(middle * 64 * MIB, dtype=torch.uint8, device=self.device)
                del block
                low = middle
            except RuntimeError:
                high = middle - 1
            torch.npu.empty_cache()
        self.say(what="largest", value=low * 64 * MIB)

    # times

    def timed(self, function, seconds=0.15):
        """Seconds of a call when many are queued: the card's time, or the host's where that is longer."""
        torch = self.torch
        for _ in range(3):
            function()
        self.wait()
        begin = time.perf_counter()
        function()
        self.wait()
        once = max(time.perf_counter() - begin, 1e-6)
        count = 3 if self.small else max(5, min(500, int(seconds / once)))
        found = []
        for _ in range(3 if self.small else 5):
            first, last = torch.npu.Event(enable_timing=True), torch.npu.Event(enable_timing=True)
            first.record()
            for _ in range(count):
                function()
            last.record()
            self.wait()
            found.append(first.elapsed_time(last) / 1e3 / count)
        return sorted(found)

    def part_products(self):
        torch = self.torch
        shapes = [(4096, 4096, 4096), (8192, 8192, 8192), (2048, 2048, 2048), (1024, 1024, 1024), (4096, 4096, 11008),
                  (4096, 11008, 4096), (16, 4096, 4096), (1, 4096, 11008), (256, 4096, 4096), (512, 12288, 4096)]
        if self.small:
            shapes = [(256, 256, 256), (128, 512, 256)]
        for dtype in ("float16", "bfloat16", "float32"):
            for rows, columns, depth in shapes if dtype != "float32" else shapes[:5]:
                def one(rows=rows, columns=columns, depth=depth, dtype=dtype):
                    kind = getattr(torch, dtype)
                    left = torch.randn(rows, depth, device=self.device).to(kind)
                    right = torch.randn(depth, columns, device=self.device).to(kind)
                    times = self.timed(lambda: torch.mm(left, right))
                    self.say(what="time", operator="aten::mm", dtype=dtype, inputs=[[rows, depth], [depth, columns]],
                             outputs=[[rows, columns]], seconds=times)

                self.attempt("mm " + dtype, one)

    def part_vector(self):
        torch = self.torch
        functional = torch.nn.functional
        shapes = [(64, 4096), (1024, 4096), (4096, 4096), (8192, 8192), (16384, 8192), (16384, 16384)]
        if self.small:
            shapes = [(64, 64), (256, 256)]
        for shape in shapes:
            def one(shape=shape):
                first = torch.randn(*shape, device=self.device).to(torch.float16)
                second = torch.randn(*shape, device=self.device).to(torch.float16)
                weight = torch.ones(shape[-1], device=self.device).to(torch.float16)
                rows = [shape[0], 1]
                calls = {
                    "aten::add": (lambda: torch.add(first, second), [shape, shape], [shape]),
                    "aten::mul": (lambda: torch.mul(first, second), [shape, shape], [shape]),
                    "aten::relu": (lambda: torch.relu(first), [shape], [shape]),
                    "aten::gelu": (lambda: functional.gelu(first), [shape], [shape]),
                    "aten::silu": (lambda: functional.silu(first), [shape], [shape]),
                    "aten::clone": (first.clone, [shape], [shape]),
                    "aten::_softmax": (lambda: torch.softmax(first, -1), [shape], [shape]),
                    "aten::native_layer_norm": (lambda: functional.layer_norm(first, shape[-1:], weight, weight),
                                                [shape, shape[-1:], shape[-1:]], [shape, rows, rows]),
                    "aten::sum": (lambda: first.sum(-1), [shape], [shape[:1]]),
                }
                for name, (function, inputs, outputs) in calls.items():
                    def measure(name=name, function=function, inputs=inputs, outputs=outputs):
                        self.say(what="time", operator=name, dtype="float16", inputs=[list(each) for each in inputs],
                                 outputs=[list(each) for each in outputs], seconds=self.timed(function))

                    self.attempt(name, measure)

            self.attempt("vector %dx%d" % shape, one)

    def part_launch(self):
        torch = self.torch
        functional = torch.nn.functional
        small = torch.ones(16, 16, device=self.device).to(torch.float16)
        weight = torch.ones(16, device=self.device).to(torch.float16)
        calls = {
            "host": lambda: torch.add(small, small),
            "matmul": lambda: torch.mm(small, small),
            "softmax": lambda: torch.softmax(small, -1),
            "normalisation": lambda: functional.layer_norm(small, (16,), weight, weight),
        }
        count = 50 if self.small else 2000
        queue = int(os.environ.get("TASK_QUEUE_ENABLE", "1"))
        for kind, function in calls.items():
            def one(kind=kind, function=function):
                found = []
                for _ in range(5):
                    self.wait()
                    begin = time.perf_counter()
                    for _ in range(count):
                        function()
                    self.wait()
                    found.append((time.perf_counter() - begin) / count)
                self.say(what="launch", kind=kind, queue=queue, seconds=sorted(found))

            self.attempt("launch " + kind, one)
        found = []
        for _ in range(20 if self.small else 300):
            torch.add(small, small)
            begin = time.perf_counter()
            self.wait()
            found.append(time.perf_counter() - begin)
        found.sort()
        self.say(what="synchronise", queue=queue, seconds=[found[len(found) // 2]])

    def part_copies(self):
        torch = self.torch
        for size in (MIB,) if self.small else (4 * MIB, 64 * MIB, 256 * MIB):
            for pinned in (False, True):
                def one(size=size, pinned=pinned):
                    host = torch.ones(size, dtype=torch.uint8)
                    host = host.pin_memory() if pinned else host
                    card = torch.empty(size, dtype=torch.uint8, device=self.device)
                    for to_card in (True, False):
                        found = []
                        for _ in range(5):
                            self.wait()
                            begin = time.perf_counter()
                            if to_card:
                                card.copy_(host, non_blocking=pinned)
                            else:
                                host.copy_(card, non_blocking=pinned)
                            self.wait()
                            found.append(time.perf_counter() - begin)
                        self.say(what="copy", bytes=size, pinned=pinned, to_card=to_card, seconds=sorted(found))

                self.attempt("copy", one)

    # operators

    def part_operators(self):
        for number, name in enumerate(TABLES["fallbacks"]):
            if number >= self.options.skip:
                self.say(what="begin", number=number, operator=name)
                self.operator(name)

    def operator(self, name):
        """Call an operator on the CPU, then on the card, and note what torch_npu warns of."""
        torch = self.torch
        found = None
        for overload in overloads(torch, name):
            for variant in range(3):
                try:
                    given, named = arguments(torch, overload, variant)
                    overload(*given, **named)
                    found = overload, given, named
                    break
                except Exception:
                    continue
            if found:
                break
        if not found:
            self.say(what="operator", operator=name, skipped="no arguments that it takes on the CPU")
            return
        overload, given, named = found
        facts = {"what": "operator", "operator": name, "overload": overload._overloadname, "warned": [], "error": ""}
        with Caught(self.options.state) as caught:
            try:
                moved = [self.to_card(each) for each in given]
                overload(*moved, **named)
                self.wait()
            except Exception as error:
                facts["error"] = clean(error)
        facts["warned"] = re.findall(r"The operator '([^']+)' is not currently supported", caught.text)
        self.say(**facts)

    def to_card(self, value):
        if isinstance(value, self.torch.Tensor):
            return value.to(self.device)
        if isinstance(value, list) and value and isinstance(value[0], self.torch.Tensor):
            return [each.to(self.device) for each in value]
        return value

    def part_dtypes(self):
        for number, row in enumerate(TABLES["refusals"]):
            if number < self.options.skip:
                continue
            name, overload, place, dtype = row.split(",")
            position = int(place)
            self.say(what="begin", number=number, operator=name)
            facts = {"what": "dtype", "operator": name, "overload": overload, "position": position, "dtype": dtype}
            try:
                torch = self.torch
                packet = getattr(torch.ops.aten, name)
                call = getattr(packet, overload or "default")
                given, named = arguments(torch, call, 0, {position: getattr(torch, dtype)})
                call(*given, **named)
            except Exception as error:
                self.say(skipped="not called on the CPU: " + clean(error)[:120], **facts)
                continue
            with Caught(self.options.state) as caught:
                try:
                    call(*[self.to_card(each) for each in given], **named)
                    self.wait()
                    facts["error"] = ""
                except Exception as error:
                    facts["error"] = clean(error)
            facts["host"] = "not currently supported" in caught.text
            self.say(**facts)

    # error texts

    def part_out_of_memory(self):
        torch = self.torch
        size = 2 * int(torch.npu.get_device_properties(self.options.device).total_memory)
        try:
            torch.empty(size, dtype=torch.uint8, device=self.device)
            self.say(what="out of memory", type="", error="")
        except Exception as error:
            self.say(what="out of memory", type=type(error).__name__, error=clean(error))

    def part_bad_index(self):
        torch = self.torch
        table = torch.ones(8, 8, device=self.device)
        index = torch.full((64,), 10**6, dtype=torch.int64).to(self.device)
        self.wait()
        try:
            torch.index_select(table, 0, index)
            self.wait()
            self.say(what="bad index", type="", error="")
        except Exception as error:
            self.say(what="bad index", type=type(error).__name__, error=clean(error))


class Caught:
    """The warnings of a block: Python's, and what C++ writes to stderr. A context."""

    def __init__(self, state):
        self.path = state + ".stderr"
        self.text = ""

    def __enter__(self):
        sys.stderr.flush()
        self.kept = os.dup(2)
        file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
        os.dup2(file, 2)
        os.close(file)
        self.context = warnings.catch_warnings(record=True)
        self.list = self.context.__enter__()
        warnings.simplefilter("always")
        return self

    def __exit__(self, *about):
        self.context.__exit__(None, None, None)
        sys.stderr.flush()
        os.dup2(self.kept, 2)
        os.close(self.kept)
        with open(self.path, errors="replace") as file:
            self.text = file.read() + "\n".join(str(each.message) for each in self.list)
        os.unlink(self.path)


def overloads(torch, name):
    """The forms of an operator that return their result."""
    packet = getattr(torch.ops.aten, name, None)
    if packet is None:
        return
    names = packet.overloads()
    for each in sorted(names, key=lambda each: (each != "default", each != "Tensor", each)):
        call = getattr(packet, each)
        if not re.search("out|name|grad_input", each) and not any(arg.is_out for arg in call._schema.arguments):
            yield call


def arguments(torch, overload, variant, dtypes=None):
    """Small arguments for an operator, by the types of its schema.

    variant: 0 for floats, 1 for whole numbers, 2 for a square matrix that can be inverted.
    """
    given, named = [], {}
    for position, argument in enumerate(overload._schema.arguments):
        kind = str(argument.type)
        if argument.has_default_value() and not (argument.name == "k" and not argument.kwarg_only):
            if argument.kwarg_only:
                continue
            given.append(argument.default_value)
            continue
        if kind == "Tensor" and argument.name in ("index", "indices", "target"):
            value = torch.zeros(4, 4, dtype=torch.int64)
            value = value[0] if argument.name == "target" or "select" in overload.name() else value
        elif kind == "Tensor":
            value = (torch.arange(16, dtype=torch.float32).reshape(4, 4) + 1) / 20
            if variant == 1:
                value = torch.arange(16, dtype=torch.int64).reshape(4, 4) + 1
            elif variant == 2:
                value = torch.eye(4) * 2
            if dtypes and position in dtypes:
                value = value.to(dtypes[position])
            elif dtypes and argument.name == "other":
                value = value.to(next(iter(dtypes.values())))
        elif kind.startswith("Optional"):
            value = None
        elif kind == "List[Tensor]":
            value = [torch.ones(4, 4), torch.ones(4, 4)]
        elif kind == "int":
            value = 0 if "dim" in argument.name or argument.name == "diagonal" else 1
        elif kind in ("number", "Scalar"):
            value = 1
        elif kind == "float":
            value = 0.5
        elif kind == "bool":
            value = False
        elif kind == "List[int]":
            value = [0] if "dim" in argument.name else [1]
        else:
            raise TypeError(kind)
        if argument.kwarg_only:
            named[argument.name] = value
        else:
            given.append(value)
    return given, named


def clean(error):
    """The text of an error without paths, addresses and traces of C++ and Python."""
    text = str(error).split("\nException raised from")[0]
    text = re.sub(r"(/[\w.+-]+){2,}/?", "<path>", text)
    text = re.sub(r"\b\d{1,3}(\.\d{1,3}){3}\b", "<address>", text)
    return text[:3000]


def cpu():
    try:
        with open("/proc/cpuinfo") as file:
            for line in file:
                if line.lower().startswith(("model name", "cpu model")):
                    return line.split(":", 1)[1].strip()
    except OSError:
        pass
    try:
        done = subprocess.run(["lscpu"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=10)
        for line in done.stdout.decode(errors="replace").splitlines():
            if line.startswith(("Model name", "BIOS Model name")):
                return line.split(":", 1)[1].strip()
    except (OSError, subprocess.SubprocessError):
        pass
    return ""


def cann():
    home = os.environ.get("ASCEND_TOOLKIT_HOME") or os.environ.get("ASCEND_HOME_PATH") or ""
    for folder in (home, "/usr/local/Ascend/ascend-toolkit/latest", "/usr/local/Ascend/cann"):
        for system in ("", platform.machine() + "-linux", "aarch64-linux", "x86_64-linux"):
            for name in ("ascend_toolkit_install.info", "version.cfg"):
                found = folder and version_in(os.path.join(folder, system, name))
                if found:
                    return found
    return ""


def version_in(path):
    try:
        with open(path, errors="replace") as file:
            found = re.search(r"^\s*[\w]*version\w*\s*=\s*\[?([\w.+-]+)", file.read(), re.IGNORECASE | re.MULTILINE)
        return found.group(1) if found else ""
    except OSError:
        return ""


class Interrupted(Exception):
    """Ctrl-C, or the end of the time for everything."""


class Parent:
    """Runs the parts one after the other and writes the file."""

    def __init__(self, options):
        self.options = options
        self.begin = time.monotonic()
        self.results = []
        self.ended = []

    def run(self):
        stopped = ""
        try:
            with tempfile.TemporaryDirectory() as folder:
                for name, seconds, environment in PARTS:
                    if self.options.only and name not in ["identity"] + self.options.only.split(","):
                        continue
                    print("%4.0f s  %s" % (time.monotonic() - self.begin, name), file=sys.stderr)
                    self.part(name, seconds, environment, folder)
        except (KeyboardInterrupt, Interrupted) as error:
            stopped = str(error) or "stopped by the user"
        begun = [each["part"] for each in self.ended]
        why = "not begun: stopped early" if stopped else "not begun: not among those of --only"
        self.ended += [{"part": each[0], "ended": why} for each in PARTS if each[0] not in begun]
        facts = {
            "format": FORMAT,
            "toprope": TABLES["toprope"],
            "release": TABLES["release"],
            "quick": self.options.quick,
            "seconds": round(time.monotonic() - self.begin, 1),
            "stopped": stopped,
            "parts": self.ended,
            "results": self.results,
        }
        with open(self.options.output, "w") as file:
            json.dump(facts, file, indent=1)
            file.write("\n")
        print("wrote %s%s" % (self.options.output, ": " + stopped if stopped else ""), file=sys.stderr)
        return 0 if self.results else 1

    def part(self, name, seconds, environment, folder):
        """Run one part, again from behind the operator in which it died."""
        skip = 0
        end = time.monotonic() + seconds
        for number in range(6):
            state = os.path.join(folder, "%s %d" % (name, number))
            why = self.process(name, min(end, self.begin + ALL), environment, state, skip)
            lines = self.read(state)
            self.results += [line for line in lines if line["what"] != "begin"]
            begun = [line for line in lines if line["what"] == "begin"]
            self.ended.append({"part": name, "ended": why or "ok"})
            if not why or not begun or time.monotonic() >= end:
                return
            last = begun[-1]
            self.results.append({"what": "operator", "operator": last["operator"], "died": why})
            skip = last["number"] + 1

    def read(self, state):
        lines = []
        try:
            with open(state) as file:
                for line in file:
                    try:
                        lines.append(json.loads(line))
                    except ValueError:
                        pass  # cut short
        except OSError:
            pass
        return lines

    def process(self, name, end, environment, state, skip):
        """Run the process of a part; return the reason if it failed, else an empty text."""
        left = end - time.monotonic()
        if left <= 1:
            return "no time was left"
        options = self.options
        command = [sys.executable, os.path.abspath(__file__), "--part", name, "--state", state, "--skip", str(skip)]
        command += ["--device", str(options.device)] + (["--quick"] if options.quick else [])
        with open(state + ".log", "wb") as log:
            process = subprocess.Popen(
                command, env=dict(os.environ, **environment), stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True,
            )
            try:
                status = process.wait(timeout=left)
            except subprocess.TimeoutExpired:
                return "it took longer than its limit"
            except KeyboardInterrupt:
                self.results += [line for line in self.read(state) if line["what"] != "begin"]
                raise
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
        if status == 0:
            return ""
        with open(state + ".log", errors="replace") as log:
            lines = log.read().strip().splitlines()
        return "exit status %d: %s" % (status, clean(lines[-1] if lines else "")[:300])


def main():
    """Measure the card, or run one part of it as a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small sizes and few repetitions: a test of this file")
    parser.add_argument("--device", type=int, default=0, help="number of the card [0]")
    parser.add_argument("--output", default="verify_card.json", help="the file to write [verify_card.json]")
    parser.add_argument("--overwrite", action="store_true", help="write the file where there is one already")
    parser.add_argument("--only", default="", help="parts, such as memory,operators: " + ", ".join(each[0] for each in PARTS))
    for name in ("--part", "--state"):
        parser.add_argument(name, help=argparse.SUPPRESS)
    parser.add_argument("--skip", type=int, default=0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if not options.part:
        known = [each[0] for each in PARTS]
        unknown = [name for name in options.only.split(",") if name and name not in known]
        if unknown:
            parser.error("there is no part %s; do: choose from %s" % (", ".join(unknown), ", ".join(known)))
        if os.path.exists(options.output) and not options.overwrite:
            parser.error("%s is there already; do: name another with --output, or add --overwrite" % options.output)
        return Parent(options).run()
    import torch  # noqa: F401 - without torch_npu there is no torch.npu
    import torch_npu  # noqa: F401

    Child(options).run(options.part)
    return 0


if __name__ == "__main__":
    sys.exit(main())
