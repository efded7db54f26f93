"""TFRecord files: framed records, plain or in a gzip stream that is the same from every machine."""

from __future__ import annotations

import hashlib
import struct
import zlib
from collections.abc import Iterator
from contextlib import suppress
from types import TracebackType
from typing import Any, BinaryIO, Literal

import google_crc32c

__all__ = [
    "Compression",
    "CorruptRecordError",
    "RecordWriter",
    "frame",
    "read_records",
    "scan_records",
]

Compression = Literal["gzip", "none"]

_WRITE = 1 << 20  # bytes
_READ = 1 << 18


class CorruptRecordError(ValueError):
    """A record, or the stream that holds it, is damaged.

    Attributes:
        index: Number of the record in its file, from 0; None where it is not known.
        reason: What is wrong with it.
    """

    def __init__(self, index: int | None, reason: str) -> None:
        super().__init__(reason if index is None else f"record {index}: {reason}")
        self.index = index
        self.reason = reason

    def __reduce__(self) -> tuple[type[CorruptRecordError], tuple[int | None, str]]:
        return CorruptRecordError, (self.index, self.reason)


_LENGTH = struct.Struct("<Q")
_CRC = struct.Struct("<I")


def _masked_crc(data: bytes) -> int:
    crc: int = google_crc32c.value(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def frame(record: bytes) -> bytes:
    """Frames a record as it stands in a TFRecord file: length and data, each with its crc32c."""
    length = _LENGTH.pack(len(record))
    return b"".join(
        (length, _CRC.pack(_masked_crc(length)), record, _CRC.pack(_masked_crc(record)))
    )


class RecordWriter:
    """Writes framed records to an open file, gathered into large writes.

    Close it, or leave its `with` block, to end the file. A block left by an exception leaves the
    file unfinished, which every reader can tell.

    Args:
        file: Where to write; the caller opens and closes it.
        compression: "gzip" or "none".
        level: Of gzip. 0 stores the bytes as they are, the same from every machine. 1 to 9 deflate
            them, and then the bytes depend on the zlib that Python was built with (zlib-ng and
            zlib choose other matches), so that only one build of Python gives the same again.

    Attributes:
        bytes: How many bytes were written to the file; complete after `close`.
        sha256: Their SHA-256 in hexadecimal; set by `close`.

    Raises:
        ValueError: The compression or its level is unknown.
    """

    def __init__(
        self, file: BinaryIO, *, compression: Compression = "gzip", level: int = 0
    ) -> None:
        if compression not in ("gzip", "none"):
            raise ValueError(f'compression is {compression!r}: use "gzip" or "none"')
        if not 0 <= level <= 9:
            raise ValueError(f"compression level is {level}: use 0 (stored) to 9 (smallest)")
        self.bytes = 0
        self.sha256 = ""
        self._file = file
        self._hash = hashlib.sha256()
        self._pending: list[bytes] = []
        self._pending_size = 0
        self._encoder = _Gzip(level) if compression == "gzip" else _Plain()

    def write(self, framed: bytes) -> None:
        """Appends a record that `frame` has framed."""
        self._pending.append(framed)
        self._pending_size += len(framed)
        if self._pending_size >= _WRITE:
            self._put(self._encoder.encode(self._take()))

    def close(self) -> None:
        """Writes what is left and ends the file's stream; a second call does nothing."""
        if self.sha256:
            return
        self._put(self._encoder.encode(self._take()) + self._encoder.finish())
        self.sha256 = self._hash.hexdigest()

    def _take(self) -> bytes:
        data = b"".join(self._pending)
        self._pending.clear()
        self._pending_size = 0
        return data

    def _put(self, data: bytes) -> None:
        self._file.write(data)
        self._hash.update(data)
        self.bytes += len(data)

    def __enter__(self) -> RecordWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is None:
            self.close()


class _Plain:
    def encode(self, data: bytes) -> bytes:
        return data

    def finish(self) -> bytes:
        return b""


class _Gzip:
    """A gzip stream (RFC 1952) whose header says nothing of when and where it was made."""

    def __init__(self, level: int) -> None:
        # Magic, deflate, no flags, no time, no hint about the level, unknown system.
        self._header = b"\x1f\x8b\x08\0\0\0\0\0\0\xff"
        self._body = _Stored() if level == 0 else zlib.compressobj(level, wbits=-zlib.MAX_WBITS)
        self._crc = 0
        self._size = 0

    def encode(self, data: bytes) -> bytes:
        self._crc = zlib.crc32(data, self._crc)
        self._size += len(data)
        header, self._header = self._header, b""
        return header + self._body.compress(data)

    def finish(self) -> bytes:
        return self._body.flush() + struct.pack("<II", self._crc, self._size & 0xFFFFFFFF)


class _Stored:
    """Stored blocks of deflate (RFC 1951, 3.2.4), cut after every 65,535 bytes.

    By hand, because zlib and zlib-ng cut them at other places, and JPEG data gains nothing from
    being deflated: 2.4% in size at level 6, read at less than half the speed.
    """

    _SIZE = 0xFFFF

    def __init__(self) -> None:
        self._rest = b""

    def compress(self, data: bytes) -> bytes:
        view = memoryview(self._rest + data)
        end = len(view) - len(view) % self._SIZE
        self._rest = bytes(view[end:])
        header = self._header(self._SIZE, final=False)
        parts: list[bytes | memoryview] = []
        for start in range(0, end, self._SIZE):
            parts += (header, view[start : start + self._SIZE])
        return b"".join(parts)

    def flush(self) -> bytes:
        return self._header(len(self._rest), final=True) + self._rest

    @staticmethod
    def _header(size: int, *, final: bool) -> bytes:
        return struct.pack("<BHH", final, size, size ^ 0xFFFF)


def read_records(file: BinaryIO) -> Iterator[bytes]:
    """Reads the records of a TFRecord file, in memory that does not grow with the file.

    Args:
        file: An open file, at its start. Gzip, zlib and plain are told apart by the first bytes.

    Yields:
        One record after the other, each checked.

    Raises:
        CorruptRecordError: A record is damaged or cut off, or the compressed stream is. All
            records before it have been given.
    """
    for item in scan_records(file):
        if isinstance(item, CorruptRecordError):
            raise item
        yield item


def scan_records(file: BinaryIO) -> Iterator[bytes | CorruptRecordError]:
    """Reads a TFRecord file as `read_records` does, past the damage that can be passed.

    Args:
        file: An open file, at its start.

    Returns:
        An iterator over the records, with the error in place of one that is damaged. It goes on
        after a record whose data alone is damaged; any other error is its last item.
    """
    return _Scan(file)


class _Scan:
    """An object, not a generator: one that is dropped half-way has nothing to clean up."""

    def __init__(self, file: BinaryIO) -> None:
        self._stream = _Stream(file)
        self._index = 0
        self._ended = False

    def __iter__(self) -> _Scan:
        return self

    def __next__(self) -> bytes | CorruptRecordError:
        if self._ended:
            raise StopIteration
        try:
            record = _read_record(self._stream)
        except _DamageError as damage:
            self._ended = True
            error = CorruptRecordError(self._index, str(damage))
            error.__cause__ = damage.__cause__
            return error
        if record is None:
            self._ended = True
            raise StopIteration
        self._index += 1
        return record if isinstance(record, bytes) else CorruptRecordError(self._index - 1, record)


class _DamageError(Exception):
    """What is wrong, before it is known in which record."""


def _read_record(stream: _Stream) -> bytes | str | None:
    """The next record, or what is wrong with its data alone; None at the end."""
    head = stream.read(12)
    if not head:
        return None
    if len(head) < 12:
        raise _DamageError("cut off in its length")
    if not _is_header(head):
        raise _DamageError("the checksum of its length is wrong")
    (length,) = _LENGTH.unpack_from(head)
    record, crc = stream.read(length), stream.read(4)
    if len(crc) < 4:
        left = len(record) + len(crc)
        raise _DamageError(f"cut off, {left} of {length + 4} bytes are left")
    if _CRC.pack(_masked_crc(record)) != crc:
        return "the checksum of its data is wrong"
    return record


def _is_header(head: bytes) -> bool:
    return _CRC.pack(_masked_crc(head[:8])) == head[8:12]


class _Stream:
    """The decompressed bytes of a file, in pieces of the size asked for."""

    def __init__(self, file: BinaryIO) -> None:
        first = file.read(_READ)
        # A plain file can begin with gzip's magic, as a record of 559,903 bytes does, so the
        # checksum of a record's length is asked first.
        if len(first) >= 12 and _is_header(first[:12]):
            self._chunks = _plain(file, first)
        elif first[:3] == b"\x1f\x8b\x08":
            self._chunks = _inflate(file, first, "gzip")
        elif len(first) > 1 and first[0] & 0x8F == 8 and int.from_bytes(first[:2], "big") % 31 == 0:
            self._chunks = _inflate(file, first, "zlib")
        else:
            self._chunks = _plain(file, first)
        self._chunk = memoryview(b"")
        self._at = 0

    def read(self, size: int) -> bytes:
        """The next `size` bytes, fewer at the end of the stream only."""
        end = self._at + size
        if end <= len(self._chunk):
            data = bytes(self._chunk[self._at : end])
            self._at = end
            return data
        parts = [self._chunk[self._at :]]
        missing = size - len(parts[0])
        while missing and (chunk := next(self._chunks, b"")):
            self._chunk, self._at = memoryview(chunk), min(missing, len(chunk))
            parts.append(self._chunk[: self._at])
            missing -= self._at
        if missing:
            self._chunk, self._at = memoryview(b""), 0
        return b"".join(parts)


def _plain(file: BinaryIO, chunk: bytes) -> Iterator[bytes]:
    while chunk:
        yield chunk
        chunk = file.read(_READ)


def _before_damage(inflater: Any, chunk: bytes) -> Iterator[bytes]:
    """The bytes up to the damage, so that the record it is in can be named."""
    whole = []
    with suppress(zlib.error):
        for place in range(len(chunk)):
            whole.append(inflater.decompress(chunk[place : place + 1]))
    if data := b"".join(whole):
        yield data


def _inflate(file: BinaryIO, chunk: bytes, form: str) -> Iterator[bytes]:
    """Decompresses the one gzip or zlib stream that a file holds."""
    inflater = zlib.decompressobj(zlib.MAX_WBITS + 32)
    while chunk:
        before = inflater.copy()
        try:
            data = inflater.decompress(chunk, _READ)
        except zlib.error as error:
            yield from _before_damage(before, chunk)
            raise _DamageError(f"the {form} stream is damaged ({error})") from error
        if data:
            yield data
        if inflater.eof:
            if inflater.unused_data or file.read(1):
                raise _DamageError(f"bytes follow the end of the {form} stream")
            return
        chunk = inflater.unconsumed_tail or file.read(_READ)
    raise _DamageError(f"the {form} stream is cut off")
