"""How far the conversion in this process has come, for whoever shows it."""

from __future__ import annotations

import threading


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
        self.converted = 0
        self.rejected = 0
        self.resumed = 0
        """Images of shards that an earlier run finished."""

    def add(self, *, listed: int = 0, converted: int = 0, rejected: int = 0, resumed: int = 0) -> None:
        """Adds to the counts.

        Args:
            listed: images listed.
            converted: examples made.
            rejected: images that could not be converted.
            resumed: images of shards that were finished already.
        """
        with self._lock:
            self.listed += listed
            self.converted += converted
            self.rejected += rejected
            self.resumed += resumed


PROGRESS = Progress()
