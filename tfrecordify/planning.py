"""Which image goes into which split, which shard, and at which place: all by stable hash.

The rank of an image's hash among all of its split decides its shard and its place there. No
worker needs all hashes for that: 65,536 counts by the hash's top bits (a `Survey`) tell the rank
at which each bucket starts, hence the shards that a bucket can reach into; within a shard the
exact places follow from sorting what it was sent.
"""

from __future__ import annotations

import dataclasses
import heapq
import itertools
import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tfrecordify import records
from tfrecordify.hashing import hash64, hash128
from tfrecordify.images import ImageSpec
from tfrecordify.sources import Skipped, Source
from tfrecordify.text import did_you_mean

BUCKETS = 1 << 16
SAMPLE = 64
"""Images whose encoded size stands for all when shards are given by size."""
MAX_SHARDS = 100_000  # -00000-of-99999: five digits
_BUCKET_SHIFT = 64 - 16
_IMAGE_FEATURES = {
    records.IMAGE: "bytes",
    records.FILENAME: "bytes",
    records.HEIGHT: "int64",
    records.WIDTH: "int64",
}
_KINDS = (("bytes", (bytes, str)), ("int64", (bool, int)), ("float", (float,)))


class PlanError(ValueError):
    """The images and the settings do not go together; one line that says what to do."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """All that shapes the bytes of a dataset, besides its images."""

    name: str
    image: ImageSpec = field(default_factory=ImageSpec)
    seed: int = 0
    splits: Mapping[str, float] = field(default_factory=lambda: {"train": 1.0})
    """Share of each split, for inputs that give none."""
    num_shards: int | None = None
    """Shards of each split; None leaves it to shard_size."""
    shard_size: int = 128_000_000
    """Bytes of a full shard."""
    compression: records.Compression = "gzip"
    compression_level: int = 0
    label_names: tuple[str, ...] = ()
    """Fixed order of the labels; empty for sorted order."""

    def __post_init__(self) -> None:
        if not self.name or "/" in self.name or self.name.startswith("."):
            raise PlanError(f"name is {self.name!r}: give a plain file name such as flowers")
        if self.compression not in ("gzip", "none"):
            raise PlanError(f"compression is {self.compression!r}: choose gzip or none")
        if not 0 <= self.compression_level <= 9:
            raise PlanError(f"compression_level is {self.compression_level}: choose 0 to 9")
        if self.compression == "none" and self.compression_level:
            raise PlanError("compression none has no compression_level: leave one of them out")
        if self.num_shards is not None and not 1 <= self.num_shards <= MAX_SHARDS:
            raise PlanError(f"num_shards is {self.num_shards}: choose 1 to {MAX_SHARDS}")
        if self.shard_size < 1:
            raise PlanError(f"shard_size is {self.shard_size}: choose a size such as 128MB")
        for split, share in self.splits.items():
            if not split or not all(c.isalnum() or c in "_." for c in split) or split[0] == ".":
                raise PlanError(f"split name {split!r}: use letters, digits and underscores")
            if not share > 0:
                raise PlanError(f"split {split} has share {share}: give each split more than 0")
        if abs(sum(self.splits.values()) - 1) > 1e-9:
            raise PlanError(
                f"the shares of {', '.join(self.splits)} sum to "
                f"{sum(self.splits.values()):g}: make them sum to 1"
            )
        if len(set(self.label_names)) != len(self.label_names):
            twice = [name for name, n in Counter(self.label_names).items() if n > 1]
            raise PlanError(f"label {twice[0]!r} is listed twice: give each label once")

    def to_content(self) -> dict[str, Any]:
        """The settings as plain values for JSON, defaults included.

        Returns:
            A dict of numbers, strings, lists and dicts.
        """
        content: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(self)))
        return content


class ShardId(NamedTuple):
    """A shard of a split, counted from 0."""

    split: str
    number: int


def rank_hash(source: Source, seed: int) -> int:
    """The hash whose rank is the image's place in its split.

    Args:
        source: the image.
        seed: the seed of the conversion.

    Returns:
        An integer in [0, 2**64).
    """
    return hash64(_bytes(source.key), salt=b"rank %d" % seed)


def split_of(source: Source, settings: Settings) -> str:
    """The split of an image; it depends on the image's key or group and the seed alone.

    Args:
        source: the image.
        settings: shares of the splits, and the seed.

    Returns:
        The name of its split.
    """
    if source.split is not None:
        return source.split
    if len(settings.splits) == 1:
        return next(iter(settings.splits))
    unit = _bytes(source.key if source.group is None else source.group)
    place = hash64(unit, salt=b"split %d" % settings.seed) / 2**64
    bounds = itertools.accumulate(settings.splits.values())
    inside = (split for split, bound in zip(settings.splits, bounds, strict=True) if place < bound)
    return next(inside, list(settings.splits)[-1])


@dataclass(kw_only=True)
class SplitSurvey:
    """What is known of the images of one split."""

    buckets: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(BUCKETS, np.int64))
    labels: Counter[str] = field(default_factory=Counter)
    unlabelled: int = 0
    first_unlabelled: str = ""
    bytes: int = 0

    @property
    def images(self) -> int:
        """Number of images."""
        return int(self.buckets.sum())

    def add(self, image: Source, bucket: int) -> None:
        """Counts an image.

        Args:
            image: the image.
            bucket: top bits of its rank hash.
        """
        self.buckets[bucket] += 1
        self.bytes += max(image.size, 0)
        if image.label is not None:
            self.labels[image.label] += 1
        else:
            self.unlabelled += 1
            self.first_unlabelled = min(self.first_unlabelled or image.key, image.key)

    def merge(self, other: SplitSurvey) -> None:
        """Adds what another survey saw of this split.

        Args:
            other: a survey of other images.
        """
        self.buckets += other.buckets
        self.labels += other.labels
        self.unlabelled += other.unlabelled
        names = [name for name in (self.first_unlabelled, other.first_unlabelled) if name]
        self.first_unlabelled = min(names, default="")
        self.bytes += other.bytes


@dataclass(kw_only=True)
class Survey:
    """Counts over all listed images, added up in any order: what a plan is made from."""

    settings: Settings
    splits: dict[str, SplitSurvey] = field(default_factory=dict)
    inputs: int = 0
    """Sum of a hash of each image listed, so that the order of listing does not matter."""
    columns: dict[str, tuple[str, int]] = field(default_factory=dict)
    """Kind and number of values of each extra column."""
    sample: list[tuple[int, Source]] = field(default_factory=list)
    """The images with the smallest rank hashes, smallest first."""
    skipped: Counter[str] = field(default_factory=Counter)

    @property
    def images(self) -> int:
        """Number of images listed."""
        return sum(split.images for split in self.splits.values())

    def add(self, item: Source | Skipped) -> Survey:
        """Counts a listed image or the skipped files of a kind.

        Args:
            item: from `Input.list_part`.

        Returns:
            This survey.

        Raises:
            PlanError: when a column changes its type.
        """
        if isinstance(item, Skipped):
            self.skipped[item.kind] += item.files
            return self
        rank = rank_hash(item, self.settings.seed)
        name = split_of(item, self.settings)
        split = self.splits.get(name)
        if split is None:
            split = self.splits[name] = SplitSurvey()
        split.add(item, rank >> _BUCKET_SHIFT)
        self.inputs = (self.inputs + _identity(item)) % 2**128
        for column, value in item.extra.items():
            self._add_column(column, _kind_of(column, value), 1)
        if len(self.sample) < SAMPLE or rank <= self.sample[-1][0]:
            self._keep_smallest([(rank, item)])
        return self

    def merge(self, other: Survey) -> Survey:
        """Adds what another survey counted.

        Args:
            other: a survey of other images, with the same settings.

        Returns:
            This survey.

        Raises:
            PlanError: when a column has another type there.
        """
        for name, split in other.splits.items():
            self.splits.setdefault(name, SplitSurvey()).merge(split)
        self.inputs = (self.inputs + other.inputs) % 2**128
        for column, (kind, count) in other.columns.items():
            self._add_column(column, kind, count)
        self._keep_smallest(other.sample)
        self.skipped += other.skipped
        return self

    def _keep_smallest(self, fresh: list[tuple[int, Source]]) -> None:
        def order(pair: tuple[int, Source]) -> tuple[int, str]:
            return pair[0], pair[1].key

        self.sample = heapq.nsmallest(SAMPLE, (*self.sample, *fresh), key=order)

    def _add_column(self, column: str, kind: str, count: int) -> None:
        known, total = self.columns.get(column, (kind, 0))
        try:
            self.columns[column] = (_common_kind(known, kind), total + count)
        except ValueError as error:
            raise PlanError(f"column {column!r} {error}; give it one type") from None


@dataclass(frozen=True, kw_only=True)
class SplitPlan:
    """The shards of one split."""

    images: int
    num_shards: int
    starts: npt.NDArray[np.int64] = field(repr=False, compare=False)
    """Rank at which each bucket starts, and the number of images at the end."""

    def shards_of_bucket(self, bucket: int) -> range:
        """The shards that images of a bucket can belong to: nearly always a single one.

        Args:
            bucket: top bits of a rank hash.

        Returns:
            Shard numbers.
        """
        first, last = int(self.starts[bucket]), int(self.starts[bucket + 1]) - 1
        return range(self._shard_of_rank(first), self._shard_of_rank(last) + 1)

    def ranks(self, number: int) -> range:
        """The ranks that a shard holds; shards differ by one at the most.

        Args:
            number: the shard's number.

        Returns:
            Ranks in the order of the shard.
        """
        begin = self.images * number // self.num_shards
        return range(begin, self.images * (number + 1) // self.num_shards)

    def _shard_of_rank(self, rank: int) -> int:
        return ((rank + 1) * self.num_shards - 1) // self.images


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Where each image goes."""

    settings: Settings
    fingerprint: str
    splits: Mapping[str, SplitPlan]
    label_names: tuple[str, ...]
    skipped: Mapping[str, int]
    """Files of the input that are no images, by kind."""
    features: Mapping[str, str]
    """Kind of each feature; of `label` where any split is labelled."""

    @property
    def images(self) -> int:
        """Number of images listed."""
        return sum(split.images for split in self.splits.values())

    @property
    def shards(self) -> list[ShardId]:
        """All shards, in order."""
        return [
            ShardId(name, number)
            for name, split in self.splits.items()
            for number in range(split.num_shards)
        ]

    def shards_for(self, item: Source | Skipped) -> list[tuple[tuple[str, int], Source]]:
        """Sends an image to its shard, and to each neighbour that needs it to find its ranks.

        Args:
            item: from `Input.list_part`.

        Returns:
            (shard, image) pairs; none for a skipped file.
        """
        if isinstance(item, Skipped):
            return []
        name = split_of(item, self.settings)
        bucket = rank_hash(item, self.settings.seed) >> _BUCKET_SHIFT
        return [((name, i), item) for i in self.splits[name].shards_of_bucket(bucket)]

    def in_order(self, shard: ShardId, sources: Iterable[Source]) -> list[Source]:
        """Puts what was sent to a shard in order, and leaves out what belongs to its neighbours.

        Args:
            shard: the shard.
            sources: all that `shards_for` sent to it, in any order.

        Returns:
            The shard's images in the order of its records.

        Raises:
            PlanError: when the input changed while it was listed.
        """
        ranked = ((rank_hash(source, self.settings.seed), source) for source in sources)
        ordered = sorted(ranked, key=lambda pair: (pair[0], pair[1].key))
        split = self.splits[shard.split]
        ranks = split.ranks(shard.number)
        first_rank = int(split.starts[ordered[0][0] >> _BUCKET_SHIFT])
        own = ordered[ranks.start - first_rank : ranks.stop - first_rank]
        if len(own) != len(ranks):
            raise PlanError("the input changed while it was listed; run the conversion again")
        return [source for _, source in own]

    def file_name(self, shard: ShardId) -> str:
        """Name of a shard's file.

        Args:
            shard: the shard.

        Returns:
            NAME-train-00000-of-00016.tfrecord.gz, or as TensorFlow Datasets names plain ones.
        """
        number = f"{shard.number:05d}-of-{self.splits[shard.split].num_shards:05d}"
        stem = f"{self.settings.name}-{shard.split}"
        if self.settings.compression == "gzip":
            return f"{stem}-{number}.tfrecord.gz"
        return f"{stem}.tfrecord-{number}"


def make_plan(survey: Survey, mean_record_bytes: float) -> Plan:
    """Plans the shards of all splits.

    Args:
        survey: of all listed images.
        mean_record_bytes: mean size of a record, from the survey's sample.

    Returns:
        The plan.

    Raises:
        PlanError: when there is no image, a label is unknown, or only some images have one.
    """
    settings = survey.settings
    if not survey.images:
        raise PlanError(f"no image found{_skipped_note(survey)}; is this the right input?")
    splits = {}
    for name in sorted(survey.splits, key=_split_order):
        split = survey.splits[name]
        by_size = round(split.images * mean_record_bytes / settings.shard_size) or 1
        num_shards = min(settings.num_shards or min(by_size, MAX_SHARDS), split.images)
        starts = np.concatenate(([0], np.cumsum(split.buckets)))
        splits[name] = SplitPlan(images=split.images, num_shards=num_shards, starts=starts)
    return Plan(
        settings=settings,
        fingerprint=_fingerprint(survey),
        splits=splits,
        label_names=_label_names(survey),
        skipped=dict(sorted(survey.skipped.items())),
        features=_features(survey),
    )


def _kind_of(column: str, value: object) -> str:
    if isinstance(value, (list, tuple)):
        kinds = {_kind_of(column, item) for item in value} or {"empty"}
        return f"{'float' if kinds == {'int64', 'float'} else kinds.pop()}[]"
    for kind, types in _KINDS:
        if isinstance(value, types):
            return kind
    raise PlanError(
        f"column {column!r} holds {value!r:.60}: only text, numbers and lists of them can be "
        "features; leave the column out"
    )


def _common_kind(one: str, other: str) -> str:
    kinds = {one.removesuffix("[]"), other.removesuffix("[]")} - {"empty"}
    if len(kinds) > 1 and kinds != {"int64", "float"}:
        raise ValueError(f"holds both {one} and {other} values")
    kind = "float" if "float" in kinds else kinds.pop() if kinds else "empty"
    return kind + ("[]" if one.endswith("[]") or other.endswith("[]") else "")


def _split_order(name: str) -> tuple[bool, str]:
    return not name.startswith("train"), name


def _label_names(survey: Survey) -> tuple[str, ...]:
    for name, split in survey.splits.items():
        if split.labels and split.unlabelled:
            raise PlanError(
                f"{split.unlabelled} of {split.images} images of split {name} have no label (the "
                f"first: {split.first_unlabelled}): put them into label folders, or take them out"
            )
    found = {label for split in survey.splits.values() for label in split.labels}
    fixed = survey.settings.label_names
    unknown = sorted(found.difference(fixed))
    if fixed and unknown:
        hint = did_you_mean(unknown[0], fixed)
        raise PlanError(
            f"label {unknown[0]!r} is not in the given labels{hint}: add it, or leave --labels out"
        )
    return fixed or tuple(sorted(found))


def _features(survey: Survey) -> dict[str, str]:
    features = dict(_IMAGE_FEATURES)
    if any(split.labels for split in survey.splits.values()):
        features[records.LABEL] = "int64"
    for column, (kind, count) in sorted(survey.columns.items()):
        if column in features or column == records.LABEL:
            raise PlanError(f"column {column!r} has the name of a feature; rename it in the table")
        kind = kind.replace("empty", "bytes")
        absent_somewhere = count < survey.images and not kind.endswith("[]")
        features[column] = kind + "[]" if absent_somewhere else kind
    return features


def _skipped_note(survey: Survey) -> str:
    total = sum(survey.skipped.values())
    return f" among {total} files ({', '.join(sorted(survey.skipped))})" if total else ""


def _fingerprint(survey: Survey) -> str:
    content = [survey.settings.to_content(), survey.images, survey.inputs]
    return f"{hash128(json.dumps(content, sort_keys=True).encode()):032x}"


def _identity(source: Source) -> int:
    parts = (source.key, source.size, source.label, source.split, source.group)
    extra = sorted(source.extra.items()) if source.extra else ()
    return hash128(_bytes(repr((parts, extra))))


def _bytes(text: str) -> bytes:
    return text.encode(errors="surrogateescape")
