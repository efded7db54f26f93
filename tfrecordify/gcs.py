"""The gs:// half of `tfrecordify.storage`, which imports it when it meets the first such path.

Every request is retried by the client library, and no request hangs for good: an answer that stays
away for `_TIMEOUT` is asked for again, until `_RETRY` gives up.
"""

from __future__ import annotations

import base64
import functools
import io
import os
import re
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, cast

import google_crc32c
import requests
from google.api_core import exceptions as api
from google.auth import exceptions as auth
from google.cloud import storage as google_storage
from google.cloud.storage.exceptions import DataCorruption, InvalidResponse
from google.cloud.storage.retry import DEFAULT_RETRY

from tfrecordify.local import File, Output, Part, StorageError, line

_TIMEOUT = (10.0, 30.0)  # seconds to connect, and between two bytes of an answer
_RETRY = DEFAULT_RETRY.with_delay(initial=0.5, maximum=30.0).with_timeout(300.0)
_CONNECTIONS = 128  # requests keeps 10 of a host, and closes what more threads opened after use
_READ_BUFFER = 8 << 20
_UPLOAD_CHUNK = 16 << 20  # held in memory; a multiple of 256 KiB, as the service asks


_NO_OBJECT = "no such object: check the path"
_NO_FOLDER = "no such folder: check the path"
_NO_BUCKET = "no such bucket: check its name, or create it with `gcloud storage buckets create`"
_LOG_IN = "no valid Google credentials: run `gcloud auth application-default login`"


def list_folders(root: str) -> tuple[list[str], bool]:
    """List sub-folders; see `tfrecordify.storage.list_folders`."""
    _, prefix = _split(root, folder=True)
    folders: set[str] = set()
    has_files = False
    for page in _pages(Part(root), delimiter="/"):
        names = [blob.name[len(prefix) :] for blob in page]
        has_files = has_files or any(name and not name.startswith(".") for name in names)
        folders.update(name[len(prefix) : -1] for name in page.prefixes)
    if prefix and not folders and not has_files:
        raise StorageError(line(root, _NO_FOLDER))
    return sorted(folders), has_files


def list_files(part: Part, *, delimiter: str | None = None) -> Iterator[File]:
    """List files; see `tfrecordify.storage.list_files`."""
    bucket, prefix = _split(part.root, folder=True)
    empty = True
    for page in _pages(part, delimiter=delimiter):
        for blob in page:
            empty = False
            if not blob.name.endswith("/"):  # what consoles make to show an empty folder
                yield File(f"gs://{bucket}/{blob.name}", blob.size)
    if empty and prefix and part == Part(part.root):
        raise StorageError(line(part.root, _NO_FOLDER))


def glob_files(root: str, pattern: Sequence[str]) -> Iterator[File]:
    """List the files in whose range of names a pattern, by its components, may match."""
    literal = re.split(r"[*?[]", pattern[0])[0]
    part = Part(root, literal, f"{literal}\U0010ffff" if literal else "")
    return list_files(part, delimiter="/" if len(pattern) == 1 and pattern[0] != "**" else None)


def stat(path: str) -> File | None:
    """Look an object up; see `tfrecordify.storage.stat`."""
    if path.count("/") < 3 or path.endswith("/"):
        return None
    blob = _look_up(path)
    return None if blob is None else File(path, blob.size)


def read(path: str, max_bytes: int | None) -> bytes:
    """Read an object; see `tfrecordify.storage.read`."""
    blob = _blob(path)
    data = _download(blob, path, 0, max_bytes)
    complete = max_bytes is None or len(data) < max_bytes
    if complete and blob.crc32c and not blob.content_encoding and blob.crc32c != _crc32c(data):
        raise StorageError(line(path, "its bytes do not match its checksum: read it again"))
    return data


def open_read(path: str) -> BinaryIO:
    """Open an object as a stream; see `tfrecordify.storage.open_read`."""
    return io.BufferedReader(_Reader(path), _READ_BUFFER)


@contextmanager
def publish(path: str) -> Iterator[BinaryIO]:
    """Write an object; see `tfrecordify.storage.publish`."""
    blob = _blob(path)
    descriptor, name = tempfile.mkstemp()
    Path(name).unlink()
    with Output(descriptor, f"{tempfile.gettempdir()} (TMPDIR)") as scratch:
        file = io.BufferedRandom(scratch)
        yield cast(BinaryIO, file)
        file.seek(0)
        _upload(blob, path, file)


def remove(path: str) -> None:
    """Remove an object; see `tfrecordify.storage.remove`."""
    blob = _blob(path)
    with _explained(path):
        try:
            blob.delete(timeout=_TIMEOUT, retry=_RETRY)
        except api.NotFound:
            return


def remove_stale(root: str) -> None:
    """Do nothing: an upload that was not finished leaves no object."""


def make_folder(path: str) -> None:
    """Do nothing: there are no folders."""


class _Reader(io.RawIOBase):
    """One generation of an object, read by ranges."""

    def __init__(self, path: str) -> None:
        found = _look_up(path)
        if found is None:
            raise FileNotFoundError(line(path, _NO_OBJECT))
        self._path = path
        self._blob = _blob(path, generation=found.generation)
        self._size: int = found.size
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        self._at = max(0, start + offset)
        return self._at

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        data = self._next(len(view))
        view[: len(data)] = data
        return len(data)

    def readall(self) -> bytes:
        return self._next(self._size)

    def _next(self, size: int) -> bytes:
        size = min(size, self._size - self._at)
        if size <= 0:
            return b""
        data = _download(self._blob, self._path, self._at, size)
        self._at += len(data)
        return data


def _download(blob: Any, path: str, start: int, size: int | None) -> bytes:
    """Get a range of bytes.

    In a single shot, since the client's other way goes on in mid-body after a cut connection, and
    is slower, with a Python loop over blocks of 8 KiB.
    """
    with _explained(path, absent=FileNotFoundError(line(path, _NO_OBJECT))):
        try:
            data = blob.download_as_bytes(
                start=start or None,
                end=None if size is None else start + max(size, 1) - 1,
                checksum=None,
                single_shot_download=True,
                timeout=_TIMEOUT,
                retry=_RETRY,
            )
        except api.RequestRangeNotSatisfiable:  # the first byte of an empty object
            return b""
    return cast(bytes, data[:size])


def _upload(blob: Any, path: str, file: io.BufferedRandom) -> None:
    """Upload a file, so that a retry after a lost answer does no harm.

    The service takes the bytes only if they have the checksum sent along, and only while the
    object is the one that was there before. When it refuses, the answer to an earlier try may have
    been lost: the object is ours if its checksum is.
    """
    digest = google_crc32c.Checksum()
    for _ in digest.consume(file, 1 << 20):
        pass
    size, checksum = file.tell(), base64.b64encode(digest.digest()).decode()
    before = _look_up(path)
    blob.chunk_size = _UPLOAD_CHUNK
    for last in (False, True):
        try:
            with _explained(path):
                file.seek(0)
                blob.upload_from_file(
                    file,
                    size=size,
                    content_type="application/octet-stream",
                    if_generation_match=before.generation if before else 0,
                    checksum="crc32c",
                    crc32c_checksum_value=checksum,
                    timeout=_TIMEOUT,
                    retry=_RETRY,
                )
            return
        except StorageError as error:
            now = _look_up(path)
            if now is not None and (now.size, now.crc32c) == (size, checksum):
                return
            # 404 and 410: the service lost the upload session, which the client does not restart.
            if last or getattr(error.__cause__, "code", 0) not in (404, 410):
                raise


def _pages(part: Part, *, delimiter: str | None = None) -> Iterator[Any]:
    bucket, prefix = _split(part.root, folder=True)
    with _explained(part.root):
        blobs = _client().list_blobs(
            bucket,
            prefix=prefix or None,
            delimiter=delimiter,
            start_offset=prefix + part.start if part.start else None,
            end_offset=prefix + part.end if part.end else None,
            fields="items(name,size),prefixes,nextPageToken",
            timeout=_TIMEOUT,
            retry=_RETRY,
        )
        yield from blobs.pages


def _look_up(path: str) -> Any:
    """The object's metadata, or None where there is no object."""
    blob = _blob(path)
    with _explained(path):
        try:
            blob.reload(timeout=_TIMEOUT, retry=_RETRY)
        except api.NotFound:
            return None
    return blob


def _blob(path: str, generation: int | None = None) -> Any:
    bucket, name = _split(path)
    return _client().bucket(bucket).blob(name, generation=generation)


def _split(path: str, *, folder: bool = False) -> tuple[str, str]:
    """Split an address into bucket and object name, or bucket and prefix of a folder."""
    bucket, _, name = path.removeprefix("gs://").partition("/")
    if not bucket or not (name or folder):
        raise StorageError(line(path, "not a file on Cloud Storage: give gs://bucket/name"))
    return bucket, f"{name.rstrip('/')}/" if folder and name else name


@contextmanager
def _explained(path: str, *, absent: OSError | None = None) -> Iterator[None]:
    """Turn an error of the client into a line that says what to do next.

    Args:
        path: What is being used.
        absent: The exception for a 404; None where that means a missing bucket.
    """
    try:
        yield
    except api.NotFound as error:
        raise absent or StorageError(line(path, _NO_BUCKET)) from error
    except (api.RetryError, requests.RequestException, auth.TransportError) as error:
        advice = "no answer from Cloud Storage: check the network connection, and run again"
        raise StorageError(line(path, f"{advice} ({_first_line(error)})")) from error
    except (api.Unauthorized, auth.GoogleAuthError) as error:
        raise StorageError(line(path, _LOG_IN)) from error
    except api.Forbidden as error:
        advice = "permission denied: ask for the role Storage Object User on the bucket"
        raise StorageError(line(path, f"{advice} ({_first_line(error)})")) from error
    except api.PreconditionFailed as error:
        advice = "another process wrote it at the same time: run one at a time"
        raise StorageError(line(path, advice)) from error
    except (api.GoogleAPICallError, DataCorruption, InvalidResponse) as error:
        advice = f"Cloud Storage refused ({_first_line(error)}): check the path, and run again"
        raise StorageError(line(path, advice)) from error


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def _crc32c(data: bytes) -> str:
    return base64.b64encode(google_crc32c.Checksum(data).digest()).decode()


class _Adapter(requests.adapters.HTTPAdapter):
    """Reads the bodies of errors, which the client leaves unread, and with them the connection."""

    def send(self, *args: Any, **kwargs: Any) -> requests.Response:
        response = super().send(*args, **kwargs)
        if not response.ok:
            response.content  # noqa: B018
        return response


_lock = threading.Lock()


def _client() -> Any:
    """The client of this process, made when it is first needed, and shared by its threads."""
    with _lock:
        return _make_client(os.environ.get("STORAGE_EMULATOR_HOST"))


@functools.lru_cache(maxsize=1)
def _make_client(emulator: str | None) -> Any:
    with _explained(emulator or "gs://"):
        client = google_storage.Client(project=None)
    adapter = _Adapter(pool_maxsize=_CONNECTIONS)
    client._http.mount("https://", adapter)  # no public way to size the pool
    client._http.mount("http://", adapter)
    return client


def _forget_client() -> None:
    """Drop what a fork must not share: sockets, and a lock another thread may have held."""
    global _lock
    _lock = threading.Lock()
    _make_client.cache_clear()


os.register_at_fork(after_in_child=_forget_client)
