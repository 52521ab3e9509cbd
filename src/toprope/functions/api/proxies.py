"""Decorators of the yr API (`yr.invoke`, `yr.instance`), and the proxies that functions and classes become.

For users; `toprope.flow` starts its processes by them, too. A call checks its options and goes to the backend in use
(`functions.context`); nothing runs here. Names, messages and quirks are openYuanrong's (its decorators, master of
2026-08), such as `options`, which changes a function's proxy and copies a class's. Calls are frequent: what can be
computed once is computed in the constructors. Tests: tests/functions/test_functions_options.py,
tests/functions/test_functions_objects.py, tests/functions/test_functions_semantics.py.
"""

from __future__ import annotations

import functools
import inspect
from typing import Any

from toprope.functions import context
from toprope.functions.backend import Code
from toprope.functions.exceptions import CODES, YRRuntimeError
from toprope.functions.handles import handles
from toprope.functions.options import InvokeOptions

__all__ = [
    "FunctionProxy",
    "InstanceCreator",
    "InstanceProxy",
    "MethodProxy",
    "get_instance",
    "instance",
    "invoke",
    "kill_instance",
    "method",
]

_MOST_RETURNS = 100


def invoke(
    *arguments: Any, invoke_options: InvokeOptions | None = None, return_nums: int = 1, initializer: Any = None
) -> Any:
    """Make a function remote: `f.invoke(...)` runs it in a worker and returns a reference to its result.

    Args:
        arguments: the function, where the decorator is used without arguments.
        invoke_options: options of its calls.
        return_nums: values that a call returns, 0 to 100; each has a reference of its own.
        initializer: not part of toprope.

    Raises:
        RuntimeError: it was applied to an object of another kind.
        ValueError: `return_nums` is invalid.
    """
    if initializer is not None:
        raise NotImplementedError("yr.invoke(initializer=...) is not part of toprope")

    def decorate(function: Any) -> FunctionProxy:
        if not inspect.isroutine(function):
            raise YRRuntimeError("@yr.invoke decorator must be applied to a function", CODES["incorrect usage"])
        return FunctionProxy(function, invoke_options, return_nums)

    return decorate(arguments[0]) if arguments else decorate


def instance(*arguments: Any, invoke_options: InvokeOptions | None = None) -> Any:
    """Make a class remote: `C.invoke(...)` creates an instance in a worker.

    Raises:
        RuntimeError: it was applied to an object of another kind.
    """

    def decorate(cls: Any) -> InstanceCreator:
        if not inspect.isclass(cls):
            raise YRRuntimeError("@yr.instance decorator must be applied to a class", CODES["incorrect usage"])
        return InstanceCreator(Code(cls), invoke_options)

    return decorate(arguments[0]) if arguments else decorate


def method(*arguments: Any, return_nums: int = 1, concurrency_group: str = "", **tensors: Any) -> Any:
    """Set the number of values that a method returns. Other options are accepted.

    Raises:
        ValueError: `return_nums` is invalid.
    """
    _check_returns(return_nums)

    def decorate(function: Any) -> Any:
        function.__yr_returns__ = return_nums
        return function

    return decorate(arguments[0]) if arguments else decorate


class FunctionProxy:
    """A decorated function: `invoke` runs it in a worker."""

    def __init__(self, function: Any, options: InvokeOptions | None, returns: int) -> None:
        functools.update_wrapper(self, function)
        _check_returns(returns)
        self._code = Code(function)
        self._options = InvokeOptions() if options is None else options.copy()
        self._signature: inspect.Signature | None = None
        stream = inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function)
        self._returns = None if stream else returns

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        """Raise: a remote function or class is called by `invoke`."""
        raise YRRuntimeError("invoke function cannot be called directly", CODES["incorrect usage"])

    def __reduce__(self) -> tuple[Any, ...]:
        return _function, (self._code.target, self._options, self._returns)

    def invoke(self, *arguments: Any, **keywords: Any) -> Any:
        """Run it. Return a reference, a list of them for several values, None for none, an iterator for a generator.

        Raises:
            TypeError: the arguments do not fit.
        """
        if self._signature is None:
            self._signature = inspect.signature(self._code.target)
        self._signature.bind(*arguments, **keywords)
        return context.backend().invoke(self._code, arguments, keywords, self._options, self._returns)

    def invoke_direct(self, *arguments: Any, **keywords: Any) -> Any:
        """As `invoke`."""
        return self.invoke(*arguments, **keywords)

    def options(self, invoke_options: InvokeOptions) -> FunctionProxy:
        """Set the options of its calls from now on. (A class returns a copy with the options instead.)

        Raises:
            TypeError, ValueError: values that cannot be.
        """
        _check_options(invoke_options)
        invoke_options.check_types()
        invoke_options.check_ranges()
        self._options = invoke_options.copy()
        return self

    def get_original_func(self) -> Any:
        """The function itself."""
        return self._code.target


class InstanceCreator:
    """A decorated class: `invoke` creates an instance in a worker."""

    def __init__(self, code: Code, options: InvokeOptions | None = None) -> None:
        self._code = code
        self._options = InvokeOptions() if options is None else options
        self.__name__ = code.name
        self.__doc__ = getattr(code.target, "__doc__", None)

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        """Raise: a remote function or class is called by `invoke`."""
        raise YRRuntimeError(
            f"the class {self._code.name} cannot be called directly, use {self._code.name}.invoke()",
            CODES["incorrect usage"],
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return _creator, (self._code.target, self._options)

    def invoke(self, *arguments: Any, **keywords: Any) -> InstanceProxy:
        """Create an instance. Returns at once; errors are raised where a result of the instance is fetched.

        Raises:
            TypeError, ValueError: arguments or options that cannot be.
        """
        target = self._code.target
        if target.__init__ is not object.__init__ or arguments or keywords:
            inspect.signature(target).bind(*arguments, **keywords)
        options = self._options.copy()
        if options.need_order and options.calls_at_once(is_async=self._code.is_async) > 1:
            raise ValueError("need_order=True is mutually exclusive with concurrency > 1")
        return InstanceProxy(context.backend().create(self._code, arguments, keywords, options), self._code)

    def options(self, invoke_options: InvokeOptions | None = None, **keywords: Any) -> InstanceCreator:
        """Return a copy of this class with other options.

        Args:
            invoke_options: options of its instances.
            keywords: Ray's spelling: name, namespace, lifetime="detached", get_if_exists, runtime_env, resources.

        Raises:
            TypeError, ValueError: values that cannot be.
        """
        if invoke_options is not None:
            _check_options(invoke_options)
            options = invoke_options.copy()
        else:
            options = self._options.copy()
        lifetime = keywords.pop("lifetime", None)
        if lifetime is not None:
            if lifetime != "detached":
                raise ValueError("lifetime is only support detached")
            options.custom_extensions["lifecycle"] = lifetime
        if "resources" in keywords:
            options.custom_resources = dict(keywords.pop("resources"))
        for name in ("name", "namespace", "get_if_exists", "runtime_env"):
            if name in keywords:
                setattr(options, name, keywords.pop(name))
        if keywords:
            raise TypeError(f"options() got unexpected keywords: {', '.join(keywords)}")
        return InstanceCreator(self._code, options)

    def get_instance(self, name: str, timeout: float = 30) -> InstanceProxy:
        """Return the living instance of this name."""
        return get_instance(name, self._options.namespace, timeout)

    def get_original_cls(self) -> Any:
        """The class itself."""
        return self._code.target


class _Handle:
    """Handle that an instance proxy and its methods share: while it exists, the instance can be called."""

    __slots__ = ("id", "terminated")

    def __init__(self, id: str) -> None:
        self.id = id
        self.terminated = False
        handles.add(id, 1)

    def __del__(self) -> None:
        handles.add(self.id, -1)
        context.unreferenced(self.id)


class InstanceProxy:
    """A remote instance. Its methods are called as `instance.method.invoke(...)`."""

    def __init__(self, id: str, code: Code) -> None:
        self._id = id
        self._code = code
        self._handle = _Handle(id)

    @property
    def instance_id(self) -> str:
        """Names the instance."""
        return self._id

    def real_id(self) -> str:
        """Names the instance."""
        return self._id

    def __getattr__(self, name: str) -> MethodProxy:
        if name.startswith("__"):
            raise AttributeError(name)
        function = inspect.getattr_static(self._code.target, name, None)
        if function is None or not callable(getattr(self._code.target, name)):
            raise AttributeError(f"{self._code.name} has no method {name!r}")
        proxy = MethodProxy(
            self._handle, name, getattr(self._code.target, name), is_static=isinstance(function, staticmethod)
        )
        self.__dict__[name] = proxy
        return proxy

    def __reduce__(self) -> tuple[Any, ...]:
        handles.sent(self._id)
        return _proxy, (self._id, self._code.target)

    def __repr__(self) -> str:
        return f"<instance {self._id} of {self._code.name}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, InstanceProxy) and self._id == other._id

    def __hash__(self) -> int:
        return hash(self._id)

    def terminate(self, is_sync: bool = False) -> None:
        """End the instance, after its shutdown hook, and free its resources. A second call does nothing.

        Args:
            is_sync: whether to wait without a limit until it is gone; otherwise at most its grace period.
        """
        if not self._handle.terminated:
            self._handle.terminated = True
            context.backend().terminate(self._id, is_sync)

    def is_activate(self) -> bool:
        """True if the instance exists."""
        return not self._handle.terminated and context.backend().is_alive(self._id)


class MethodProxy:
    """A method of a remote instance."""

    __slots__ = ("_exact", "_handle", "_name", "_returns", "_signature")

    def __init__(self, handle: _Handle, name: str, function: Any, *, is_static: bool) -> None:
        self._handle = handle
        self._name = name
        stream = inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function)
        self._returns: int | None = None if stream else getattr(function, "__yr_returns__", 1)
        signature = inspect.signature(function)
        if not is_static and not inspect.ismethod(function):
            signature = signature.replace(parameters=list(signature.parameters.values())[1:])
        self._signature = signature
        plain = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        all_plain = all(each.kind in plain for each in signature.parameters.values())
        self._exact = len(signature.parameters) if all_plain else -1

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        """Raise: a remote function or class is called by `invoke`."""
        raise YRRuntimeError(
            f"the method {self._name} cannot be called directly, use {self._name}.invoke()", CODES["incorrect usage"]
        )

    def invoke(self, *arguments: Any, **keywords: Any) -> Any:
        """Call it. Return a reference, a list of them for several values, None for none, an iterator for a generator.

        Raises:
            TypeError: the arguments do not fit.
            RuntimeError: the instance was terminated.
        """
        handle = self._handle
        if handle.terminated:
            raise YRRuntimeError("this instance is terminated", CODES["instance exited"])
        if keywords or len(arguments) != self._exact:
            self._signature.bind(*arguments, **keywords)
        return context.backend().call(handle.id, self._name, arguments, keywords, self._returns)

    def invoke_direct(self, *arguments: Any, **keywords: Any) -> Any:
        """As `invoke`."""
        return self.invoke(*arguments, **keywords)

    def options(self, invoke_options: InvokeOptions) -> MethodProxy:
        """Accepted: calls of an instance have no resources of their own."""
        _check_options(invoke_options)
        return self


def get_instance(name: str, namespace: str = "", timeout: float = 60) -> InstanceProxy:
    """Return the living instance of a name; wait until it exists and its constructor has run.

    Raises:
        TypeError: wrong arguments.
        RuntimeError: there is none.
        TimeoutError: there is none in time, or its constructor has not run.
    """
    if not isinstance(name, str) or not isinstance(namespace, str):
        raise TypeError(f"invalid name type, actual: {type(name)}, expect: str")
    if not isinstance(timeout, int | float) or isinstance(timeout, bool) or timeout < 0:
        raise TypeError(f"invalid timeout, actual: {timeout}, expect: a number >= 0")
    id, code = context.backend().find(name, namespace, timeout)
    return InstanceProxy(id, code)


def kill_instance(instance_id: str) -> None:
    """End an instance by its id."""
    context.backend().terminate(instance_id, False)


def _check_returns(returns: Any) -> None:
    if not isinstance(returns, int) or isinstance(returns, bool) or not 0 <= returns <= _MOST_RETURNS:
        raise ValueError(f"invalid return_nums: {returns}, should be an integer between 0 and {_MOST_RETURNS}")


def _check_options(options: Any) -> None:
    if not isinstance(options, InvokeOptions):
        raise TypeError(f"invalid type for 'invoke_options', actual: {type(options)}, expect: InvokeOptions")


def _function(function: Any, options: InvokeOptions, returns: int | None) -> FunctionProxy:
    return FunctionProxy(function, options, 1 if returns is None else returns)


def _creator(target: Any, options: InvokeOptions) -> InstanceCreator:
    return InstanceCreator(Code(target), options)


def _proxy(id: str, target: Any) -> InstanceProxy:
    return InstanceProxy(id, Code(target))
