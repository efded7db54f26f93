"""Files, local or on Google Cloud Storage: list, read, publish.

A path is a plain ``str``: a local path, or ``gs://bucket/name``. Whatever goes wrong ends in one
line that says what to do next: a `StorageError`, or FileNotFoundError where one file is gone.
"""

from __future__ import annotations

import errno
import io
import os
import re
import secrets
import stat as stat_module
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from fnmatch import fnmatchcase
from typing import BinaryIO, NamedTuple, cast

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


class StorageError(OSError):
    """Storage that cannot be used as asked; the message is one line and says what to do next."""


class File(NamedTuple):
    """A file as it was listed.

    Attributes:
        path: Local path or ``gs://`` address.
        size: Bytes.
    """

    path: str
    size: int


class Part(NamedTuple):
    """A range of the files below a folder, to be listed on its own.

    Attributes:
        root: The folder.
        start: First name of the range, relative to the root; "" for the beginning.
        end: The name before which the range ends; "" for no end.
    """

    root: str
    start: str = ""
    end: str = ""

    def holds(self, name: str) -> bool:
        """Tell whether a name, relative to the root, lies in the range."""
        return self.start <= name and (not self.end or name < self.end)


def is_remote(path: str) -> bool:
    """Tell whether a path is on Google Cloud Storage."""
    return path.startswith("gs://")


def join(root: str, *parts: str) -> str:
    """Join path parts; an absolute part or a ``gs://`` part starts anew."""
    for part in parts:
        if is_remote(part) or os.path.isabs(part):
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
    names = _local_names(root)
    folders = sorted(name[:-1] for name in names if name.endswith("/"))
    return folders, any(not name.startswith(".") for name in names if not name.endswith("/"))


def list_parts(root: str) -> list[Part]:
    """Cut a folder into ranges of names that can be listed at the same time, one per sub-folder.

    Args:
        root: A folder.

    Returns:
        Parts in order: their files, one part after the other, are those of ``list_files(root)``.

    Raises:
        StorageError: The folder is missing or cannot be read.
    """
    starts = sorted(f"{name}/" for name in list_folders(root)[0])
    bounds = ["", *starts[1:], ""]
    return [Part(root, start, end) for start, end in zip(bounds, bounds[1:])]  # noqa: B905


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
    yield from _walk(part.root, part.holds)


def glob_files(pattern: str) -> Iterator[File]:
    """List the files that match a pattern of ``*``, ``?``, ``[...]`` and ``**`` (any depth).

    Args:
        pattern: A path with wildcards; a wildcard other than ``**`` does not match a slash.

    Yields:
        The files, in the order of `list_files`; none where nothing matches.

    Raises:
        StorageError: As for `list_files`, for the folder before the first wildcard.
    """
    base, parts = _split_pattern(pattern)
    skip = len(join(base, ""))
    for file in _walk(base, _leads(parts)):
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
    with _explained(path):
        try:
            status = os.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            return None
    return File(path, status.st_size) if stat_module.S_ISREG(status.st_mode) else None


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
    with _explained(path, missing=FileNotFoundError), open(path, "rb", buffering=0) as file:
        return cast(bytes, file.read(-1 if max_bytes is None else max_bytes))


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
    with _explained(path, missing=FileNotFoundError):
        return open(path, "rb")


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
    return _publish_local(path)


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
    with _explained(path), suppress(FileNotFoundError):
        os.remove(path)


def remove_stale(root: str) -> None:
    """Remove the temporary files that killed processes left directly in a folder.

    Args:
        root: A folder that nobody is publishing to; a missing one is fine.

    Raises:
        StorageError: It cannot be read, or they cannot be removed.
    """
    if not os.path.isdir(root):
        return
    for name in _local_names(root):
        if _TEMPORARY.fullmatch(name):
            remove(join(root, name))


def make_folder(path: str) -> None:
    """Make a folder and those above it, where missing, and check that it can be written to.

    Args:
        path: The folder; on gs:// there is nothing to make.

    Raises:
        StorageError: It cannot be made, or not be written to.
    """
    with _explained(path):
        os.makedirs(path, exist_ok=True)
        if not os.access(path, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, "", path)


_TEMPORARY = re.compile(r"\..+\.tmp-[0-9a-f]{16}", re.DOTALL)

_ADVICE = {
    errno.EACCES: "permission denied: change its owner or mode, or choose another",
    errno.EDQUOT: "the disk quota is used up: free some space, or choose another folder",
    errno.EEXIST: "a file of that name is in the way: remove it, or choose another folder",
    errno.EISDIR: "this is a folder, not a file: choose another name",
    errno.ELOOP: "symbolic links go in a loop: remove one of them",
    errno.ENAMETOOLONG: "the name is too long for the file system: choose a shorter one",
    errno.ENOENT: "no such file or folder: check the path",
    errno.ENOSPC: "the disk is full: free some space, or choose a folder on another disk",
    errno.ENOTDIR: "a file stands where a folder is needed: check the path",
    errno.EPERM: "permission denied: change its owner or mode, or choose another",
    errno.EROFS: "the file system is read-only: choose another folder",
}


def _line(path: str, advice: str) -> str:
    """One line about a path, whatever characters are in it."""
    return f"{path if path.isprintable() else ascii(path)}: {advice}"


@contextmanager
def _explained(path: str, *, missing: type[OSError] = StorageError) -> Iterator[None]:
    """Turn an error of the operating system into a line that says what to do next."""
    try:
        yield
    except StorageError:
        raise
    except OSError as error:
        kind = missing if error.errno == errno.ENOENT else StorageError
        advice = _ADVICE.get(error.errno or 0, error.strerror or str(error))
        if "://" in path:
            advice = "no storage is known by that scheme: give a local path or gs://bucket/name"
        raise kind(_line(path, advice)) from error


def _local_names(folder: str) -> list[str]:
    """The sorted names in a folder, those of sub-folders with a slash at the end.

    The slash makes a walk in this order yield paths in the order of their bytes. Names alone are
    kept, since a million os.DirEntry take 300 MB.
    """
    with _explained(folder), os.scandir(folder or ".") as entries:
        return sorted(f"{e.name}/" if _is_folder(e) else e.name for e in entries)


def _is_folder(entry: os.DirEntry[str]) -> bool:
    with _explained(entry.path):
        return entry.is_dir()


def _walk(
    folder: str,
    wanted: Callable[[str], bool],
    above: tuple[tuple[int, int], ...] = (),
    at: str = "",
) -> Iterator[File]:
    """List the regular files below a folder; `wanted` prunes by the name relative to the root."""
    with _explained(folder):
        status = os.stat(folder or ".")
    here = (status.st_dev, status.st_ino)
    if here in above:
        raise StorageError(_line(folder, _ADVICE[errno.ELOOP]))
    for name in _local_names(folder):
        path = os.path.join(folder, name)
        if not wanted(at + name):
            continue
        if name.endswith("/"):
            yield from _walk(path[:-1], wanted, (*above, here), at + name)
        else:
            yield from _regular(path)


def _regular(path: str) -> Iterator[File]:
    with _explained(path):
        try:
            status = os.stat(path)
        except FileNotFoundError:
            yield File(path, 0)
            return
    if stat_module.S_ISREG(status.st_mode):
        yield File(path, status.st_size)


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


def _leads(parts: Sequence[str]) -> Callable[[str], bool]:
    """Make the test that prunes a walk to the folders in which a pattern may match."""
    depth = parts.index("**") if "**" in parts else len(parts)

    def leads(name: str) -> bool:
        names = name.rstrip("/").split("/")
        if depth == len(parts) and len(names) > depth - name.endswith("/"):
            return False
        return all(map(fnmatchcase, names, parts[:depth]))

    return leads


class _Output(io.FileIO):
    """A file whose failing writes say what to do next, also when a caller's buffer flushes."""

    def __init__(self, temporary: str, path: str) -> None:
        super().__init__(temporary, "xb")
        self.path = path

    def write(self, data: object) -> int:
        with _explained(self.path):
            return super().write(data)  # type: ignore[arg-type]


@contextmanager
def _publish_local(path: str) -> Iterator[BinaryIO]:
    folder, name = os.path.split(path)
    temporary = os.path.join(folder, f".{name}.tmp-{secrets.token_hex(8)}")
    with _explained(path):
        if os.path.isdir(path):
            raise IsADirectoryError(errno.EISDIR, "", path)
        output = _Output(temporary, path)
    file = io.BufferedWriter(output, 1 << 20)
    try:
        yield file
        with _explained(path):
            file.flush()
            os.fsync(file.fileno())
            file.close()
            os.replace(temporary, path)
            _sync_folder(folder)
    except BaseException:
        output.close()  # not the buffer, which would write the rest of it first
        with suppress(FileNotFoundError):
            os.remove(temporary)
        raise


def _sync_folder(folder: str) -> None:
    descriptor = os.open(folder or ".", os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
