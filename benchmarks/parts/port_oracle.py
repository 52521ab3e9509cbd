"""Compare the port with people: CUDA references that maintainers removed from pytorch/examples, and the port as well.

Counted file by file: a reference was removed by a person if the scan of `parts.port_sites` finds it before their
clean-up and no longer after it. The port treats it right if it is gone from the port's output too, or is still there
and reported. Files that were deleted since do not count, nor do names that a program gives itself: the port keeps
them, options of the command line above all, because scripts give them.

Used by benchmarks/port.py and tests/port/test_port_corpus.py.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from parts.port_corpus import PortedRepository
from parts.port_sites import own_names, sites

from toprope.port.syntax.source import Source

__all__ = ["Oracle", "oracle"]


@dataclass(frozen=True)
class Oracle:
    """References that the maintainers removed.

    Attributes:
        removed: how many.
        gone: how many of them the port's output has no more.
        reported: how many of the others the port reports.
        options: how many of the others are options such as `--no-cuda`, which keep their names.
        silent: those that are still there and not reported: path and text.
        own: the program's own names that the maintainers renamed, which are not among `removed`.
    """

    removed: int
    gone: int
    reported: int
    options: int
    silent: list[str]
    own: int

    @property
    def rate(self) -> float:
        """The part that is gone."""
        return self.gone / max(1, self.removed)

    @property
    def rate_but_for_options(self) -> float:
        """The same without the options that keep their names on purpose."""
        return self.gone / max(1, self.removed - self.options)


def oracle(before: PortedRepository, after: Path) -> Oracle:
    """Compare the port of a repository with what its maintainers made of it.

    Args:
        before: the repository before, ported.
        after: the folder of the repository after their work.
    """
    read = {before.path(each): each for each in before.files if not each.skipped}
    pairs = {path: (each, after / path) for path, each in read.items() if (after / path).is_file()}
    own = own_names(Source(each.before).text for each in read.values())
    removed: Counter[str] = Counter()
    rest: Counter[str] = Counter()
    names = 0
    silent = []
    reported = {(place.path, place.site.text) for place in before.places if place.state != "missed"}
    for path, (each, theirs) in pairs.items():
        texts = Source(each.before).text, Source(each.after).text, Source(theirs.read_bytes()).text
        was, ours, now = (Counter(site.text for site in sites(text, own)) for text in texts)
        every, then = (Counter(site.text for site in sites(text)) for text in (texts[0], texts[2]))
        names += (every - then).total() - (was - now).total()
        taken = was - now
        left = taken & (ours - (now & ours))
        removed += taken
        rest += left
        silent += [f"{path}: {text}" for text in left if (path, text) not in reported]
    options = sum(number for text, number in rest.items() if text.startswith("--"))
    missed = sum(rest[each.partition(": ")[2]] for each in silent)
    return Oracle(removed.total(), (removed - rest).total(), rest.total() - missed, options, silent, names)
