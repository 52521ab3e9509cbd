"""Placement of the stages of a graph in processes; pure but for the masks of this process.

The runner calls `place` once, when a graph starts; the result is the plan of every process (`stage.plan`). Rules of
the deploy file are in `graph.deploy_file`. The variables that show a process its card are CANN's and CUDA's, the least
charge of a process comes from `toprope.functions`; which stages share a process is free. Tests:
tests/flow/test_flow_semantics.py, tests/flow/test_flow_run.py, tests/flow/test_serve_graph.py.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from toprope.flow.exceptions import DfException
from toprope.flow.graph.nodes import DEPTH, Edge, FlowNode, Plan
from toprope.flow.graph.streams import stream_ends
from toprope.flow.stage.plan import DRIVER, HostPlan, Route, StagePlan, Target
from toprope.flow.stage.spec import Batching, Deploy, RunOptions, StageContext, StageSpec
from toprope.flow.worker.batch import check

__all__ = ["Placed", "place"]

_MASK, _CUDA_MASK = "ASCEND_RT_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"

_ANY = 1024
"""Number of waiting groups if several instances deliver results out of order."""

_LEAST_CPU, _LEAST_MEMORY = 300, 128
"""Default charge of a stage, in millicores and MB: the minimum."""


@dataclass(frozen=True)
class Placed:
    """The processes of a graph as `place` has chosen them, and the routes between them.

    Attributes:
        hosts: the processes, by name.
        variables: of each, in addition to the variables of this process.
        charged: millicores and MB of each.
        feeds: for each input of the graph where it goes.
        is_scattered: whether results may come out of order.
    """

    hosts: dict[str, HostPlan]
    variables: dict[str, dict[str, str]]
    charged: dict[str, tuple[int, int]]
    feeds: tuple[tuple[Route, ...], ...]
    is_scattered: bool


def place(plan: Plan, options: RunOptions, folder: Path, cards: Callable[[], int | None] = lambda: None) -> Placed:
    """Place the stages of a graph.

    Args:
        plan, options, folder: of the graph.
        cards: counts the cards of this machine, asked where a stage has another one than 0; None for any number.

    Raises:
        DfException: something about it cannot be.
    """
    placer = _Placer(plan, options, folder)
    placer.check_cards(cards)
    return placer.place()


class _Placer:
    def __init__(self, plan: Plan, options: RunOptions, folder: Path) -> None:
        self._plan = plan
        self._options = options
        self._folder = folder
        self._specs: list[StageSpec] = [node.stage_spec() for node in plan.nodes]
        self._deploys = [self._deploy(node, spec) for node, spec in zip(plan.nodes, self._specs, strict=True)]
        nothing: frozenset[str] = frozenset()
        self._ends = stream_ends(plan, self._specs) if options.replies else [nothing] * len(plan.nodes)
        self._groups = self._neighbours() if options.colocate else list(range(len(plan.nodes)))

    def _deploy(self, node: FlowNode, spec: StageSpec) -> Deploy:
        """The cards of a stage's instances: the deploy file's, or as many on one card as its options ask for.

        Raises:
            DfException: the file has another number of cards.
        """
        found = self._options.deploy.get(node.deploy_name, Deploy((self._options.device_index,)))
        if spec.instances == 1 or len(found.devices) == spec.instances:
            return found
        if len(found.devices) == 1:
            return Deploy(found.devices * spec.instances)
        raise DfException(
            f"{node.deploy_name} has instances={spec.instances}, and the deploy file {len(found.devices)} addresses: "
            "give one address, or one for each instance"
        )

    def check_cards(self, cards: Callable[[], int | None]) -> None:
        """Refuse cards that are not there, also for stages that compute on the host.

        Raises:
            DfException: which stage, which card, and how many there are.
        """
        highest = max((max(each.devices) for each in self._deploys), default=0)
        count = cards() if highest else None
        if count is None or highest < count:
            return
        for node, deploy in zip(self._plan.nodes, self._deploys, strict=True):
            if max(deploy.devices) >= count:
                where = "the deploy file" if node.deploy_name in self._options.deploy else "ge.exec.deviceId"
                there = "there is one card, 0" if count == 1 else f"there are {count} cards, 0 to {count - 1}"
                raise DfException(f"{where} puts {node.deploy_name} on card {max(deploy.devices)}: {there}")

    def place(self) -> Placed:
        """Assign all stages to processes, and work out their routes."""
        if self._options.exception_catch and not self._options.align:
            raise DfException("exceptions can only be caught where inputs are aligned")
        hosts: dict[str, list[StagePlan]] = {}
        for node in range(len(self._specs)):
            for instance in range(len(self._deploys[node].devices)):
                hosts.setdefault(self._process_name(node, instance), []).append(self._stage(node, instance))
        inputs = range(len(self._plan.inputs))
        return Placed(
            {
                name: HostPlan(name, str(self._folder), tuple(stages), self._options.trace)
                for name, stages in hosts.items()
            },
            {name: self._variables(stages) for name, stages in hosts.items()},
            {name: self._cores_and_memory(stages) for name, stages in hosts.items()},
            tuple(self._routes(-1, place, "") for place in inputs),
            any(len(each.devices) > 1 for each in self._deploys),
        )

    def _process_name(self, node: int, instance: int) -> str:
        return f"stage-{self._groups[node]}-{instance}"

    def _neighbours(self) -> list[int]:
        """Return for each node the first node of its process."""
        group = list(range(len(self._specs)))
        for edge in self._plan.edges:
            if edge.source >= 0 and edge.target >= 0 and self._may_share(edge.source) and self._may_share(edge.target):
                old, new = sorted((group[edge.source], group[edge.target]), reverse=True)
                group = [new if each == old else each for each in group]
        return group

    def _may_share(self, node: int) -> bool:
        spec = self._specs[node]
        return len(self._deploys[node].devices) == 1 and not spec.visible_device and spec.env_hook is None

    def _stage(self, node: int, instance: int) -> StagePlan:
        spec, wired, devices = self._specs[node], self._plan.nodes[node], self._deploys[node].devices
        batches: dict[int, Batching] = {}
        for place, mapped in wired.input_maps.items():
            check(mapped.attrs)
            if mapped.attrs:
                if len(devices) > 1:
                    raise DfException(f"{wired.name} batches an input and can have one instance only")
                if self._options.exception_catch:
                    raise DfException(f"{wired.name} batches an input, and exceptions cannot be caught then")
                batches[place] = mapped.attrs[0]
        inward = sorted((edge.input, number) for number, edge in enumerate(self._plan.edges) if edge.target == node)
        self._check_balance(node)
        device = 0 if spec.visible_device else devices[instance]
        return StagePlan(
            node,
            StageContext(
                wired.name,
                wired.input_num,
                wired.output_num,
                device,
                instance,
                len(devices),
                spec.workspace,
                balance=wired.balance,
            ),
            replace(spec, name=wired.name),
            wired.depth,
            wired.overwrites,
            tuple(number for _, number in inward),
            batches,
            self._align(node),
            tuple(self._routes(node, output, spec.kind, instance) for output in range(wired.output_num)),
            self._options.exception_catch,
            self._options.replies,
            self._ends[node],
        )

    def _align(self, node: int) -> tuple[int, int, bool] | None:
        options = self._options
        if self._plan.nodes[node].input_num < 2:
            return None
        if options.align:
            return options.align, options.align_timeout_ms, options.align_drop
        # several instances before it bring what belongs together out of order; parts are told apart by their labels
        before = self._before(node)
        is_told = not options.n_mapping or any(self._plan.nodes[each].balance for each in before)
        if is_told and any(len(self._deploys[each].devices) > 1 for each in before):
            return _ANY, -1, False
        return None

    def _check_balance(self, node: int) -> None:
        """Check that all inputs of a node are parts of transactions, or none is."""
        sources = [edge.source for edge in self._plan.edges if edge.target == node]
        spread = [each >= 0 and bool(self._plan.nodes[each].balance) for each in sources]
        if any(spread) and not all(spread):
            raise DfException(
                f"all inputs of {self._plan.nodes[node].name} must come from nodes with set_balance_scatter or "
                "set_balance_gather, or none of them"
            )

    def _before(self, node: int) -> set[int]:
        found: set[int] = set()
        for edge in self._plan.edges:
            if edge.target == node and edge.source >= 0:
                found |= {edge.source} | self._before(edge.source)
        return found

    def _routes(self, node: int, output: int, kind: str, instance: int = 0) -> tuple[Route, ...]:
        return tuple(
            self._route(number, edge, kind, instance)
            for number, edge in enumerate(self._plan.edges)
            if (edge.source, edge.output) == (node, output)
        )

    def _route(self, number: int, edge: Edge, kind: str, instance: int) -> Route:
        if edge.target < 0:
            return Route(number, edge.input, (Target(DRIVER, -1, 0, True),), DEPTH, False, "fetch")
        wired = self._plan.nodes[edge.target]
        targets = tuple(
            Target(
                self._process_name(edge.target, each), edge.target, each,
                kind != "npu" or self._specs[edge.target].kind != "npu" or not self._shares_card(edge, instance, each),
            )
            for each in range(len(self._deploys[edge.target].devices))
        )  # fmt: skip
        return Route(number, edge.input, targets, wired.depth, wired.overwrites, wired.name)

    def _shares_card(self, edge: Edge, instance: int, target: int) -> bool:
        """True if an instance sees the card of the one that sends to it."""
        ours, theirs = self._specs[edge.source], self._specs[edge.target]
        same = self._deploys[edge.source].devices[instance] == self._deploys[edge.target].devices[target]
        if os.environ.get("TOPROPE_SIM"):
            return same or not theirs.visible_device
        return not ours.visible_device and not theirs.visible_device  # handles hold the sender's own number

    def _variables(self, stages: list[StagePlan]) -> dict[str, str]:
        (first, *_) = stages
        if not first.spec.visible_device:
            return {}
        index = self._deploys[first.node].devices[first.context.instance_id]
        found = {_MASK: _card_in_mask(os.environ, _MASK, index)}
        if os.path.exists("/dev/nvidiactl"):
            found[_CUDA_MASK] = _card_in_mask(os.environ, _CUDA_MASK, index)
        return found

    def _cores_and_memory(self, stages: list[StagePlan]) -> tuple[int, int]:
        cpu = sum(each.spec.resources.get("num_cpus", 0) for each in stages)
        memory = sum(each.spec.resources.get("memory", 0) for each in stages)
        return max(_LEAST_CPU, int(cpu * 1000)), max(_LEAST_MEMORY, int(memory))


def _card_in_mask(variables: Mapping[str, str], name: str, index: int) -> str:
    """The card of this number among those that a mask shows.

    Raises:
        DfException: it shows fewer.
    """
    text = variables.get(name, "")
    shown = [each.strip() for each in text.split(",") if each.strip()]
    if not shown:
        return str(index)
    if index >= len(shown):
        raise DfException(f"{name}={text} shows no card {index}")
    return shown[index]
