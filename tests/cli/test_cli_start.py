"""`toprope start`, `status` and `stop`, and the same as `yr` under `toprope run`.

Holds `cli.start`, `cli.status`, `cli.stop` and `cli.yr`. The measure for option names and texts is openYuanrong's own
command.
"""

import json
import os
import re
import shutil
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toprope.cli import yr
from toprope.cli.launch.select_target import DeviceOption, choose
from toprope.cli.start import _simulated
from toprope.errors import EnvironmentProblem, UsageError
from toprope.functions.deployment import state_file
from toprope.functions.deployment.start_options import WRONG_MODE, Deployment, begin, leftover, no_set
from toprope.functions.local.folder import hold, shared_folder
from toprope.functions.local.listing import listed
from toprope.functions.local.startup import this_node
from toprope.functions.options import Config
from toprope.settings import Settings
from toprope.sim.metrics import cards
from toprope.sim.spec import SimSpec

pytestmark = [pytest.mark.native, pytest.mark.process]

TOPROPE = Path(sys.executable).with_name("toprope")
MISSION = Path(__file__).resolve().parents[1] / "helpers" / "programs" / "yr_npu_instance.py"
BOTH = """
import json, os, yr

@yr.instance
class Seer:
    def seen(self):
        import torch, torch_npu
        names = ("ASCEND_RT_VISIBLE_DEVICES", "YR_NOSET_CUDA_VISIBLE_DEVICES")
        return [torch.npu.device_count(), *map(os.getenv, names)]

yr.init()
(node,) = yr.resources()
options = yr.InvokeOptions(custom_resources={"NPU/910B4/count": 2, "ssd": 1})
print(json.dumps([yr.get(Seer.options(options).invoke().seen.invoke()), node["capacity"], node["labels"]["zone"]]))
yr.finalize()
"""


@pytest.fixture
def runtime(tmp_path, monkeypatch):
    """A run-time directory of the user's own."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.delenv("INIT_LABELS", raising=False)
    (tmp_path / "store").mkdir(mode=0o700)
    monkeypatch.setenv("TOPROPE_OBJECT_STORE", str(tmp_path / "store"))  # other programs of the user are not seen
    yield tmp_path / "toprope"
    state_file.end()


def toprope(*words, status=0, **variables):
    """Run the command; return its stdout and stderr. Its exit status must be `status`."""
    done = subprocess.run(
        [TOPROPE, *words], capture_output=True, text=True, env=os.environ | variables, timeout=120
    )  # fmt: skip
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout, done.stderr


def call(*words):
    """As `toprope`, in this process: exit status."""
    from toprope.cli import main

    return main(words)


# What options mean


def test_both_generations_say_the_same():
    old, idle = begin(
        {"npu_collection_mode": "count", "custom_resources": '{"ssd": 5}', "labels": '{"zone": "a"}', "cpu_num": 8000},
        ["512"],
    )
    new, _ = begin(
        {"npu_collection_mode": None},
        [
            'function_agent.args.npu_collection_mode="count"',
            "function_agent.args.custom_resources={ssd = 5}",
            'function_agent.args.labels=\'{"zone": "a"}\'',
            "values.cpu_num = 8000",
        ],
    )
    assert old == new == Deployment("count", True, 8000, None, {"ssd": 5}, {"zone": "a"})
    assert idle == ["shared_memory_num"]


def test_options_go_before_settings_and_settings_before_the_file():
    config = '[function_agent.args]\nnpu_collection_mode = "off"\nmemory_num = 9\n[etcd]\nport = 1\n'
    settings = ['a.npu_collection_mode="hbm"', "a.gpu_collection_enable=false"]
    found, idle = begin({"npu_collection_mode": "topo"}, settings, config)
    assert (found.mode, found.gpus, found.memory, idle) == ("topo", False, 9, ["etcd.port"])
    assert begin({}, settings, config)[0].mode == "hbm"


@pytest.mark.parametrize(
    ("options", "settings", "text"),
    [
        ({"npu_collection_mode": "foo"}, (), WRONG_MODE),
        ({}, ['x.npu_collection_mode="foo"'], WRONG_MODE),
        ({}, ["x.npu_collection_mode=foo"], "values are TOML"),
        ({}, ["x"], "cannot be read"),
        ({"gpu_collection_enable": "maybe"}, (), "gpu_collection_enable can only be 'true' or 'false'"),
        ({"custom_resources": "{ssd: 5}"}, (), "is not JSON"),
        ({"custom_resources": "[5]"}, (), "is not a table"),
        ({"custom_resources": '{"ssd": -1}'}, (), "is not an amount"),
        ({"custom_resources": '{"ssd": true}'}, (), "is not an amount"),
        ({"cpu_num": 0}, (), "is not an amount of cores or memory"),
    ],
)
def test_values_that_cannot_be(options, settings, text):
    with pytest.raises(UsageError) as error:
        begin(options, settings)
    assert text in str(error.value)


def test_options_of_a_cluster_are_accepted_and_others_are_not():
    words = ["-a", "1.2.3.4", "--port-policy=FIX", "--etcd_port", "3"]
    assert leftover(words) == ["-a", "--port-policy", "--etcd_port"]
    for wrong in (["--npu_collection"], ["x"], ["--port_policy"]):
        with pytest.raises(UsageError):
            leftover(wrong)


texts = st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=3)


amounts = st.dictionaries(st.text(), st.floats(0, 1e9))


@given(st.builds(Deployment, cpu=st.none() | st.integers(1), labels=texts, no_set=texts, sim=st.text(),
                 gpus=st.booleans(), custom_resources=amounts, since=st.floats(0, 1e10)))  # fmt: skip
def test_what_is_written_is_read(deployment):
    assert Deployment.parse(deployment.format()) == deployment
    later = json.loads(deployment.format()) | {"unheard": 1}
    assert Deployment.parse(json.dumps(later)) == deployment


def test_variables_that_keep_masks_away_are_kept_by_presence():
    assert no_set({"YR_NOSET_ASCEND_RT_VISIBLE_DEVICES": "", "YR_OTHER": "1"}) == {
        "YR_NOSET_ASCEND_RT_VISIBLE_DEVICES": ""
    }


# The file


def test_what_was_started_is_the_users_alone_and_ends(runtime):
    assert state_file.read() is None
    assert state_file.end() is None
    place = state_file.keep(Deployment(mode="count"))
    assert stat.S_IMODE(place.stat().st_mode) == 0o600
    assert stat.S_IMODE(place.parent.stat().st_mode) == 0o700
    assert state_file.read().mode == "count"
    with pytest.raises(UsageError, match="a deployment is running already"):
        state_file.keep(Deployment())
    assert state_file.end().mode == "count"
    assert state_file.read() is None


def test_a_file_that_others_may_have_written_is_ignored(runtime):
    place = state_file.keep(Deployment())
    place.chmod(0o644)
    assert state_file.read() is None
    place.chmod(0o600)
    assert state_file.read() is not None
    other = runtime / "other"
    shutil.copy(place, other)
    place.unlink()
    place.symlink_to(other)
    assert state_file.read() is None


def test_what_was_started_before_a_boot_is_over(runtime, monkeypatch):
    place = state_file.keep(Deployment())
    found = state_file.read()
    place.write_text(replace(found, boot="another").format())
    assert state_file.read() is None
    place.write_text("{")
    assert state_file.read() is None


def test_cards_that_run_on_are_the_cards_that_are_started(tmp_path):
    run, later = tmp_path / "run", tmp_path / "later"
    run.mkdir(), later.mkdir()
    folder = state_file.share_cards(str(run))
    state_file.join_cards(later, Deployment(cards=folder))
    (run / cards.FILE).write_bytes(b"held")
    assert (later / cards.FILE).read_bytes() == b"held"
    shutil.rmtree(folder)
    assert Path(state_file.share_cards("")).is_dir()


def test_a_run_joins_the_cards_that_were_started():
    def chosen(asked, **described):
        given = {"chip": None, "count": None, "hbm": None} | described
        settings = Settings.load(sim="310P3", trust_env=False)
        return choose(asked, **given, settings=settings, probe=lambda: pytest.fail("not needed"), begun="910B4x2")

    for described in ({}, {"chip": "910B4"}, {"count": 2}):
        choice = chosen(None, **described)
        assert (choice.begun, choice.spec) == (True, SimSpec("910B4", 2, force=True))
    for described in ({"chip": "910B3"}, {"count": 1}, {"hbm": "1GB"}):
        with pytest.raises(UsageError, match="not fit the cards that were started"):
            chosen(None, **described)
    assert not chosen(DeviceOption.CPU).begun


# The commands


def test_a_session_offers_what_was_started_and_what_it_adds(monkeypatch):
    monkeypatch.setenv("TOPROPE_SIM", "910B4x2")
    started = Deployment(cpu=3000, memory=900, custom_resources={"ssd": 2}, labels={"zone": "a", "rack": "1"})
    node = this_node(Config(custom_resources={"ssd": 5, "hdd": 1}, labels={"rack": "2"}), started)
    assert (node.cpu, node.memory, dict(node.scalars)) == (3000, 900, {"ssd": 5, "hdd": 1})
    assert [(card.id, card.model) for card in node.cards] == [(0, "910B4"), (1, "910B4")]
    assert node.labels == {"NODE_ID": node.id, "HOST_IP": "127.0.0.1", "zone": "a", "rack": "2"}
    assert this_node(Config(num_cpus=5, npu_collection_mode="off"), started).cpu == 5000
    plain = this_node(Config(npu_collection_mode="off"), Deployment())
    assert (plain.cpu, plain.cards) == (1000 * len(os.sched_getaffinity(0)), ())
    assert plain.memory > 0


def test_start_status_stop(runtime, capsys, monkeypatch):
    monkeypatch.setenv("YR_NOSET_ASCEND_RT_VISIBLE_DEVICES", "0")
    monkeypatch.setenv("INIT_LABELS", '{"zone": "b"}')
    assert call("status") == 0
    assert capsys.readouterr().out == "System Status: STOPPED\n"
    assert call("stop") == 0
    assert capsys.readouterr().out == "nothing runs\n"
    words = ["--chip", "910B4", "--count", "2", "--custom_resources", '{"ssd": 5}', "--port_policy", "FIX"]
    assert call("start", "--master", "--npu-collection-mode", "hbm", "-c", "8000", *words) == 0
    told = capsys.readouterr()
    assert told.out.startswith("started (npu_collection_mode=hbm); 2 simulated Ascend 910B4")
    assert told.err == "toprope: without effect here: --port_policy\n"
    found = state_file.read()
    assert (found.cpu, found.custom_resources, found.labels) == (8000, {"ssd": 5}, {"zone": "b"})
    assert found.no_set == {"YR_NOSET_ASCEND_RT_VISIBLE_DEVICES": "0"}
    assert SimSpec.parse(found.sim) == SimSpec("910B4", 2, force=True)
    assert call("status") == 0
    shown = capsys.readouterr().out
    assert shown.startswith("System Status: RUNNING\n")
    for each in ("npu_collection_mode=hbm", "2 simulated Ascend 910B4", "8000 millicores, ssd 5", "zone=b", "YR_NOSET"):
        assert each in shown
    assert call("start", "--master") == 2
    assert "a deployment is running already" in capsys.readouterr().err
    assert call("stop", "--force") == 0
    assert capsys.readouterr().out == "stopped\n"
    assert not Path(found.cards).exists()


def test_status_lists_the_instances_of_programs_where_nothing_was_started(runtime, capsys):
    """It said only STOPPED, and an instance without a handle could not be found."""
    from functions_world import Thing, until
    from toprope import functions

    def shown():
        assert call("status") == 0
        return capsys.readouterr().out

    functions.init(functions.Config(num_cpus=2))
    try:
        kept, lost = Thing.invoke(), Thing.invoke()
        name = lost.real_id()
        functions.get([kept.echo.invoke(1), lost.echo.invoke(1)], 60)
        del lost
        assert until(lambda: re.search(rf"{name}\s+Thing of program {os.getpid()}, .*, no handle left", shown()))
        assert shown().startswith("System Status: STOPPED\n")
        assert kept.real_id() in shown()
    finally:
        functions.finalize()
    assert shown() == "System Status: STOPPED\n"


def test_a_session_that_has_ended_without_removing_its_folder_is_not_listed(runtime):
    folder = shared_folder()
    (folder / "instances.json").write_text(json.dumps({"pid": 12, "instances": [{"id": "one"}]}))
    assert list(listed()) == []  # it has no lock yet
    lock = hold(folder)
    assert list(listed()) == [(12, [{"id": "one"}])]
    os.close(lock)
    assert list(listed()) == []


@pytest.mark.parametrize(
    "words",
    [
        ["--master", "--npu_collection_mode=foo"],
        ["--master", "-s", 'function_agent.args.npu_collection_mode="foo"'],
    ],
)
def test_another_mode_is_refused_in_the_vendors_words(runtime, capsys, words):
    assert call("start", *words) == 1
    assert capsys.readouterr().err == "npu_collection_mode only support all, count, hbm, sfmd, topo, off\n"
    assert state_file.read() is None


def test_without_cards_it_starts_and_says_so(runtime, capsys):
    assert call("start", "--master") == 0
    assert "no card was found, no NPU is offered" in capsys.readouterr().out


def test_what_makes_no_sense(runtime, capsys, monkeypatch):
    for words, text in (
        ([], "neither --master nor --master_address is given"),
        (["--master", "--unheard"], "there is no option --unheard"),
        (["--master", "--block", "maybe"], "neither true nor false"),
        (["--master", "--config", "/nonexistent.toml"], "cannot be read"),
    ):
        assert call("start", *words) == 2
        assert text in capsys.readouterr().err
    monkeypatch.setenv("TOPROPE_SIM", "910B4x2")
    assert call("start", "--master", "--count", "3") == 2
    assert "not those of the toprope run that this is in" in capsys.readouterr().err
    assert state_file.read() is None


def test_cards_of_a_run_with_options_of_its_own_were_called_others(runtime, monkeypatch):
    monkeypatch.setenv("TOPROPE_SIM", "910B4x2,refuse=off,numerics=card")
    assert _simulated("910B4", None, None) == "910B4x2,force=on,refuse=off,numerics=card"
    with pytest.raises(UsageError, match="are not those of the toprope run"):
        _simulated(None, 3, None)


def test_ray_that_is_not_there_is_said(runtime, monkeypatch):
    monkeypatch.setitem(sys.modules, "toprope.functions.ray.cluster.commands", None)
    monkeypatch.setitem(sys.modules, "toprope.functions.ray", None)
    assert state_file.address() == ""
    with pytest.raises(EnvironmentProblem, match="Ray cannot be used"):
        state_file.cluster()
    assert call("start", "--master", "--ray") == 3
    assert state_file.read() is None


def test_blocking_ends_with_stop(runtime):
    waiting = subprocess.Popen([TOPROPE, "start", "--master", "--block", "true"], stdout=subprocess.PIPE, text=True)
    assert waiting.stdout.readline().startswith("started")
    assert waiting.poll() is None
    assert call("stop") == 0
    assert waiting.wait(60) == 0
    waiting.stdout.close()


def test_yr_takes_its_configuration_in_front(runtime, tmp_path, capsys):
    config = tmp_path / "config.toml"
    config.write_text('[function_agent.args]\nnpu_collection_mode = "off"\n')
    assert yr.main(["-c", str(config), "start", "--master"]) == 0
    assert state_file.read().mode == "off"
    assert yr.main(["status"]) == yr.main(["stop"]) == yr.main([]) == 0
    assert "Usage: yr" in capsys.readouterr().out
    assert yr.main(["launch"]) == 2
    assert "toprope has no `yr launch`" in capsys.readouterr().err


def test_the_real_yr_goes_before_ours(tmp_path, monkeypatch):
    real = tmp_path / "real"
    real.mkdir()
    (real / "yr").write_text("#!/bin/sh\n")
    (real / "yr").chmod(0o755)
    monkeypatch.setenv("PATH", str(real))
    yr.install(tmp_path)
    assert not (tmp_path / "bin").exists()


@pytest.mark.soak
def test_the_missions_commands_in_three_shells(runtime, tmp_path):
    """yr start --master --npu_collection_mode=all, then the program, then yr stop."""
    program = tmp_path / "both.py"
    program.write_text(BOTH)
    settings = ["--custom_resources", '{"ssd": 5}', "--labels", '{"zone": "a"}']
    start = ["yr", "start", "--master", "--npu_collection_mode=all", *settings]
    said, _ = toprope(
        "run", "-q", "--chip", "910B4", "--count", "2", *start,
        YR_NOSET_ASCEND_RT_VISIBLE_DEVICES="1", YR_NOSET_CUDA_VISIBLE_DEVICES="",
    )  # fmt: skip
    assert said.startswith("started (npu_collection_mode=all); 2 simulated Ascend 910B4")
    said, _ = toprope("run", "-q", str(MISSION))
    assert said.startswith("Tensor device: npu:0, result: \n tensor([[")
    said, _ = toprope("run", "-q", str(program))
    seen, capacity, zone = json.loads(said)
    # the mask was kept away when it was started, so the program sees every card, though two were granted
    assert (seen, zone) == ([2, None, ""], "a")
    assert (capacity["ssd"], capacity["NPU/910B4"]) == (5, 2)
    _, said = toprope("run", "--count", "3", str(MISSION), status=2)
    assert "--count does not fit the cards that were started" in said
    assert toprope("run", "-q", "yr", "stop")[0] == "stopped\n"
    assert toprope("run", "-q", "yr", "status")[0] == "System Status: STOPPED\n"


@pytest.mark.slow
def test_start_program_and_stop_in_one_run(runtime, tmp_path):
    script = tmp_path / "all.sh"
    script.write_text(
        f"set -e\nyr start --master --npu_collection_mode=all\n{sys.executable} {MISSION}\nyr status\nyr stop\n"
    )
    said, _ = toprope("run", "-q", "--chip", "910B3", "sh", str(script))
    assert "Tensor device: npu:0, result: \n tensor([[" in said
    assert "System Status: RUNNING" in said
    assert said.endswith("stopped\n")
