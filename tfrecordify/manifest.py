"""dataset.json: what a dataset holds, written last, and the one thing a reader trusts."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tfrecordify import storage

FORMAT_VERSION = 1
MANIFEST = "dataset.json"
LABELS = "labels.txt"
ERRORS = "errors.jsonl"
_SEAL = b',\n "checksum": "'


class ManifestError(ValueError):
    """dataset.json is absent or cannot be trusted; one line that says what to do."""


class DamagedError(ManifestError):
    """A file was edited, cut short, or damaged."""


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
    class_counts: Sequence[int]
    """Examples of each class, by label number; empty when the split is unlabelled."""
    mean: Sequence[float] | None
    """Mean of the red, green and blue channel over all pixels, 0..255; None without examples."""
    std: Sequence[float] | None
    """Standard deviation of each channel, 0..255; None without examples."""
    shards: Sequence[Shard]

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
    image_shape: Sequence[int | None]
    """(height, width, 3) in pixels; None where images differ."""
    features: Mapping[str, str]
    """Kind of each feature: bytes, int64 or float, with [] behind it for a list of any length."""
    label_names: Sequence[str]
    """Name of each label number; empty when unlabelled."""
    files: Mapping[str, str]
    """SHA-256 of the other files of the dataset: the labels and the list of rejected images."""
    skipped: Mapping[str, int]
    """Files of the input that are no images, by kind: "hidden" or a suffix."""
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
            Sealed JSON.
        """
        return seal({"format_version": FORMAT_VERSION, **dataclasses.asdict(self)})


def seal(content: Mapping[str, Any]) -> bytes:
    """Encodes JSON whose last entry is a checksum of all before it.

    Args:
        content: what to encode.

    Returns:
        JSON in ASCII, indented, with a newline at the end.
    """
    body = json.dumps(content, indent=1).removesuffix("\n}").encode() + _SEAL
    return body + hashlib.sha256(body).hexdigest().encode() + b'"\n}\n'


def unseal(data: bytes, *, path: str) -> dict[str, Any]:
    """Decodes sealed JSON; not one bit of it can have changed.

    Args:
        data: from `seal`.
        path: where it is from, for the error message.

    Returns:
        What was sealed.

    Raises:
        DamagedError: when it is not as it was sealed.
    """
    body, mark, _ = data.rpartition(_SEAL)
    body += mark
    if not mark or data != body + hashlib.sha256(body).hexdigest().encode() + b'"\n}\n':
        raise DamagedError(f"{path} is damaged or was edited; convert again, or restore it")
    content: dict[str, Any] = json.loads(data)
    del content["checksum"]
    return content


def parse(data: bytes, *, path: str = MANIFEST) -> Manifest:
    """Decodes and checks a dataset.json.

    Args:
        data: content of the file.
        path: where it is from, for error messages.

    Returns:
        The manifest.

    Raises:
        ManifestError: when it is damaged, or of a later version.
    """
    content = unseal(data, path=path)
    version = content.pop("format_version", None)
    if version != FORMAT_VERSION:
        raise ManifestError(
            f"{path} has format version {version}, this tfrecordify reads {FORMAT_VERSION}: "
            "upgrade with pip install -U tfrecordify"
        )
    splits = {
        name: Split(**split | {"shards": tuple(Shard(**shard) for shard in split["shards"])})
        for name, split in content.pop("splits").items()
    }
    return Manifest(**content, splits=splits)


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
