"""Options of `toprope start`, in the spellings of both generations of openYuanrong; pure.

Options, texts and defaults are openYuanrong's (0.5.1, where settings are options, and master of 2026-08, where they
are `-s KEY=VALUE` with a TOML value). What belongs to a cluster of openYuanrong is accepted and without effect. The
result, `Deployment`, is kept in the state file and describes this machine to sessions of both backends, which may be of
another version: fields may be added, with defaults. Tests: tests/cli/test_cli_start.py.
"""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from toprope.errors import UsageError
from toprope.functions.deployment.discover import MODES

__all__ = ["ACCEPTED", "WRONG_MODE", "Deployment", "begin", "leftover", "no_set"]

WRONG_MODE = f"npu_collection_mode only support {', '.join(MODES)}"
"""openYuanrong's message for an unknown mode; its command then exits with 1."""

NO_SET = "YR_NOSET_"
"""Begins the variables that keep masks of cards away from programs, by being there."""

_CLUSTER = """
    ip_address deploy_path node_id port_policy shared_memory_num log_dir_prefix data_system_enable
    enable_runtime_launcher min_instance_cpu_size max_instance_cpu_size min_instance_memory_size
    max_instance_memory_size runtime_init_call_timeout_seconds runtime_conn_timeout_s runtime_heartbeat_timeout_ms
    runtime_recover_enable enable_inherit_env kill_process_timeout_seconds schedule_relaxed max_priority
    enable_preemption numa_collection_enable runtime_instance_debug_enable etcd_mode etcd_addr_list etcd_auth_type
    etcd_port etcd_peer_port
"""
ACCEPTED = frozenset(_CLUSTER.split())
"""Options of openYuanrong's command that have no meaning on one machine, without their dashes. Each takes a value."""

_SHORT = {"-a": "ip_address", "-d": "deploy_path", "-n": "node_id"}
_KNOWN = {
    "npu_collection_mode": "mode",
    "gpu_collection_enable": "gpus",
    "custom_resources": "custom_resources",
    "labels": "labels",
    "init_labels": "labels",
    "cpu_num": "cpu",
    "memory_num": "memory",
}


@dataclass(frozen=True)
class Deployment:
    """The deployment that `toprope start` begins.

    Attributes:
        mode: how NPUs are discovered, of `MODES`.
        gpus: whether NVIDIA's cards are looked for.
        cpu: millicores to schedule on; None for all.
        memory: MB; None for all.
        custom_resources: amounts of named resources.
        labels: of the node.
        no_set: the YR_NOSET_... variables that were there.
        sim: the simulated cards, as TOPROPE_SIM spells them; "" for none.
        cards: the folder with their state; "" for none.
        address: of the Ray that was started or joined; "" for none.
        since: time of the start, in seconds of the epoch.
        boot: the boot of the machine that it belongs to.
    """

    mode: str = "all"
    gpus: bool = True
    cpu: int | None = None
    memory: int | None = None
    custom_resources: Mapping[str, float] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    no_set: Mapping[str, str] = field(default_factory=dict)
    sim: str = ""
    cards: str = ""
    address: str = ""
    since: float = 0.0
    boot: str = ""

    def format(self) -> str:
        """The text that `parse` reads back."""
        return json.dumps(asdict(self), indent=1)

    @classmethod
    def parse(cls, text: str) -> Deployment:
        """Parse a text of `format`; unknown names are ignored.

        Raises:
            ValueError: the text is not of that form.
        """
        read = json.loads(text)
        if not isinstance(read, dict):
            raise ValueError("not a table")
        known = {each.name for each in fields(cls)}
        return cls(**{name: value for name, value in read.items() if name in known})


def begin(options: Mapping[str, Any], settings: Sequence[str] = (), config: str = "") -> tuple[Deployment, list[str]]:
    """Build the deployment from options. Return it with the settings that have no effect.

    Args:
        options: those of the command line by name, None where they were not given.
        settings: `KEY=VALUE` of each -s, whose value is TOML; a bare number is 0.5's -s, a size of shared memory.
        config: text of a TOML file, which options and settings go before.

    Raises:
        UsageError: a value cannot be read, or cannot be.
    """
    given: dict[str, Any] = {}
    idle: list[str] = []
    for key, value in (*_flat(_toml(config, "the configuration file")), *_pairs(settings)):
        name = _KNOWN.get(key.rpartition(".")[2].replace("-", "_"))
        if name is None:
            idle.append(key)
        else:
            given[name] = value
    for key, value in options.items():
        if value is not None:
            given[_KNOWN[key]] = value
    read: dict[str, Any] = {name: _READ[name](value) for name, value in given.items()}
    return Deployment(**read), idle


def leftover(words: Sequence[str]) -> list[str]:
    """The names of options that are accepted without effect.

    Args:
        words: the words of a command line other than the known options.

    Raises:
        UsageError: one is unknown, or has no value.
    """
    idle = []
    left = list(words)
    while left:
        word = left.pop(0)
        name, equals, _ = word.partition("=")
        known = _SHORT.get(name) or (name[2:].replace("-", "_") if name.startswith("--") else "")
        if known not in ACCEPTED:
            raise UsageError(f"there is no option {name}.", do="toprope start --help lists the options")
        if not equals:
            if not left:
                raise UsageError(f"{name} needs a value.")
            left.pop(0)
        idle.append(name)
    return idle


def no_set(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that keep masks of cards away from programs."""
    return {name: value for name, value in environment.items() if name.startswith(NO_SET)}


def _pairs(settings: Sequence[str]) -> list[tuple[str, Any]]:
    pairs = []
    for each in settings:
        key, equals, value = each.partition("=")
        if not equals:
            if not each.isdecimal():
                raise UsageError(f"-s {each!r} cannot be read.", do="write -s KEY=VALUE, such as -s 'a.b=\"text\"'")
            pairs.append(("shared_memory_num", each))
            continue
        pairs.append((key.strip(), _toml(f"value = {value}", f"-s {each!r}")["value"]))
    return pairs


def _toml(text: str, source: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UsageError(
            f"{source} cannot be read: {error}.", do='values are TOML: texts are in quotes, as in key="all"'
        ) from None


def _flat(table: Mapping[str, Any], before: str = "") -> list[tuple[str, Any]]:
    pairs: list[tuple[str, Any]] = []
    for key, value in table.items():
        if isinstance(value, dict) and key not in _KNOWN:
            pairs += _flat(value, f"{before}{key}.")
        else:
            pairs.append((f"{before}{key}", value))
    return pairs


def _read_mode(value: Any) -> str:
    if value not in MODES:
        raise UsageError(WRONG_MODE)
    return str(value)


def _read_switch(value: Any) -> bool:
    if str(value).lower() not in ("true", "false"):
        raise UsageError("gpu_collection_enable can only be 'true' or 'false'")
    return str(value).lower() == "true"


def _read_amount(value: Any) -> int:
    try:
        amount = int(str(value))
    except ValueError:
        amount = 0
    if amount <= 0:
        raise UsageError(f"{value!r} is not an amount of cores or memory.", do="give millicores, and MB, above 0")
    return amount


def _read_table(value: Any, what: str) -> dict[str, Any]:
    if isinstance(value, str):
        try:
            value = json.loads(value) if value.strip() else {}
        except json.JSONDecodeError as error:
            raise UsageError(f"--{what} {value!r} is not JSON: {error}.", do=_EXAMPLES[what]) from None
    if not isinstance(value, dict):
        raise UsageError(f"--{what} {value!r} is not a table.", do=_EXAMPLES[what])
    return value


def _read_resources(value: Any) -> dict[str, float]:
    table = _read_table(value, "custom_resources")
    for key, amount in table.items():
        number = isinstance(amount, int | float) and not isinstance(amount, bool)
        if not number or not 0 <= amount < math.inf:
            raise UsageError(f"custom resource {key}: {amount!r} is not an amount.", do=_EXAMPLES["custom_resources"])
    return table


def _read_labels(value: Any) -> dict[str, str]:
    return {str(key): str(each) for key, each in _read_table(value, "labels").items()}


_EXAMPLES = {
    "custom_resources": "write --custom_resources '{\"ssd\": 5}'",
    "labels": 'write --labels \'{"zone": "a"}\'',
}
_READ = {
    "mode": _read_mode,
    "gpus": _read_switch,
    "custom_resources": _read_resources,
    "labels": _read_labels,
    "cpu": _read_amount,
    "memory": _read_amount,
}
