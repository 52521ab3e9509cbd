"""Code that TorchScript reaches from scripted functions and classes: calls, methods, base classes and submodules.

A name is looked for where the file imports it from. Only where that is not known all functions of the name count.

Called by `facts` with what `scripted` found in each file. Tests: tests/port/test_port_options.py,
tests/port/test_port_unseen_second.py.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from toprope.port.project.scripted import ANY_MODULE, PERHAPS, WRAPPED, Scripts, is_outside

__all__ = ["reached"]

_Place = tuple[int, str]
"""The number of a file, and a name in it."""


def reached(
    files: Sequence[tuple[str, str, Scripts]], modules: Collection[str], names: Collection[str]
) -> list[frozenset[str]]:
    """Functions and methods of each file that are compiled, with all that these call.

    Args:
        files: for each file its last name as a module, the name of its folder, and what it says.
        modules: names of the classes that may be torch modules.
        names: the names under which the project's files may be imported.
    """
    return _Search(files, modules, names).found()


class _Search:
    def __init__(
        self, files: Sequence[tuple[str, str, Scripts]], modules: Collection[str], names: Collection[str]
    ) -> None:
        self._files = files
        self._modules = modules
        self._names = names
        self._defined: dict[str, list[int]] = {}
        for number, (_, _, scripts) in enumerate(files):
            for name in {*scripts.calls, *scripts.bases}:
                self._defined.setdefault(name, []).append(number)
        self._seen: set[_Place] = set()
        self._any = False

    def found(self) -> list[frozenset[str]]:
        """The compiled names of each file."""
        certain = [place for number in range(len(self._files)) for place in self._first(number)]
        ahead = list(certain)
        while ahead:
            self._follow(ahead, certain)
            ahead = [each for each in self._of_held() if each not in self._seen and not self._is_refused(each)]
        if self._any:  # of each module its forward, and what that calls
            self._follow(list(self._every_module()), ())
        names: list[set[str]] = [set() for _ in self._files]
        for number, name in self._seen:
            names[number].add(name)
        return [frozenset(each) for each in names]

    def _follow(self, ahead: list[_Place], certain: Collection[_Place]) -> None:
        """Note what is reached from some places; what cannot be compiled is not, unless it is certain."""
        while ahead:
            place = ahead.pop()
            if place not in self._seen and (place in certain or not self._is_refused(place)):
                self._seen.add(place)
                ahead += self._after(*place)

    def _is_refused(self, place: _Place) -> bool:
        number, name = place
        return name in self._files[number][2].refused

    def _first(self, number: int) -> Iterator[_Place]:
        """The functions and classes that a file itself has compiled."""
        scripts = self._files[number][2]
        for name in scripts.compiles:
            if name.startswith(WRAPPED):
                wrapper = name.removeprefix(WRAPPED)
                uses = list(self._wrapped(number, wrapper))
                yield from uses
                self._any |= not uses
            elif name == ANY_MODULE:
                self._any = True
            else:
                bare = name.removeprefix(PERHAPS)
                places = self._resolve(number, bare)
                unknown = name.startswith(PERHAPS) and not is_outside(bare, self._names)
                yield from places
                self._any |= unknown and not places

    def _wrapped(self, number: int, wrapper: str) -> Iterator[_Place]:
        """The functions that a function is given which has its argument compiled: decorated with it, or in a call."""
        for other, (_, _, scripts) in enumerate(self._files):
            for name, decorators in scripts.decorators.items():
                if any((number, wrapper) in self._resolve(other, each) for each in decorators):
                    yield other, name
            for callee, given in scripts.given:
                if (number, wrapper) in self._resolve(other, callee):
                    yield from self._resolve(other, given.removeprefix(PERHAPS))

    def _every_module(self) -> Iterator[_Place]:
        for number, (_, _, scripts) in enumerate(self._files):
            for name in scripts.bases:
                if name in self._modules:
                    yield number, name

    def _resolve(self, number: int, name: str) -> list[_Place]:
        """The functions and classes that a name of a file may mean."""
        module, last, scripts = "", name, self._files[number][2]
        if "." in name:
            if name in scripts.calls:  # a method of a class of the file
                return [(number, name)]
            if is_outside(name, self._names):
                return []
            module, _, last = name.lstrip(".").rpartition(".")
            module = module.rpartition(".")[2]
        elif name in scripts.calls or name in scripts.bases:
            return [(number, name)]
        elif not scripts.stars:
            return []
        every = self._defined.get(last, [])
        near = [each for each in every if self._files[each][0] == module]
        near = near or [each for each in every if self._files[each][1] == module]
        return [(each, last) for each in near or every]

    def _after(self, number: int, name: str) -> Iterator[_Place]:
        """Functions and methods that are compiled because a function, method or class is."""
        scripts = self._files[number][2]
        if name in scripts.bases:
            yield from self._of_class(number, name)
            return
        owner, _, _ = name.rpartition(".")
        for called in scripts.calls.get(name, ()):
            if called.startswith("self.*."):
                continue
            if called.startswith("self."):
                method = called.removeprefix("self.")
                for other, each in self._lineage(number, owner):
                    if f"{each}.{method}" in self._files[other][2].calls:
                        yield other, f"{each}.{method}"
            else:
                yield from self._resolve(number, called)

    def _lineage(self, number: int, name: str) -> list[_Place]:
        """A class and those of the project that it inherits from."""
        found = [(number, name)]
        for other, each in found:
            for base in self._files[other][2].bases.get(each, ()):
                found += [place for place in self._resolve(other, base) if place not in found]
        return found

    def _of_class(self, number: int, name: str) -> Iterator[_Place]:
        """The methods of a class that are compiled first: a module's forward, all of another class; and submodules.

        Of a class that has a method which cannot be compiled nothing is.
        """
        lineage = self._lineage(number, name)
        methods = [
            (other, key) for other, each in lineage for key in self._files[other][2].calls if key.startswith(f"{each}.")
        ]
        if name not in self._modules:
            if not any(map(self._is_refused, methods)):
                yield from methods
            return
        yield from ((other, key) for other, key in methods if key.endswith(".forward"))
        for other, key in methods:
            for called in self._files[other][2].calls[key]:
                if not called.startswith("self."):
                    yield from (place for place in self._resolve(other, called) if place[1] in self._modules)

    def _of_held(self) -> list[_Place]:
        """Methods that compiled ones call of the modules they hold: `self.encoder.encode(x)`."""
        called = {
            each.removeprefix("self.*.") for number, name in self._seen
            for each in self._files[number][2].calls.get(name, ()) if each.startswith("self.*.")
        }  # fmt: skip
        classes = [(number, name) for number, name in self._seen if name in self._files[number][2].bases]
        return [
            (other, f"{each}.{method}") for number, name in classes for other, each in self._lineage(number, name)
            for method in called if f"{each}.{method}" in self._files[other][2].calls
        ]  # fmt: skip
