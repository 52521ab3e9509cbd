"""Ray's authentication (`ray.nodes.local_node`): each session has the mode and the token of its own environment."""

import os
import re
import shutil
import subprocess

import pytest

from functions_world import alive
from toprope import functions as yr
from toprope.errors import EnvironmentProblem

ray = pytest.importorskip("ray")

from toprope.functions.ray.cluster.startup import start  # noqa: E402
from toprope.functions.ray.nodes import local_node  # noqa: E402

MODE = "RAY_AUTH_MODE"


@pytest.fixture
def modes(monkeypatch):
    """The modes with which Ray was to be joined; none is. A Ray before this one had another."""
    from ray._raylet import get_authentication_mode

    found = []

    def init(**keywords):
        found.append(int(get_authentication_mode()))
        os.environ[MODE] = "token"  # as Ray does for the Ray that it starts
        raise ConnectionError("no Ray is started here")

    monkeypatch.setattr(ray, "init", init)
    monkeypatch.setenv(MODE, "token")
    local_node.read_auth()
    monkeypatch.delenv(MODE)
    yield found
    monkeypatch.undo()
    local_node.read_auth()


def test_a_session_had_the_authentication_of_the_ray_before_it(modes):
    """It refused the calls of its own Ray then, which took the program for dead and ended all of its actors."""
    with pytest.raises(EnvironmentProblem, match="no Ray is started here"):
        start(yr.Config(), "auto")
    assert modes == [0]


def test_a_ray_that_did_not_begin_in_time_was_an_exception_without_a_name(modes, monkeypatch):
    def init(**keywords):
        raise Exception("The current node timed out during startup.")

    monkeypatch.setattr(ray, "init", init)
    with pytest.raises(EnvironmentProblem, match="no Ray can be reached at auto: The current node timed out"):
        start(yr.Config(), "auto")


def test_a_ray_that_does_not_start_leaves_no_process_and_says_what_to_read(modes, monkeypatch, tmp_path):
    """Its processes stayed until the program ended."""
    sleep = shutil.which("sleep")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    for name in ("RAY_ADDRESS", "TOPROPE_SIM"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(MODE, "disabled")
    begun = [subprocess.Popen(["ray::of-another", "60"], executable=sleep), subprocess.Popen([sleep, "60"])]

    def init(**keywords):
        begun.append(subprocess.Popen(["ray::gcs_server", "60"], executable=sleep))
        raise Exception("The current node timed out during startup.")

    monkeypatch.setattr(ray, "init", init)
    try:
        with pytest.raises(EnvironmentProblem, match="no Ray can be started: The current node timed out") as caught:
            start(yr.Config(npu_collection_mode="off"), "ray")
        assert re.search(r"waited \d+ s, in which .* cores .*; Ray's own reasons are in .*logs", str(caught.value))
        another, own, rays = begun
        assert not alive(rays.pid)
        assert (another.poll(), own.poll()) == (None, None)
    finally:
        for each in begun:
            each.kill()
            each.wait(10)


def test_the_authentication_of_a_ray_that_has_ended_stayed_with_the_program(modes):
    from ray._raylet import get_authentication_mode

    with pytest.raises(EnvironmentProblem):
        start(yr.Config(), "auto")
    assert MODE not in os.environ
    assert int(get_authentication_mode()) == 0


@pytest.fixture
def token(tmp_path, monkeypatch):
    for name in (MODE, "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    path = tmp_path / ".ray" / "auth_token"
    monkeypatch.setattr(local_node, "_TOKEN", path)
    return path


def test_a_token_is_made_for_its_user_alone_and_kept(token):
    before = os.umask(0)
    try:
        local_node.keep_token()
    finally:
        os.umask(before)
    assert [each.stat().st_mode & 0o777 for each in (token.parent, token)] == [0o700, 0o600]
    text = token.read_text()
    assert len(text) == 64
    local_node.keep_token()
    assert token.read_text() == text


@pytest.mark.parametrize(("folder", "file"), [(0o700, 0o644), (0o700, 0o660), (0o777, 0o600), (0o1777, 0o600)])
def test_a_token_that_others_could_read_or_replace_was_taken(token, folder, file):
    local_node.keep_token()
    token.parent.chmod(folder)
    token.chmod(file)
    with pytest.raises(EnvironmentProblem, match="anyone with Ray's token can run code here") as caught:
        local_node.keep_token()
    assert "chmod go-rwx" in str(caught.value)


def test_the_sockets_of_a_ray_lay_where_every_user_could_replace_them(tmp_path, monkeypatch):
    monkeypatch.setattr(local_node, "_TEMPORARY", tmp_path)
    monkeypatch.delenv("RAY_TMPDIR", raising=False)
    folder = tmp_path / f"toprope-{os.getuid()}"
    assert local_node.private_folder() == str(folder / "ray")
    assert folder.stat().st_mode & 0o777 == 0o700
    assert local_node.private_folder() == str(folder / "ray")
    folder.chmod(0o755)
    with pytest.raises(EnvironmentProblem, match="others may enter it") as caught:
        local_node.private_folder()
    assert "set RAY_TMPDIR" in str(caught.value)
    folder.rmdir()
    folder.symlink_to(tmp_path)
    with pytest.raises(EnvironmentProblem, match="belongs to another user"):
        local_node.private_folder()
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    assert local_node.private_folder() is None


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a file away")
@pytest.mark.parametrize("of", ["folder", "file"])
def test_a_token_of_another_user_was_taken(token, of):
    local_node.keep_token()
    os.chown(token if of == "file" else token.parent, 65534, 65534)
    with pytest.raises(EnvironmentProblem, match="owner 65534"):
        local_node.keep_token()
