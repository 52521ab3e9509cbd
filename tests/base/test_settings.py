"""Settings: which origin wins, what `show` prints, and how wrong values and files are refused.

Holds src/toprope/settings.py.
"""

import dataclasses
import os
import pathlib
import subprocess
import sys

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from toprope.errors import SettingError
from toprope.settings import Settings

pytestmark = [pytest.mark.native, pytest.mark.process]

VARIABLES = {
    "device": "TOPROPE_DEVICE",
    "sim": "TOPROPE_SIM",
    "cache_dir": "TOPROPE_CACHE_DIR",
    "log": "TOPROPE_LOG",
    "fallback": "TOPROPE_FALLBACK",
    "cann": "TOPROPE_CANN",
    "lang": "TOPROPE_LANG",
}
# name -> three values: (as given, as read)
SAMPLES = {
    "device": [("npu:0", "npu:0"), ("cpu", "cpu"), ("cuda:1", "cuda:1")],
    "sim": [("910B3", "910B3"), ("910B3x2,hbm=256MB", "910B3x2,hbm=256MB"), ("310P3", "310P3")],
    "cache_dir": [("/a", pathlib.Path("/a")), ("/b/c", pathlib.Path("/b/c")), ("/d", pathlib.Path("/d"))],
    "log": [("DEBUG", "DEBUG"), ("error", "ERROR"), ("Info", "INFO")],
    "fallback": [("true", True), ("0", False), ("on", True)],
    "cann": [("8.5.0", "8.5.0"), (" 8.2.RC1", "8.2.RC1"), ("10", "10")],
    "lang": [("zh", "zh"), ("zh_CN", "zh"), ("EN", "en")],
}


@pytest.fixture(autouse=True)
def nowhere(tmp_path, monkeypatch):
    """A working directory and an environment that say nothing."""
    for variable in [*VARIABLES.values(), "XDG_CACHE_HOME"]:
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def project(folder, text):
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "pyproject.toml"
    file.write_text(text, encoding="utf-8")
    return file


def test_defaults(nowhere):
    loaded = Settings.load()
    assert loaded == Settings(
        device=None, sim=None, cache_dir=nowhere / "home" / ".cache" / "toprope", log="WARNING", fallback=False,
        cann="9.0.0", lang="auto",
    )  # fmt: skip
    assert set(loaded.origins.values()) == {"default"}
    assert set(loaded.origins) == set(VARIABLES)


@given(
    name=st.sampled_from(sorted(VARIABLES)),
    by=st.sets(st.sampled_from(["argument", "environment", "file"])),
    order=st.permutations([0, 1, 2]),
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_an_argument_wins_over_the_environment_over_the_file_over_the_default(nowhere, name, by, order):
    argument, environment, written = (SAMPLES[name][index] for index in order)
    file = project(nowhere, f'[tool.toprope]\n{name} = "{written[0]}"\n' if "file" in by else "")
    with pytest.MonkeyPatch.context() as patch:
        if "environment" in by:
            patch.setenv(VARIABLES[name], environment[0])
        loaded = Settings.load(**({name: argument[0]} if "argument" in by else {}))
    got = (getattr(loaded, name), loaded.origins[name])
    if "argument" in by:
        assert got == (argument[1], "argument")
    elif "environment" in by:
        assert got == (environment[1], f"environment variable {VARIABLES[name]}")
    elif "file" in by:
        assert got == (written[1], str(file))
    else:
        assert got == (getattr(Settings(), name), "default")
    assert all(origin == "default" for other, origin in loaded.origins.items() if other != name)


def test_show_gives_each_value_with_its_origin(nowhere, monkeypatch):
    file = project(nowhere, "[tool.toprope]\nfallback = true\n")
    monkeypatch.setenv("TOPROPE_SIM", "910B3x2")
    lines = Settings.load(device="npu:1").show().splitlines()
    assert [line.split(maxsplit=2) for line in lines] == [
        ["device", "npu:1", "argument"],
        ["sim", "910B3x2", "environment variable TOPROPE_SIM"],
        ["cache_dir", str(nowhere / "home" / ".cache" / "toprope"), "default"],
        ["log", "WARNING", "default"],
        ["fallback", "true", str(file)],
        ["cann", "9.0.0", "default"],
        ["lang", "auto", "default"],
    ]
    assert "sim        not set " in Settings.load(trust_env=False).show()


def test_trust_env_false_looks_at_arguments_alone(nowhere, monkeypatch):
    project(nowhere, "[tool.toprope]\nunknown = 1\n")  # not even read: it would be an error
    for name, variable in VARIABLES.items():
        monkeypatch.setenv(variable, SAMPLES[name][0][0])
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    loaded = Settings.load(trust_env=False, log="debug")
    assert loaded == dataclasses.replace(Settings(), log="DEBUG", cache_dir=nowhere / "home" / ".cache" / "toprope")
    assert loaded.origins["log"] == "argument"


def test_settings_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Settings.load().log = "DEBUG"


def test_an_unknown_argument_is_pythons_own_error():
    with pytest.raises(TypeError):
        Settings.load(colour="blue")


def test_an_empty_variable_counts_as_unset(monkeypatch):
    for variable in VARIABLES.values():
        monkeypatch.setenv(variable, "")
    assert set(Settings.load().origins.values()) == {"default"}


def test_the_cache_follows_xdg_and_says_so(monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    loaded = Settings.load()
    assert (loaded.cache_dir, loaded.origins["cache_dir"]) == (
        pathlib.Path("/xdg/toprope"),
        "environment variable XDG_CACHE_HOME",
    )
    monkeypatch.setenv("XDG_CACHE_HOME", "relative/is/ignored")
    assert Settings.load().origins["cache_dir"] == "default"


def test_a_relative_cache_counts_from_where_it_was_written(nowhere, monkeypatch):
    project(nowhere, '[tool.toprope]\ncache_dir = "kept"\n')
    (nowhere / "deep" / "er").mkdir(parents=True)
    monkeypatch.chdir(nowhere / "deep" / "er")
    assert Settings.load().cache_dir == nowhere / "kept"
    monkeypatch.setenv("TOPROPE_CACHE_DIR", "here")
    assert Settings.load().cache_dir == nowhere / "deep" / "er" / "here"
    assert Settings.load(cache_dir=pathlib.Path("there")).cache_dir == nowhere / "deep" / "er" / "there"
    assert Settings.load(cache_dir="~/c").cache_dir == nowhere / "home" / "c"


def test_the_nearest_file_with_a_table_is_read(nowhere, monkeypatch):
    project(nowhere, '[tool.toprope]\nlog = "ERROR"\ndevice = "cpu"\n')
    near = project(nowhere / "a", '[tool.toprope]\nlog = "INFO"\n')
    project(nowhere / "a" / "b", "[tool.other]\nx = 1\n")
    project(nowhere / "a" / "b" / "c", '[project]\ndependencies = ["toprope"]\n')
    monkeypatch.chdir(nowhere / "a" / "b" / "c")
    loaded = Settings.load()
    assert (loaded.log, loaded.origins["log"], loaded.device) == ("INFO", str(near), None)


def test_a_foreign_file_is_not_even_parsed(nowhere):
    project(nowhere, "this is [[ not TOML")
    assert Settings.load() == Settings()


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("device", "NPU 0"),
        ("device", "npu:"),
        ("device", "npu:-1"),
        ("device", ":0"),
        ("sim", "   "),
        ("log", "loud"),
        ("log", "10"),
        ("fallback", "maybe"),
        ("fallback", "2"),
        ("cann", "RC1"),
        ("cann", "8..5"),
        ("lang", "fr"),
        ("lang", "zhx"),
    ],
)
def test_a_malformed_value_names_the_place_and_the_value(nowhere, monkeypatch, name, text):
    with pytest.raises(SettingError) as caught:
        Settings.load(**{name: text})
    assert repr(text) in caught.value.what
    assert caught.value.looked_at == f"the argument {name}"

    file = project(nowhere, f'[tool.toprope]\n{name} = "{text}"\n')
    with pytest.raises(SettingError) as caught:
        Settings.load()
    assert repr(text) in caught.value.what
    assert str(file) in caught.value.looked_at

    monkeypatch.setenv(VARIABLES[name], text)
    with pytest.raises(SettingError) as caught:
        Settings.load()
    assert repr(text) in caught.value.what
    assert caught.value.looked_at == VARIABLES[name]


@pytest.mark.parametrize("value", ["1", "[]", "{}", "1.5", "1979-05-27"])
@pytest.mark.parametrize("name", sorted(VARIABLES))
def test_a_value_of_the_wrong_type_in_the_file_is_refused(nowhere, name, value):
    project(nowhere, f"[tool.toprope]\n{name} = {value}\n")
    with pytest.raises(SettingError, match=f"{name} in .tool.toprope."):
        Settings.load()


def test_an_unknown_key_is_refused_with_the_known_ones(nowhere):
    file = project(nowhere, '[tool.toprope]\ndevise = "npu"\nlog = "INFO"\n')
    with pytest.raises(SettingError) as caught:
        Settings.load()
    assert "'devise'" in caught.value.what
    assert caught.value.looked_at == str(file)
    assert all(name in caught.value.do for name in VARIABLES)


@pytest.mark.parametrize(
    "text", ["[tool]\ntoprope = 3\n", "[tool.toprope\n", "[tool.toprope]\nlog = 'INFO'\nlog = 'INFO'\n"]
)
def test_a_broken_file_is_refused_by_name(nowhere, text):
    file = project(nowhere, text)
    with pytest.raises(SettingError) as caught:
        Settings.load()
    assert str(file) in str(caught.value)


def test_a_file_that_is_not_text_is_refused_by_name(nowhere):
    (nowhere / "pyproject.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(SettingError, match=r"pyproject\.toml cannot be read"):
        Settings.load()


def test_a_removed_working_directory_is_no_obstacle(nowhere, monkeypatch):
    gone = nowhere / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert Settings.load() == Settings()
    with pytest.raises(SettingError, match="absolute path"):
        Settings.load(cache_dir="relative")
    monkeypatch.chdir(nowhere)


@given(st.text(alphabet=st.characters(blacklist_characters="\0", codec="utf-8"), max_size=12))
def test_any_text_is_read_or_refused(text):
    for name in VARIABLES:
        try:
            said = Settings.load(trust_env=False, **{name: text}).origins[name]
        except SettingError as error:
            said = error.what
        assert said == "argument" or repr(text) in said


def test_reading_them_needs_neither_torch_nor_a_toml_parser(nowhere):
    code = (
        "import sys; from toprope.settings import Settings; Settings.load(); "
        "print([m for m in ('torch', 'numpy', 'tomllib', 'rich', 'typer', 'logging') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, env=dict(os.environ)
    )
    assert (done.stdout, done.stderr, done.returncode) == ("[]\n", "", 0)
