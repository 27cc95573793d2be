"""Times of several ways to do the same thing: taken in turn, by CPU time and wall time, with their spread."""

from __future__ import annotations

import resource
import statistics
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypedDict

import numpy as np

Way = Callable[[], object]
OURS = "ours"


class Times(TypedDict):
    """Seconds of one way in each round."""

    cpu: list[float]
    wall: list[float]


class Comparison(TypedDict):
    """A measured number and its target.

    ``kind`` is ``"at most"`` or ``"at least"``, as the target reads. The ratio is that of neighbouring
    measurements: its median and quartiles over the rounds.
    """

    what: str
    kind: str
    target: float | None
    unit: str
    value: float
    low: float
    high: float


class Row(TypedDict):
    """All that was measured for one row of the table."""

    times: dict[str, Times]
    comparisons: list[Comparison]
    not_run: dict[str, str]
    facts: list[str]
    growth: dict[str, list[tuple[float, float]]]


def new_row() -> Row:
    """Return a row without measurements."""
    return {"times": {}, "comparisons": [], "not_run": {}, "facts": [], "growth": {}}


def used_cpu() -> float:
    """Return the CPU seconds of this process and of its finished children."""
    parts = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(part.ru_utime + part.ru_stime for part in parts)


def alternate(row: Row, ways: Mapping[str, Way], rounds: int, calls: int = 1, prefix: str = "") -> None:
    """Measure the ways in turn and add their times per call to the row.

    Each round starts with another way. One untimed round comes first. A way that fails is left out, with the
    reason.
    """
    names = [name for name, way in ways.items() if _runs(row, prefix + name, way)]
    for name in names:
        row["times"][prefix + name] = {"cpu": [], "wall": []}
    for number in range(rounds):
        shift = number % len(names)
        for name in names[shift:] + names[:shift]:
            cpu, wall = used_cpu(), time.perf_counter()
            for _ in range(calls):
                ways[name]()
            row["times"][prefix + name]["cpu"].append((used_cpu() - cpu) / calls)
            row["times"][prefix + name]["wall"].append((time.perf_counter() - wall) / calls)


def _runs(row: Row, name: str, way: Way) -> bool:
    """Call a way once and return whether it works; note the reason if it does not."""
    try:
        way()
    except Exception as error:  # noqa: BLE001 - any failure of another library is reported
        row["not_run"][name] = reason(error)
        return False
    return True


def reason(error: Exception) -> str:
    """Return an error in one line."""
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"


def spread(values: Sequence[float]) -> tuple[float, float, float]:
    """Return the lower quartile, the median and the upper quartile."""
    low, middle, high = np.quantile(values, (0.25, 0.5, 0.75)).tolist()
    return low, middle, high


def compare(
    row: Row,
    what: str,
    over: str,
    under: str,
    *,
    at_most: float | None = None,
    at_least: float | None = None,
    clock: str = "cpu",
) -> None:
    """Add the ratio of two ways' times, round by round; nothing if one of them was not run."""
    times = row["times"]
    if over in times and under in times:
        pairs = zip(times[over][clock], times[under][clock], strict=True)  # type: ignore[literal-required]
        low, middle, high = spread([first / max(second, 1e-9) for first, second in pairs])
        add_number(row, what, middle, "x", at_most=at_most, at_least=at_least, limits=(low, high))


def add_number(
    row: Row,
    what: str,
    value: float,
    unit: str,
    *,
    at_most: float | None = None,
    at_least: float | None = None,
    limits: tuple[float, float] | None = None,
) -> None:
    """Add a number with its target."""
    kind, target = ("at most", at_most) if at_least is None else ("at least", at_least)
    low, high = limits or (value, value)
    row["comparisons"].append(
        Comparison(what=what, kind=kind, target=target, unit=unit, value=value, low=low, high=high)
    )


def faster(row: Row, peer: str, at_least: float | None = 1.0, prefix: str = "", clock: str = "cpu") -> None:
    """Add how many times the time of ours a peer takes."""
    compare(row, f"{prefix}{peer} / ours", prefix + peer, prefix + OURS, at_least=at_least, clock=clock)


def noise(rounds: int = 15) -> dict[str, float]:
    """Return how much the time of the same work varies now, as the relative interquartile range."""
    rng = np.random.default_rng(0)
    values = rng.random((400, 400))
    row = new_row()
    alternate(row, {"work": lambda: np.linalg.matrix_power(values, 8).sum()}, rounds)
    found = {}
    for clock in ("cpu", "wall"):
        low, middle, high = spread(row["times"]["work"][clock])
        found[clock] = (high - low) / middle
    return found


def run_child(
    command: Sequence[str], env: Mapping[str, str] | None = None, timeout: float | None = None
) -> str:
    """Run a command to its end and return what it printed.

    Raises:
        RuntimeError: With the last line of its errors if it fails, or if it takes longer than ``timeout``.
    """
    try:
        done = subprocess.run(  # noqa: S603 - our own scripts
            command, env=env, timeout=timeout, capture_output=True, text=True, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise RuntimeError(f"given up after {timeout:g} s") from error
    if done.returncode:
        raise RuntimeError((done.stderr.strip().splitlines() or ["no message"])[-1][:200])
    return done.stdout


def median(values: Sequence[Any]) -> float:
    """Return the median."""
    return float(statistics.median(values))
