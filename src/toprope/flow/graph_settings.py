"""How a graph runs: what is set before it is first fed."""

from __future__ import annotations

from dataclasses import replace

from toprope.flow.exceptions import DfException
from toprope.flow.graph import Plan
from toprope.flow.graph_options import card, check_key, deploys
from toprope.flow.stage_spec import RunOptions

__all__ = ["GraphSettings"]

_MOST_GROUPS, _LONGEST_ALIGN = 1024, 600_000


class GraphSettings:
    """The settings of a graph.

    Args:
        plan: what it runs.
        options: options by their names.
        run: how it runs, as far as that is no option of the reference.
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
        """What the graph runs."""
        return self._plan

    @property
    def is_running(self) -> bool:
        """Whether it was fed."""
        return self._fed

    def set_contains_n_mapping_node(self, contains_n_mapping_node: bool) -> None:
        """Say whether some stage does not make one output of one input; custom transaction ids count then.

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
        """Put inputs of stages, and what is fetched, together by their transactions.

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
        """Say whether `raise_exception` of a function is told to all stages, and to `fetch_data`; needs alignment.

        Raises:
            DfException: the graph was fed, or it is no bool.
        """
        self._check_not_fed("set_exception_catch")
        if not isinstance(enable, bool):
            raise DfException(f"enable must be a bool, got {enable!r}")
        self._run = replace(self._run, exception_catch=enable)

    def set_start_timeout(self, milliseconds: int) -> None:
        """Say how long all stages together may take to start, and one that is started again. Not in the reference.

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
        """How it runs.

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
