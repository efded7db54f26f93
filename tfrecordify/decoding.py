"""Batches of images decoded by libjpeg-turbo on all cores, into memory that TensorFlow adopts."""

from __future__ import annotations

import functools
import math
import os
import weakref
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt
import simplejpeg

from tfrecordify.images import BadImageError, ImageSpec, decode_image, render_image
from tfrecordify.records import CorruptRecordError

__all__ = ["Batch", "Pixels", "Shape", "decode_into", "fill_batch", "usable_cores"]

Pixels = npt.NDArray[np.uint8]
Batch = npt.NDArray[Any]  # of pixels, uint8 or float32
Shape = tuple[int, int, int]

_SCALE = np.float32(1 / 255)  # multiplied with, as tf.image.convert_image_dtype does


def usable_cores() -> int:
    """How many cores this process may use: a container is often given fewer than there are."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def fill_batch(
    fill: Callable[[int, Pixels], bytes],
    *,
    size: int,
    shape: Shape,
    on_bad: Callable[[int, str], object],
    floats: bool = False,
) -> tuple[Batch, list[bytes]]:
    """Makes a batch of images, each core filling in the next when it is done with its last.

    Args:
        fill: Called with a place in the batch and its pixels, uint8 [height, width, 3], which it
            fills in; returns what else there is to say of this image.
        size: Images in the batch.
        shape: (height, width, 3) of each, in pixels.
        on_bad: Called for each place where an image or its record is bad, with the reason.
        floats: Whether pixels come out as float32 in 0..1 rather than as uint8 in 0..255.

    Returns:
        RGB pixels, [batch, height, width, 3], in memory that is used again when the array and all
        that share its memory are gone; and what `fill` returned. Bad images are left out.
    """
    batch = _buffers.take((size, *shape), np.float32 if floats else np.uint8)
    rests: dict[int, bytes] = {}
    bad: dict[int, str] = {}
    places = iter(range(size))  # one for all threads: the GIL makes its steps atomic

    def run() -> None:
        scratch = np.empty(shape, np.uint8)  # converted while it is in the core's cache
        for place in places:
            try:
                rests[place] = fill(place, scratch if floats else batch[place])
            except (BadImageError, CorruptRecordError) as error:
                bad[place] = error.reason
                continue
            if floats:
                np.copyto(batch[place], scratch)
                np.multiply(batch[place], _SCALE, out=batch[place])

    tasks = [_threads().submit(run) for _ in range(min(usable_cores(), size))]
    for task in tasks:
        task.result()
    for place in sorted(bad):
        on_bad(place, bad[place])
    good = sorted(rests)
    return (batch[good] if bad else batch), [rests[place] for place in good]


def decode_into(pixels: Pixels, data: bytes, *, resize: bool = False) -> None:
    """Decodes one image into an array of its size.

    JPEGs are decoded with the accurate DCT and smooth upsampling, to the pixels that Pillow and
    OpenCV give; the fast flags gain 4 to 9% and are off by up to 27 levels.

    Args:
        pixels: uint8, [height, width, 3], contiguous; where to.
        data: An image file.
        resize: Whether to resize an image of another size.

    Raises:
        BadImageError: The image is damaged, or of another size.
    """
    if resize:
        np.copyto(pixels, render_image(data, _stretch(pixels.shape[:2])))
        return
    try:
        decoded = simplejpeg.decode_jpeg(data, buffer=pixels)
    except ValueError:  # PNG, CMYK, larger than the buffer, or damaged
        decoded = decode_image(data)
    if decoded.shape != pixels.shape:
        (height, width), (expected_height, expected_width) = decoded.shape[:2], pixels.shape[:2]
        raise BadImageError(
            f"image of {width}x{height} pixels, not {expected_width}x{expected_height}"
        )
    if decoded.base is not pixels and not np.shares_memory(decoded, pixels):
        np.copyto(pixels, decoded)


@functools.cache
def _stretch(size: tuple[int, int]) -> ImageSpec:
    return ImageSpec(size=size, resize_mode="stretch")


@functools.cache
def _threads() -> ThreadPoolExecutor:
    """One pool a process, however many batches are decoded at once: there are no more cores."""
    return ThreadPoolExecutor(usable_cores(), thread_name_prefix="decode")


class _Buffers:
    """Arrays that TensorFlow takes over without a copy, and whose memory comes back.

    TensorFlow adopts an array that a numpy_function returns if its data is aligned to 64 bytes,
    and holds it as long as any tensor needs it. A fresh array of 38 MB, as many as 256 images of
    224x224 take, can cost as much in page faults as decoding into it.
    """

    _ALIGNMENT = 64
    _KEPT = 8  # of each size

    def __init__(self) -> None:
        self._free: defaultdict[int, list[Pixels]] = defaultdict(list)

    def take(self, shape: tuple[int, ...], dtype: Any) -> Batch:
        """Gives an array, of whatever content."""
        count = math.prod(shape)
        size = count * np.dtype(dtype).itemsize
        free = self._free[size]
        try:
            memory = free.pop()
        except IndexError:
            memory = np.empty(size + self._ALIGNMENT, np.uint8)
        start = -memory.ctypes.data % self._ALIGNMENT
        # The views of an array keep the owner of the memory, not that array, unless there is a
        # memoryview between: so this array lives as long as any view of it.
        array: Batch = np.frombuffer(memory.data, dtype, count, start)
        weakref.finalize(array, self._give_back, free, memory).atexit = False
        return array.reshape(shape)

    def _give_back(self, free: list[Pixels], memory: Pixels) -> None:
        if len(free) < self._KEPT:
            free.append(memory)


_buffers = _Buffers()
