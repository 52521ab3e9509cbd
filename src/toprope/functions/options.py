"""Options of calls, instances and sessions: names and defaults of the yr API, checked when they are used.

Public dataclasses (`yr.InvokeOptions`, `yr.Config`, ...), read by all of `toprope.functions`. Names, defaults, ranges
and messages are openYuanrong's (api/python/yr/config.py and affinity.py, master of 2026-08). Ours are the options
`npu_collection_mode`, `custom_resources`, `labels` and `free_unreferenced` of `Config`, the numbers of the types of
affinity, and the refusal of unknown names. Held by tests/functions/test_functions_options.py.
"""

from __future__ import annotations

import copy
import difflib
import logging
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from toprope.functions.exceptions import CODES, YRequestError

__all__ = [
    "Affinity",
    "AffinityKind",
    "AffinityScope",
    "AffinityType",
    "Config",
    "FunctionGroupOptions",
    "GroupOptions",
    "InvokeOptions",
    "LabelOperator",
    "OperatorType",
    "ResourceGroupOptions",
    "UserTLSConfig",
]

_MOST = 2**31 - 1


class _Options:
    """Rejects unknown attributes: a misspelled option would otherwise be ignored silently."""

    def __setattr__(self, name: str, value: Any) -> None:
        kind = type(self)
        known: dict[str, Any] = kind.__dataclass_fields__  # type: ignore[attr-defined]
        if name not in known and not hasattr(kind, name):
            near = difflib.get_close_matches(name, known, n=1)
            do = near[0] if near else f"one of {', '.join(known)}"
            raise AttributeError(f"{kind.__name__} has no option {name!r}. do: {do}", name=name, obj=self)
        object.__setattr__(self, name, value)


_LIBRARIES = "LD_LIBRARY_PATH"


@dataclass
class UserTLSConfig(_Options):
    """Certificates; accepted, and without effect on one machine."""

    root_cert_path: str = ""
    module_cert_path: str = ""
    module_key_path: str = ""
    server_name: str = ""


@dataclass
class Config(_Options):
    """A session, see `yr.init`. What belongs to a cluster of openYuanrong is accepted and without effect.

    Attributes:
        server_address: where functions run: "" for processes of this machine, "ray" or "ray://host:port" for Ray.
        num_cpus: cores of this machine to schedule on; None for all that the process may use.
        custom_resources: amounts of named resources of this machine.
        labels: names and values that affinities may ask for.
        ns: default namespace of named instances.
        npu_collection_mode: how cards are found: "all", "count", "hbm", "sfmd", "topo", "off".
        invoke_timeout: seconds that a call may take, -1 for no limit.
        working_dir: where workers run; "" for this process's own.
        load_paths: folders that go in front of the workers' sys.path.
        local_mode: accepted: functions run in processes of this machine as without it.
        custom_envs: the workers' LD_LIBRARY_PATH, with `${NAME}` for a variable; other names have no effect.
        runtime_env: for all functions and instances, see `InvokeOptions.runtime_env`.
        recycle_time: seconds after which an idle worker for functions ends.
        free_unreferenced: whether an instance ends once its last handle is gone and its calls have ended, unless it has
            a name or a group, is detached, or a handle to it was sent to another process.
        max_task_instance_num: most workers for functions; -1 for no limit but the resources.
    """

    function_id: str = ""
    cpp_function_id: str = ""
    function_name: str = ""
    cpp_auto_function_name: str = ""
    server_address: str = ""
    ds_address: str = ""
    is_driver: bool = True
    log_level: str = ""
    log_dir: str = "./"
    log_file_size_max: int = 0
    log_file_num_max: int = 0
    log_flush_interval: int = 5
    invoke_timeout: int = 900
    rpc_timeout: int = 1800
    local_mode: bool = False
    code_dir: str = ""
    working_dir: str = ""
    load_paths: list[str] = field(default_factory=list)
    connection_nums: int = 100
    recycle_time: float = 2
    in_cluster: bool | None = None
    job_id: str = ""
    auto: bool = False
    deployment_config: Any = None
    rt_server_address: str = ""
    env_file: str = ""
    runtime_id: str = "driver"
    max_task_instance_num: int = -1
    tls_config: UserTLSConfig | None = None
    enable_mtls: bool | None = None
    enable_tls: bool | None = None
    private_key_path: str = ""
    certificate_file_path: str = ""
    verify_file_path: str = ""
    http_ioc_threads_num: int = 400
    server_name: str = ""
    ns: str = ""
    tenant_id: str = ""
    enable_metrics: bool = True
    bypass_datasystem: bool | None = None
    custom_envs: dict[str, str] = field(default_factory=dict)
    master_addr_list: list[str] = field(default_factory=list)
    enable_ds_encrypt: bool = False
    ds_public_key_path: str = ""
    runtime_public_key_path: str = ""
    runtime_private_key_path: str = ""
    num_cpus: int | None = None
    runtime_env: dict[str, Any] | None = None
    log_to_driver: bool = False
    dedup_logs: bool = True
    auth_token: str = ""
    npu_collection_mode: str = ""
    custom_resources: dict[str, float] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)
    free_unreferenced: bool = False

    def environment(self) -> dict[str, str]:
        """Environment variables of all workers; those of a call or an instance take precedence."""
        found: dict[str, str] = dict((self.runtime_env or {}).get("env_vars", {}))
        path = self.custom_envs.get(_LIBRARIES)
        if path is not None:
            found[_LIBRARIES] = re.sub(r"\$\{(\w+)\}", lambda match: os.environ.get(match[1], ""), path)
        return found

    def check(self) -> None:
        """Reject invalid values.

        Raises:
            ValueError: the message names field and value.
        """
        others = sorted(set(self.custom_envs) - {_LIBRARIES})
        if others:
            logging.getLogger("toprope").warning(
                "Config.custom_envs sets %s alone: %s has no effect; use InvokeOptions.env_vars",
                _LIBRARIES, ", ".join(others),
            )  # fmt: skip
        if not 0 < self.recycle_time <= 300:
            raise ValueError(f"invalid recycle_time, actual: {self.recycle_time}, expect: in (0, 300]")
        if self.connection_nums < 1:
            raise ValueError(f"invalid connection_nums, actual: {self.connection_nums}, expect: >= 1")
        if self.num_cpus is not None and self.num_cpus < 1:
            raise ValueError(f"invalid num_cpus, actual: {self.num_cpus}, expect: >= 1")


class AffinityKind:
    """Subject of an affinity: nodes or instances."""

    RESOURCE, INSTANCE = 10, 20


class AffinityType:
    """Strength and direction of an affinity."""

    PREFERRED, PREFERRED_ANTI, REQUIRED, REQUIRED_ANTI = 10, 11, 20, 21


class AffinityScope:
    """Scope within which instances count as near."""

    POD, NODE = 1, 2


class OperatorType:
    """Comparison operators for labels."""

    LABEL_IN, LABEL_NOT_IN, LABEL_EXISTS, LABEL_NOT_EXISTS = 1, 2, 3, 4


@dataclass
class LabelOperator(_Options):
    """One comparison of a label of a node or an instance, such as "exists" or "in".

    Attributes:
        operator_type: of `OperatorType`.
        key: the label.
        values: what it is compared with.
    """

    operator_type: int
    key: str
    values: list[str] = field(default_factory=list)

    def holds(self, labels: Mapping[str, str]) -> bool:
        """True if it holds for these labels."""
        there = self.key in labels
        if self.operator_type == OperatorType.LABEL_EXISTS:
            return there
        if self.operator_type == OperatorType.LABEL_NOT_EXISTS:
            return not there
        inside = there and labels[self.key] in self.values
        return inside if self.operator_type == OperatorType.LABEL_IN else not inside


@dataclass
class Affinity(_Options):
    """Place an instance near, or away from, nodes or instances with these labels."""

    affinity_kind: int
    affinity_type: int
    label_operators: list[LabelOperator] = field(default_factory=list)
    affinity_scope: int | None = None

    def holds(self, labels: Mapping[str, str]) -> bool:
        """True if all of its comparisons hold for these labels."""
        return all(each.holds(labels) for each in self.label_operators)


@dataclass
class ResourceGroupOptions(_Options):
    """The resource group whose bundle an instance takes its resources from; -1 for any of its bundles."""

    resource_group_name: str = ""
    bundle_index: int = -1


@dataclass
class GroupOptions(_Options):
    """Start and life cycle of an instance group.

    Attributes:
        timeout: seconds to start all of them, -1 for no limit.
        same_lifecycle: whether the end of one ends all.
        strategy: as of a resource group.
    """

    timeout: float = -1
    same_lifecycle: bool = True
    strategy: str = ""


@dataclass
class FunctionGroupOptions(_Options):
    """Resources of each member of a function group, and the placement of members on cards and hosts."""

    cpu: int | None = None
    memory: int | None = None
    resources: dict[str, float] = field(default_factory=dict)
    scheduling_affinity_type: Any = None
    scheduling_affinity_each_bundle_size: int | None = None
    timeout: float | None = None
    concurrency: int | None = None
    recover_retry_times: int = 0


@dataclass
class InvokeOptions(_Options):
    """Options of a call or an instance.

    Attributes:
        cpu: millicores; `cpu_limit` is accepted and must not be below it.
        memory: MB; `mem_limit` likewise.
        concurrency: calls that an instance works on at once, 1 to 1000; None for 1, or 1000 with coroutines.
        custom_resources: amounts by key; keys of cards are `VENDOR/model/kind`, see docs/functions.md.
        custom_extensions: "lifecycle": "detached", "GRACEFUL_SHUTDOWN_TIME": seconds, and others without effect here.
        retry_times: further runs of a function that failed.
        recover_retry_times: further lives of an instance that crashed.
        need_order: whether calls run in the order in which they came; None decides by concurrency.
        name, namespace: of a named instance.
        get_if_exists: accepted: a live instance of that name is always returned.
        schedule_timeout_ms: how long resources may be waited for; -1 for ever.
        env_vars: variables of the process.
        runtime_env: "env_vars", "working_dir"; "pip" and "conda" are refused here.
        group_name: the group that the instance starts with.
        idle_timeout: accepted, without effect: instances live until they are ended.
    """

    cpu: int = 500
    memory: int = 500
    cpu_limit: int = 0
    mem_limit: int = 0
    concurrency: int | None = None
    custom_resources: dict[str, float] = field(default_factory=dict)
    custom_extensions: dict[str, str] = field(default_factory=dict)
    pod_labels: dict[str, str] = field(default_factory=dict)
    labels: list[str] = field(default_factory=list)
    affinity: dict[str, Any] = field(default_factory=dict)
    schedule_affinities: list[Affinity] = field(default_factory=list)
    is_data_affinity: bool = False
    device: Any = None
    max_invoke_latency: int = 5000
    min_instances: int = 0
    max_instances: int = 0
    retry_times: int = 0
    recover_retry_times: int = 0
    need_order: bool | None = None
    name: str = ""
    namespace: str = ""
    get_if_exists: bool = False
    resource_group_options: ResourceGroupOptions = field(default_factory=ResourceGroupOptions)
    function_group_options: FunctionGroupOptions | None = None
    env_vars: dict[str, str] = field(default_factory=dict)
    runtime_env: dict[str, Any] = field(default_factory=dict)
    schedule_timeout_ms: int = 30000
    preempted_allowed: bool = False
    instance_priority: int = 0
    group_name: str = ""
    idle_timeout: int = 300
    trace_id: str = ""
    alias_params: dict[str, str] = field(default_factory=dict)
    debug: Any = None
    bypass_datasystem: bool = False
    skip_serialize: bool = False
    is_delete_remote_tensor: bool = False
    port_forwardings: list[Any] = field(default_factory=list)
    preferred_priority: bool = True
    required_priority: bool = False
    preferred_anti_other_labels: bool = False

    def copy(self) -> InvokeOptions:
        """The same options, to be changed without changing these."""
        return copy.deepcopy(self)

    def check_types(self) -> None:
        """Refuse values of another type.

        Raises:
            TypeError: the message names field, type and what is expected.
        """
        for name, kind in _KINDS.items():
            value = getattr(self, name)
            if not isinstance(value, kind) or (isinstance(value, bool) and bool not in kind):
                expect = " or ".join(each.__name__ for each in kind)
                raise TypeError(f"invalid type for '{name}', actual: {type(value)}, expect: {expect}")

    def check_ranges(self) -> None:
        """Check the ranges that the options of a function must have.

        Raises:
            ValueError: the message names field, value and range.
        """
        for name, low in (("retry_times", 0), ("recover_retry_times", 0), ("min_instances", 0), ("max_instances", -1),
                          ("max_invoke_latency", -1)):  # fmt: skip
            value = getattr(self, name)
            if not low <= value <= _MOST:
                raise ValueError(f"invalid {name}: {value}, should be in [{low}, {_MOST}]")

    def check(self, *, is_async: bool = False) -> None:
        """Check the options of an instance.

        Raises:
            TypeError, ValueError, YRequestError: field, value, and what is expected.
        """
        self.check_types()
        concurrency = self.concurrency
        if concurrency is not None and not 1 <= concurrency <= 1000:
            raise _invalid(
                f"invalid opts concurrency, concurrency: {concurrency}, please set the concurrency range between 1 and "
                "1000"
            )
        if self.need_order and self.calls_at_once(is_async=is_async) > 1:
            raise ValueError("need_order=True is mutually exclusive with concurrency > 1")
        if self.recover_retry_times < 0:
            raise _invalid(f"invalid opts recover_retry_times, recover_retry_times: {self.recover_retry_times}")
        if self.retry_times < 0:
            raise _invalid(f"invalid opts retry_times, retry_times: {self.retry_times}")
        if self.schedule_timeout_ms < -1:
            raise _invalid(f"invalid opts schedule_timeout_ms, schedule_timeout_ms: {self.schedule_timeout_ms}")
        for limit, least in (("cpu_limit", "cpu"), ("mem_limit", "memory")):
            if getattr(self, limit) and getattr(self, limit) < getattr(self, least):
                raise _invalid(f"invalid opts {limit}, {limit}: {getattr(self, limit)}, must not be less than {least}")
        for key in self.runtime_env:
            if key not in ("pip", "conda", "working_dir", "env_vars", "shared_dir"):
                raise ValueError(f"runtime_env.get('{key}') is not supported.")
        if "pip" in self.runtime_env and "conda" in self.runtime_env:
            raise ValueError("runtime_env cannot have both 'pip' and 'conda'")
        for key in ("pip", "conda", "shared_dir"):
            if key in self.runtime_env:
                raise NotImplementedError(f"runtime_env[{key!r}] is not part of toprope: install packages beforehand")
        if self.get_if_exists and not self.name:
            raise ValueError("The actor name must be specified to use `get_if_exists`.")

    def calls_at_once(self, *, is_async: bool) -> int:
        """Number of calls that an instance runs concurrently."""
        return (1000 if is_async else 1) if self.concurrency is None else self.concurrency

    def environment(self) -> dict[str, str]:
        """Variables of the process; `env_vars` go before those of `runtime_env`."""
        return {**self.runtime_env.get("env_vars", {}), **self.env_vars}


_KINDS: dict[str, tuple[type, ...]] = {
    "cpu": (int,), "memory": (int,), "concurrency": (int, type(None)), "custom_resources": (dict,),
    "custom_extensions": (dict,), "labels": (list,), "retry_times": (int,), "recover_retry_times": (int,),
    "need_order": (bool, type(None)), "name": (str,), "namespace": (str,), "env_vars": (dict,), "runtime_env": (dict,),
    "schedule_timeout_ms": (int,), "group_name": (str,), "min_instances": (int,), "max_instances": (int,),
    "max_invoke_latency": (int,), "resource_group_options": (ResourceGroupOptions,),
}  # fmt: skip
assert _KINDS.keys() <= {each.name for each in fields(InvokeOptions)}


def _invalid(message: str) -> YRequestError:
    return YRequestError(message, CODES["invalid parameter"], 10)
