"""Decoded images that are kept, in memory or on a local disk."""

from __future__ import annotations

import math
import os
import struct
import threading
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import google_crc32c
import numpy as np

from tfrecordify import records
from tfrecordify.decoding import Batch, Pixels, Shape, decode_into, fill_batch
from tfrecordify.fetching import Records, ShardError
from tfrecordify.records import CorruptRecordError

__all__ = ["ImageCache"]


class ImageCache:
    """Keeps decoded images, in memory or in a folder; each is decoded when first asked for.

    Args:
        source: The records, none of which it need keep.
        image: Name of the feature that is decoded.
        shape: (height, width, 3) of each image.
        resize: Whether to resize images of another size.
        floats: Whether they come out as float32; they are kept as uint8.
        path: Where on disk to keep them, without a suffix; None for memory. Whoever comes later
            with the same path and the same records goes on from there.
    """

    def __init__(
        self,
        source: Records,
        *,
        image: str,
        shape: Shape,
        resize: bool,
        floats: bool,
        path: Path | None = None,
    ) -> None:
        self._source = source
        self._image = image
        self._shape = shape
        self._resize = resize
        self._floats = floats
        self._store: _Store = (
            _MemoryStore(len(source), shape) if path is None else _DiskStore(path, shape)
        )

    def fetch(self, numbers: Sequence[int], iterator: int = 0) -> tuple[Batch, list[bytes]]:
        """Gives images by number, and what else is in their records.

        Args:
            numbers: Of the records.
            iterator: Who asks, as for `Records.fetch`.

        Returns:
            Pixels, [batch, height, width, 3], and serialized examples without the image.
            Examples that are skipped are left out.
        """
        store, source = self._store, self._source
        new = [number for number in dict.fromkeys(numbers) if number not in store.rests]
        fetched = dict(zip(new, source.fetch(new, iterator), strict=True))
        numbers = [number for number in numbers if fetched.get(number, b"") is not None]

        def fill(place: int, pixels: Pixels) -> bytes:
            number = numbers[place]
            if number not in fetched and store.load(number, pixels):
                return store.rests[number]
            record = fetched[number] if number in fetched else source.fetch([number])[0]
            image, rest = records.split_example(record or b"", self._image)
            decode_into(pixels, image, resize=self._resize)
            store.save(number, pixels, rest)
            return rest

        batch = fill_batch(
            fill,
            size=len(numbers),
            shape=self._shape,
            on_bad=lambda place, reason: source.skip(numbers[place], reason),
            floats=self._floats,
        )
        store.flush()
        return batch


class _Store(Protocol):
    rests: dict[int, bytes]  # of the images that are stored

    def load(self, number: int, pixels: Pixels) -> bool:
        """Reads a stored image into `pixels`; False if it is damaged."""

    def save(self, number: int, pixels: Pixels, rest: bytes) -> None: ...

    def flush(self) -> None: ...


class _MemoryStore:
    def __init__(self, examples: int, shape: Shape) -> None:
        self.rests: dict[int, bytes] = {}
        self._pixels = np.empty((examples, *shape), np.uint8)

    def load(self, number: int, pixels: Pixels) -> bool:
        np.copyto(pixels, self._pixels[number])
        return True

    def save(self, number: int, pixels: Pixels, rest: bytes) -> None:
        np.copyto(self._pixels[number], pixels)
        self.rests[number] = rest

    def flush(self) -> None:
        pass


class _DiskStore:
    """Pixels in one file, each image at its number's place, and a log of those that are there.

    The log is a TFRecord file of (number, crc32c of the pixels, rest of the record), written after
    the pixels. A lost tail of it, or pixels that do not match, are made again: so a killed
    process or a second process at the same files can cost time, and nothing else.
    """

    _HEAD = struct.Struct("<QI")

    def __init__(self, path: Path, shape: Shape) -> None:
        self.rests: dict[int, bytes] = {}
        self._size = math.prod(shape)
        self._unchecked: dict[int, int] = {}  # crc32c of what an earlier process stored
        self._new: list[bytes] = []
        self._lock = threading.Lock()
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path.with_suffix(".pixels")
        self._pixels = self._open(self._path, os.O_RDWR)
        self._log = self._open(path.with_suffix(".log"), os.O_RDWR | os.O_APPEND)
        self._restore(path.with_suffix(".log"))

    def _open(self, path: Path, flags: int) -> int:
        descriptor = os.open(path, flags | os.O_CREAT | os.O_CLOEXEC, 0o666)
        weakref.finalize(self, os.close, descriptor)
        return descriptor

    def _restore(self, log: Path) -> None:
        sound = 0
        with log.open("rb") as file:
            for item in records.scan_records(file):
                if isinstance(item, CorruptRecordError):
                    break
                number, crc = self._HEAD.unpack_from(item)
                self.rests[number] = item[self._HEAD.size :]
                self._unchecked[number] = crc
                sound += len(records.frame(item))
        os.ftruncate(self._log, sound)

    def load(self, number: int, pixels: Pixels) -> bool:
        if os.preadv(self._pixels, [pixels.data], number * self._size) != self._size:
            return False
        crc = self._unchecked.pop(number, None)
        return crc is None or crc == google_crc32c.value(pixels)

    def save(self, number: int, pixels: Pixels, rest: bytes) -> None:
        try:
            written = os.pwrite(self._pixels, pixels.data, number * self._size)
        except OSError as error:
            raise ShardError(
                f"{self._path}: {error.strerror}; free some space, or give cache= another folder"
            ) from error
        if written == self._size:
            head = self._HEAD.pack(number, google_crc32c.value(pixels))
            with self._lock:
                self._new.append(records.frame(head + rest))
            self.rests[number] = rest

    def flush(self) -> None:
        with self._lock:
            if self._new:
                os.write(self._log, b"".join(self._new))
                self._new.clear()
