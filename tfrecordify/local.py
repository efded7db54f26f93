"""The local half of `tfrecordify.storage`, and what both halves share."""

from __future__ import annotations

import errno
import io
import os
import re
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path
from stat import S_ISREG
from typing import BinaryIO, NamedTuple, cast

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


def list_folders(root: str) -> tuple[list[str], bool]:
    """List sub-folders; see `tfrecordify.storage.list_folders`."""
    names = _names(root)
    folders = sorted(name[:-1] for name in names if name.endswith("/"))
    return folders, any(not name.startswith(".") for name in names if not name.endswith("/"))


def list_files(part: Part) -> Iterator[File]:
    """List files; see `tfrecordify.storage.list_files`."""
    return _walk(part.root, part.holds)


def glob_files(root: str, pattern: Sequence[str]) -> Iterator[File]:
    """List the files of the folders in which a pattern, by its components, may match."""
    return _walk(root, _leads(pattern))


def stat(path: str) -> File | None:
    """Look a file up; see `tfrecordify.storage.stat`."""
    with explained(path):
        try:
            status = Path(path).stat()
        except (FileNotFoundError, NotADirectoryError):
            return None
    return File(path, status.st_size) if S_ISREG(status.st_mode) else None


def read(path: str, max_bytes: int | None) -> bytes:
    """Read a file; see `tfrecordify.storage.read`."""
    with explained(path, missing=FileNotFoundError), open(path, "rb", buffering=0) as file:
        return cast(bytes, file.read(-1 if max_bytes is None else max_bytes))


def open_read(path: str) -> BinaryIO:
    """Open a file as a stream; see `tfrecordify.storage.open_read`."""
    with explained(path, missing=FileNotFoundError):
        return open(path, "rb")


@contextmanager
def publish(path: str) -> Iterator[BinaryIO]:
    """Write a file; see `tfrecordify.storage.publish`."""
    folder, name = os.path.split(path)
    temporary = os.path.join(folder, f".{name}.tmp-{secrets.token_hex(8)}")
    with explained(path):
        if Path(path).is_dir():
            raise IsADirectoryError(errno.EISDIR, "", path)
        output = Output(temporary, path)
    file = io.BufferedWriter(output, 1 << 20)
    try:
        yield file
        with explained(path):
            file.flush()
            os.fsync(file.fileno())
            file.close()
            Path(temporary).replace(path)
            _sync_folder(folder)
    except BaseException:
        output.close()  # not the buffer, which would write the rest of it first
        Path(temporary).unlink(missing_ok=True)
        raise


def remove(path: str) -> None:
    """Remove a file; see `tfrecordify.storage.remove`."""
    with explained(path):
        Path(path).unlink(missing_ok=True)


def remove_stale(root: str) -> None:
    """Remove temporary files; see `tfrecordify.storage.remove_stale`."""
    if not Path(root).is_dir():
        return
    for name in _names(root):
        if _TEMPORARY.fullmatch(name):
            remove(os.path.join(root, name))


def make_folder(path: str) -> None:
    """Make a folder; see `tfrecordify.storage.make_folder`."""
    with explained(path):
        Path(path).mkdir(parents=True, exist_ok=True)
        if not os.access(path, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, "", path)


def line(path: str, advice: str) -> str:
    """One line about a path, whatever characters are in it."""
    return f"{path if path.isprintable() else ascii(path)}: {advice}"


@contextmanager
def explained(path: str, *, missing: type[OSError] = StorageError) -> Iterator[None]:
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
        raise kind(line(path, advice)) from error


def _names(folder: str) -> list[str]:
    """The sorted names in a folder, those of sub-folders with a slash at the end.

    The slash makes a walk in this order yield paths in the order of their bytes. Names alone are
    kept, since a million os.DirEntry take 300 MB.
    """
    with explained(folder), os.scandir(folder or ".") as entries:
        return sorted(f"{e.name}/" if _is_folder(e) else e.name for e in entries)


def _is_folder(entry: os.DirEntry[str]) -> bool:
    with explained(entry.path):
        return entry.is_dir()


def _walk(
    folder: str,
    wanted: Callable[[str], bool],
    above: tuple[tuple[int, int], ...] = (),
    at: str = "",
) -> Iterator[File]:
    """List the regular files below a folder; `wanted` prunes by the name relative to the root."""
    with explained(folder):
        status = Path(folder).stat()
    here = (status.st_dev, status.st_ino)
    if here in above:
        raise StorageError(line(folder, _ADVICE[errno.ELOOP]))
    for name in _names(folder):
        path = os.path.join(folder, name)
        if not wanted(at + name):
            continue
        if name.endswith("/"):
            yield from _walk(path[:-1], wanted, (*above, here), at + name)
        else:
            yield from _regular(path)


def _regular(path: str) -> Iterator[File]:
    with explained(path):
        try:
            status = Path(path).stat()
        except FileNotFoundError:
            yield File(path, 0)
            return
    if S_ISREG(status.st_mode):
        yield File(path, status.st_size)


def _leads(parts: Sequence[str]) -> Callable[[str], bool]:
    """Make the test that prunes a walk to the folders in which a pattern may match."""
    depth = parts.index("**") if "**" in parts else len(parts)

    def leads(name: str) -> bool:
        names = name.rstrip("/").split("/")
        if depth == len(parts) and len(names) > depth - name.endswith("/"):
            return False
        return all(map(fnmatchcase, names, parts[:depth]))

    return leads


class Output(io.FileIO):
    """A file whose failing writes say what to do next, also when a caller's buffer flushes."""

    def __init__(self, file: str | int, path: str) -> None:
        super().__init__(file, "rb+" if isinstance(file, int) else "xb")
        self._path = path

    def write(self, data: object) -> int:
        """Write as io.FileIO does, or raise StorageError."""
        with explained(self._path):
            return super().write(data)  # type: ignore[arg-type]


def _sync_folder(folder: str) -> None:
    descriptor = os.open(folder or ".", os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
