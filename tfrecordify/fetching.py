"""Records by their number, from shards or from memory."""

from __future__ import annotations

import bisect
import itertools
import logging
import threading
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass

from tfrecordify import records, storage
from tfrecordify.records import CorruptRecordError

__all__ = ["Piece", "Records", "ShardError", "Shards"]

logger = logging.getLogger(__name__)


class ShardError(ValueError):
    """A shard is damaged, or is not what its manifest says; the message names the file."""


@dataclass(frozen=True, kw_only=True)
class Piece:
    """What one reader reads of one shard.

    Attributes:
        path: The file, local or gs://.
        start: Number of the first record.
        stop: Number after the last record; None for all that are there.
        examples: How many records the whole shard has; None where no manifest says so.
    """

    path: str
    start: int
    stop: int | None
    examples: int | None


class Shards:
    """Reads runs of records from shards: any run from any thread, and fast in their order.

    A file stays open after a run, so that the next run goes on where it ended. A run that begins
    before is read from the beginning of the file: what is kept open decides how long a run takes,
    never what it gives, so there is no state here that a checkpoint would have to hold.

    Args:
        pieces: What to read.
        skip_errors: Whether damaged records are passed over, counted and logged.
    """

    _KEPT = 64  # open files

    def __init__(self, pieces: Sequence[Piece], *, skip_errors: bool = False) -> None:
        self.pieces = pieces
        self.skip_errors = skip_errors
        self._skipped = 0
        self._lock = threading.Lock()
        self._open: list[_OpenShard] = []  # least recently used first

    def read(self, piece: int, start: int, count: int) -> list[bytes | None]:
        """Reads records of one piece.

        Args:
            piece: Its place in `pieces`.
            start: Number of the first record in the shard.
            count: How many, within the piece; fewer come back where a shard without a known
                number of examples ends.

        Returns:
            The records; None in place of one that is skipped.

        Raises:
            ShardError: A record is damaged or missing, or the shard goes on past its last.
        """
        this = self.pieces[piece]
        shard = self._resume(this.path, start)
        shard.pass_over(start - shard.position)
        found: list[bytes | None] = []
        for item in shard.take(count):
            if isinstance(item, CorruptRecordError):
                self.skip(this.path, str(item))
            found.append(item if isinstance(item, bytes) else None)
        if len(found) < count or shard.position == this.examples:
            self._check_end(this, shard)
            shard.close()
        else:
            self._keep(shard)
        return found if this.stop is None else found + [None] * (count - len(found))

    def skip(self, path: str, reason: str, *, lost: int = 1) -> None:
        """Counts examples that are lost and says so, where errors are to be skipped.

        Raises:
            ShardError: They are not.
        """
        if not self.skip_errors:
            raise ShardError(
                f"{path}: {reason}; find all damage with tfrecordify verify, then convert again, "
                'or read past it with on_error="skip"'
            )
        with self._lock:
            self._skipped += lost
        logger.warning("%d examples skipped so far; %s: %s", self._skipped, path, reason)

    def _check_end(self, piece: Piece, shard: _OpenShard) -> None:
        """Checks what follows the last record: nothing, but for the checksum of the file."""
        position = shard.position
        over = next(shard.take(1), None)
        if isinstance(over, CorruptRecordError):
            self.skip(piece.path, str(over), lost=0)
        elif over is not None:
            self.skip(piece.path, f"more than the {piece.examples} examples it should have", lost=0)
        elif piece.stop is not None and position < piece.stop:
            reason = f"{position} examples, not the {piece.examples} it should have"
            self.skip(piece.path, reason, lost=piece.stop - position)

    def _resume(self, path: str, position: int) -> _OpenShard:
        """The open file that is nearest before a position, or one opened now."""
        with self._lock:
            before = [s for s in self._open if s.path == path and s.position <= position]
            if before:
                nearest = max(before, key=lambda shard: shard.position)
                self._open.remove(nearest)
                return nearest
        return _OpenShard(path)

    def _keep(self, shard: _OpenShard) -> None:
        with self._lock:
            self._open.append(shard)
            oldest = self._open.pop(0) if len(self._open) > self._KEPT else None
        if oldest is not None:
            oldest.close()


class _OpenShard:
    def __init__(self, path: str) -> None:
        self.path = path
        self.position = 0
        self._stack = ExitStack()
        try:
            file = self._stack.enter_context(storage.open_read(path))
        except FileNotFoundError:
            raise ShardError(f"{path} is missing: restore it, or convert again") from None
        self._items = records.scan_records(file)

    def take(self, count: int) -> Iterator[bytes | CorruptRecordError]:
        for item in itertools.islice(self._items, count):
            self.position += 1
            yield item

    def pass_over(self, count: int) -> None:
        deque(self.take(count), maxlen=0)

    def close(self) -> None:
        self._stack.close()

    __del__ = close


class Records:
    """Records by number, read when first asked for, in runs of neighbours.

    Args:
        shards: Where they come from; each piece has a stop. The records of all pieces are numbered
            through from 0, in their order.
        keep: Whether all that is read stays in memory. Otherwise the rest of a run stays until it
            is fetched, which is soon where the numbers come nearly in order.

    Attributes:
        shards: The same.
        firsts: Number of the first record of each piece.
    """

    RUN = 16  # enough to make reading cheap, few enough to mix the shards
    _GAP = 1024  # records that are read in passing: calls that overtake each other need them soon
    _ITERATORS = 4  # whose unfetched records are held

    def __init__(self, shards: Shards, *, keep: bool) -> None:
        self.shards = shards
        self._keep = keep
        sizes = [(piece.stop or 0) - piece.start for piece in shards.pieces]
        *self.firsts, self._size = itertools.accumulate(sizes, initial=0)
        self._held: OrderedDict[int, _Held] = OrderedDict()
        self._lock = threading.Lock()
        self._map: Callable[..., Iterable[None]] = map
        path = shards.pieces[0].path
        if storage.is_remote(path):  # where waiting is what takes the time
            threads = ThreadPoolExecutor(storage.read_threads(path), thread_name_prefix="read")
            self._map = threads.map

    def __len__(self) -> int:
        return self._size

    def fetch(self, numbers: Sequence[int], iterator: int = 0) -> list[bytes | None]:
        """Gives records by number, in the order asked for; None for one that is skipped.

        Args:
            numbers: Of the records.
            iterator: Who asks. Several that are in different places do not disturb each other.

        Returns:
            The records.

        Raises:
            ShardError: A record is damaged or missing.
        """
        with self._lock:  # whoever comes second would else read the same runs again
            held = self._held_for(0 if self._keep else iterator)
            missing: defaultdict[int, list[int]] = defaultdict(list)
            for number in sorted(number for number in set(numbers) if number not in held.records):
                piece = bisect.bisect_right(self.firsts, number) - 1
                missing[piece].append(number - self.firsts[piece])
            for _ in self._map(lambda item: self._read(held, *item), missing.items()):
                pass
            take = held.records.__getitem__ if self._keep else held.records.pop
            found = {number: take(number) for number in set(numbers)}
        return [found[number] for number in numbers]

    def skip(self, number: int, reason: str) -> None:
        """Counts a sound record that is of no use, as `Shards.skip` does."""
        place = bisect.bisect_right(self.firsts, number) - 1
        piece = self.shards.pieces[place]
        position = piece.start + number - self.firsts[place]
        self.shards.skip(piece.path, f"record {position}: {reason}")

    def _held_for(self, iterator: int) -> _Held:
        if iterator not in self._held:
            self._held[iterator] = _Held()
        self._held.move_to_end(iterator)
        if len(self._held) > self._ITERATORS:
            self._held.popitem(last=False)
        return self._held[iterator]

    def _read(self, held: _Held, place: int, missing: Sequence[int]) -> None:
        """Reads the runs of one piece in which records are missing, and those just before them."""
        piece, first = self.shards.pieces[place], self.firsts[place]
        size = (piece.stop or 0) - piece.start
        for position in missing:
            if first + position in held.records:
                continue
            run = position - position % self.RUN
            start = held.ends[place]
            if not 0 <= run - start <= self._GAP:
                start = run
            stop = min(run + self.RUN, size)
            found = self.shards.read(place, piece.start + start, stop - start)
            held.records.update(enumerate(found, first + start))
            held.ends[place] = max(stop, held.ends[place])


class _Held:
    """Records that were read for an iterator and not fetched by it yet."""

    def __init__(self) -> None:
        self.records: dict[int, bytes | None] = {}
        self.ends: defaultdict[int, int] = defaultdict(int)  # of what was read of each piece
