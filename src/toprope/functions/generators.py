"""Results of generator functions and methods: references to the items, in order.

Users iterate over an `ObjectRefGenerator`, which ends as openYuanrong's and Ray's do: an error is the last item. Each
backend has a class of `Items` that waits for the next reference. Its `__del__` may run at any moment, in any thread,
and only queues the end of the call. Tests: tests/functions/test_functions_generators.py,
tests/functions/test_functions_semantics.py.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from toprope.functions.objects import ObjectRef

if TYPE_CHECKING:
    import asyncio

__all__ = ["Items", "ListedItems", "ObjectRefGenerator", "iterate", "signalled"]


class Items(ABC):
    """Source of the references to a generator's items: one implementation for each backend."""

    @abstractmethod
    def take(self) -> ObjectRef | None:
        """Wait for the next reference; None after the last."""

    @abstractmethod
    async def take_async(self) -> ObjectRef | None:
        """As `take`, without blocking the event loop."""

    def close(self) -> None:  # noqa: B027  nothing to do where no call makes items any more
        """Stop the generator: its call ends after the current item."""


class ListedItems(Items):
    """References that are known in advance.

    Args:
        refs: the references.
    """

    def __init__(self, refs: Sequence[ObjectRef]) -> None:
        self._refs: Iterator[ObjectRef] = iter(refs)

    def take(self) -> ObjectRef | None:
        """The next one."""
        return next(self._refs, None)

    async def take_async(self) -> ObjectRef | None:
        """The next one."""
        return self.take()


class ObjectRefGenerator:
    """The items of a call of a generator: references, by `for` or, in a coroutine, by `async for`.

    If the generator raises, the last reference holds the error. Once it is closed or deleted, the call ends
    after the item under way.
    """

    def __init__(self, items: Items) -> None:
        self._items: Items | None = items

    def __iter__(self) -> ObjectRefGenerator:
        return self

    def __next__(self) -> ObjectRef:
        ref = None if self._items is None else self._items.take()
        if ref is None:
            self.close()
            raise StopIteration
        return ref

    def __aiter__(self) -> ObjectRefGenerator:
        return self

    async def __anext__(self) -> ObjectRef:
        ref = None if self._items is None else await self._items.take_async()
        if ref is None:
            self.close()
            raise StopAsyncIteration
        return ref

    def close(self) -> None:
        """Stop the generator: its call ends after the current item; a call that has not started never runs."""
        items, self._items = self._items, None
        if items is not None:
            items.close()


def iterate(items: AsyncIterator[Any]) -> Iterator[Any]:
    """Items of an asynchronous generator, one by one, in an event loop of their own."""
    import asyncio

    async def next_item() -> Any:
        return await anext(items)

    with asyncio.Runner() as runner:  # its end closes the generator
        while True:
            try:
                item = runner.run(next_item())
            except StopAsyncIteration:
                return
            yield item


async def signalled(ask: Callable[[Callable[[], None]], None]) -> None:
    """Wait in a coroutine for a callback that may come in another thread.

    Args:
        ask: is given the callback.
    """
    import asyncio

    loop = asyncio.get_running_loop()
    news: asyncio.Future[None] = loop.create_future()

    def deliver() -> None:
        if not news.done():
            news.set_result(None)

    def callback() -> None:
        try:
            loop.call_soon_threadsafe(deliver)
        except RuntimeError:
            pass  # the loop has ended

    ask(callback)
    await news
