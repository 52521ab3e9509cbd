"""What the API asks of whatever runs functions and instances: local processes, Ray, or, in a worker, its driver."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from toprope.functions.objects import ObjectRef
    from toprope.functions.options import InvokeOptions

__all__ = ["Backend", "Code"]


class Code:
    """A function or class as workers get it.

    Attributes:
        target: the function or class.
        name: its qualified name, for messages.
        is_async: a class with a coroutine method: its instances have an event loop.
    """

    __slots__ = ("_blob", "is_async", "key", "name", "target")

    def __init__(self, target: Any) -> None:
        import inspect

        self.target = target
        self.name = str(getattr(target, "__qualname__", target))
        self.is_async = isinstance(target, type) and any(
            inspect.iscoroutinefunction(each) or inspect.isasyncgenfunction(each)
            for base in target.__mro__
            for each in vars(base).values()
        )
        self.key = ""
        self._blob: bytes | None = None

    def blob(self) -> bytes:
        """The pickle of it, by value where it is of the program's own file."""
        if self._blob is None:
            from toprope.functions.serial import dumps

            self._blob = dumps(self.target)
        return self._blob

    def identify(self, blob: bytes | None = None) -> str:
        """The key by which workers know it, the same for the same pickle.

        Args:
            blob: its pickle where that is not `blob()`.
        """
        if not self.key:
            import hashlib

            self.key = hashlib.sha256(self.blob() if blob is None else blob).hexdigest()
        return self.key


class Backend(ABC):
    """Runs functions and instances. Every wait has a limit, and says what it waited for when it is over."""

    job_id: str
    """Names the session."""

    # Objects

    @abstractmethod
    def put(self, value: Any) -> ObjectRef:
        """Keep a value for those who get its reference."""

    @abstractmethod
    def get(self, refs: Sequence[ObjectRef], timeout: float, allow_partial: bool) -> list[Any]:
        """The objects, in order; with `allow_partial` None in place of one that is not there in time or failed.

        Args:
            timeout: seconds; -1 for no limit.

        Raises:
            YRTimeoutError: the time is over.
            Whatever the calls that make them raised.
        """

    @abstractmethod
    def wait(
        self, refs: Sequence[ObjectRef], count: int, timeout: float | None
    ) -> tuple[list[ObjectRef], list[ObjectRef]]:
        """The references whose objects are there, at most `count`, and the others; both in order."""

    @abstractmethod
    def cancel(self, refs: Sequence[ObjectRef], allow_force: bool, allow_recursive: bool) -> None:
        """Cancel the calls of functions that make these objects."""

    @abstractmethod
    def is_done(self, entry: Any) -> bool:
        """Whether an object is there."""

    @abstractmethod
    def when_done(self, entry: Any, callback: Callable[[], None]) -> None:
        """Call back when an object is there."""

    @abstractmethod
    def object_id(self, entry: Any) -> str:
        """A name for an object."""

    def reduce_ref(self, ref: ObjectRef) -> tuple[Any, ...]:
        """How a reference is pickled outside of what this backend sends itself.

        Raises:
            TypeError: it cannot be.
        """
        raise TypeError("an ObjectRef can be sent in arguments, results and objects that are put, and not otherwise")

    # Functions and instances

    @abstractmethod
    def invoke(
        self,
        code: Code,
        arguments: tuple[Any, ...],
        keywords: dict[str, Any],
        options: InvokeOptions,
        returns: int | None,
    ) -> Any:
        """Call a function: a reference, a list of them for several `returns`, None for none, or for a generator
        (`returns` None) an iterator of references."""

    @abstractmethod
    def create(self, code: Code, arguments: tuple[Any, ...], keywords: dict[str, Any], options: InvokeOptions) -> str:
        """Create an instance: its id, at once. What goes wrong with it is raised where a result of it is fetched."""

    @abstractmethod
    def call(
        self, instance: str, method: str, arguments: tuple[Any, ...], keywords: dict[str, Any], returns: int | None
    ) -> Any:
        """Call a method of an instance; the result as for `invoke`."""

    @abstractmethod
    def terminate(self, instance: str, is_sync: bool) -> None:
        """End an instance."""

    def unreferenced(self, instance: str) -> None:  # noqa: B027  nothing to do unless a backend can free instances
        """A handle to an instance is gone. May be called at any moment, in any thread, so the work is put off."""

    @abstractmethod
    def is_alive(self, instance: str) -> bool:
        """Whether an instance is there."""

    @abstractmethod
    def find(self, name: str, namespace: str, timeout: float) -> tuple[str, Code]:
        """The id and class of a named instance."""

    @abstractmethod
    def request(self, operation: str, *arguments: Any) -> Any:
        """What is asked seldom, by name: key-value calls, resources, groups, saved state. See the backend."""

    @abstractmethod
    def finalize(self) -> None:
        """End every instance and free every object of the session."""
