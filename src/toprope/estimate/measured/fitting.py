"""Robust fit of positive figures to measured times: least absolute error of logarithms; pure.

Used by calibrate.py; it knows nothing of cards. A model gives a time for each case from a few positive figures.
Figures are fitted in logarithms with weights that bound the influence of outliers (iteratively reweighted least
squares, damped as by Levenberg and Marquardt), after scans of each figure alone: a model that takes the longer of two
times does not react to the shorter one. The method is free as long as known figures come back within 2 %. Tests:
tests/estimate/test_calibrate.py.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from math import log, sqrt

import numpy as np
from numpy.typing import NDArray

__all__ = ["Case", "Fit", "fit"]

_Array = NDArray[np.float64]

_SCAN = np.linspace(-1.6, 1.6, 17)
"""Steps of a scan, in logarithms: from a fifth to five times."""
_SCALES = (0.3, 0.1, 0.03, 0.01)
"""Errors from which a case counts less, in logarithms; smaller from one pass to the next."""
_ROUNDS = 12
_DELTA = 0.01
_SENSITIVE = 0.1
"""Least change of a time in percent, for one percent of a figure, at which a case says something of that figure."""
_LEAST_SCALE = 0.02
"""Error of the cases that is assumed at the least."""
_BOUND = 2.5
"""Most that a figure is moved, in logarithms."""


@dataclass(frozen=True, slots=True)
class Case:
    """A measured time.

    Attributes:
        seconds: median of the measurements.
        rows: number of measurements.
        group: of cases that depend on the same figures.
        family: of cases that err alike.
    """

    seconds: float
    rows: int = 1
    group: str = ""
    family: str = ""

    @property
    def weight(self) -> float:
        """Weight in a fit, by the number of measurements up to 25."""
        return sqrt(min(self.rows, 25))


@dataclass(frozen=True)
class Fit:
    """Outcome of a fit.

    Attributes:
        figures: values by name, of all that were asked for; those that were not identified have their old ones.
        rows: measurements that say something of a figure, by name.
        identified: names of the figures that the cases determine.
        beyond: names of the figures that the cases pull beyond their bound.
    """

    figures: dict[str, float]
    rows: dict[str, int]
    identified: frozenset[str]
    beyond: frozenset[str]


class _Problem:
    """Logarithms of figures against logarithms of times."""

    def __init__(
        self,
        cases: Sequence[Case],
        predict: Callable[[int, dict[str, float]], float],
        start: dict[str, float],
        groups: Mapping[str, Collection[str]],
        most: dict[str, float],
    ) -> None:
        self.cases, self.predict, self.start = cases, predict, start
        self.most = {name: log(most[name]) if name in most else log(value) + _BOUND for name, value in start.items()}
        self.measured = np.log([case.seconds for case in cases])
        self.weights = np.array([case.weight for case in cases])
        self.places = {name: [at for at, case in enumerate(cases) if case.group in groups[name]] for name in start}

    def errors(self, names: Sequence[str], x: _Array, places: Sequence[int] | None = None) -> _Array:
        """Logarithms of predicted by measured, of some cases."""
        figures = self.start | dict(zip(names, np.exp(x).tolist(), strict=True))
        chosen = range(len(self.cases)) if places is None else places
        return np.array([log(self.predict(at, figures)) - self.measured[at] for at in chosen])

    def slopes(self, names: Sequence[str], x: _Array) -> _Array:
        """Change of each case's logarithm with each figure's: one row a case."""
        made = np.zeros((len(self.cases), len(names)))
        for number, name in enumerate(names):
            places = self.places[name]
            up, down = x.copy(), x.copy()
            up[number] += _DELTA
            down[number] -= _DELTA
            made[places, number] = (self.errors(names, up, places) - self.errors(names, down, places)) / (2 * _DELTA)
        return made

    def loss(self, errors: _Array, scale: float, places: Sequence[int] | None = None) -> float:
        """Sum of absolute errors, rounded near nothing."""
        weights = self.weights if places is None else self.weights[list(places)]
        return float(np.sum(weights * (np.sqrt(errors**2 + scale**2) - scale)))

    def scan(self, names: Sequence[str], x: _Array, scale: float) -> _Array:
        """Move each figure alone to the best of some values."""
        x = x.copy()
        for number, name in enumerate(names):
            places = self.places[name]
            best, chosen = self.loss(self.errors(names, x, places), scale, places), x[number]
            for step in _SCAN:
                tried = x.copy()
                tried[number] = min(log(self.start[name]) + step, self.most[name])
                loss = self.loss(self.errors(names, tried, places), scale, places)
                if loss < best * 0.99:
                    best, chosen = loss, tried[number]
            x[number] = chosen
        return x

    def descend(self, names: Sequence[str], x: _Array) -> _Array:
        """Move all figures together to the least error."""
        low = np.array([log(self.start[name]) - _BOUND for name in names])
        high = np.array([self.most[name] for name in names])
        errors, damping = self.errors(names, x), 1e-3
        for scale in _SCALES:
            loss = self.loss(errors, scale)
            for _ in range(_ROUNDS):
                slopes = self.slopes(names, x)
                pull = self.weights / np.sqrt(errors**2 + scale**2)
                curvature = slopes.T @ (slopes * pull[:, None])
                gradient = slopes.T @ (pull * errors)
                better = False
                while damping < 1e4:
                    step = np.linalg.solve(curvature + damping * np.diag(np.diag(curvature) + 1e-6), gradient)
                    tried = np.clip(x - np.clip(step, -0.5, 0.5), low, high)
                    new = self.errors(names, tried)
                    if self.loss(new, scale) < loss * (1 - 1e-9):
                        better, damping = True, max(damping / 5, 1e-9)
                        break
                    damping *= 5
                if not better:
                    damping = 1e-3
                    break
                gain = loss - self.loss(new, scale)
                x, errors, loss = tried, new, self.loss(new, scale)
                if gain < 1e-6 * loss:
                    break
        return x


def fit(
    cases: Sequence[Case],
    predict: Callable[[int, dict[str, float]], float],
    start: dict[str, float],
    groups: Mapping[str, Collection[str]],
    most: dict[str, float],
    *,
    least_rows: int = 5,
    certain: float = 0.15,
) -> Fit:
    """Fit figures to cases.

    Args:
        cases: the measured times.
        predict: seconds of the case of this index with these figures.
        start: figures to begin with, by name; positive.
        groups: of each figure, the groups of cases that may depend on it.
        most: bounds of figures; one that is pulled there keeps its value.
        least_rows: measurements below which a figure keeps its value.
        certain: standard error, as a share, above which a figure counts as not identified and keeps its value.
    """
    problem = _Problem(cases, predict, start, groups, most)
    names = [name for name in start if problem.places[name]]
    rows = dict.fromkeys(start, 0)
    values = dict(start)
    beyond: set[str] = set()
    first = True
    while names:
        x = np.log([values[name] for name in names])
        for scale in _SCALES[:3] if first else ():
            x = problem.descend(names, problem.scan(names, problem.scan(names, x, scale), scale))
        x, first = problem.descend(names, x), False
        slopes, errors = problem.slopes(names, x), problem.errors(names, x)
        for number, name in enumerate(names):
            telling = (np.abs(slopes[:, number]) >= _SENSITIVE).tolist()
            rows[name] = sum(case.rows for case, says in zip(cases, telling, strict=True) if says)
        uncertainty = dict(zip(names, _standard_errors(cases, slopes, errors).tolist(), strict=True))
        dropped = {name for name in names if rows[name] < least_rows}
        at_bound = {name for name, value in zip(names, x.tolist(), strict=True) if value > problem.most[name] - 1e-6}
        beyond |= at_bound - dropped
        dropped |= at_bound
        if not dropped:  # the worst third: without them the others may be certain
            unclear = sorted(
                (name for name in names if uncertainty[name] > certain), key=lambda name: -uncertainty[name]
            )
            dropped = set(unclear[: (len(unclear) + 2) // 3])
        if not dropped:
            found = dict(zip(names, np.exp(x).tolist(), strict=True))
            return Fit(start | found, rows, frozenset(names), frozenset(beyond))
        values |= dict(zip(names, np.exp(x).tolist(), strict=True)) | {name: start[name] for name in dropped}
        names = [name for name in names if name not in dropped]
    return Fit(dict(start), rows, frozenset(), frozenset(beyond))


def _standard_errors(cases: Sequence[Case], slopes: _Array, errors: _Array) -> _Array:
    """Standard errors of the figures, in logarithms: how far they move if the cases err as these do."""
    families = [case.family for case in cases]
    scales = {
        family: max(1.48 * float(np.median(np.abs(errors[[each == family for each in families]]))), _LEAST_SCALE)
        for family in set(families)
    }
    weights = np.array([scales[family] ** -2 for family in families])
    curvature = slopes.T @ (slopes * weights[:, None])
    variances: _Array = np.diag(np.linalg.pinv(curvature + 1e-9 * np.eye(len(curvature))))
    return np.sqrt(np.maximum(variances, 0.0))
