"""Records: the schema of an example, and the TFRecord files that hold them.

Writing and checking work without TensorFlow: tf.train.Example through a message of our own with
the same field numbers, and the TFRecord framing by hand. `feature_spec` and `parse_examples` read
the same schema with TensorFlow, imported there. The bytes are TensorFlow's own, both ways.
"""

from __future__ import annotations

import numbers
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from google.protobuf.message import DecodeError

from tfrecordify import example_pb2
from tfrecordify.framing import (
    Compression,
    CorruptRecordError,
    RecordWriter,
    frame,
    read_records,
    scan_records,
)

if TYPE_CHECKING:
    import tensorflow as tf

__all__ = [
    "FILENAME",
    "HEIGHT",
    "IMAGE",
    "LABEL",
    "WIDTH",
    "Compression",
    "CorruptRecordError",
    "RecordWriter",
    "Value",
    "decode_example",
    "encode_example",
    "feature_spec",
    "frame",
    "parse_examples",
    "read_records",
    "scan_records",
    "split_example",
]

IMAGE = "image"
LABEL = "label"
FILENAME = "image/filename"
HEIGHT = "image/height"
WIDTH = "image/width"

Value = (
    bytes | str | int | float | Sequence[bytes] | Sequence[str] | Sequence[int] | Sequence[float]
)

_Example: Any = example_pb2.Example  # type: ignore[attr-defined]  # made when imported


# The example.


def encode_example(features: Mapping[str, Value]) -> bytes:
    """Serializes features as a tf.train.Example, equal features to equal bytes.

    Args:
        features: One value or a sequence of values by feature name. Text is stored as UTF-8,
            integers as int64, other real numbers as float32.

    Returns:
        The serialized example.

    Raises:
        TypeError: A value is of no kind that an example can hold.
        ValueError: An integer does not fit into 64 bits, or text is no Unicode.
    """
    example = _Example()
    feature = example.features.feature
    for name, value in features.items():
        try:
            _fill(feature[name], value)
        except TypeError as error:
            raise TypeError(f"feature {name!r}: {error}") from error
        except ValueError as error:
            raise ValueError(f"feature {name!r}: {error}") from error
    return bytes(example.SerializeToString(deterministic=True))


def _fill(feature: Any, value: Value) -> None:
    single = isinstance(value, (bytes, str, numbers.Real))
    values: list[Any] = [value] if single else list(cast(Iterable[Any], value))
    if not values:
        return  # A feature without a kind, as TensorFlow writes it.
    if all(isinstance(item, (bytes, str)) for item in values):
        feature.bytes_list.value.extend(
            [item.encode() if isinstance(item, str) else item for item in values]
        )
    elif all(isinstance(item, numbers.Integral) for item in values):
        feature.int64_list.value.extend([int(item) for item in values])
    elif all(isinstance(item, numbers.Real) for item in values):
        feature.float_list.value.extend([float(item) for item in values])
    else:
        raise TypeError(f"expected bytes, text or numbers of one kind, not {value!r:.80}")


def decode_example(
    record: bytes, *, index: int | None = None
) -> dict[str, list[bytes] | list[int] | list[float]]:
    """Reads a serialized tf.train.Example.

    Args:
        record: The serialized example.
        index: Number of the record in its file, for the error message.

    Returns:
        The list of values by feature name; an empty list for a feature without a kind.

    Raises:
        CorruptRecordError: The bytes are no tf.train.Example.
    """
    try:
        example = _Example.FromString(record)
    except DecodeError as error:
        raise CorruptRecordError(index, "not a tf.train.Example") from error
    return {name: _values(feature) for name, feature in example.features.feature.items()}


def _values(feature: Any) -> list[Any]:
    kind = feature.WhichOneof("kind")
    return list(getattr(feature, kind).value) if kind else []


def split_example(record: bytes, name: str, *, index: int | None = None) -> tuple[bytes, bytes]:
    """Takes the one value of a bytes feature out of a serialized example.

    Without reading the others: 2 us where decoding and encoding again takes 20.

    Args:
        record: The serialized example.
        name: Name of the feature.
        index: Number of the record in its file, for the error message.

    Returns:
        The value, and the serialized example without this feature.

    Raises:
        CorruptRecordError: The bytes are no example with one such value.
    """
    try:
        return _cut_out(record, _field(b"\x0a", name.encode()))
    except (IndexError, ValueError):  # not as protobuf itself writes it
        features = decode_example(record, index=index)
    value = features.pop(name, [])
    if len(value) != 1 or not isinstance(value[0], bytes):
        raise CorruptRecordError(index, f"feature {name!r} is not one bytes value")
    return value[0], encode_example(features)


def _cut_out(record: bytes, key: bytes) -> tuple[bytes, bytes]:
    """Walks the entries of the map of features, each with its key first, then its value."""
    start, whole = _enter(record, 0, b"\x0a")
    if whole != len(record):
        raise ValueError
    at = start
    while True:
        entry = at
        at, end = _enter(record, at, b"\x0a")
        if record.startswith(key, at):
            break
        at = end
    at += len(key)
    for tag in (b"\x12", b"\x0a", b"\x0a"):  # value, bytes_list, its one value
        at, last = _enter(record, at, tag)
        if last != end:
            raise ValueError
    return record[at:end], _field(b"\x0a", record[start:entry] + record[end:])


def _enter(record: bytes, at: int, tag: bytes) -> tuple[int, int]:
    """Start and end of the content of the field with this tag that begins at a place."""
    if record[at] != tag[0]:
        raise ValueError
    size = shift = 0
    more = True
    while more:
        at += 1
        size |= (record[at] & 0x7F) << shift
        more = record[at] > 0x7F
        shift += 7
    return at + 1, at + 1 + size


def _field(tag: bytes, content: bytes) -> bytes:
    size, prefix = len(content), bytearray(tag)
    while size > 0x7F:
        prefix.append(size & 0x7F | 0x80)
        size >>= 7
    prefix.append(size)
    return bytes(prefix) + content


# Reading examples in TensorFlow.

_KIND = re.compile(r"(bytes|int64|float)(?:\[(\d*)\])?")


def feature_spec(features: Mapping[str, str]) -> dict[str, Any]:
    """Translates the kinds of features into what `tf.io.parse_example` takes.

    Args:
        features: Kind by feature name: "bytes", "int64" or "float" for one value, with "[]" for
            a list of any length, with "[10]" for one of just that length.

    Returns:
        tf.io.FixedLenFeature, or tf.io.RaggedFeature for lists of any length, by feature name.

    Raises:
        ValueError: A kind is none of these.
    """
    import tensorflow as tf

    dtypes = {"bytes": tf.string, "int64": tf.int64, "float": tf.float32}
    spec: dict[str, Any] = {}
    for name, kind in features.items():
        match = _KIND.fullmatch(kind)
        if match is None:
            raise ValueError(
                f"feature {name!r} is of unknown kind {kind!r}: "
                'use "bytes", "int64" or "float", with "[]" for a list'
            )
        dtype, length = dtypes[match[1]], match[2]
        if length == "":
            spec[name] = tf.io.RaggedFeature(dtype)
        else:
            spec[name] = tf.io.FixedLenFeature([] if length is None else [int(length)], dtype)
    return spec


def parse_examples(serialized: tf.Tensor, features: Mapping[str, str]) -> dict[str, Any]:
    """Parses a batch of serialized examples inside a TensorFlow graph.

    Args:
        serialized: Serialized examples, shape [batch], dtype string.
        features: Kind by feature name, as `feature_spec` takes it. Others are passed over.

    Returns:
        A tensor of shape [batch], or [batch, length], by feature name; a tf.RaggedTensor
        [batch, (length)] for a list of any length.
    """
    import tensorflow as tf

    parsed: dict[str, Any] = tf.io.parse_example(serialized, feature_spec(features))
    return parsed
