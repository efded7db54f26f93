"""A dataset as a tf.data.Dataset, ready for training."""

from __future__ import annotations

import dataclasses
import difflib
import itertools
import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal

import tensorflow as tf

from tfrecordify import manifest, records, storage
from tfrecordify.fetching import Piece, ShardError
from tfrecordify.pipeline import Schema, Settings, make_dataset
from tfrecordify.records import IMAGE, LABEL, CorruptRecordError

__all__ = ["ShardError", "read", "read_files"]

logger = logging.getLogger(__name__)

_EVEN = 20  # shards for each reader from which one shard more or less is within 5%


def read(
    dataset: str | Path,
    *,
    split: str,
    batch_size: int | None = None,
    shuffle: bool | int = False,
    seed: int | None = None,
    repeat: bool | int = False,
    drop_remainder: bool = False,
    image_dtype: Literal["uint8", "float32"] = "uint8",
    one_hot: bool = False,
    features: Sequence[str] = (),
    cache: str | Path | None = None,
    shard: tuple[int, int] = (0, 1),
    equal_lengths: bool = False,
    parallelism: int | Literal["autotune"] | None = None,
    prefetch: int = 1,
    deterministic: bool = True,
    augment: Callable[..., Any] | None = None,
    decoder: Literal["turbo", "tensorflow"] = "turbo",
    resize: int | tuple[int, int] | None = None,
    ragged: bool = False,
    on_error: Literal["raise", "skip"] = "raise",
) -> tf.data.Dataset:
    """Reads a split of a dataset as training wants it.

    With a seed the order is the same in every run, with and without a cache, and differs between
    epochs, whether they come from `repeat` or from iterating anew, as `model.fit` does. An
    iterator can be saved in tf.train.Checkpoint and goes on with the next example; the checkpoint
    holds the shuffle buffer and the batches decoded ahead.

    Args:
        dataset: Folder of the dataset, or the path of its dataset.json.
        split: Name of the split.
        batch_size: Examples in a batch; None for single examples.
        shuffle: Whether to shuffle: the shards in each epoch, and the examples in a buffer of this
            many. True takes 2,048, or what fits into 256 MB: the examples of a shard are a
            uniform sample in random order already.
        seed: Of the order and of the augmentation; None for another one in each run.
        repeat: How many epochs; True for endlessly.
        drop_remainder: Whether to leave out a last batch that is not full; gives static shapes.
        image_dtype: "uint8" in 0..255, or "float32" in 0..1.
        one_hot: Whether labels are float32 [classes] instead of an int64 number.
        features: Names of other features that are wanted, such as "image/filename".
        cache: "records" keeps the encoded records in memory, "images" the decoded pixels; a path
            keeps the pixels on a local disk, for later runs too.
        shard: (index, count) of this reader, when several share an epoch: each example goes to
            one of them.
        equal_lengths: Whether all those readers give the same number of examples, for synchronous
            training, and the few that are left over to none.
        parallelism: Calls that run at once; None for one a core, "autotune" for TensorFlow's
            choice, which may stall at the end of each epoch.
        prefetch: Batches made ready ahead.
        deterministic: Whether the order may not depend on which call ends first.
        augment: Called as augment(images, labels, seed=...), or without the labels where there
            are none, and returns what it was given; see `tfrecordify.augment`. The seed is int64
            [2], another one for each batch.
        decoder: "turbo" is libjpeg-turbo through Python, "tensorflow" pure TensorFlow, about half
            as fast and without names of files in its errors.
        resize: (height, width) in pixels, or one number for both, to stretch all images to.
        ragged: Whether images of varied size are batched as a tf.RaggedTensor.
        on_error: "raise", or "skip" to pass over damaged examples, which are counted in the log.

    Returns:
        Elements (image, label), as `model.fit` takes them, or image alone when unlabelled. When
        `features` are asked for, a dict of "image", "label" and these. Images are [batch, height,
        width, 3], or without the batch; their size is static where all have the same.

    Raises:
        ValueError: An argument is wrong, or does not fit the dataset.
        ManifestError: There is no dataset, or one that cannot be trusted.
        ShardError: A shard is missing, or not as long as its manifest says.
    """
    settings = Settings(
        batch_size=batch_size,
        shuffle=shuffle,
        seed=seed,
        repeat=repeat,
        drop_remainder=drop_remainder,
        image_dtype=image_dtype,
        one_hot=one_hot,
        cache=str(cache.absolute()) if isinstance(cache, Path) else cache,
        parallelism=parallelism,
        prefetch=prefetch,
        deterministic=deterministic,
        augment=augment,
        decoder=decoder,
        resize=(resize, resize) if isinstance(resize, int) else resize,
        ragged=ragged,
        on_error=on_error,
    )
    info = manifest.load(os.fspath(dataset))
    part = info.splits[_known("split", split, info.splits)]
    label = LABEL if part.labelled else None
    if one_hot and label is None:
        raise ValueError(f"one_hot=True, but split {split} has no labels")
    schema = Schema(
        image=IMAGE,
        label=label,
        extra=[_known("feature", name, info.features) for name in features],
        kinds=_kinds((IMAGE, label, *features), info.features),
        example_bytes=part.bytes // max(1, part.examples),
        size=(info.image_shape[0], info.image_shape[1]),
        classes=len(info.label_names),
        jpeg=info.encode_format == "jpeg",
        gzip=info.compression == "gzip",
        fingerprint=f"{info.fingerprint} {split} {shard} {equal_lengths}",
    )
    folder = os.path.dirname(manifest.manifest_path(os.fspath(dataset)))
    paths = [storage.join(folder, file.file) for file in part.shards]
    shards = [
        Piece(path=path, start=0, stop=file.examples, examples=file.examples)
        for path, file in zip(paths, part.shards, strict=True)
    ]
    sizes = {path: file.bytes for path, file in zip(paths, part.shards, strict=True)}
    pieces = _deal(shards, shard, equal_lengths=equal_lengths)
    return make_dataset(_found(pieces, sizes, skip=on_error == "skip"), schema, settings)


def read_files(
    files: str | Sequence[str],
    *,
    image: str,
    label: str | None = None,
    features: Sequence[str] = (),
    batch_size: int | None = None,
    shuffle: bool | int = False,
    seed: int | None = None,
    repeat: bool | int = False,
    drop_remainder: bool = False,
    image_dtype: Literal["uint8", "float32"] = "uint8",
    shard: tuple[int, int] = (0, 1),
    equal_lengths: bool = False,
    parallelism: int | Literal["autotune"] | None = None,
    prefetch: int = 1,
    deterministic: bool = True,
    augment: Callable[..., Any] | None = None,
    resize: int | tuple[int, int] | None = None,
    ragged: bool = False,
    on_error: Literal["raise", "skip"] = "raise",
) -> tf.data.Dataset:
    """Reads TFRecord files that others wrote, whatever their features are called.

    Gzip, zlib and plain files are told apart by their bytes, the kinds of features by the first
    example. How many examples there are is not known, nor the size of their images.

    Args:
        files: A glob pattern, local or gs://, or the paths.
        image: Name of the feature with the encoded image.
        label: Name of the feature with the label: it comes as it is stored, a number, text, or a
            list such as a one-hot label.
        features: Names of other features that are wanted.
        batch_size: As for `read`, like all that follow.
        shuffle: As for `read`.
        seed: As for `read`.
        repeat: As for `read`.
        drop_remainder: As for `read`.
        image_dtype: As for `read`.
        shard: As for `read`; the examples are counted first, which takes a pass over the files.
        equal_lengths: As for `read`.
        parallelism: As for `read`.
        prefetch: As for `read`.
        deterministic: As for `read`.
        augment: As for `read`.
        resize: As for `read`.
        ragged: As for `read`.
        on_error: As for `read`.

    Returns:
        Elements as of `read`, a dict with the given names when `features` are asked for.

    Raises:
        ValueError: No file matches, or the first example has no such feature.
        ShardError: The first record is damaged.
    """
    settings = Settings(
        batch_size=batch_size,
        shuffle=shuffle,
        seed=seed,
        repeat=repeat,
        drop_remainder=drop_remainder,
        image_dtype=image_dtype,
        parallelism=parallelism,
        prefetch=prefetch,
        deterministic=deterministic,
        augment=augment,
        resize=(resize, resize) if isinstance(resize, int) else resize,
        ragged=ragged,
        on_error=on_error,
    )
    paths = list(files)
    if isinstance(files, str):
        paths = sorted(file.path for file in storage.glob_files(files))
    if not paths:
        raise ValueError(f"no file matches {files}: check the pattern")
    found, size = _first_example(paths[0])
    for name in (image, label, *features):
        if name is not None:
            _known("feature", name, found)
    schema = Schema(
        image=image,
        label=label,
        extra=features,
        kinds=_kinds((image, label, *features), found),
        example_bytes=size,
    )
    pieces = [Piece(path=path, start=0, stop=None, examples=None) for path in paths]
    if shard[1] > 1:  # to deal examples out, their number must be known
        pieces = [_counted(piece) for piece in pieces]
        pieces = _deal(pieces, shard, equal_lengths=equal_lengths)
    return make_dataset(pieces, schema, settings)


def _counted(piece: Piece) -> Piece:
    with storage.open_read(piece.path) as file:
        examples = sum(1 for _ in records.scan_records(file))
    return dataclasses.replace(piece, stop=examples, examples=examples)


def _known(what: str, name: str, known: Iterable[str]) -> str:
    known = list(known)
    if name in known:
        return name
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}"
    raise ValueError(f"there is no {what} {name!r}; {hint}")


def _kinds(names: Iterable[str | None], kinds: Mapping[str, str]) -> dict[str, str]:
    return {name: kinds[name] for name in names if name is not None}


def _first_example(path: str) -> tuple[dict[str, str], int]:
    """The kinds of features in the first example of a file, and its size."""
    with storage.open_read(path) as file:
        try:
            record = next(records.read_records(file), None)
            example = {} if record is None else records.decode_example(record, index=0)
        except CorruptRecordError as error:
            raise ShardError(f"{path}: {error}; is it a TFRecord file of examples?") from error
    return {name: _kind(values) for name, values in example.items()}, len(record or b"")


def _kind(values: Sequence[Any]) -> str:
    kind = {bytes: "bytes", int: "int64", float: "float"}[type(values[0]) if values else bytes]
    return kind if len(values) == 1 else f"{kind}[{len(values) or ''}]"


def _deal(shards: Sequence[Piece], shard: tuple[int, int], *, equal_lengths: bool) -> list[Piece]:
    """What one of several readers reads: whole shards where that is even enough, else a range.

    A range is one of all examples in their order, so that a reader opens as few shards as can be.
    """
    index, count = shard
    if not 0 <= index < count:
        raise ValueError(f"shard is {shard}; it must be (index, count), 0 <= index < count")
    total = _length(shards)
    if len(shards) % count == 0 or len(shards) >= _EVEN * count:
        readers = [list(shards[reader::count]) for reader in range(count)]
    else:
        cuts = [total * reader // count for reader in range(count + 1)]
        readers = [_range(shards, *ends) for ends in itertools.pairwise(cuts)]
    shortest = min(_length(reader) for reader in readers)
    mine = _range(readers[index], 0, shortest) if equal_lengths else readers[index]
    if not mine:
        raise ValueError(f"no example is left for reader {index} of {count}: use fewer readers")
    return mine


def _length(pieces: Iterable[Piece]) -> int:
    return sum((piece.stop or 0) - piece.start for piece in pieces)


def _range(pieces: Sequence[Piece], start: int, stop: int) -> list[Piece]:
    """The examples from `start` to before `stop`, counted through all pieces."""
    chosen = []
    for piece in pieces:
        size = _length([piece])
        begin, end = max(start, 0), min(stop, size)
        if begin < end:
            begin, end = piece.start + begin, piece.start + end
            chosen.append(dataclasses.replace(piece, start=begin, stop=end))
        start, stop = start - size, stop - size
    return chosen


def _found(pieces: Sequence[Piece], sizes: Mapping[str, int], *, skip: bool) -> list[Piece]:
    """Looks the files up before the first is read: what is missing should not cost an epoch."""
    with ThreadPoolExecutor(storage.read_threads(pieces[0].path)) as threads:
        files = threads.map(storage.stat, [piece.path for piece in pieces])
    found = []
    for piece, file in zip(pieces, files, strict=True):
        fault = None
        if file is None:
            fault = "is missing"
        elif file.size != sizes[piece.path]:
            fault = f"has {file.size} bytes, not the {sizes[piece.path]} of its manifest"
        if fault and not skip:
            raise ShardError(
                f"{piece.path} {fault}: restore it, convert again, or read the rest with "
                'on_error="skip"'
            )
        if fault:
            logger.warning("%s %s", piece.path, fault)
        if file is not None:
            found.append(piece)
    if not found:
        raise ShardError(f"{pieces[0].path} and all other shards are missing: convert again")
    return found
