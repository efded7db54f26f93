"""Files, local or on Google Cloud Storage: list, read, publish.

A path is a plain ``str``: a local path, or ``gs://bucket/name``. Whatever goes wrong ends in one
line that says what to do next: a `StorageError`, or FileNotFoundError where one file is gone.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from fnmatch import fnmatchcase
from itertools import pairwise
from typing import BinaryIO, Protocol

from tfrecordify import local
from tfrecordify.local import File, Part, StorageError

__all__ = [
    "File",
    "Part",
    "StorageError",
    "glob_files",
    "is_remote",
    "join",
    "list_files",
    "list_folders",
    "list_parts",
    "make_folder",
    "open_read",
    "publish",
    "read",
    "read_threads",
    "remove",
    "remove_stale",
    "stat",
    "write",
]


_MAX_PARTS = 1000  # more are not listed faster, and each costs a request


def is_remote(path: str) -> bool:
    """Tell whether a path is on Google Cloud Storage."""
    return path.startswith("gs://")


def join(root: str, *parts: str) -> str:
    """Join path parts; an absolute part or a ``gs://`` part starts anew."""
    for part in parts:
        if is_remote(part) or part.startswith("/"):
            root = part
        elif is_remote(root):
            root = f"{root.rstrip('/')}/{part}"
        else:
            root = os.path.join(root, part)
    return root


def read_threads(path: str) -> int:
    """Return how many reads at once keep the storage of a path busy."""
    return 64 if is_remote(path) else 4


def list_folders(root: str) -> tuple[list[str], bool]:
    """List the direct sub-folders, to recognise a layout without listing everything.

    Args:
        root: A folder.

    Returns:
        The sorted names of the sub-folders, and whether any file that is not hidden lies directly
        in the root.

    Raises:
        StorageError: The folder is missing or cannot be read.
    """
    return _half(root).list_folders(root)


def list_parts(root: str) -> list[Part]:
    """Cut a folder into ranges of names that can be listed at the same time.

    Args:
        root: A folder.

    Returns:
        Parts in order: their files, one part after the other, are those of ``list_files(root)``.

    Raises:
        StorageError: The folder is missing or cannot be read.
    """
    starts = sorted(f"{name}/" for name in list_folders(root)[0])
    step = -(-len(starts) // _MAX_PARTS) or 1
    return [Part(root, *bounds) for bounds in pairwise(["", *starts[step::step], ""])]


def list_files(root: str | Part) -> Iterator[File]:
    """List every file below a folder, hidden ones too, following symbolic links.

    The order is that of the paths as UTF-8 bytes, on local disks as on gs://. A dangling link is
    listed with size 0, so that reading it fails where it can be counted.

    Args:
        root: A folder, or one of its parts.

    Yields:
        The files.

    Raises:
        StorageError: The folder is missing, one below it cannot be read, or links go in a loop.
    """
    part = Part(root) if isinstance(root, str) else root
    yield from _half(part.root).list_files(part)


def glob_files(pattern: str) -> Iterator[File]:
    """List the files that match a pattern of ``*``, ``?``, ``[...]`` and ``**`` (any depth).

    Args:
        pattern: A path with wildcards; a wildcard other than ``**`` does not match a slash.

    Yields:
        The files, in the order of `list_files`; none where nothing matches.

    Raises:
        StorageError: As for `list_files`, for the folder before the first wildcard.
    """
    root, parts = _split_pattern(pattern)
    skip = len(join(root, ""))
    for file in _half(root).glob_files(root, parts):
        if _matches(file.path[skip:].split("/"), parts):
            yield file


def stat(path: str) -> File | None:
    """Look a file up.

    Args:
        path: A file.

    Returns:
        The file with its size, or None where there is none by that name (a folder is no file).

    Raises:
        StorageError: It cannot be told, for want of permission or a connection.
    """
    return _half(path).stat(path)


def read(path: str, *, max_bytes: int | None = None) -> bytes:
    """Read a file.

    Args:
        path: A file.
        max_bytes: Read no more than this many bytes from the beginning; None for all.

    Returns:
        The bytes.

    Raises:
        FileNotFoundError: There is no such file (any more).
        StorageError: It cannot be read.
    """
    return _half(path).read(path, max_bytes)


def open_read(path: str) -> AbstractContextManager[BinaryIO]:
    """Open a file for reading as a stream that can seek, in flat memory.

    Args:
        path: A file.

    Returns:
        A context manager that gives a binary file.

    Raises:
        FileNotFoundError: There is no such file (any more).
        StorageError: It cannot be read.
    """
    return _half(path).open_read(path)


def publish(path: str) -> AbstractContextManager[BinaryIO]:
    """Write a file that appears under its name whole, or not at all.

    The name appears, or is replaced, as the last act of a with block that ends without an
    exception; what must exist before it can be written inside the block. A killed process leaves
    nothing but a hidden name, which `remove_stale` removes.

    Args:
        path: The file to make or replace.

    Returns:
        A context manager that gives a binary file to write to.

    Raises:
        StorageError: The folder is missing or cannot be written to, or the disk is full.
    """
    return _half(path).publish(path)


def write(path: str, data: bytes) -> None:
    """Publish a file whose bytes are at hand; see `publish`."""
    with publish(path) as file:
        file.write(data)


def remove(path: str) -> None:
    """Remove a file, if it is there.

    Args:
        path: A file.

    Raises:
        StorageError: It cannot be removed.
    """
    _half(path).remove(path)


def remove_stale(root: str) -> None:
    """Remove the temporary files that killed processes left directly in a folder.

    Args:
        root: A folder that nobody is publishing to; a missing one is fine.

    Raises:
        StorageError: It cannot be read, or they cannot be removed.
    """
    _half(root).remove_stale(root)


def make_folder(path: str) -> None:
    """Make a folder and those above it, where missing, and check that it can be written to.

    Args:
        path: The folder; on gs:// there is nothing to make.

    Raises:
        StorageError: It cannot be made, or not be written to.
    """
    _half(path).make_folder(path)


class _Half(Protocol):
    """What is done one way on local disks and another on gs://: a module each."""

    def list_folders(self, root: str) -> tuple[list[str], bool]: ...
    def list_files(self, part: Part) -> Iterator[File]: ...
    def glob_files(self, root: str, pattern: Sequence[str]) -> Iterator[File]: ...
    def stat(self, path: str) -> File | None: ...
    def read(self, path: str, max_bytes: int | None) -> bytes: ...
    def open_read(self, path: str) -> BinaryIO: ...
    def publish(self, path: str) -> AbstractContextManager[BinaryIO]: ...
    def remove(self, path: str) -> None: ...
    def remove_stale(self, root: str) -> None: ...
    def make_folder(self, path: str) -> None: ...


def _half(path: str) -> _Half:
    """The module that knows the storage of a path; that of gs:// needs an extra to be installed."""
    if not is_remote(path):
        return local
    try:
        from tfrecordify import gcs
    except ImportError as error:
        advice = "gs:// needs google-cloud-storage: run `pip install 'tfrecordify[gcp]'`"
        raise StorageError(local.line(path, advice)) from error
    return gcs


def _split_pattern(pattern: str) -> tuple[str, list[str]]:
    """Split a pattern before its first component with a wildcard."""
    parts = pattern.split("/")
    first = next((i for i, part in enumerate(parts) if re.search(r"[*?[]", part)), len(parts) - 1)
    return "/".join(parts[:first]) or "/" * pattern.startswith("/"), parts[first:]


def _matches(names: Sequence[str], parts: Sequence[str]) -> bool:
    """Tell whether the components of a path match those of a pattern."""
    if not parts:
        return not names
    if parts[0] == "**":
        return any(_matches(names[i:], parts[1:]) for i in range(len(names) + 1))
    return bool(names) and fnmatchcase(names[0], parts[0]) and _matches(names[1:], parts[1:])
