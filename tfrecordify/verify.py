"""The shards of a dataset against its manifest."""

from __future__ import annotations

import hashlib
import posixpath
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import NamedTuple

from tfrecordify import manifest as manifests
from tfrecordify import records, shards, storage
from tfrecordify.images import BadImageError, decode_image
from tfrecordify.manifest import DamagedError, Manifest, Shard

_CHUNK = 1 << 20
_MAX_FAULTS = 100  # of one shard: more would only repeat themselves


class Fault(NamedTuple):
    """Something that is not as the manifest says."""

    file: str
    """File name inside the dataset folder."""
    record: int | None
    """Number of the record in its shard, from 0; None when the file as a whole is meant."""
    reason: str

    def __str__(self) -> str:
        place = self.file if self.record is None else f"{self.file}, record {self.record}"
        return f"{place}: {self.reason}"


@dataclass(frozen=True, kw_only=True)
class Report:
    """What a verification found."""

    shards: int
    examples: int
    bytes: int
    decoded: bool
    """Whether every image was decoded as well."""
    faults: tuple[Fault, ...]

    @property
    def ok(self) -> bool:
        """Whether there is no fault."""
        return not self.faults


def verify(
    dataset: str, *, decode: bool = False, on_bytes: Callable[[int], object] = lambda count: None
) -> Report:
    """Checks every byte of a dataset against its manifest.

    Args:
        dataset: folder of the dataset, local or gs://.
        decode: whether to decode every image as well.
        on_bytes: called with the size of each shard that has been checked.

    Returns:
        The faults found, by shard and record.

    Raises:
        ManifestError: when there is no manifest, or one of a later version.
    """
    try:
        manifest = manifests.load(dataset)
    except DamagedError as error:
        fault = Fault(manifests.MANIFEST, None, str(error))
        return Report(shards=0, examples=0, bytes=0, decoded=False, faults=(fault,))
    all_shards = [shard for split in manifest.splits.values() for shard in split.shards]
    faults = list(check_other_files(dataset, manifest))
    with ThreadPoolExecutor(shards.usable_cores()) as pool:
        checks = pool.map(lambda shard: check_shard(dataset, shard, decode=decode), all_shards)
        for shard, found in zip(all_shards, checks, strict=True):
            faults += found
            on_bytes(shard.bytes)
    return Report(
        shards=len(all_shards),
        examples=manifest.examples,
        bytes=sum(shard.bytes for shard in all_shards),
        decoded=decode,
        faults=tuple(faults),
    )


def check_shard(dataset: str, shard: Shard, *, decode: bool = False) -> list[Fault]:
    """Checks one shard against its entry in the manifest.

    Args:
        dataset: folder of the dataset.
        shard: the entry.
        decode: whether to decode every image as well.

    Returns:
        Its faults; none for a sound shard.
    """
    path = storage.join(dataset, shard.file)
    try:
        found = storage.stat(path)
        if found is None:
            return [Fault(shard.file, None, "is missing")]
        intact = found.size == shard.bytes and _sha256(path) == shard.sha256
        faults = list(_check_records(path, shard, decode=decode)) if decode or not intact else []
    except OSError as error:
        return [Fault(shard.file, None, f"cannot be read: {error}")]
    if not intact and not faults:
        what = (
            f"has {found.size} bytes, not {shard.bytes}"
            if found.size != shard.bytes
            else "differs from its SHA-256 in bytes outside its records"
        )
        return [Fault(shard.file, None, what)]
    return faults


def check_other_files(dataset: str, manifest: Manifest) -> Iterator[Fault]:
    """Checks all of a dataset but its shards and its manifest.

    Args:
        dataset: folder of the dataset.
        manifest: its manifest.

    Yields:
        A fault for each file that is damaged, missing, or a shard of something else.
    """
    for name, sha256 in manifest.files.items():
        path = storage.join(dataset, name)
        if storage.stat(path) is None:
            yield Fault(name, None, "is missing")
        elif _sha256(path) != sha256:
            yield Fault(name, None, "differs from its SHA-256")
    own = {shard.file for split in manifest.splits.values() for shard in split.shards}
    start = len(storage.join(dataset, ""))
    for path, _ in storage.list_files(dataset):
        name = path[start:]
        if posixpath.dirname(name) == shards.SIDECARS and name.endswith(".json"):
            try:
                manifests.unseal(storage.read(path), path=name)
            except DamagedError:
                yield Fault(name, None, "is damaged; delete it, and convert again makes it anew")
        elif ".tfrecord" in name and not name.startswith(".") and name not in own:
            yield Fault(name, None, "is foreign: the manifest does not list it")


def _sha256(path: str) -> str:
    digest = hashlib.sha256()
    with storage.open_read(path) as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def _check_records(path: str, shard: Shard, *, decode: bool) -> Iterator[Fault]:
    count = faults = 0
    with storage.open_read(path) as file:
        try:
            for count, record in enumerate(records.read_records(file), 1):
                reason = _fault_of_image(record, count - 1) if decode else None
                if reason is not None and faults < _MAX_FAULTS:
                    faults += 1
                    yield Fault(shard.file, count - 1, reason)
        except records.CorruptRecordError as error:
            behind_all = error.index is None or error.index >= shard.examples
            yield Fault(shard.file, None if behind_all else error.index, error.reason)
            return
    if count != shard.examples:
        yield Fault(shard.file, None, f"has {count} records, not {shard.examples}")


def _fault_of_image(record: bytes, index: int) -> str | None:
    try:
        example = records.decode_example(record, index=index)
        image = example[records.IMAGE][0]
        height, width, _ = decode_image(image).shape if isinstance(image, bytes) else (0, 0, 0)
    except records.CorruptRecordError as error:
        return error.reason
    except (LookupError, BadImageError) as error:
        return f"its image cannot be decoded: {error}"
    if [height] != example[records.HEIGHT] or [width] != example[records.WIDTH]:
        return f"its image is {width}x{height}, not as image/height and image/width say"
    return None
