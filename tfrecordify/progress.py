"""How far the conversion in this process has come, for whoever shows it."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class Progress:
    """Counts of one process; workers add to them, a progress bar polls them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.reset()

    def reset(self) -> None:
        """Starts anew, for the next conversion in this process."""
        self.total: int | None = None
        """Images to convert; None until they have been listed."""
        self.listed = 0
        """Images found so far; only the one thread that lists adds to it."""
        self.converted = 0
        self.rejected = 0
        self.resumed = 0
        """Images of shards that an earlier run finished."""

    def add(self, *, converted: int = 0, rejected: int = 0, resumed: int = 0) -> None:
        """Adds to the counts.

        Args:
            converted: examples made.
            rejected: images that could not be converted.
            resumed: images of shards that were finished already.
        """
        with self._lock:
            self.converted += converted
            self.rejected += rejected
            self.resumed += resumed


PROGRESS = Progress()


@contextmanager
def show_bar(*, shown: bool = True) -> Iterator[None]:
    """Shows a bar on the terminal while a conversion runs in this process.

    Args:
        shown: False for no bar; there is none either when stderr is no terminal.

    Yields:
        Nothing; the bar goes on until the block ends.
    """
    from tqdm import tqdm

    PROGRESS.reset()
    if not (shown and sys.stderr.isatty()):
        yield
        return
    bar = tqdm(desc="listing", unit=" img", dynamic_ncols=True, smoothing=0.1, leave=False)
    done = threading.Event()

    def follow() -> None:
        while not done.wait(0.1):
            _update(bar)

    thread = threading.Thread(target=follow, name="progress bar", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
        _update(bar)
        bar.close()


def _update(bar: Any) -> None:
    if PROGRESS.total is None:
        bar.n = PROGRESS.listed
    else:
        if bar.total is None:
            bar.reset(total=PROGRESS.total)
            bar.set_description("converting", refresh=False)
        bar.initial = PROGRESS.resumed
        bar.n = PROGRESS.converted + PROGRESS.rejected + PROGRESS.resumed
        bar.set_postfix_str(f"{PROGRESS.rejected} rejected", refresh=False)
    bar.refresh()
