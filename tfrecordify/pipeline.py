"""From the records of shards to batches: the tf.data.Dataset that `tfrecordify.reader` sets up."""

from __future__ import annotations

import uuid
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from tfrecordify import records
from tfrecordify.caching import ImageCache
from tfrecordify.decoding import Pixels, decode_into, fill_batch, usable_cores
from tfrecordify.fetching import Piece, Records, Shards
from tfrecordify.hashing import hash128
from tfrecordify.images import BadImageError, decode_image
from tfrecordify.records import CorruptRecordError

__all__ = ["Schema", "Settings", "make_dataset"]

Tensor: TypeAlias = Any  # tensorflow ships no types
Dataset: TypeAlias = Any
OnBad: TypeAlias = Callable[[int, str], object]  # (place in the batch, reason)

_CYCLE = 16  # shards read in turns, a run of records each
_CHUNK = 32  # images decoded in one call that are batched afterwards
_NO_END = np.iinfo(np.int64).max


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The arguments of `tfrecordify.read` that say how to read, under the same names."""

    batch_size: int | None
    shuffle: bool | int
    seed: int | None
    repeat: bool | int
    drop_remainder: bool
    image_dtype: str
    parallelism: int | str | None
    prefetch: int
    deterministic: bool
    augment: Callable[..., Any] | None
    resize: tuple[int, int] | None
    ragged: bool
    on_error: str
    one_hot: bool = False
    cache: str | None = None
    decoder: str = "turbo"

    def __post_init__(self) -> None:
        choices = {
            "image_dtype": ("uint8", "float32"),
            "decoder": ("turbo", "tensorflow"),
            "on_error": ("raise", "skip"),
        }
        for name, known in choices.items():
            if getattr(self, name) not in known:
                raise ValueError(
                    f"{name} is {getattr(self, name)!r}; it must be {' or '.join(known)}"
                )
        for name in ("batch_size", "prefetch", "parallelism", "shuffle", "repeat"):
            value = getattr(self, name)
            if isinstance(value, int) and not isinstance(value, bool) and value < 1:
                raise ValueError(f"{name} is {value}; it must be at least 1")
        if isinstance(self.parallelism, str) and self.parallelism != "autotune":
            raise ValueError(f'parallelism is {self.parallelism!r}; give a number or "autotune"')
        if self.resize is not None and min(self.resize) < 1:
            raise ValueError(f"resize is {self.resize}; give height and width in pixels")
        if self.cache not in (None, "records", "images") and "/" not in str(self.cache):
            raise ValueError(
                f'cache is {self.cache!r}; it must be "records", "images" or a path with a /, '
                f'such as "./{self.cache}"'
            )
        if self.decoder == "tensorflow" and (self.cache is not None or self.on_error == "skip"):
            raise ValueError('cache and on_error="skip" need decoder="turbo"')

    @property
    def calls(self) -> int:
        """How many calls of a step run at once."""
        if self.parallelism == "autotune":
            return int(tf.data.AUTOTUNE)
        return int(self.parallelism or usable_cores())

    @property
    def caches_pixels(self) -> bool:
        """Whether decoded images are cached, in memory or on disk."""
        return self.cache not in (None, "records")

    def options(self) -> Any:
        """What TensorFlow is to know of it."""
        options = tf.data.Options()
        options.deterministic = self.deterministic
        # Shuffling by a seed that is a tensor counts as state outside of the iterator, and would
        # keep it from being saved. There is none: the seed is in the iterator.
        options.experimental_external_state_policy = tf.data.experimental.ExternalStatePolicy.IGNORE
        # Deleting an iterator waits for its autotuner, which sleeps for twice as long each time.
        # CancellationManager::StartCancel wakes it before it sets what Model::OptimizeLoop looks
        # at, so it may sleep on: 1.2 to 4.9 s at the end of a third to a half of all epochs.
        # (tensorflow/core/framework/cancellation.cc and model.cc)
        options.autotune.enabled = self.parallelism == "autotune"
        return options


@dataclass(frozen=True, kw_only=True)
class Schema:
    """What is in a record, and what of it is wanted.

    Attributes:
        image: Name of the feature with the encoded image.
        label: Name of the feature with the label, if there is one.
        extra: Names of other features that are wanted; elements are dicts then.
        kinds: Kind of all these by name, as `records.feature_spec` takes them.
        size: (height, width) of the images in pixels; None where they differ.
        classes: Number of classes, for one-hot labels.
        example_bytes: Size of a record, roughly.
        jpeg: Whether all images are JPEG.
        gzip: Whether the shards are compressed.
        fingerprint: Of the records and their numbers.
    """

    image: str
    label: str | None
    extra: Sequence[str]
    kinds: Mapping[str, str]
    example_bytes: int
    size: tuple[int | None, int | None] = (None, None)
    classes: int = 0
    jpeg: bool = False
    gzip: bool = False
    fingerprint: str = ""


def make_dataset(pieces: Sequence[Piece], schema: Schema, settings: Settings) -> Dataset:
    """Makes the whole way from shards to batches, in the order in which it runs.

    Args:
        pieces: What to read of each shard.
        schema: What is in it.
        settings: How to read it.

    Returns:
        A tf.data.Dataset of elements as `tfrecordify.read` describes them.

    Raises:
        ValueError: The settings do not fit the schema.
    """
    steps = _Steps(pieces, schema, settings)
    # One draw for each epoch decides its order; iterating anew goes on with the draws.
    epochs = tf.data.Dataset.random(settings.seed, rerandomize_each_iteration=True)
    if settings.repeat is not True:
        epochs = epochs.take(int(settings.repeat or 1))
    examples = epochs.flat_map(steps.epoch)
    examples = steps.counted(examples)
    chunks = examples.batch(steps.chunk, settings.drop_remainder and steps.decodes_batches)
    chunks = tf.data.Dataset.zip((chunks, _iterator()))  # (number [chunk], iterator [])
    batches = chunks.map(steps.decode, num_parallel_calls=settings.calls)
    if not steps.decodes_batches:
        batches = steps.batch(steps.counted(batches.unbatch()))
    if settings.augment is not None:
        draws = tf.data.Dataset.random(settings.seed, rerandomize_each_iteration=True)
        batches = tf.data.Dataset.zip((batches, draws.batch(2, drop_remainder=True)))
        batches = batches.map(steps.augment, num_parallel_calls=settings.calls)
    return batches.prefetch(settings.prefetch).with_options(settings.options())


class _Steps:
    """The steps of `make_dataset`, which share what they know and the caches."""

    def __init__(self, pieces: Sequence[Piece], schema: Schema, settings: Settings) -> None:
        self._pieces = pieces
        self._schema = schema
        self._settings = settings
        self._shape: Any = (*(settings.resize or schema.size), 3)
        self._fixed = None not in self._shape
        self._skips = settings.on_error == "skip"
        # Where images are of one size they are converted as they are decoded.
        self._floats = settings.image_dtype == "float32" and self._fixed
        self._check_size()
        self._shards = Shards(pieces, skip_errors=self._skips)
        self._endless = any(piece.stop is None for piece in pieces)
        self._numbered = settings.decoder == "turbo" and not self._endless
        self._records = Records(self._shards, keep=settings.cache == "records")
        self._images = self._image_cache() if settings.caches_pixels else None

    def _check_size(self) -> None:
        if self._fixed:
            return
        if self._settings.batch_size is not None and not self._settings.ragged:
            raise ValueError(
                "images of varied size cannot be batched: give resize=(height, width), "
                "ragged=True, or no batch_size"
            )
        if self._settings.caches_pixels:
            raise ValueError(
                "pixels of varied size cannot be cached: give resize=(height, width), "
                'or cache="records"'
            )

    def _image_cache(self) -> ImageCache:
        path = None
        if self._settings.cache != "images":
            # All that decides which pixels stand under a number.
            key = f"1 {self._schema.fingerprint} {self._shape} {self._settings.resize}"
            path = Path(str(self._settings.cache)) / f"{hash128(key.encode()):032x}"
        return ImageCache(
            self._records,
            image=self._schema.image,
            shape=self._shape,
            resize=self._settings.resize is not None,
            floats=self._floats,
            path=path,
        )

    def epoch(self, seed: Tensor) -> Dataset:
        """All examples in the order of an epoch, as their numbers [].

        Not records but their numbers, which are small to shuffle and to save in a checkpoint: a
        record is read when it is to be decoded. Where they have none, they are serialized [].
        """
        shards = tf.data.Dataset.from_tensor_slices(self._table())  # (place, start, stop, first)
        if self._settings.shuffle:
            shards = shards.shuffle(len(self._pieces), seed=seed)
        examples = shards.interleave(self._numbers, cycle_length=_CYCLE, block_length=Records.RUN)
        if self._settings.shuffle:
            examples = examples.shuffle(self._shuffle_buffer(), seed=seed)
        return examples

    def counted(self, examples: Dataset) -> Dataset:
        """Lets TensorFlow know how many examples there are, where that is known."""
        if self._skips or self._endless:
            return examples
        count = len(self._records) * int(self._settings.repeat or 1)
        if self._settings.repeat is True:
            count = tf.data.INFINITE_CARDINALITY
        return examples.apply(tf.data.experimental.assert_cardinality(count))

    def _shuffle_buffer(self) -> int:
        fitting = max(1, (256 << 20) // max(1, self._schema.example_bytes))
        wanted = min(2048, fitting) if self._settings.shuffle is True else self._settings.shuffle
        return int(wanted if self._endless else min(wanted, len(self._records)))

    @property
    def decodes_batches(self) -> bool:
        """Whether the images decoded in one call are a batch as it comes out."""
        return self._fixed and self._settings.batch_size is not None and not self._skips

    @property
    def chunk(self) -> int:
        """How many images are decoded in one call."""
        if self.decodes_batches:
            return int(self._settings.batch_size or 1)
        return _CHUNK if self._fixed else 1

    def _table(self) -> tuple[npt.NDArray[np.int64], ...]:
        """A row for each piece: its place, start and stop, and the number of its first record."""
        stops = [_NO_END if piece.stop is None else piece.stop for piece in self._pieces]
        starts = [piece.start for piece in self._pieces]
        columns = (range(len(stops)), starts, stops, self._records.firsts)
        return tuple(np.array(column, np.int64) for column in columns)

    def _numbers(self, place: Tensor, start: Tensor, stop: Tensor, first: Tensor) -> Dataset:
        if self._numbered:
            return tf.data.Dataset.range(first, first + stop - start)
        if self._settings.decoder == "tensorflow":
            path = tf.gather([piece.path for piece in self._pieces], place)
            shard = tf.data.TFRecordDataset(path, "GZIP" if self._schema.gzip else "")
            return shard.skip(start).take(stop - start)
        runs = tf.data.Dataset.range(start, stop, Records.RUN).map(
            lambda at: _call(self._read, [place, at], (tf.string, tf.int64))
        )
        runs = runs.take_while(lambda run, count: count > 0)
        return runs.map(lambda run, count: tf.ensure_shape(run, [None])).unbatch()

    def _read(self, place: np.int64, start: np.int64) -> tuple[Any, np.int64]:
        run = self._shards.read(int(place), int(start), Records.RUN)
        return _strings(run), np.int64(len(run))

    def decode(self, items: Tensor, iterator: Tensor) -> Any:
        """Elements of what `epoch` gives, batched."""
        size = items.shape[0] if self.decodes_batches else None
        kinds = dict(self._schema.kinds)
        if self._settings.decoder == "tensorflow":
            values = records.parse_examples(items, kinds)
            images = tf.map_fn(
                self._decode_one,
                values[self._schema.image],
                fn_output_signature=tf.TensorSpec(self._shape, tf.uint8),
            )
        else:
            del kinds[self._schema.image]
            decode = self._decode_numbers if self._numbered else self._decode_records
            dtype = tf.float32 if self._floats else tf.uint8
            images, rests = _call(decode, [items, iterator], (dtype, tf.string))
            rests = tf.ensure_shape(rests, [size])
            values = records.parse_examples(rests, kinds) if kinds else {}
        images = tf.ensure_shape(images, [size, *self._shape])
        if self._settings.image_dtype == "float32":  # nothing is left to do for floats
            images = tf.image.convert_image_dtype(images, tf.float32)
        return self._element({**values, self._schema.image: images})

    def _decode_numbers(self, numbers: Any, iterator: np.int64) -> tuple[Any, Any]:
        wanted = numbers.tolist()
        if self._images is not None:
            images, rests = self._images.fetch(wanted, int(iterator))
            return images, _strings(rests)
        found = self._records.fetch(wanted, int(iterator))
        pairs = [pair for pair in zip(wanted, found, strict=True) if pair[1] is not None]
        return self._decode_batch(
            [record for _, record in pairs if record is not None],
            lambda place, reason: self._records.skip(pairs[place][0], reason),
        )

    def _decode_records(self, serialized: Any, iterator: np.int64) -> tuple[Any, Any]:
        file = self._pieces[0].path if len(self._pieces) == 1 else "one of the files"
        return self._decode_batch(
            serialized, lambda place, reason: self._shards.skip(file, f"an example: {reason}")
        )

    def _decode_batch(self, found: Sequence[bytes], on_bad: OnBad) -> tuple[Any, Any]:
        image, resize = self._schema.image, self._settings.resize is not None
        if not self._fixed:
            return self._decode_single(found, on_bad)

        def fill(place: int, pixels: Pixels) -> bytes:
            encoded, rest = records.split_example(found[place], image)
            decode_into(pixels, encoded, resize=resize)
            return rest

        images, rests = fill_batch(
            fill, size=len(found), shape=self._shape, on_bad=on_bad, floats=self._floats
        )
        return images, _strings(rests)

    def _decode_single(self, found: Sequence[bytes], on_bad: OnBad) -> tuple[Any, Any]:
        for record in found:
            try:
                encoded, rest = records.split_example(record, self._schema.image)
                return decode_image(encoded)[np.newaxis], _strings([rest])
            except (BadImageError, CorruptRecordError) as error:
                on_bad(0, error.reason)
        return np.zeros((0, 1, 1, 3), np.uint8), _strings([])

    def _decode_one(self, encoded: Tensor) -> Tensor:
        if self._schema.jpeg:  # to the same pixels as the other decoder
            image = tf.io.decode_jpeg(encoded, 3, dct_method="INTEGER_ACCURATE")
        else:
            image = tf.io.decode_image(encoded, 3, expand_animations=False)
        if self._settings.resize is not None:
            resized = tf.image.resize(image, self._settings.resize, antialias=True)
            image = tf.saturate_cast(tf.round(resized), tf.uint8)
        return tf.ensure_shape(image, self._shape)

    def _element(self, values: dict[str, Any]) -> Any:
        image, label = self._schema.image, self._schema.label
        if label is not None and self._settings.one_hot:
            values[label] = tf.one_hot(values[label], self._schema.classes)
        labels = [] if label is None else [label]
        if self._schema.extra:
            return {name: values[name] for name in (image, *labels, *self._schema.extra)}
        return values[image] if label is None else (values[image], values[label])

    def batch(self, examples: Dataset) -> Dataset:
        """Batches single examples, as far as asked for."""
        settings = self._settings
        if settings.batch_size is None:
            return examples
        if self._fixed:
            return examples.batch(settings.batch_size, settings.drop_remainder)
        return examples.ragged_batch(settings.batch_size, settings.drop_remainder)

    def augment(self, element: Any, seed: Tensor) -> Any:
        """Augments the images, and the labels where there are some, of an element."""
        augment, schema = self._settings.augment, self._schema
        assert augment is not None
        if not isinstance(element, dict):
            pair = element if isinstance(element, tuple) else (element,)
            return augment(*pair, seed=seed)
        names = [schema.image] if schema.label is None else [schema.image, schema.label]
        result = augment(*(element[name] for name in names), seed=seed)
        results = result if isinstance(result, tuple) else (result,)
        return {**element, **dict(zip(names, results, strict=True))}


def _iterator() -> Dataset:
    """One number without end, another one in each iterator: who asks `Records.fetch`."""
    zero = tf.data.Dataset.from_tensors(0)
    number = zero.map(lambda zero: tf.numpy_function(_draw, [zero], tf.int64, stateful=False))
    numbers = number.flat_map(lambda number: tf.data.Dataset.from_tensors(number).repeat())
    return numbers.apply(tf.data.experimental.assert_cardinality(tf.data.INFINITE_CARDINALITY))


def _draw(_: np.int32) -> np.int64:
    return np.int64(uuid.uuid4().int >> 65)


def _call(method: Callable[..., Any], inputs: Iterable[Tensor], dtypes: Any) -> Any:
    """Calls Python that keeps nothing between calls but what makes it faster.

    TensorFlow never forgets a numpy_function. So it gets a weak reference, and what is cached goes
    when the dataset goes, which refers to all of its steps.
    """
    weak = weakref.WeakMethod(method)

    def call(*arguments: Any) -> Any:
        strong = weak()
        if strong is None:
            raise ReferenceError("the dataset is gone: keep it while it is iterated over")
        return strong(*arguments)

    return tf.numpy_function(call, list(inputs), dtypes, stateful=False)


def _strings(values: Iterable[bytes | None]) -> npt.NDArray[np.object_]:
    return np.array([value for value in values if value is not None], np.object_)
