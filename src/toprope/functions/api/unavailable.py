"""Placeholders for names of the yr API that toprope does not have: they can be imported, and raise on use.

`exports` adds them to the API, so that a program of openYuanrong imports as it is. The names are openYuanrong's, the
advice is ours. A name that toprope gets is taken out of `TABLE`; tests/functions/test_functions_unavailable.py compares
the table with openYuanrong's names.
"""

from __future__ import annotations

from typing import Any, NoReturn

__all__ = ["TABLE", "Unavailable", "names"]

TABLE = {
    "functions of other languages": (
        "call them from a program of openYuanrong",
        "cpp_function cpp_instance_class cpp_instance_class_new java_function java_instance_class go_function "
        "go_instance_class",
    ),
    "streams": (
        "use a generator, or an instance that hands items on",
        "create_stream_producer create_stream_consumer delete_stream query_global_producers_num "
        "query_global_consumers_num ProducerConfig SubscriptionConfig Element",
    ),
    "metrics": (
        "use the logging or the metrics library of the program",
        "Gauge Alarm UInt64Counter DoubleCounter CustomGauge CustomCounter Histogram AlarmInfo AlarmSeverity",
    ),
    "tracing": ("toprope run --trace FILE records what a program does to the simulated card", "trace"),
    "the debug server": ("use logging, or debugpy in the instance's constructor", "DebugServer set_trace"),
    "sandboxes": ("run what is not trusted in a container", "sandbox Sandbox SandboxInstance PortForwarding"),
    "functions as a service": ("use @yr.invoke and @yr.instance", "Function Context SessionService ManagedSessionObj"),
    "snapshots of instances": (
        "use yr.save_state and yr.load_state, and recover_retry_times",
        "restore_from_checkpoint delete_checkpoint list_checkpoints SnapstartInfo SnapstartResponse",
    ),
    "serving a runtime by hand": ("yr.init and yr.finalize do it", "receive_request_loop reinit cluster_mode_runtime"),
}
"""Missing names: the part of the API, what to do instead, and the names."""


class Unavailable:
    """Placeholder for a name of the yr API that toprope does not have. Any use raises NotImplementedError.

    Args:
        name: the name.
        part: what it belongs to.
        instead: what to do.
    """

    def __init__(self, name: str, part: str, instead: str) -> None:
        self.__name__ = name
        self.__doc__ = f"Not part of toprope ({part})."
        self._text = f"yr.{name} is not part of toprope, nor are {part}: {instead}"
        self._name = name

    def _refuse(self) -> NoReturn:
        raise NotImplementedError(self._text)

    def __call__(self, *arguments: Any, **keywords: Any) -> NoReturn:
        """Refuse."""
        self._refuse()

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("_"):
            raise AttributeError(name)  # asked by tools that only look
        self._refuse()

    def __mro_entries__(self, bases: tuple[Any, ...]) -> NoReturn:
        self._refuse()

    def __instancecheck__(self, instance: object) -> bool:
        return False  # there can be none

    def __repr__(self) -> str:
        return f"<yr.{self._name}, not part of toprope>"

    def __reduce__(self) -> tuple[Any, ...]:
        return _named, (self._name,)


def names() -> dict[str, Unavailable]:
    """Return a placeholder for each missing name."""
    return {
        name: Unavailable(name, part, instead) for part, (instead, listed) in TABLE.items() for name in listed.split()
    }


def _named(name: str) -> Unavailable:
    return names()[name]
