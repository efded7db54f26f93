"""One shard, start to end: the unit of work, of retry and of resume."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from tfrecordify import records, storage
from tfrecordify.images import BadImageError, ChannelSums, convert_image
from tfrecordify.manifest import DamagedError, Shard, seal, unseal
from tfrecordify.planning import Plan, ShardId, Survey, make_plan
from tfrecordify.progress import PROGRESS
from tfrecordify.sources import Source

SIDECARS = "_shards"
MAX_IMAGE_BYTES = 1 << 29
"""A larger file is no image that anybody trains on."""
_AHEAD = 64  # images converted ahead of the writer: enough to hide an image 30 times the usual

_In = TypeVar("_In")
_Out = TypeVar("_Out")


class ConversionError(RuntimeError):
    """A fault that is not the image's; the message names the image."""


class Rejected(NamedTuple):
    """An image that could not be converted: a line of errors.jsonl."""

    path: str
    """The image's key."""
    stage: str
    """"read" or "decode"."""
    reason: str


class Converted(NamedTuple):
    """An image that became a record."""

    framed: bytes
    channels: ChannelSums
    label: int | None


@dataclass(frozen=True, kw_only=True)
class ShardInfo:
    """A finished shard: what its sidecar holds and the manifest is made from."""

    split: str
    number: int
    shard: Shard
    class_counts: Mapping[int, int]
    channels: ChannelSums
    rejected: tuple[Rejected, ...]

    def to_json(self) -> bytes:
        """Encodes the sidecar.

        Returns:
            Sealed JSON, which `from_json` reads.
        """
        return seal(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, data: bytes, *, path: str) -> ShardInfo:
        """Decodes a sidecar.

        Args:
            data: from `to_json`.
            path: where it is from, for the error message.

        Returns:
            The finished shard.

        Raises:
            DamagedError: when it is not as it was written.
        """
        content = unseal(data, path=path)
        pixels, sums, squares = content["channels"]
        return cls(
            split=content["split"],
            number=content["number"],
            shard=Shard(**content["shard"]),
            class_counts={int(label): n for label, n in content["class_counts"].items()},
            channels=ChannelSums(pixels, tuple(sums), tuple(squares)),
            rejected=tuple(Rejected(*line) for line in content["rejected"]),
        )


def write_shard(
    shard: ShardId, sources: Iterable[Source], *, plan: Plan, root: str, output: str
) -> ShardInfo:
    """Converts the images of a shard and publishes it, unless an earlier run has.

    The sidecar is written before the shard gets its final name, so a shard under its final name
    always has one, and is never written twice.

    Args:
        shard: which shard.
        sources: what the plan sent to it, in any order.
        plan: where each image goes.
        root: what the images' keys are relative to.
        output: folder of the dataset.

    Returns:
        What the shard holds.

    Raises:
        ConversionError: when converting an image fails for a reason that is not in the image.
        StorageError: when the output cannot be written.
    """
    path = storage.join(output, plan.file_name(shard))
    sidecar = sidecar_path(output, plan, shard)
    finished = _read_finished(path, sidecar)
    if finished is not None:
        PROGRESS.add(resumed=finished.shard.examples + len(finished.rejected))
        return finished
    tally = _Tally()
    with storage.publish(path) as file:
        settings = plan.settings
        with records.RecordWriter(
            file, compression=settings.compression, level=settings.compression_level
        ) as writer:
            for outcome in convert_all(plan.in_order(shard, sources), plan, root=root):
                if isinstance(outcome, Converted):
                    writer.write(outcome.framed)
                tally.add(outcome)
        info = ShardInfo(
            split=shard.split,
            number=shard.number,
            shard=Shard(
                file=plan.file_name(shard),
                examples=tally.examples,
                bytes=writer.bytes,
                sha256=writer.sha256,
            ),
            class_counts=dict(sorted(tally.classes.items())),
            channels=sum_channels(tally.channels),
            rejected=tuple(tally.rejected),
        )
        storage.write(sidecar, info.to_json())
    return info


def sidecar_path(output: str, plan: Plan, shard: ShardId) -> str:
    """Path of a shard's sidecar.

    Args:
        output: folder of the dataset.
        plan: the plan the shard is of.
        shard: which shard.

    Returns:
        The path, in the output's `_shards` folder.
    """
    return storage.join(output, SIDECARS, plan.file_name(shard) + ".json")


def convert_all(
    sources: Iterable[Source], plan: Plan, *, root: str
) -> Iterator[Converted | Rejected]:
    """Reads and converts images on all cores, in order.

    Args:
        sources: the images.
        plan: label numbers, features and settings.
        root: what the images' keys are relative to.

    Yields:
        A record or a rejection for each image.

    Raises:
        ConversionError: when converting an image fails for a reason that is not in the image.
    """
    labels = {name: number for number, name in enumerate(plan.label_names)}

    def convert(loaded: tuple[Source, bytes | Rejected]) -> Converted | Rejected:
        return _convert(*loaded, plan=plan, labels=labels)

    loaded = _load_ahead(sources, root)
    return _ordered_map(_pool("convert", usable_cores()), convert, loaded, ahead=_AHEAD)


def plan_shards(survey: Survey, root: str) -> Plan:
    """Plans the shards, and converts a sample of the images to know how many are needed.

    Args:
        survey: of all listed images.
        root: what the images' keys are relative to.

    Returns:
        The plan.

    Raises:
        PlanError: when images and settings do not go together.
        ConversionError: when converting an image fails for a reason that is not in the image.
    """
    plan = make_plan(survey, mean_record_bytes=0)
    if plan.settings.num_shards is not None:
        return plan
    outcomes = convert_all([source for _, source in survey.sample], plan, root=root)
    sizes = [len(outcome.framed) for outcome in outcomes if isinstance(outcome, Converted)]
    mean = sum(sizes) / len(sizes) if sizes else 0
    return make_plan(survey, mean_record_bytes=mean)


def sum_channels(parts: Iterable[ChannelSums]) -> ChannelSums:
    """Adds channel sums; exact, so that the order of adding is free.

    Args:
        parts: of any number of images.

    Returns:
        Their sums.
    """
    pixels, sums, squares = 0, [0, 0, 0], [0, 0, 0]
    for part in parts:
        pixels += part.pixels
        sums = [total + value for total, value in zip(sums, part.sums, strict=True)]
        squares = [total + value for total, value in zip(squares, part.squares, strict=True)]
    return ChannelSums(pixels, (sums[0], sums[1], sums[2]), (squares[0], squares[1], squares[2]))


def usable_cores() -> int:
    """Cores that this process may use.

    Returns:
        Their number, at least 1.
    """
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class _Tally:
    """Adds up what a shard holds."""

    def __init__(self) -> None:
        self.examples = 0
        self.classes: Counter[int] = Counter()
        self.channels: list[ChannelSums] = []
        self.rejected: list[Rejected] = []

    def add(self, outcome: Converted | Rejected) -> None:
        if isinstance(outcome, Rejected):
            self.rejected.append(outcome)
            PROGRESS.add(rejected=1)
            return
        self.examples += 1
        self.channels.append(outcome.channels)
        if outcome.label is not None:
            self.classes[outcome.label] += 1
        PROGRESS.add(converted=1)


def _read_finished(path: str, sidecar: str) -> ShardInfo | None:
    published = storage.stat(path)
    if published is None or storage.stat(sidecar) is None:
        return None
    try:
        info = ShardInfo.from_json(storage.read(sidecar), path=sidecar)
    except DamagedError:
        return None
    return info if info.shard.bytes == published.size else None


def _load_ahead(sources: Iterable[Source], root: str) -> Iterator[tuple[Source, bytes | Rejected]]:
    def load(source: Source) -> tuple[Source, bytes | Rejected]:
        return source, _load(source.key, storage.join(root, source.key))

    threads = storage.read_threads(root)
    return _ordered_map(_pool("read", threads), load, sources, ahead=threads)


def _load(key: str, path: str) -> bytes | Rejected:
    try:
        data = storage.read(path, max_bytes=MAX_IMAGE_BYTES + 1)
    except (FileNotFoundError, PermissionError, IsADirectoryError) as error:
        return Rejected(key, "read", error.strerror or str(error))
    if len(data) > MAX_IMAGE_BYTES:
        return Rejected(key, "read", f"over {MAX_IMAGE_BYTES >> 20} MiB")
    return data


def _convert(
    source: Source, data: bytes | Rejected, *, plan: Plan, labels: Mapping[str, int]
) -> Converted | Rejected:
    if isinstance(data, Rejected):
        return data
    try:
        image = convert_image(data, plan.settings.image)
    except BadImageError as error:
        return Rejected(source.key, "decode", str(error))
    except Exception as error:
        raise ConversionError(f"converting {source.key} failed: {error!r}") from error
    features: dict[str, records.Value] = {
        records.IMAGE: image.data,
        records.FILENAME: source.key.encode(errors="surrogateescape"),
        records.HEIGHT: image.height,
        records.WIDTH: image.width,
    }
    label = None if source.label is None else labels[source.label]
    if label is not None:
        features[records.LABEL] = label
    for column, value in source.extra.items():
        features[column] = _as_kind(value, plan.features[column])
    return Converted(records.frame(records.encode_example(features)), image.channels, label)


def _as_kind(value: Any, kind: str) -> Any:
    """A whole number in a column of floats is stored as one: a feature has one kind."""
    if not kind.startswith("float"):
        return value
    return [float(item) for item in value] if isinstance(value, (list, tuple)) else float(value)


@functools.cache
def _pool(purpose: str, threads: int) -> Executor:
    """One pool a process, however many shards are written at once: there are no more cores."""
    return ThreadPoolExecutor(threads, thread_name_prefix=purpose)


def _ordered_map(
    pool: Executor, function: Callable[[_In], _Out], items: Iterable[_In], *, ahead: int
) -> Iterator[_Out]:
    """Maps in threads, in order, with a bounded number of items under way."""
    pending: deque[Future[_Out]] = deque()
    try:
        for item in items:
            pending.append(pool.submit(function, item))
            if len(pending) > ahead:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:
        for future in pending:
            future.cancel()
