# SPDX-License-Identifier: Apache-2.0
"""How far an operation is, told while it is waited for: to a callable, to a bar of tqdm, or both.

Whoever waits calls it between two looks, so no thread is started, tqdm's monitor included.
"""

import importlib
import sys
from typing import Any, Callable, Optional

from .errors import Invalid

Told = Optional[Callable[[int, int], Any]]
PERIOD_S = 0.1  # between two looks of who is told


class Report:
    """Told (done, total) in bytes. What the callable raises ends the bar, and the operation."""

    def __init__(self, progress: Told, bar: Any) -> None:
        self._progress, self._bar = progress, bar

    def __call__(self, done: int, total: int) -> None:
        try:
            if self._bar is not None:
                self._bar.total = total
                self._bar.update(done - self._bar.n)
            if self._progress is not None:
                self._progress(done, total)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Leaves the bar as it stands."""
        bar, self._bar = self._bar, None
        if bar is not None:
            bar.close()


def report_of(label: str, progress: Told, tqdm: bool) -> Optional[Report]:
    """Who is told of an operation; None: nobody."""
    if progress is not None and not callable(progress):
        raise Invalid(f"progress: {progress!r} cannot be called with (done, total)")
    bar = _bar(label) if tqdm else None
    return None if progress is None and bar is None else Report(progress, bar)


def _bar(label: str) -> Any:
    """None where tqdm is not installed, or nobody looks: the output is no terminal."""
    if sys.stderr is None or not sys.stderr.isatty():
        return None
    try:
        base: Any = importlib.import_module("tqdm").tqdm
    except ImportError:
        return None

    class Bar(base):  # type: ignore[misc]
        monitor_interval = 0  # else tqdm starts a thread

    return Bar(desc=label, unit="B", unit_scale=True, unit_divisor=1024)
