"""Instance on Ray: one actor class that creates and calls an instance of any user class.

`ray.instances` has Ray start it; its methods are called by name from there and from `ray.backend`. The process is set
up by `worker.process` before anything of the user's is unpickled. `__ray_shutdown__` and the ways to leave an actor are
Ray's, the hook `__yr_shutdown__` is openYuanrong's. Tests: tests/functions/test_functions_ray_mapping.py (its methods),
and (slow) tests/functions/test_functions_ray.py.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import pickle
import traceback
import warnings
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Concatenate, ParamSpec

from toprope.functions.arguments import lower
from toprope.functions.exceptions import CODES, YRRuntimeError
from toprope.functions.lifecycle import freed
from toprope.functions.local.worker.concurrency import HOOK
from toprope.functions.ray.attach import BARE, attach
from toprope.functions.ray.failures import RaisedError
from toprope.functions.ray.manager import Manager, Placed
from toprope.functions.ray.tensors import know_tensors
from toprope.functions.ray.worker.process import Setup, granted_cards, guard, on_terminate, prepare, result_of
from toprope.functions.scheduling.requests import Request

__all__ = ["AsyncHost", "Host", "Making", "host_of"]

P = ParamSpec("P")


@dataclass(frozen=True)
class Making:
    """Creation parameters of an instance, without its arguments.

    Attributes:
        id: names it.
        manager: the actor that serves its session.
        setup: how its process is set up.
        blob: the class, pickled.
        recoverable: whether it may be restarted after a crash.
        labels: of the instance.
        grace: seconds that its end may take.
        group: the function group that it is a member of; "" for none.
        of: name of the class.
        request: its resources.
    """

    id: str
    manager: Any
    setup: Setup = field(repr=False)
    blob: bytes = field(repr=False)
    recoverable: bool = False
    labels: tuple[str, ...] = ()
    grace: float = 30.0
    group: str = ""
    of: str = ""
    request: Request = field(default_factory=Request)


class _Base:
    """An instance, made as the actor is made.

    Args:
        making: what it is made of.
        packed: Ray's reference to the arguments of the constructor, with slots for references, in a list; an empty
            one for no arguments.
        refs: the references that belong into the slots; Ray leaves those in lists alone.
    """

    def __init__(self, making: Making, packed: list[Any], refs: list[Any]) -> None:
        import ray

        self.making = making
        self.ended = self.left = False
        context = ray.get_runtime_context()
        try:
            prepare(making.setup)
            os.environ["INSTANCE_ID"] = making.id
            guard()
            vendor, cards = next(((name, ids) for name, ids in granted_cards().items() if ids), ("", ()))
            placed = Placed(
                context.get_node_id(), ray.util.get_node_ip_address(), os.getpid(), vendor,
                tuple(int(each) for each in cards if str(each).isdecimal()), making.labels, making.grace,
                making.of, making.request.cpu, making.request.memory, making.request.scalars,
                {key: float(amount) for key, amount in context.get_assigned_resources().items()},
            )  # fmt: skip
            self._tell(Manager.place, placed)
            attach(self)
            on_terminate(lambda: self.end(making.grace))
            target = pickle.loads(making.blob)
            if _was_restarted(context):
                self.instance = self._restored()
            else:
                arguments, keywords = ray.get(packed[0]) if packed else ((), {})
                if refs:
                    values = ray.get(refs)
                    arguments, keywords = lower(arguments, keywords, values)
                self.instance = target(*arguments, **keywords)
                if making.recoverable:
                    self.save()
            know_tensors()
            self._tell(Manager.made)
        except (Exception, SystemExit) as error:
            kept = self._failure(error)
            try:
                ray.get(making.manager.fail.remote(making.id, kept.data))
            except ray.exceptions.RayError:
                pass  # the session has ended
            raise kept from None

    def _tell(
        self, what: Callable[Concatenate[Manager, str, P], None], *arguments: P.args, **keywords: P.kwargs
    ) -> None:
        """Tell the manager; an instance that outlives its session has none."""
        getattr(self.making.manager, what.__name__).remote(self.making.id, *arguments, **keywords)

    def _restored(self) -> Any:
        import ray

        saved = ray.get(self.making.manager.saved.remote(self.making.id))
        if saved is None:
            raise YRRuntimeError(
                f"instance {self.making.id} exited before it had a saved state", CODES["instance exited"]
            )
        return pickle.loads(saved)

    @staticmethod
    def _failure(error: BaseException) -> RaisedError:
        import ray

        if isinstance(error, ray.exceptions.RayTaskError):
            cause: Any = error
            while isinstance(cause, ray.exceptions.RayTaskError):
                cause = cause.cause
            if isinstance(cause, RaisedError):
                return cause
        return RaisedError.of(error)

    def checkpoint(self) -> bytes:
        """Pickle the instance for another process."""
        from ray import cloudpickle

        know_tensors()
        return bytes(cloudpickle.dumps(self.instance))

    def save(self) -> None:
        """Save the state of the instance."""
        import ray

        ray.get(self.making.manager.save.remote(self.making.id, self.checkpoint()))

    def method(self, name: str, arguments: Any, keywords: Any, values: Any) -> tuple[Any, Any, Any]:
        """A method with its arguments, the objects in their slots."""
        if values:
            arguments, keywords = lower(arguments, keywords, values)
        return getattr(self.instance, name), arguments, keywords

    def end(self, grace: float) -> None:
        """Call the user's hook, once."""
        if self.ended:
            return
        self.ended = True
        hook = getattr(getattr(self, "instance", None), HOOK, None)
        if hook is not None:
            try:
                result = hook(grace)
                if inspect.iscoroutine(result):
                    asyncio.run(result)
            except Exception:
                traceback.print_exc()

    def __ray_shutdown__(self) -> None:
        """Called by Ray before it ends this process: no handle is left, and all calls have ended."""
        if not self.left and not self.ended:
            self.end(self.making.grace)
            self._tell(Manager.fail, RaisedError.of(freed()).data)

    def leave(self) -> None:
        """End this process at the request of the user's code; Ray does not restart it."""
        import ray

        self.left = True
        ray.actor.exit_actor()

    def about(self) -> bytes:
        """Return the pickled class."""
        return self.making.blob


class Host(_Base):
    """An instance without coroutines: its calls run one after the other, or in threads."""

    def run(self, call: tuple[str, int, Any, Any], /, *values: Any) -> Any:
        """Call a method: its name, the values that are wanted, its arguments, and the objects that they refer to."""
        try:
            name, returns, arguments, keywords = call
            function, arguments, keywords = self.method(name, arguments, keywords, values)
            return result_of(function(*arguments, **keywords), returns)
        except Exception as error:
            raise self._failure(error) from None
        except SystemExit:
            self.leave()

    def stream(self, call: tuple[str, Any, Any], /, *values: Any) -> Iterator[Any]:
        """Call a generator method: its name, its arguments, and the objects that they refer to."""
        try:
            function, arguments, keywords = self.method(*call, values)
            items = function(*arguments, **keywords)
            for each in items:
                know_tensors()
                yield each
                if _is_unwanted():
                    items.close()
                    return
        except Exception as error:
            raise self._failure(error) from None

    def shutdown(self, grace: float) -> None:
        """Shut down: call the user's hook."""
        self.end(grace)

    def ready(self) -> bool:
        """Answer, once it is made."""
        return True


class AsyncHost(_Base):
    """An instance with coroutines: its calls run in an event loop."""

    async def run(self, call: tuple[str, int, Any, Any], /, *values: Any) -> Any:
        """Call a method: its name, the values that are wanted, its arguments, and the objects that they refer to."""
        try:
            name, returns, arguments, keywords = call
            function, arguments, keywords = self.method(name, arguments, keywords, values)
            result = function(*arguments, **keywords)
            if inspect.isawaitable(result):
                result = await result
            return result_of(result, returns)
        except Exception as error:
            raise self._failure(error) from None
        except SystemExit:
            self.leave()

    async def stream(self, call: tuple[str, Any, Any], /, *values: Any) -> AsyncIterator[Any]:
        """Call a generator method: its name, its arguments, and the objects that they refer to."""
        try:
            function, arguments, keywords = self.method(*call, values)
            result = function(*arguments, **keywords)
            if inspect.isasyncgen(result):
                async for each in result:
                    know_tensors()
                    yield each
            else:
                for each in result:
                    yield each
        except Exception as error:
            raise self._failure(error) from None

    async def shutdown(self, grace: float) -> None:
        """Shut down: call the user's hook."""
        hook = getattr(self.instance, HOOK, None)
        if not inspect.iscoroutinefunction(hook):
            self.end(grace)
        elif not self.ended:
            self.ended = True
            try:
                await hook(grace)
            except Exception:
                traceback.print_exc()

    async def ready(self) -> bool:
        """Answer, once it is made."""
        return True


@cache
def host_of(target: type, is_async: bool) -> type:
    """The class of actors for a class of the user's.

    It has one method more for each of the user's: the same, called without arguments. An argument, even an empty tuple,
    costs a call on Ray about a sixth of its time.
    """
    names = [each for each in dir(target) if not each.startswith("__") and callable(getattr(target, each, None))]
    bare = {f"{BARE}{each}": _bare_async(each) if is_async else _bare(each) for each in names}
    return type(target.__name__, (AsyncHost if is_async else Host,), bare)


def _is_unwanted() -> bool:
    """True if the generator of this thread's call was closed; older versions of Ray cannot tell."""
    import ray

    asked = getattr(ray.get_runtime_context(), "is_canceled", None)
    return asked is not None and bool(asked())


def _bare(name: str) -> Callable[[Host], Any]:
    def call(self: Host) -> Any:
        return self.run((name, 1, (), {}))

    return call


def _bare_async(name: str) -> Callable[[AsyncHost], Any]:
    async def call(self: AsyncHost) -> Any:
        return await self.run((name, 1, (), {}))

    return call


def _was_restarted(context: Any) -> bool:
    """True if Ray has started this actor before."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Ray warns of a deprecated call that it makes itself
        return bool(context.was_current_actor_reconstructed)
