"""Nobody else gets at a session: not its memory, not its sockets; and nothing from elsewhere is unpickled.

Held: `local.folder`, `transport`, `deployment.state_file`, by the rights of files and by attempts.
"""

import ast
import fcntl
import os
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest

import toprope.functions
from functions_session import session
from toprope import functions as yr
from toprope.errors import EnvironmentProblem
from toprope.functions.deployment import state_file
from toprope.functions.deployment.start_options import Deployment
from toprope.functions.local import folder as folders
from toprope.functions.scheduling.ledger import Ledger
from toprope.functions.scheduling.nodes import Node

pytestmark = [pytest.mark.native, pytest.mark.process]

ROOM = Path(toprope.functions.__file__).parent
NOBODY = 65534


@yr.instance
class Sharer:
    def share(self):
        self.array = np.ones(2**20, "u1")
        return self.array

    def descriptors_of_programs(self):
        """What a program sees that is started without care."""
        command = ["ls", "-l", "/proc/self/fd"]
        return subprocess.run(command, close_fds=False, capture_output=True, text=True).stdout

    def own_sockets(self):
        return sockets(os.getpid())


def sockets(pid: int) -> set[str]:
    """The sockets of a process, as `socket:[inode]`."""
    found = set()
    for each in Path(f"/proc/{pid}/fd").iterdir():
        try:
            found.add(os.readlink(each))
        except OSError:
            pass
    return {each for each in found if each.startswith("socket:")}


def processes(backend) -> list[int]:
    """The forkserver and the workers of a session."""
    return [
        backend.reactor._forkserver._process.pid,
        *(each.pid for each in backend.reactor._all.values() if each.pid),
    ]


@pytest.fixture(scope="module")
def living():
    """A session with memory of the driver and of a worker, made where the umask forbids nothing."""
    before = os.umask(0)
    strangers = sockets(os.getpid())
    try:
        with session():
            sharer = Sharer.invoke()
            array, kept = yr.get(sharer.share.invoke(), timeout=60), yr.put(np.ones(2**20, "u1"))
            yield sharer, yr.context.backend(), strangers
            del array, kept
            sharer.terminate()
    finally:
        os.umask(before)


@pytest.mark.slow
def test_the_folder_and_what_is_in_it_are_the_users_alone(living):
    _, backend, _ = living
    found = backend.folder.lstat()
    assert stat.S_ISDIR(found.st_mode)
    assert (stat.S_IMODE(found.st_mode), found.st_uid) == (0o700, os.getuid())
    files = list(backend.folder.iterdir())
    assert {"lock", "driver"} < {each.name.partition("-")[0] for each in files}
    assert len(files) >= 3
    assert {stat.S_IMODE(each.lstat().st_mode) for each in files} == {0o600}
    assert all(stat.S_ISREG(each.lstat().st_mode) for each in files)


@pytest.mark.slow
@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_another_user_gets_at_nothing(living):
    _, backend, _ = living
    segments = [str(each) for each in backend.folder.iterdir()]
    pids = processes(backend)
    files = [backend.folder / "lock", *map(Path, segments)]
    code = f"""
folder, segments, pids = {str(backend.folder)!r}, {segments!r}, {pids!r}
tries = [lambda: os.listdir(folder), lambda: os.rename(folder, folder + "x"), lambda: os.rmdir(folder),
         lambda: open(folder + "/mine", "w"), lambda: os.symlink("/etc", folder + "/link"),
         lambda: os.chmod(folder, 0o777)]
for each in segments:
    tries += [lambda each=each: open(each, "rb"), lambda each=each: open(each, "r+b"),
              lambda each=each: os.unlink(each)]
for pid in pids:
    tries += [lambda pid=pid: os.listdir(f"/proc/{{pid}}/fd"), lambda pid=pid: open(f"/proc/{{pid}}/mem", "rb"),
              lambda pid=pid: os.kill(pid, 0)]
"""
    assert tried_by_nobody(code) == (6 + 3 * len(segments) + 3 * len(pids), [])
    assert all(each.exists() for each in files)


def tried_by_nobody(code):
    """The number of functions in the list `tries` that this code makes, and which of them another user may do."""
    told = by_nobody(f"""
{code}
done = []
for number, each in enumerate(tries):
    try:
        each()
        done.append(number)
    except PermissionError:
        pass
print(len(tries), done)
""")
    count, _, done = told.partition(" ")
    return int(count), ast.literal_eval(done)


def by_nobody(code):
    """What a program of another user prints."""
    become = f"import os, sys\nos.setgroups([]); os.setgid({NOBODY}); os.setuid({NOBODY})\n"
    command = [sys.executable, "-S", "-c", become + code]
    return subprocess.run(command, capture_output=True, text=True, check=True, cwd="/").stdout


def test_sockets_have_no_names(living):
    """Pairs of sockets, which only who was given them has: no path and no abstract name that could be connected to."""
    _, backend, strangers = living
    pids = [
        backend.reactor._forkserver._process.pid,
        *(each.pid for each in backend.reactor._all.values() if each.pid),
    ]
    ours = set().union(*map(sockets, pids), sockets(os.getpid()) - strangers)
    inodes = {each[8:-1] for each in ours}
    rows = [line.split() for line in Path("/proc/net/unix").read_text().splitlines()[1:]]
    named = {row[6]: row[7] for row in rows if len(row) > 7}
    there = {row[6] for row in rows}
    assert len(inodes & there) >= 2 * len(pids)
    assert inodes <= there  # none of another kind, such as TCP
    assert not inodes & set(named)


def test_no_program_inherits_a_socket_or_the_memory(living):
    """Sockets that came over another socket were inherited by whatever a worker started, once."""
    sharer, backend, strangers = living
    mine = sockets(os.getpid()) - strangers
    assert mine
    here = subprocess.run(["ls", "-l", "/proc/self/fd"], close_fds=False, capture_output=True, text=True).stdout
    assert not [each for each in mine if each in here]
    assert str(backend.folder) not in here
    there = yr.get(sharer.descriptors_of_programs.invoke(), timeout=30)
    assert there.count("->") >= 3
    assert not [each for each in yr.get(sharer.own_sockets.invoke(), timeout=30) if each in there]
    assert str(backend.folder) not in there


# The folder


@pytest.fixture
def base(tmp_path, monkeypatch):
    folder = tmp_path / "store"
    folder.mkdir(mode=0o700)
    monkeypatch.setenv("TOPROPE_OBJECT_STORE", str(folder))
    return folder


def test_a_folder_that_exists_or_is_a_link_is_not_used(base, tmp_path, monkeypatch):
    victim = tmp_path / "victim"
    victim.mkdir()
    prefix = f"toprope-{os.getuid()}-{os.getpid()}-"
    (base / f"{prefix}link").symlink_to(victim)
    (base / f"{prefix}there").mkdir(mode=0o777)
    names = iter(["link", "there", "fresh"])
    monkeypatch.setattr(tempfile, "_get_candidate_names", lambda: names)
    found = folders.shared_folder()
    assert found.name == f"{prefix}fresh"
    assert stat.S_IMODE(found.lstat().st_mode) == 0o700
    os.close(folders.hold(found))
    assert list(victim.iterdir()) == []
    (found / "lock").unlink()
    (found / "lock").symlink_to(victim / "lock")
    with pytest.raises(FileExistsError):
        folders.hold(found)


def test_a_store_where_everybody_may_rename_is_refused(base):
    base.chmod(0o777)
    with pytest.raises(yr.YRRuntimeError, match="every user may rename") as caught:
        folders.shared_folder()
    assert caught.value.code == 4202
    base.chmod(0o1777)
    assert folders.shared_folder().parent == base


def test_a_store_that_is_not_there_is_named(monkeypatch):
    monkeypatch.setenv("TOPROPE_OBJECT_STORE", "/no/such/folder")
    with pytest.raises(yr.YRRuntimeError, match=r"/no/such/folder cannot be used: No such file.*TOPROPE_OBJECT_STORE"):
        folders.shared_folder()


def test_what_killed_sessions_left_is_removed_and_nothing_else(base, tmp_path):
    prefix = f"toprope-{os.getuid()}-1-"

    def made(name, locked=True, old=False):
        folder = base / name
        folder.mkdir(mode=0o700)
        (folder / "driver-1").write_bytes(b"x")
        if locked:
            (folder / "lock").touch(0o600)
        if old:
            os.utime(folder, (1, 1))
        return folder

    left, never_locked = made(f"{prefix}left"), made(f"{prefix}a", locked=False, old=True)
    used, fresh = made(f"{prefix}used"), made(f"{prefix}fresh", locked=False)
    foreign, other = made("toprope-1-1-x"), made("other")
    target = tmp_path / "target"
    target.mkdir()
    (target / "lock").touch()
    link = base / f"{prefix}link"
    link.symlink_to(target)
    with open(used / "lock") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        new = folders.shared_folder()
    assert {*base.iterdir()} == {used, fresh, foreign, other, link, new}
    assert (target / "lock").exists()
    assert not left.exists()
    assert not never_locked.exists()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a folder away")
def test_the_folder_of_another_user_is_left_alone(base):
    folder = base / f"toprope-{os.getuid()}-1-x"
    folder.mkdir()
    (folder / "lock").touch()
    os.chown(folder, NOBODY, NOBODY)
    folders._sweep(base)
    assert folder.exists()


# What lies at a path that others can work out

as_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")


@pytest.fixture
def shared(monkeypatch):
    """A folder where every user may make files, as /tmp is, with the user's run-time directory in it."""
    folder = Path(tempfile.mkdtemp(prefix="toprope-shared-"))
    folder.chmod(0o1777)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder))
    monkeypatch.setenv("TOPROPE_OBJECT_STORE", str(folder))
    yield folder
    shutil.rmtree(folder)


@as_root
def test_another_user_can_neither_read_nor_replace_what_was_started(shared, tmp_path, monkeypatch):
    before = os.umask(0)
    try:
        state = Path(state_file.share_cards(""))
        path = state_file.keep(Deployment(cards=str(state)))
        with state_file.reservations().synchronized(Ledger([Node("here", 1000, 1000)]), "here"):
            pass
        folder, held = folders.join_folder("pipeline")
    finally:
        os.umask(before)
    try:
        code = (
            f"tries = []\nfor each in {[str(each) for each in (path.parent, state, folder)]!r}:"
            + """
    tries += [lambda each=each: os.listdir(each), lambda each=each: os.rename(each, each + "x"),
              lambda each=each: os.chmod(each, 0o777), lambda each=each: open(each + "/lock", "rb"),
              lambda each=each: open(each + "/mine", "w"), lambda each=each: os.unlink(each + "/started.json")]
"""
        )
        assert tried_by_nobody(code) == (18, [])
        assert state_file.read().cards == str(state)
    finally:
        folders.leave_folder(folder, held)
        state_file.end()
    assert not state.exists()


@as_root
@pytest.mark.parametrize("made", ["os.mkdir(path, 0o700)", "os.mkdir(path, 0o777)", "os.symlink('/etc', path)"])
def test_what_another_user_has_made_beforehand_is_refused(shared, made):
    """`toprope stop` ended in a PermissionError there; what lay there could have been taken for one's own."""
    started = Deployment(boot=state_file._boot_id()).format()
    names = ("toprope", f"toprope-{os.getuid()}-pipeline")
    for name in names:
        by_nobody(f"path = {str(shared / name)!r}\n{made}")
    assert state_file.read() is None
    assert state_file.end() is None
    with pytest.raises(EnvironmentProblem, match="belongs to another user") as caught:
        state_file.keep(Deployment())
    assert "set XDG_RUNTIME_DIR" in str(caught.value)
    with pytest.raises(PermissionError, match="belongs to another user, or others may enter it"):
        folders.join_folder("pipeline")
    if "mkdir" in made:
        (shared / "toprope" / "started.json").write_text(started)  # even a file of one's own, as a hard link would be
        (shared / "toprope" / "started.json").chmod(0o600)
        assert state_file.read() is None
    assert all(os.path.lexists(shared / name) for name in names)


@as_root
def test_cards_whose_folder_another_user_has_made_again_are_refused(shared, tmp_path):
    folder = shared / "toprope-cards-gone"
    by_nobody(f"os.mkdir({str(folder)!r}, 0o755)\nopen({str(folder / 'cards')!r}, 'w')")
    with pytest.raises(EnvironmentProblem, match="belongs to another user") as caught:
        state_file.join_cards(tmp_path, Deployment(cards=str(folder)))
    assert "toprope stop" in str(caught.value)


# Pickles

READERS = {"loads", "load", "Unpickler"}
SITES = {
    # what a worker's or the driver's own end of a pair of sockets has received, all of it
    "transport/wire.py": {"_messages": 1},
    # the values in such messages
    "transport/serialization.py": {"unpack": 2},
    "local/worker_requests.py": {"_request": 2},
    "exceptions.py": {"read_error": 1},
    "local/worker/relay.py": {"find": 1},
    # the state of the process's own instance, in a value as above or from Ray
    "backend.py": {"restore": 1},
    "local/worker/worker_process.py": {"code": 1, "create": 1},
    # a pickle that was made in the line before
    "exception_pickle.py": {"_can_travel": 1, "_is_kept": 1},
    # a function that the program itself has pickled, in a value as above
    "api/function_groups.py": {"__init__": 1},
}
RAY = "ray/"
"""There, pickles come from Ray's own object store and calls, which Ray unpickles itself."""


def reading(path: Path) -> dict[str, int]:
    """How often each function of a file makes objects of bytes."""
    tree = ast.parse(path.read_text())
    found: dict[str, int] = {}

    def walk(node, function):
        for child in ast.iter_child_nodes(node):
            inner = child.name if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef) else function
            if isinstance(child, ast.Call) and isinstance(child.func, ast.Attribute) and child.func.attr in READERS:
                owner = getattr(child.func.value, "id", "?")
                if owner not in ("json", "tomllib"):
                    found[function] = found.get(function, 0) + 1
            walk(child, inner)

    walk(tree, "")
    imported = [
        node for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module in ("pickle", "cloudpickle", "marshal")
    ]  # fmt: skip
    assert not [each for node in imported for each in node.names if each.name in READERS], path
    return found


def test_pickles_are_read_only_where_they_are_our_own():
    """A new place that unpickles needs a reason, and to be on this list."""
    found = {str(path.relative_to(ROOM)): reading(path) for path in sorted(ROOM.rglob("*.py"))}
    assert {name: sites for name, sites in found.items() if sites and not name.startswith(RAY)} == SITES


def test_the_room_opens_no_port():
    for path in ROOM.rglob("*.py"):
        if not str(path.relative_to(ROOM)).startswith(RAY):
            text = path.read_text()
            assert not [word for word in (".accept(", "AF_INET", "create_server", "asyncio.start_") if word in text], (
                path
            )


def test_a_session_answers_to_no_socket_but_its_own(living):
    """A stranger who has found a number of a descriptor or a process has nothing to connect to."""
    _, backend, _ = living
    for name in (f"\0toprope-{os.getpid()}", f"\0{backend.folder.name}", str(backend.folder), f"{backend.folder}/lock"):
        with socket.socket(socket.AF_UNIX) as stranger, pytest.raises(OSError, match=r"refused|No such|socket"):
            stranger.connect(name)
