"""Words for people: sizes, and the nearest right name for a wrong one."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

_UNITS = ("B", "KB", "MB", "GB", "TB", "PB")


def did_you_mean(wrong: str, names: Iterable[str]) -> str:
    """The nearest right name, for the end of an error message.

    Args:
        wrong: what was given.
        names: what would have been right.

    Returns:
        " (did you mean X?)", or "" when nothing is near.
    """
    near = difflib.get_close_matches(wrong, list(names), n=1)
    return f" (did you mean {near[0]}?)" if near else ""


def format_bytes(count: float) -> str:
    """A size for people, in powers of 1000.

    Args:
        count: bytes.

    Returns:
        Such as "24.1 KB".
    """
    for unit in _UNITS:
        if count < 999.95 or unit == _UNITS[-1]:
            break
        count /= 1000
    return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"


def format_count(count: int, noun: str) -> str:
    """A number of things for people.

    Args:
        count: how many.
        noun: what, in the singular; an s makes the plural.

    Returns:
        Such as "1 shard" or "12,345 shards".
    """
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def format_seconds(seconds: float) -> str:
    """A time for people.

    Args:
        seconds: how long.

    Returns:
        Such as "0.4 s", "12 min" or "3.5 h".
    """
    if seconds < 99.5:
        return f"{seconds:.1f} s" if seconds < 9.95 else f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5970 else f"{seconds / 3600:.1f} h"


def parse_bytes(text: str) -> int:
    """Reads a size such as 128MB, in powers of 1000 (KiB, MiB and so on: of 1024).

    Args:
        text: digits and a unit.

    Returns:
        Bytes.

    Raises:
        ValueError: when it is no such size.
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGTP]?)(i?)B?\s*", text, re.IGNORECASE)
    if not match:
        raise ValueError(f"{text!r} is not a size; write one such as 128MB")
    number, prefix, binary = match.groups()
    base = 1024 if binary else 1000
    size = int(float(number) * base ** ("KMGTP".find(prefix.upper()) + 1 if prefix else 0))
    if size < 1:
        raise ValueError(f"{text!r} is no size to fill; write one such as 128MB")
    return size
