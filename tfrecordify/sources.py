"""Where images and labels come from: folder trees, globs, and tables with a path column."""

from __future__ import annotations

import csv
import io
import json
import posixpath
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from tfrecordify import storage
from tfrecordify.hashing import hash64
from tfrecordify.text import did_you_mean

IMAGE_SUFFIXES = frozenset(
    [
        ".avif",
        ".bmp",
        ".gif",
        ".heic",
        ".heif",
        ".jfif",
        ".jpe",
        ".jpeg",
        ".jpg",
        ".png",
        ".tif",
        ".tiff",
        ".webp",
    ]
)
TABLE_SUFFIXES = (".csv", ".jsonl", ".ndjson", ".parquet")
SPLIT_FOLDERS = frozenset(
    ["train", "training", "val", "valid", "validation", "dev", "test", "testing", "eval"]
)
LITTER = frozenset(("thumbs.db", "desktop.ini", "__macosx"))  # what file managers leave behind


class SourceError(ValueError):
    """The input cannot be used as it is; one line that says what to do."""


class Source(NamedTuple):
    """One image to convert, before anything of it is read."""

    key: str
    """Unique name: the path relative to the input's root, or absolute if a table has it so."""
    size: int
    """Bytes; -1 where the table, not a listing, names the file."""
    label: str | None = None
    split: str | None = None
    """As the input gives it; None leaves it to the settings."""
    group: str | None = None
    """What must stay together in one split; None for the image alone."""
    extra: Mapping[str, Any] = {}
    """Further columns of the table: bytes, str, int, float, or a list of one of them."""


class Skipped(NamedTuple):
    """Files of a listing that are no images: how many of a kind ("hidden" or a suffix)."""

    kind: str
    files: int


@dataclass(frozen=True, kw_only=True)
class Columns:
    """Which columns of a table mean what; the others become features of their own."""

    path: str = "path"
    label: str = "label"
    split: str = "split"
    group: str | None = None


@dataclass(frozen=True, kw_only=True)
class Input:
    """An input as recognised: a folder tree, a glob over one, or a table."""

    root: str
    """The folder that keys are relative to."""
    pattern: str | None = None
    table: str | None = None
    columns: Columns = field(default_factory=Columns)
    split_folders: tuple[str, ...] = ()
    """Top-level folders that are splits, when all of them are."""
    has_splits: bool = False

    def parts(self) -> list[storage.Part]:
        """What can be listed independently.

        Returns:
            Arguments for `list_part`; a single one where there is no folder to divide.
        """
        if self.table is None and self.pattern is None:
            return storage.list_parts(self.root)
        return [storage.Part(self.root)]

    def list_part(self, part: storage.Part) -> Iterator[Source | Skipped]:
        """Lists the images of one part.

        Args:
            part: one of `parts()`.

        Yields:
            A Source for each image, and at the end a Skipped for each kind of other files.

        Raises:
            SourceError: when a table cannot be used.
            StorageError: when a folder cannot be listed.
        """
        if self.table is not None:
            return _from_table(self.table, self.columns)
        if self.pattern is not None:
            return self._from_files(storage.glob_files(self.pattern))
        return self._from_files(storage.list_files(part))

    def _from_files(self, files: Iterable[storage.File]) -> Iterator[Source | Skipped]:
        start = len(self.root.rstrip("/")) + 1
        skipped: dict[str, int] = {}
        for path, size in files:
            key = path[start:]
            kind = _kind_of_other_file(key)
            if kind is not None:
                skipped[kind] = skipped.get(kind, 0) + 1
                continue
            split, inside = key.split("/", 1) if self.split_folders else (None, key)
            yield Source(key, size, posixpath.dirname(inside) or None, split)
        for kind, count in sorted(skipped.items()):
            yield Skipped(kind, count)


def recognise(path: str, columns: Columns | None = None) -> Input:
    """Recognises what kind of input a path is.

    Args:
        path: a folder, a glob pattern, or a table (.csv, .jsonl, .ndjson, .parquet).
        columns: names of a table's columns; only for tables.

    Returns:
        The input, ready to be listed.

    Raises:
        SourceError: when there is nothing of that name, or a table lacks a column.
        StorageError: when the folder cannot be listed.
    """
    if path.lower().endswith(TABLE_SUFFIXES):
        return _recognise_table(path, columns or Columns())
    if columns is not None and columns != Columns():
        raise SourceError(f"column flags are for tables ({', '.join(TABLE_SUFFIXES)}), not {path}")
    pattern = path if any(mark in path for mark in "*?[") else None
    root = _literal_folder(path) if pattern else path
    if pattern is None and not storage.is_remote(path) and storage.stat(path) is not None:
        raise SourceError(
            f"{path} is a file: give a folder of images, a quoted glob, or a table "
            f"({', '.join(TABLE_SUFFIXES)})"
        )
    folders, has_files = storage.list_folders(root)
    visible = [name for name in folders if not _is_hidden(name)]
    all_splits = bool(visible) and not has_files and SPLIT_FOLDERS.issuperset(visible)
    splits = tuple(visible) if all_splits else ()
    return Input(root=root, pattern=pattern, split_folders=splits, has_splits=all_splits)


def _literal_folder(pattern: str) -> str:
    literal = pattern[: min(pattern.index(mark) for mark in "*?[" if mark in pattern)]
    return literal.rpartition("/")[0] or ("/" if literal.startswith("/") else ".")


def _is_hidden(name: str) -> bool:
    return name.startswith(".") or name.lower() in LITTER


def _kind_of_other_file(key: str) -> str | None:
    """None for an image, else what kind of file it is skipped as."""
    if any(_is_hidden(name) for name in key.split("/")):
        return "hidden"
    suffix = posixpath.splitext(key)[1].lower()
    return None if suffix in IMAGE_SUFFIXES else suffix or "no suffix"


def _recognise_table(path: str, columns: Columns) -> Input:
    first = next(_rows(path), None)
    if first is None:
        raise SourceError(f"{path} has no rows: give a table with a row for each image")
    names = list(first)
    asked = {"path": columns.path}
    if columns != Columns():
        defaults = Columns()
        asked |= {"label": columns.label} if columns.label != defaults.label else {}
        asked |= {"split": columns.split} if columns.split != defaults.split else {}
        asked |= {"group": columns.group} if columns.group else {}
    for role, name in asked.items():
        if name not in names:
            hint = did_you_mean(name, names)
            flag = "--group_by" if role == "group" else f"--{role}_column"
            raise SourceError(
                f"{path} has no column {name!r}{hint}: it has {', '.join(names)}; "
                f"name the {role} column with {flag}"
            )
    folder = posixpath.dirname(path) or "."
    return Input(root=folder, table=path, columns=columns, has_splits=columns.split in names)


def _from_table(path: str, columns: Columns) -> Iterator[Source]:
    hashes = array("Q")
    roles = {columns.path, columns.label, columns.split}
    for number, row in enumerate(_rows(path), 1):
        name = row.get(columns.path)
        if not isinstance(name, str) or not name:
            raise SourceError(
                f"{path}, row {number}: column {columns.path!r} is empty; give each row an image"
            )
        key = _key(name)
        hashes.append(hash64(key.encode(errors="surrogateescape")))
        yield Source(
            key=key,
            size=-1,
            label=_text(row.get(columns.label)),
            split=_text(row.get(columns.split)),
            group=_text(row.get(columns.group)) if columns.group else None,
            extra={k: v for k, v in row.items() if k not in roles and v is not None},
        )
    _refuse_equal_keys(path, columns, hashes)


def _key(name: str) -> str:
    return name if storage.is_remote(name) else posixpath.normpath(name)


def _text(value: object) -> str | None:
    return None if value is None or value == "" else str(value)


def _refuse_equal_keys(path: str, columns: Columns, hashes: array[int]) -> None:
    """Eight bytes a row find equal keys; only then is the table read again to name the first."""
    values, counts = np.unique(np.frombuffer(hashes, np.uint64), return_counts=True)
    repeated = frozenset(values[counts > 1].tolist())
    if not repeated:
        return
    seen: dict[str, int] = {}
    for number, row in enumerate(_rows(path), 1):
        key = _key(row[columns.path])
        if hash64(key.encode(errors="surrogateescape")) in repeated:
            if key in seen:
                raise SourceError(
                    f"{path}: rows {seen[key]} and {number} both name {key}; keep one of them"
                )
            seen[key] = number


def _rows(path: str) -> Iterator[dict[str, Any]]:
    readers: dict[str, Callable[[str], Iterator[dict[str, Any]]]] = {
        ".csv": _csv_rows,
        ".jsonl": _json_rows,
        ".ndjson": _json_rows,
        ".parquet": _parquet_rows,
    }
    suffix = posixpath.splitext(path)[1].lower()
    try:
        yield from readers[suffix](path)
    except FileNotFoundError:
        raise SourceError(f"no such table: {path}") from None
    except UnicodeDecodeError as error:
        raise SourceError(f"{path} is not UTF-8 text ({error}); save it as UTF-8") from None


def _csv_rows(path: str) -> Iterator[dict[str, Any]]:
    """Rows of a CSV file, a column as numbers only when each of its cells is one.

    Two passes: one cell at the very end may show that a column is text after all, and numbers
    with leading zeros ("007") are names, not numbers.
    """
    parsers: dict[str, Callable[[str], Any]] = {}
    for row in _csv_cells(path):
        for name, cell in row.items():
            if cell != "" and parsers.get(name) is not str:
                parsers[name] = _wider(parsers.get(name, int), _parser_of(cell))
    for row in _csv_cells(path):
        yield {name: parsers[name](cell) if cell != "" else None for name, cell in row.items()}


def _csv_cells(path: str) -> Iterator[dict[str, str]]:
    with storage.open_read(path) as binary:
        text = io.TextIOWrapper(binary, encoding="utf-8-sig", newline="")
        reader = csv.reader(text, strict=True)
        try:
            names = next(reader, [])
            for row in reader:
                if len(row) not in (0, len(names)):
                    raise SourceError(
                        f"{path}, line {reader.line_num}: {len(row)} cells under "
                        f"{len(names)} column names"
                    )
                if row:
                    yield dict(zip(names, row, strict=True))
        except csv.Error as error:
            raise SourceError(f"{path}, line {reader.line_num}: {error}") from None
        finally:
            text.detach()


def _parser_of(cell: str) -> Callable[[str], Any]:
    for parser in (int, float):
        try:
            parser(cell)
        except ValueError:
            continue
        digits = cell.lstrip("+-")
        named = len(digits) > 1 and digits[0] == "0" and digits[1] not in ".eE"
        return str if named or "_" in cell or cell != cell.strip() else parser
    return str


def _wider(one: Callable[[str], Any], other: Callable[[str], Any]) -> Callable[[str], Any]:
    order = (int, float, str)
    return max(one, other, key=order.index)


def _json_rows(path: str) -> Iterator[dict[str, Any]]:
    with storage.open_read(path) as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except ValueError as error:
                raise SourceError(f"{path}, line {number}: not JSON ({error})") from None
            if not isinstance(row, dict):
                raise SourceError(f"{path}, line {number}: give one JSON object a line")
            yield row


def _parquet_rows(path: str) -> Iterator[dict[str, Any]]:
    try:
        from pyarrow import ArrowException, parquet
    except ImportError:
        raise SourceError("reading .parquet needs pyarrow: pip install tfrecordify[beam]") from None
    with storage.open_read(path) as binary:
        try:
            for batch in parquet.ParquetFile(binary).iter_batches(8192):
                yield from batch.to_pylist()
        except ArrowException as error:
            raise SourceError(f"{path} is not a Parquet file: {error}") from None
