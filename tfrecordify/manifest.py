"""dataset.json: what a dataset holds, written last, and the one thing a reader trusts."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tfrecordify import storage

FORMAT_VERSION = 1
MANIFEST = "dataset.json"
LABELS = "labels.txt"
ERRORS = "errors.jsonl"


class ManifestError(ValueError):
    """dataset.json is absent, damaged or of a later version; one line that says what to do."""


@dataclass(frozen=True, kw_only=True)
class Shard:
    """One finished shard file."""

    file: str
    """File name inside the dataset folder."""
    examples: int
    bytes: int
    """Size of the file."""
    sha256: str
    """Hex digest of the file."""


@dataclass(frozen=True, kw_only=True)
class Split:
    """One split: its shards in order, and what they hold."""

    examples: int
    rejected: int
    """Images of this split that are in errors.jsonl instead of a shard."""
    class_counts: tuple[int, ...]
    """Examples of each class, by label number; empty when the split is unlabelled."""
    mean: tuple[float, float, float] | None
    """Mean of the red, green and blue channel over all pixels, 0..255; None without examples."""
    std: tuple[float, float, float] | None
    """Standard deviation of each channel, 0..255; None without examples."""
    shards: tuple[Shard, ...]

    @property
    def labelled(self) -> bool:
        """Whether the examples of this split have a `label`."""
        return bool(self.class_counts)

    @property
    def bytes(self) -> int:
        """Size of all shards together."""
        return sum(shard.bytes for shard in self.shards)


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """The content of dataset.json."""

    name: str
    fingerprint: str
    """Hash of the settings and of the listed images: equal fingerprints, equal bytes."""
    settings: Mapping[str, Any]
    """The settings of the conversion that shape its bytes."""
    image_shape: tuple[int | None, int | None, int]
    """(height, width, 3) in pixels; None where images differ."""
    features: Mapping[str, str]
    """Kind of each feature: bytes, int64 or float, with [] behind it for a list of any length."""
    label_names: tuple[str, ...]
    """Name of each label number; empty when unlabelled."""
    splits: Mapping[str, Split]

    @property
    def examples(self) -> int:
        """Examples in all splits together."""
        return sum(split.examples for split in self.splits.values())

    @property
    def rejected(self) -> int:
        """Rejected images in all splits together."""
        return sum(split.rejected for split in self.splits.values())

    @property
    def compression(self) -> str:
        """How the shards are compressed: "gzip" or "none"."""
        return str(self.settings["compression"])

    @property
    def encode_format(self) -> str:
        """How the images are encoded: "jpeg" or "png"."""
        return str(self.settings["image"]["encode_format"])

    def to_json(self) -> bytes:
        """Encodes the manifest, the same bytes for the same content.

        Returns:
            UTF-8 JSON with a newline at the end.
        """
        content = {"format_version": FORMAT_VERSION, **dataclasses.asdict(self)}
        return (json.dumps(content, indent=2, ensure_ascii=False) + "\n").encode()


def parse(data: bytes, *, path: str = MANIFEST) -> Manifest:
    """Decodes and checks a dataset.json.

    Args:
        data: content of the file.
        path: where it is from, for error messages.

    Returns:
        The manifest.

    Raises:
        ManifestError: when it is no manifest, of a later version, or its counts disagree.
    """
    try:
        content = json.loads(data)
        version = content.pop("format_version")
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise ManifestError(
            f"{path} is not a tfrecordify manifest; was it edited or cut short? ({error})"
        ) from None
    if version != FORMAT_VERSION:
        raise ManifestError(
            f"{path} has format version {version}, this tfrecordify reads {FORMAT_VERSION}: "
            "upgrade with pip install -U tfrecordify"
        )
    try:
        manifest = _from_content(content)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ManifestError(f"{path} is damaged: {error!r}") from None
    _check_counts(manifest, path)
    return manifest


def load(dataset: str) -> Manifest:
    """Reads the manifest of a dataset.

    Args:
        dataset: folder of the dataset, local or gs://, or the path of its dataset.json.

    Returns:
        The manifest.

    Raises:
        ManifestError: when there is none, or it cannot be trusted.
    """
    path = manifest_path(dataset)
    try:
        data = storage.read(path)
    except (FileNotFoundError, NotADirectoryError):
        raise ManifestError(
            f"no dataset at {dataset}: {path} does not exist; a conversion that did not finish "
            "leaves none: run tfrecordify convert again with the same flags"
        ) from None
    return parse(data, path=path)


def manifest_path(dataset: str) -> str:
    """Path of the dataset.json of a dataset.

    Args:
        dataset: folder of the dataset, or the path of its dataset.json.

    Returns:
        The path of its dataset.json.
    """
    return dataset if dataset.endswith("/" + MANIFEST) else storage.join(dataset, MANIFEST)


def channel_mean_and_std(
    pixels: int, sums: tuple[int, int, int], squares: tuple[int, int, int]
) -> tuple[tuple[float, float, float], tuple[float, float, float]]:
    """Mean and standard deviation from exact integer sums, so that no order of adding matters.

    Args:
        pixels: number of pixels.
        sums: sum of each channel, 0..255 a pixel.
        squares: sum of the squares of each channel.

    Returns:
        (mean, standard deviation) of each channel.
    """
    mean = tuple(total / pixels for total in sums)
    std = tuple(
        math.sqrt(pixels * square - total * total) / pixels
        for total, square in zip(sums, squares, strict=True)
    )
    return (mean[0], mean[1], mean[2]), (std[0], std[1], std[2])


def _from_content(content: dict[str, Any]) -> Manifest:
    splits = {
        name: Split(
            examples=int(split["examples"]),
            rejected=int(split["rejected"]),
            class_counts=tuple(split["class_counts"]),
            mean=split["mean"] and tuple(split["mean"]),
            std=split["std"] and tuple(split["std"]),
            shards=tuple(Shard(**shard) for shard in split["shards"]),
        )
        for name, split in content.pop("splits").items()
    }
    return Manifest(
        splits=splits,
        image_shape=tuple(content.pop("image_shape")),
        label_names=tuple(content.pop("label_names")),
        **content,
    )


def _check_counts(manifest: Manifest, path: str) -> None:
    for name, split in manifest.splits.items():
        in_shards = sum(shard.examples for shard in split.shards)
        if in_shards != split.examples:
            raise ManifestError(
                f"{path} is damaged: split {name} has {split.examples} examples, "
                f"its shards {in_shards}"
            )
