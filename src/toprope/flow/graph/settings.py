"""Settings of a graph: its options and those of `init`, the deploy file, and setters until it is first fed.

The base class of `FlowGraph`; its result is `RunOptions` (`stage.spec`) for the runner. The setters, their limits and
the option names ("ge....") are those of CANN's dataflow API, but for `set_start_timeout`. Tests:
tests/flow/test_flow_deploy.py, tests/flow/test_flow_graph.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from toprope.flow.exceptions import DfException
from toprope.flow.graph.deploy_file import parse
from toprope.flow.graph.nodes import Plan
from toprope.flow.stage.spec import Deploy, RunOptions

__all__ = ["DEPLOY", "GraphSettings", "card", "check_key", "deploys", "is_compile_only"]

DEPLOY = "ge.experiment.data_flow_deploy_info_path"
_DEVICE, _LOGICAL = "ge.exec.deviceId", "ge.exec.logicalDeviceId"
_KEY, _KEY_PATTERN = "ge.graph_key", re.compile(r"[A-Za-z0-9_-]{1,128}")
_MOST_GROUPS, _LONGEST_ALIGN = 1024, 600_000


class GraphSettings:
    """The settings of a graph, which can be changed until it is first fed.

    Args:
        plan: its plan.
        options: options by their names.
        run: run options that are no options of the reference.
        strict: whether the reference's quirks hold.
    """

    def __init__(self, plan: Plan, options: dict[str, str], run: RunOptions, strict: bool) -> None:
        self._plan = plan
        self._options = options
        self._run = run
        self._strict = strict
        self._fed = False

    @property
    def plan(self) -> Plan:
        """The graph's plan."""
        return self._plan

    @property
    def is_running(self) -> bool:
        """True once it was fed."""
        return self._fed

    def set_contains_n_mapping_node(self, contains_n_mapping_node: bool) -> None:
        """Declare that a stage does not make exactly one output per input; custom transaction ids are used then.

        Raises:
            DfException: the graph was fed, or it is no bool.
        """
        self._check_not_fed("set_contains_n_mapping_node")
        if not isinstance(contains_n_mapping_node, bool):
            raise DfException(f"contains_n_mapping_node must be a bool, got {contains_n_mapping_node!r}")
        self._run = replace(self._run, n_mapping=contains_n_mapping_node)

    def set_inputs_align_attrs(
        self, align_max_cache_num: int, align_timeout: int, dropout_when_not_align: bool = False
    ) -> None:
        """Align inputs of stages, and fetched results, by their transactions.

        Args:
            align_max_cache_num: most groups that wait for what is missing, 0 to 1024; 0 for no alignment.
            align_timeout: milliseconds that a group waits, 1 to 600000; -1 for ever.
            dropout_when_not_align: whether an incomplete group is dropped; else it is handed on (345104).

        Raises:
            DfException: the graph was fed, or a value cannot be.
        """
        self._check_not_fed("set_inputs_align_attrs")
        if type(align_max_cache_num) is not int or not 0 <= align_max_cache_num <= _MOST_GROUPS:
            raise DfException(f"align_max_cache_num must be 0 to {_MOST_GROUPS}, got {align_max_cache_num!r}")
        if type(align_timeout) is not int or (align_timeout != -1 and not 1 <= align_timeout <= _LONGEST_ALIGN):
            raise DfException(f"align_timeout must be -1 or 1 to {_LONGEST_ALIGN}, got {align_timeout!r}")
        if not isinstance(dropout_when_not_align, bool):
            raise DfException(f"dropout_when_not_align must be a bool, got {dropout_when_not_align!r}")
        self._run = replace(
            self._run, align=align_max_cache_num, align_timeout_ms=align_timeout, align_drop=dropout_when_not_align
        )

    def set_exception_catch(self, enable: bool = False) -> None:
        """Set whether `raise_exception` of a function is reported to all stages and `fetch_data`; needs alignment.

        Raises:
            DfException: the graph was fed, or it is no bool.
        """
        self._check_not_fed("set_exception_catch")
        if not isinstance(enable, bool):
            raise DfException(f"enable must be a bool, got {enable!r}")
        self._run = replace(self._run, exception_catch=enable)

    def set_start_timeout(self, milliseconds: int) -> None:
        """Set the time limit of the start of all stages, and of a restart. Not in the reference.

        Raises:
            DfException: the graph was fed, or it is no int of at least 1.
        """
        self._check_not_fed("set_start_timeout")
        if type(milliseconds) is not int or milliseconds < 1:
            raise DfException(f"start_timeout_ms must be an int of at least 1, got {milliseconds!r}")
        self._run = replace(self._run, start_timeout_ms=milliseconds)

    def _check_not_fed(self, name: str) -> None:
        if self._fed:
            raise DfException(f"can not call {name} after feed data")

    def run_options(self) -> RunOptions:
        """Build the run options.

        Raises:
            DfException: an option or the deploy file cannot be.
        """
        check_key(self._options)
        nodes = self._plan.nodes
        streams = any(each.stream_input for node in nodes for each in getattr(node.point, "functions", ()))
        batches = any(mapped.attrs for node in nodes for mapped in node.input_maps.values())
        is_split = any(node.balance for node in nodes)
        return replace(
            self._run,
            deploy=deploys(self._options, [node.deploy_name for node in nodes], strict=self._strict),
            device_index=card(self._options),
            n_mapping=self._run.n_mapping or streams or batches or is_split or self._run.exception_catch,
        )


def card(options: Mapping[str, str]) -> int:
    """The card of stages that the deploy file does not name: "ge.exec.deviceId", "ge.exec.logicalDeviceId", else 0.

    Raises:
        DfException: the number cannot be read.
    """
    if _DEVICE in options:
        if not options[_DEVICE].strip().isdecimal():
            raise DfException(f"{_DEVICE} must be a card's number, got {options[_DEVICE]!r}")
        return int(options[_DEVICE])
    if _LOGICAL in options:
        text = options[_LOGICAL].strip()
        match = re.fullmatch(r"\[(\d+):(\d+)\]", text)
        if match is None:
            raise DfException(f"{_LOGICAL} must be such as [0:0], got {text!r}")
        return int(match[2])
    return 0


def deploys(options: Mapping[str, str], nodes: Iterable[str], *, strict: bool) -> dict[str, Deploy]:
    """Return the cards of stages by the deploy file; empty without a file.

    Raises:
        DfException: the file cannot be read, or there is none and the reference needs one (strict).
    """
    path = options.get(DEPLOY)
    if path is None:
        if strict:
            raise DfException(f"there is no deploy file: set {DEPLOY}")
        return {}
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DfException(f"the deploy file {path} cannot be read: {error}") from error
    return parse(text, nodes)


def check_key(options: Mapping[str, str]) -> None:
    """Refuse a key of the compile cache that cannot be; nothing is compiled here, so nothing else of it is needed.

    Raises:
        DfException: it has other characters than A-Z, a-z, 0-9, _ and -, or more than 128.
    """
    if _KEY in options and not _KEY_PATTERN.fullmatch(options[_KEY]):
        raise DfException(f"{_KEY} must match {_KEY_PATTERN.pattern}, got {options[_KEY]!r}")


def is_compile_only(options: Mapping[str, str]) -> bool:
    """True if nothing is to run: "ge.runFlag" is "0"."""
    return options.get("ge.runFlag") == "0"
