"""Image augmentations for tf.data: seeded, stateless, vectorised over the batch.

    augment = compose(random_crop(4), flip_left_right(), cutout(16))
    images = augment(images, seed=seeds)
    images, labels = compose(augment, mixup(0.2))(images, labels, seed=seeds)
    dataset = dataset.apply(augment.seeded(7))

Every name here makes an `Augmentation`, and every augmentation is called the same way, eagerly
and in `Dataset.map`; it returns what it was given, images or (images, labels):

- `images`: uint8 in 0..255 or float32 in 0..1, one image [height, width, 3] or a batch
  [batch, height, width, 3]. Dtype, range and shape come out as they went in, static shapes too.
  Two exceptions: `random_resized_crop(size)` gives that size, `normalise` float32 of mean
  0 and standard deviation 1.
- `labels`: anything; passed through untouched, except by `mixup` and `cutmix`, which take a batch
  and its float one-hot labels [batch, classes] and mix both (`Augmentation.mixes_labels` tells).
- `seed`: int32 or int64, [2] for one image, [batch, 2] for a batch, any numbers: (seed, position)
  pairs that differ by one are as good as random ones. [2] for a batch gives each example a seed
  of its own, by its place. The random draws of an example follow from its own seed alone: not
  from its place in the batch, the threads, or any state that a checkpoint would have to keep.
  Only `mixup` and `cutmix` depend on the rest of the batch, as they must.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf

__all__ = [
    "Augmentation",
    "brightness",
    "cifar",
    "compose",
    "contrast",
    "cutmix",
    "cutout",
    "flip_left_right",
    "hue",
    "mixup",
    "normalise",
    "random_crop",
    "random_resized_crop",
    "rotate",
    "saturation",
    "standard",
]

Tensor: TypeAlias = Any  # tensorflow ships no types
ImageTransform: TypeAlias = Callable[[Tensor, Tensor], Tensor]  # (images, seeds) -> images
PairTransform: TypeAlias = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]

# Rec. 601, as in Pillow's convert("L").
LUMA = (0.299, 0.587, 0.114)

GOLDEN_GAMMA = np.uint64(0x9E3779B97F4A7C15)  # SplitMix64's step, 2**64 by the golden ratio


@dataclass(frozen=True)
class Augmentation:
    """An augmentation of images, or of a batch of images and their labels.

    Attributes:
        name: The call that made it.
        transform: (images [batch, height, width, 3], labels or None, seeds int64 [batch, 2]) to
            (images, labels). Callers want the augmentation itself, which checks its arguments.
        mixes_labels: Whether labels must be given, one-hot, because they are mixed as well.
        normalises: Whether the result has left the range of images, so that nothing may follow.
    """

    name: str
    transform: PairTransform
    mixes_labels: bool = False
    normalises: bool = False

    def __repr__(self) -> str:
        return self.name

    def __call__(self, images: Tensor, labels: Tensor = None, *, seed: Tensor) -> Tensor:
        """Augments one image or a batch.

        Args:
            images: uint8 in 0..255 or float32 in 0..1, [height, width, 3] or
                [batch, height, width, 3].
            labels: Passed through; float one-hot [batch, classes] where they are mixed.
            seed: int32 or int64, [2], or for a batch [batch, 2].

        Returns:
            images, or (images, labels) when labels are given.

        Raises:
            ValueError: On images, labels or a seed of another shape or dtype.
        """
        images = tf.convert_to_tensor(images)
        seed = tf.cast(tf.convert_to_tensor(seed, dtype_hint=tf.int64), tf.int64)
        _check_images(images)
        if self.mixes_labels:
            labels = _checked_labels(labels, images, self.name)
        single = images.shape.rank == 3
        batch = images[tf.newaxis] if single else images
        result, labels = self.transform(batch, labels, _seeds(seed, batch, single))
        result = tf.ensure_shape(result, [batch.shape[0], None, None, 3])
        result = result[0] if single else result
        return result if labels is None else (result, labels)

    def seeded(self, seed: int, *, parallelism: int | None = None) -> Callable[[Any], Any]:
        """For `Dataset.apply`: augments each element, an image, a batch, or a pair with labels.

        The draws differ between elements and between epochs, and are the same in every run; the
        dataset's own iterator, and so its checkpoint, knows where they stand.

        Args:
            seed: Of the whole sequence of draws.
            parallelism: Elements augmented at once; None for the number of cores.

        Returns:
            A function from dataset to dataset.
        """

        def augment(element: Any, draw: Tensor) -> Any:
            images, *labels = element if isinstance(element, tuple) else (element,)
            return self(images, *labels, seed=draw)

        def apply(dataset: Any) -> Any:
            draws = tf.data.Dataset.random(seed, rerandomize_each_iteration=True)
            draws = draws.batch(2, drop_remainder=True)  # int64 [2]
            pairs = tf.data.Dataset.zip((dataset, draws))
            return pairs.map(augment, num_parallel_calls=parallelism or os.cpu_count())

        return apply


def compose(*augmentations: Augmentation) -> Augmentation:
    """One augmentation after the other, each with draws of its own; `normalise` only at the end."""

    def transform(images: Tensor, labels: Tensor, seeds: Tensor) -> tuple[Tensor, Tensor]:
        for stream, augmentation in enumerate(augmentations, start=1):
            images, labels = augmentation.transform(images, labels, _fold(seeds, stream))
        return images, labels

    normalises = [augmentation.normalises for augmentation in augmentations]
    _require(not any(normalises[:-1]), "normalise must come last: the others need pixel values")
    return Augmentation(
        name=f"compose({', '.join(map(repr, augmentations))})",
        transform=transform,
        mixes_labels=any(augmentation.mixes_labels for augmentation in augmentations),
        normalises=any(normalises),
    )


def standard() -> Augmentation:
    """A random resized crop that keeps the image's size, and a flip: ImageNet's usual training."""
    return compose(random_resized_crop(), flip_left_right())


def cifar() -> Augmentation:
    """A random crop out of 4 pixels of reflected border, and a flip: CIFAR's usual training.

    As in He et al., 2015, https://arxiv.org/abs/1512.03385, with the reflected border of
    Zagoruyko and Komodakis, 2016, https://arxiv.org/abs/1605.07146.
    """
    return compose(random_crop(4), flip_left_right())


def flip_left_right() -> Augmentation:
    """Mirrors every second image, at random."""

    def transform(images: Tensor, seeds: Tensor) -> Tensor:
        flips = _uniform(seeds, 1)[:, 0] < 0.5
        kept, mirrored = (tf.cast(tf.where(c)[:, 0], tf.int32) for c in (~flips, flips))
        # Only what flips is moved, as rows [batch * height, width, 3], the one shape for which
        # tf.reverse has a fast kernel: 10 times as fast as tf.where over tf.reverse of the batch.
        flipped = tf.gather(images, mirrored)
        _, height, width, channels = _shape(images)
        rows = tf.reverse(tf.reshape(flipped, [-1, width, channels]), axis=[1])
        flipped = tf.reshape(rows, [-1, height, width, channels])
        return tf.dynamic_stitch([kept, mirrored], [tf.gather(images, kept), flipped])

    return _on_images("flip_left_right()", transform)


def random_crop(padding: int = 4) -> Augmentation:
    """Shifts the image by up to `padding` pixels each way, the border filled by reflection.

    The same as padding by NumPy's "reflect" (the edge pixel is not repeated) on all sides and
    cropping the image's own size at a uniformly random place.

    Args:
        padding: Pixels, 1 or more, less than the image's height and width.
    """
    _require(padding >= 1, f"padding={padding} must be at least 1 pixel")

    def reflected(offsets: Tensor, size: Tensor) -> Tensor:
        index = tf.abs(offsets[:, tf.newaxis] + tf.range(size) - padding)
        return size - 1 - tf.abs(size - 1 - index)

    def transform(images: Tensor, seeds: Tensor) -> Tensor:
        _, height, width, _ = _shape(images)
        for side in images.shape[1:3]:
            _require(side is None or padding < side, f"padding={padding} must be below {side}")
        offsets = _integers(_uniform(seeds, 2), 2 * padding + 1)
        rows = tf.gather(images, reflected(offsets[:, 0], height), axis=1, batch_dims=1)
        return tf.gather(rows, reflected(offsets[:, 1], width), axis=2, batch_dims=1)

    return _on_images(f"random_crop({padding})", transform)


def random_resized_crop(
    size: int | tuple[int, int] | None = None,
    *,
    scale: tuple[float, float] = (0.08, 1.0),
    ratio: tuple[float, float] = (3 / 4, 4 / 3),
) -> Augmentation:
    """A window of random area and aspect ratio, resized: the Inception crop.

    Of Szegedy et al., 2014, https://arxiv.org/abs/1409.4842, drawn as torchvision draws it: area
    uniform, ratio log-uniform, whole pixels, the first of ten draws that fits, else the largest
    window within the ratios. Resized as tf.image.resize does: bilinear, not antialiased.
    Not fused with decoding, because on 224x224 images TensorFlow's decode_and_crop_jpeg of these
    windows runs at 0.7 times the rate of simplejpeg decoding the whole image.

    Args:
        size: Of the result, side or (height, width), pixels; None keeps the image's.
        scale: Smallest and largest area of the window, as part of the image's.
        ratio: Smallest and largest width of the window by its height.
    """
    _require(0 < scale[0] <= scale[1] <= 1, f"scale={scale} must be (low, high) within 0..1")
    _require(0 < ratio[0] <= ratio[1], f"ratio={ratio} must be (low, high) above 0")
    sides = (size, size) if isinstance(size, int) else size
    _require(sides is None or min(sides) > 0, f"size={size} must be at least 1 pixel")

    def resized(image_and_window: tuple[Tensor, Tensor]) -> Tensor:
        image, window = image_and_window
        top, left, height, width = tf.unstack(window)
        cropped = tf.slice(image, [top, left, 0], [height, width, 3])
        return _restore(tf.image.resize(cropped, sides or _shape(image)[:2]), image.dtype)

    def transform(images: Tensor, seeds: Tensor) -> Tensor:
        _, height, width, channels = images.shape
        _, rows, columns, _ = _shape(images)
        windows = _inception_windows(seeds, rows, columns, scale, ratio)
        result = tf.TensorSpec([*(sides or (height, width)), channels], images.dtype)
        # One by one: 2.5 times as fast as crop_and_resize, whose float32 batch leaves the cache.
        return tf.map_fn(resized, (images, windows), fn_output_signature=result)

    return _on_images(f"random_resized_crop({size}, scale={scale}, ratio={ratio})", transform)


def rotate(degrees: float = 10.0) -> Augmentation:
    """Rotates about the image's centre by a uniformly random angle, bilinear.

    The corners fill with the mirrored image (the edge pixel repeated, NumPy's "symmetric").

    Args:
        degrees: The largest angle either way, 0..180.
    """
    _require(0 <= degrees <= 180, f"degrees={degrees} must be within 0..180")

    def transform(images: Tensor, seeds: Tensor) -> Tensor:
        _, height, width, _ = _shape(images)
        angles = _between(_uniform(seeds, 1)[:, 0], -math.radians(degrees), math.radians(degrees))
        cos, sin, zero = tf.cos(angles), tf.sin(angles), tf.zeros_like(angles)
        x, y = (tf.cast(side - 1, tf.float64) / 2 for side in (width, height))
        to_input = [cos, sin, x - cos * x - sin * y, -sin, cos, y + sin * x - cos * y, zero, zero]
        result = tf.raw_ops.ImageProjectiveTransformV3(
            images=tf.cast(images, tf.float32),  # on uint8 the kernel truncates
            transforms=tf.cast(tf.stack(to_input, axis=-1), tf.float32),
            output_shape=tf.stack([height, width]),
            fill_value=0.0,
            interpolation="BILINEAR",
            fill_mode="REFLECT",
        )
        return _restore(result, images.dtype)

    return _on_images(f"rotate({degrees})", transform)


def brightness(amount: float = 0.2) -> Augmentation:
    """Multiplies all values by a factor uniform in 1 - amount..1 + amount, and clips.

    Brightness, contrast and saturation are those of Pillow's ImageEnhance and torchvision's
    ColorJitter: factor * image + (1 - factor) * base, where base is black, the image's mean luma
    (Rec. 601), or each pixel's luma.

    Args:
        amount: 0..1.
    """

    def adjust(values: Tensor, factors: Tensor) -> Tensor:
        return factors * values

    return _colour("brightness", amount, adjust)


def contrast(amount: float = 0.2) -> Augmentation:
    """Moves all values from or to the image's mean luma by a factor in 1 - amount..1 + amount.

    As `brightness`, which gives the formula.

    Args:
        amount: 0..1.
    """

    def adjust(values: Tensor, factors: Tensor) -> Tensor:
        means = tf.reduce_mean(values, axis=[1, 2], keepdims=True)
        luma = tf.reduce_sum(means * LUMA, axis=-1, keepdims=True)
        return factors * values + (1 - factors) * luma

    return _colour("contrast", amount, adjust)


def saturation(amount: float = 0.2) -> Augmentation:
    """Moves each pixel from or to its own luma by a factor in 1 - amount..1 + amount.

    As `brightness`, which gives the formula.

    Args:
        amount: 0..1.
    """

    def adjust(values: Tensor, factors: Tensor) -> Tensor:
        to_luma = tf.tile(tf.constant(LUMA)[:, tf.newaxis], [1, 3])
        matrices = factors * tf.eye(3) + (1 - factors) * to_luma  # [batch, 1, 3, 3]
        pixels = tf.reshape(values, [tf.shape(values)[0], -1, 3])
        return tf.reshape(pixels @ matrices[:, 0], tf.shape(values))

    return _colour("saturation", amount, adjust)


def hue(amount: float = 0.05) -> Augmentation:
    """Turns the hue (HSV) by a part of the circle uniform in -amount..amount.

    Args:
        amount: 0..0.5, in turns: 0.5 reaches the opposite colour.
    """
    _require(0 <= amount <= 0.5, f"amount={amount} must be within 0..0.5 turns")

    def transform(images: Tensor, seeds: Tensor) -> Tensor:
        turns = _by_image(_between(_uniform(seeds, 1)[:, 0], -amount, amount))
        # The kernels keep the scale of the value channel, so 0..255 needs no division.
        hue, saturation, value = tf.split(
            tf.image.rgb_to_hsv(tf.cast(images, tf.float32)), 3, axis=-1
        )
        hsv = tf.concat([(hue + turns) % 1.0, saturation, value], axis=-1)
        return _restore(tf.image.hsv_to_rgb(hsv), images.dtype)

    return _on_images(f"hue({amount})", transform)


def cutout(
    size: int = 16, *, fill: tuple[float, float, float] = (127.5, 127.5, 127.5)
) -> Augmentation:
    """Blanks a square about a uniformly random pixel; what lies outside the image is cut off.

    Of DeVries and Taylor, 2017, https://arxiv.org/abs/1708.04552, who fill with the dataset's
    mean (16 pixels for CIFAR-10, 8 for CIFAR-100, 112 of ImageNet's 224).

    Args:
        size: Side of the square, pixels.
        fill: Red, green and blue in 0..255, for images of any dtype, as in `Split.mean`.
    """
    _require(size >= 1, f"size={size} must be at least 1 pixel")
    _require(all(0 <= value <= 255 for value in fill), f"fill={fill} must be within 0..255")

    def transform(images: Tensor, seeds: Tensor) -> Tensor:
        sides = tf.fill(tf.shape(seeds), size)
        colour = _restore(tf.constant(fill, tf.float32) * _unit(images), images.dtype)
        inside, _ = _windows(images, _uniform(seeds, 2), sides)
        return _select(inside, tf.broadcast_to(colour, tf.shape(images)), images)

    return _on_images(f"cutout({size}, fill={fill})", transform)


def normalise(mean: tuple[float, float, float], std: tuple[float, float, float]) -> Augmentation:
    """(image - mean) / std by channel, as float32; the last augmentation of all.

    The dataset's own are in its manifest: `normalise(split.mean, split.std)`, of the training
    split for every split. Pixels of that split come out with mean 0 and standard deviation 1.

    Args:
        mean: Of red, green and blue, in 0..255 whatever the dtype of the images.
        std: Of red, green and blue, in 0..255 whatever the dtype of the images.
    """
    _require(len(mean) == len(std) == 3, "mean and std must have three channels each")
    _require(all(value > 0 for value in std), f"std={std} must be above 0 in each channel")
    _require(max(mean) > 1, f"mean={mean} must be in 0..255: multiply means of 0..1 by 255")

    def transform(images: Tensor, seeds: Tensor) -> Tensor:
        means, stds = (tf.constant(v, tf.float32) * _unit(images) for v in (mean, std))
        return (tf.cast(images, tf.float32) - means) * (1 / stds)

    return replace(_on_images(f"normalise({mean}, {std})", transform), normalises=True)


def mixup(alpha: float = 0.2) -> Augmentation:
    """Blends each image and its label with those of another example of the batch.

    Of Zhang et al., 2017, https://arxiv.org/abs/1710.09412: weight * own + (1 - weight) * other,
    each example with its own weight from Beta(alpha, alpha), the others a random permutation.

    Args:
        alpha: Above 0; the smaller, the closer the weights to 0 and 1.
    """
    _require(alpha > 0, f"alpha={alpha} must be above 0")

    def transform(images: Tensor, labels: Tensor, seeds: Tensor) -> tuple[Tensor, Tensor]:
        weights, others = _beta(seeds, alpha), _permutation(seeds)
        theirs = tf.cast(tf.gather(images, others), tf.float32)
        ours = tf.cast(images, tf.float32)
        mixed = theirs + _by_image(weights) * (ours - theirs)
        return _restore(mixed, images.dtype), _mix_labels(labels, others, weights)

    return Augmentation(f"mixup({alpha})", transform, mixes_labels=True)


def cutmix(alpha: float = 1.0) -> Augmentation:
    """Pastes a window of another example of the batch over each image, and mixes their labels.

    Of Yun et al., 2019, https://arxiv.org/abs/1905.04899: the window has the image's aspect ratio
    and an area of 1 - weight of it, weight from Beta(alpha, alpha), about a uniformly random
    pixel; labels are mixed by the area left when what lies outside the image is cut off.

    Args:
        alpha: Above 0; the smaller, the closer the windows to nothing and everything.
    """
    _require(alpha > 0, f"alpha={alpha} must be above 0")

    def transform(images: Tensor, labels: Tensor, seeds: Tensor) -> tuple[Tensor, Tensor]:
        weights, others = _beta(seeds, alpha), _permutation(seeds)
        _, height, width, _ = _shape(images)
        size = tf.cast(tf.stack([height, width]), tf.float64)
        sides = tf.cast(size * tf.sqrt(1 - weights)[:, tf.newaxis], tf.int32)
        inside, part = _windows(images, _uniform(_fold(seeds, 3), 2), sides)
        mixed = _select(inside, tf.gather(images, others), images)
        return mixed, _mix_labels(labels, others, 1 - part)

    return Augmentation(f"cutmix({alpha})", transform, mixes_labels=True)


def _on_images(name: str, transform: ImageTransform) -> Augmentation:
    """An augmentation that leaves labels alone."""

    def pair_transform(images: Tensor, labels: Tensor, seeds: Tensor) -> tuple[Tensor, Tensor]:
        return transform(images, seeds), labels

    return Augmentation(name, pair_transform)


def _colour(name: str, amount: float, adjust: Callable[[Tensor, Tensor], Tensor]) -> Augmentation:
    """An augmentation by `adjust`(float32 values, factors [batch, 1, 1, 1])."""
    _require(0 <= amount <= 1, f"amount={amount} must be within 0..1")

    def transform(images: Tensor, seeds: Tensor) -> Tensor:
        factors = _between(_uniform(seeds, 1)[:, 0], 1 - amount, 1 + amount)
        adjusted = adjust(tf.cast(images, tf.float32), _by_image(factors))
        return _restore(adjusted, images.dtype)

    return _on_images(f"{name}({amount})", transform)


def _inception_windows(
    seeds: Tensor,
    height: Tensor,
    width: Tensor,
    scale: tuple[float, float],
    ratio: tuple[float, float],
) -> Tensor:
    """Windows (top, left, height, width) in pixels, int32 [batch, 4]."""
    draws = _uniform(seeds, 22)
    image = tf.cast(tf.stack([height, width]), tf.float64)
    areas = _between(draws[:, :10], *scale) * image[0] * image[1]
    ratios = tf.exp(_between(draws[:, 10:20], math.log(ratio[0]), math.log(ratio[1])))
    sizes = tf.sqrt(tf.stack([areas / ratios, areas * ratios], axis=-1))  # [batch, 10, 2]
    low, high = ratio
    largest = tf.minimum(image, tf.stack([image[1] / low, image[0] * high]))
    sizes = (
        tf.pad(sizes, [[0, 0], [0, 1], [0, 0]])
        + tf.one_hot(10, 11, dtype=tf.float64)[:, tf.newaxis] * largest
    )
    sizes = tf.maximum(tf.round(sizes), 1)
    fitting = tf.reduce_all(sizes <= image, axis=-1)  # [batch, 11], the last always
    first = tf.argmax(tf.cast(fitting, tf.int32), axis=1)
    size = tf.cast(tf.gather(sizes, first, axis=1, batch_dims=1), tf.int32)
    starts = _integers(draws[:, 20:], tf.stack([height, width]) - size + 1)
    return tf.concat([starts, size], axis=1)


def _windows(images: Tensor, places: Tensor, sides: Tensor) -> tuple[Tensor, Tensor]:
    """Windows of `sides` [batch, 2] about the pixels at `places` [batch, 2] in 0..1.

    Returns:
        Whether a value is inside, bool [batch, height, width * channels]; the part of the image
        inside, float32 [batch].
    """
    _, height, width, channels = _shape(images)

    def span(axis: int, size: Tensor) -> Tensor:
        start = _integers(places[:, axis], size) - sides[:, axis] // 2
        index = tf.range(size) - start[:, tf.newaxis]
        return (index >= 0) & (index < sides[:, axis, tf.newaxis])

    rows, columns = span(0, height), span(1, width)
    part = math.prod(tf.reduce_mean(tf.cast(side, tf.float32), axis=1) for side in (rows, columns))
    columns = tf.repeat(columns, channels, axis=1)
    return rows[:, :, tf.newaxis] & columns[:, tf.newaxis, :], part


def _select(inside: Tensor, chosen: Tensor, other: Tensor) -> Tensor:
    """tf.where by values; over a broadcast [batch, height, width, 1] it takes 3 times as long."""
    shape = tf.shape(inside)
    result = tf.where(inside, tf.reshape(chosen, shape), tf.reshape(other, shape))
    return tf.reshape(result, _shape(other))


def _mix_labels(labels: Tensor, others: Tensor, weights: Tensor) -> Tensor:
    weights = tf.cast(weights, labels.dtype)[:, tf.newaxis]
    return weights * labels + (1 - weights) * tf.gather(labels, others)


def _words(seeds: Tensor, count: int, *, stream: int = 0) -> Tensor:
    """Random bits, uint64 [batch, count], a function of each row of `seeds` and `stream`.

    SplitMix64 (Steele, Lea and Flood, 2014, https://doi.org/10.1145/2660193.2660195), because
    TensorFlow's stateless draws take one seed for a whole batch, and differ between devices.
    """

    def mix(z: Tensor) -> Tensor:
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1)):
            shifted = tf.bitwise.right_shift(z, tf.constant(shift, tf.uint64))
            z = tf.bitwise.bitwise_xor(z, shifted) * tf.constant(factor, tf.uint64)
        return z

    # In a graph, tf.constant takes a list of large integers through float64; not so an array.
    steps = np.arange(1, max(count, stream + 1) + 1, dtype=np.uint64) * GOLDEN_GAMMA
    first, second = tf.unstack(tf.bitcast(seeds, tf.uint64), axis=1)
    state = mix(mix(first + steps[stream]) + second)
    return mix(state[:, tf.newaxis] + steps[:count])


def _fold(seeds: Tensor, stream: int) -> Tensor:
    """New seeds, int64 [batch, 2], independent of `seeds` and of other streams (1 and up)."""
    return tf.bitcast(_words(seeds, 2, stream=stream), tf.int64)


def _uniform(seeds: Tensor, count: int) -> Tensor:
    """Uniform draws, float64 [batch, count], in 0 (included) to 1 (not).

    In float64, because the last bit of exp or cos depends on the size of the batch.
    """
    bits = tf.bitwise.right_shift(_words(seeds, count), tf.constant(11, tf.uint64))
    return tf.cast(bits, tf.float64) * 2.0**-53


def _by_image(values: Tensor) -> Tensor:
    """Float32 [batch, 1, 1, 1], to go with the images."""
    return tf.cast(values, tf.float32)[:, tf.newaxis, tf.newaxis, tf.newaxis]


def _between(uniform: Tensor, low: float, high: float) -> Tensor:
    return low + uniform * (high - low)


def _integers(uniform: Tensor, count: Tensor) -> Tensor:
    """Integers in 0..count - 1, int32."""
    return tf.cast(uniform * tf.cast(count, tf.float64), tf.int32)


def _beta(seeds: Tensor, alpha: float) -> Tensor:
    """Draws from Beta(alpha, alpha), float64 [batch].

    G / (G + H) of two gamma draws, in logarithms, because for small alpha both would underflow:
    log Gamma(alpha) is that of Gamma(alpha + 1) plus log(uniform) / alpha (Marsaglia and Tsang,
    2000, https://doi.org/10.1145/358407.358414).
    """
    shape = [_shape(seeds)[0], 2]
    seed = _fold(seeds, 1)[0]
    gammas = tf.random.stateless_gamma(shape, seed=seed, alpha=alpha + 1.0, dtype=tf.float64)
    logs = tf.math.log(gammas) + tf.math.log1p(-_uniform(seeds, 2)) / alpha
    return tf.sigmoid(logs[:, 0] - logs[:, 1])


def _permutation(seeds: Tensor) -> Tensor:
    return tf.argsort(_uniform(_fold(seeds, 2), 1)[:, 0])


def _unit(images: Tensor) -> float:
    """What 1 in 0..255 is in these images."""
    return 1.0 if images.dtype == tf.uint8 else 1 / 255


def _restore(values: Tensor, dtype: Any) -> Tensor:
    """Float32 values clipped to the range of `dtype`, and rounded for uint8."""
    if dtype == tf.uint8:
        return tf.cast(tf.clip_by_value(values + 0.5, 0.0, 255.5), tf.uint8)
    return tf.clip_by_value(values, 0.0, 1.0)


def _shape(tensor: Tensor) -> list[Any]:
    """The shape, static where known."""
    dynamic = tf.shape(tensor)
    return [dynamic[i] if side is None else side for i, side in enumerate(tensor.shape)]


def _seeds(seed: Tensor, images: Tensor, single: bool) -> Tensor:
    """One seed for each image of a batch, int64 [batch, 2]."""
    by_example = [images.shape[0], 2]
    _require(
        seed.shape.is_compatible_with([2]) or seed.shape.is_compatible_with(by_example),
        f"seed must be [2], or one for each image {by_example}, not {seed.shape}",
    )
    if seed.shape.rank == 2:
        return seed
    seed = seed[tf.newaxis]
    if single:
        return seed
    # Folded first, so that the examples of batches with neighbouring seeds share none.
    first, second = tf.unstack(_fold(seed, 1)[0])
    place = tf.range(_shape(images)[0], dtype=tf.int64)
    return tf.stack([tf.zeros_like(place) + first, place + second], axis=1)


def _checked_labels(labels: Tensor, images: Tensor, name: str) -> Tensor:
    _require(labels is not None, f"{name} mixes labels too: call it with (images, labels)")
    labels = tf.convert_to_tensor(labels)
    _require(
        images.shape.rank == 4 and labels.shape.rank == 2 and labels.dtype.is_floating,
        f"{name} takes a batch of images with float one-hot labels [batch, classes], "
        f"not images {images.shape} with {labels.dtype.name} labels {labels.shape}",
    )
    return labels


def _check_images(images: Tensor) -> None:
    _require(
        images.shape.rank in (3, 4) and images.shape[-1] == 3,
        f"images must be [height, width, 3] or [batch, height, width, 3], not {images.shape}",
    )
    _require(
        images.dtype in (tf.uint8, tf.float32),
        f"images must be uint8 in 0..255 or float32 in 0..1, not {images.dtype.name}",
    )


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise ValueError(message)
