"""Each augmentation against a plain NumPy version of itself, which also draws for itself."""

import math

import numpy as np
import pytest
import tensorflow as tf

from tfrecordify import augment

HEIGHT, WIDTH, BATCH = 20, 26, 8
SEEDS = np.stack([np.full(BATCH, 7), np.arange(BATCH)], axis=1)
MEAN, STD = (120.0, 110.5, 100.0), (50.0, 60.0, 70.25)
LABELS = np.eye(BATCH, dtype=np.float32)
LUMA = np.array([0.299, 0.587, 0.114])

MASK = 2**64 - 1


def mix(z):
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & MASK
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB & MASK
    return z ^ (z >> 31)


def words(seed, count, stream=0):
    """SplitMix64 in Python integers."""
    gamma = 0x9E3779B97F4A7C15
    first, second = (int(part) & MASK for part in seed)
    state = mix((mix((first + gamma * (stream + 1)) & MASK) + second) & MASK)
    return [mix((state + gamma * (step + 1)) & MASK) for step in range(count)]


def uniform(seed, count):
    return [(word >> 11) / 2**53 for word in words(seed, count)]


def fold(seed, stream):
    return np.array(words(seed, 2, stream), np.uint64).astype(np.int64)


def between(draw, low, high):
    return low + draw * (high - low)


def factor(seed, amount):
    return between(uniform(seed, 1)[0], 1 - amount, 1 + amount)


def blend(image, base, weight):
    return weight * image + (1 - weight) * base


def bilinear(image, y, x):
    """Values of the image at real coordinates within it."""
    top, left = np.floor(y).astype(int), np.floor(x).astype(int)
    down, right = (y - top)[..., None], (x - left)[..., None]
    bottom = np.minimum(top + 1, image.shape[0] - 1)
    further = np.minimum(left + 1, image.shape[1] - 1)
    upper = image[top, left] * (1 - right) + image[top, further] * right
    lower = image[bottom, left] * (1 - right) + image[bottom, further] * right
    return upper * (1 - down) + lower * down


def window(seed, height, width, scale=(0.08, 1.0), ratio=(3 / 4, 4 / 3)):
    draws = uniform(seed, 22)
    for area_draw, ratio_draw in zip(draws[:10], draws[10:20], strict=True):
        area = between(area_draw, *scale) * height * width
        aspect = math.exp(between(ratio_draw, math.log(ratio[0]), math.log(ratio[1])))
        rows, columns = round(math.sqrt(area / aspect)), round(math.sqrt(area * aspect))
        if rows <= height and columns <= width:
            break
    else:
        rows = round(min(height, width / ratio[0]))
        columns = round(min(width, height * ratio[1]))
    rows, columns = max(rows, 1), max(columns, 1)
    top = int(draws[20] * (height - rows + 1))
    left = int(draws[21] * (width - columns + 1))
    return top, left, rows, columns


def numpy_flip(image, seed):
    return image[:, ::-1] if uniform(seed, 1)[0] < 0.5 else image


def numpy_random_crop(image, seed, padding=4):
    padded = np.pad(image, [(padding, padding), (padding, padding), (0, 0)], mode="reflect")
    top, left = (int(draw * (2 * padding + 1)) for draw in uniform(seed, 2))
    return padded[top : top + image.shape[0], left : left + image.shape[1]]


def numpy_random_resized_crop(image, seed, size=None, **settings):
    size = size or image.shape[:2]
    top, left, rows, columns = window(seed, *image.shape[:2], **settings)
    cropped = image[top : top + rows, left : left + columns]
    y = np.clip((np.arange(size[0]) + 0.5) * rows / size[0] - 0.5, 0, rows - 1)
    x = np.clip((np.arange(size[1]) + 0.5) * columns / size[1] - 0.5, 0, columns - 1)
    return bilinear(cropped, *np.meshgrid(y, x, indexing="ij"))


def numpy_rotate(image, seed, degrees=10.0):
    angle = math.radians(between(uniform(seed, 1)[0], -degrees, degrees))
    height, width, _ = image.shape
    margin = max(height, width)
    mirrored = np.pad(image, [(margin, margin), (margin, margin), (0, 0)], mode="symmetric")
    y, x = np.mgrid[:height, :width]
    centre_y, centre_x = (height - 1) / 2, (width - 1) / 2
    y, x = y - centre_y, x - centre_x
    from_y = math.cos(angle) * y - math.sin(angle) * x + centre_y
    from_x = math.cos(angle) * x + math.sin(angle) * y + centre_x
    return bilinear(mirrored, from_y + margin, from_x + margin)


def numpy_brightness(image, seed):
    return blend(image, 0.0, factor(seed, 0.4))


def numpy_contrast(image, seed):
    return blend(image, (image @ LUMA).mean(), factor(seed, 0.4))


def numpy_saturation(image, seed):
    return blend(image, (image @ LUMA)[..., None], factor(seed, 0.9))


def numpy_hue(image, seed):
    turn = between(uniform(seed, 1)[0], -0.3, 0.3)
    high, low = image.max(-1), image.min(-1)
    chroma = np.where(high > low, high - low, 1.0)
    red, green, blue = np.moveaxis(image, -1, 0)
    sixths = np.select(
        [high == red, high == green],
        [(green - blue) / chroma, (blue - red) / chroma + 2],
        (red - green) / chroma + 4,
    )
    sector = (np.array([5.0, 3.0, 1.0]) + sixths[..., None] + 6 * turn) % 6
    part = np.clip(np.minimum(sector, 4 - sector), 0, 1)
    return high[..., None] - (high - low)[..., None] * part


def spans(image, draws, sides):
    """Slices of a window about a random pixel, cut off at the image's border."""
    for draw, size, side in zip(draws, image.shape[:2], sides, strict=True):
        start = int(draw * size) - side // 2
        yield slice(max(start, 0), max(start + side, 0))


def numpy_cutout(image, seed, size=7, fill=MEAN):
    result = image.copy()
    rows, columns = spans(image, uniform(seed, 2), (size, size))
    result[rows, columns] = fill
    return result


AUGMENTATIONS = {
    "flip": (augment.flip_left_right(), numpy_flip),
    "random_crop": (augment.random_crop(4), numpy_random_crop),
    "random_resized_crop": (augment.random_resized_crop(), numpy_random_resized_crop),
    "random_resized_crop_to": (
        augment.random_resized_crop((9, 40), scale=(0.2, 0.5), ratio=(0.5, 2.0)),
        lambda image, seed: numpy_random_resized_crop(
            image, seed, (9, 40), scale=(0.2, 0.5), ratio=(0.5, 2.0)
        ),
    ),
    "rotate": (augment.rotate(10), numpy_rotate),
    "rotate_180": (augment.rotate(180), lambda image, seed: numpy_rotate(image, seed, 180.0)),
    "brightness": (augment.brightness(0.4), numpy_brightness),
    "contrast": (augment.contrast(0.4), numpy_contrast),
    "saturation": (augment.saturation(0.9), numpy_saturation),
    "hue": (augment.hue(0.3), numpy_hue),
    "cutout": (augment.cutout(7, fill=MEAN), numpy_cutout),
    "standard": (
        augment.standard(),
        lambda image, seed: numpy_flip(
            numpy_random_resized_crop(image, fold(seed, 1)), fold(seed, 2)
        ),
    ),
    "cifar": (
        augment.cifar(),
        lambda image, seed: numpy_flip(numpy_random_crop(image, fold(seed, 1)), fold(seed, 2)),
    ),
}
each_augmentation = pytest.mark.parametrize(
    ("augmentation", "plain"), AUGMENTATIONS.values(), ids=AUGMENTATIONS.keys()
)
each_dtype = pytest.mark.parametrize("dtype", ["uint8", "float32"])
MIXES = {
    "mixup": augment.mixup(0.5),
    "cutmix": augment.cutmix(1.0),
    "both": augment.compose(augment.cifar(), augment.cutmix(1.0), augment.mixup(0.3)),
}


def draw_images(dtype="uint8", shape=(BATCH, HEIGHT, WIDTH, 3)):
    """Smooth colours under noise, with pure black and white, so that clipping matters."""
    rng = np.random.default_rng(5)
    ramp = np.linspace(0, 255, shape[2])[:, None] * np.linspace(0.2, 1.0, 3)
    images = np.clip(np.rint(ramp + rng.normal(0, 60, shape)), 0, 255).astype(np.uint8)
    return images if dtype == "uint8" else (images / np.float32(255)).astype(np.float32)


def mapped(augmentation, *tensors):
    """The result of Dataset.map over one element, and its static specification."""
    *arguments, seed = tensors
    dataset = tf.data.Dataset.from_tensors((tuple(arguments), seed))
    dataset = dataset.map(lambda arguments, seed: augmentation(*arguments, seed=seed))
    return next(iter(dataset)), dataset.element_spec


def assert_same(actual, expected, *, within=0.0):
    np.testing.assert_allclose(
        np.asarray(actual, np.float64), np.asarray(expected, np.float64), rtol=0, atol=within
    )


@each_dtype
@each_augmentation
def test_equals_the_plain_version(augmentation, plain, dtype):
    images = draw_images(dtype)
    white = 255 if dtype == "uint8" else 1
    result = augmentation(images, seed=SEEDS).numpy()
    values = images.astype(np.float64) * (255 / white)
    expected = np.stack([plain(*pair) for pair in zip(values, SEEDS, strict=True)])
    expected = np.clip(expected, 0, 255)
    assert result.dtype == dtype
    assert result.min() >= 0
    assert result.max() <= white
    if dtype == "uint8":
        assert_same(result, expected, within=0.5 + 2e-3)  # half a step: rounded, not truncated
    else:
        assert_same(result, expected / 255, within=2e-5)


@each_dtype
@each_augmentation
def test_is_the_same_alone_in_a_batch_and_in_dataset_map(augmentation, plain, dtype):
    images = draw_images(dtype)
    batch = augmentation(images, seed=SEEDS)
    within = 0 if dtype == "uint8" else 1e-6
    in_map, spec = mapped(augmentation, images, SEEDS)
    assert_same(in_map, batch, within=within)
    assert spec.shape == batch.shape
    for image, seed, expected in zip(images, SEEDS, batch, strict=True):
        assert_same(augmentation(image, seed=seed), expected, within=within)
    one, spec = mapped(augmentation, images[3], SEEDS[3])
    assert_same(one, batch[3], within=within)
    assert spec.shape == batch.shape[1:]


@each_augmentation
def test_depends_on_the_seed_and_not_on_the_place_in_the_batch(augmentation, plain):
    images = draw_images()
    batch = augmentation(images, seed=SEEDS)
    backwards = augmentation(images[::-1], seed=SEEDS[::-1])
    assert_same(backwards[::-1], batch)
    same_image = augmentation(np.stack([images[0]] * 64), seed=[[7, i] for i in range(64)]).numpy()
    assert len({image.tobytes() for image in same_image}) >= 2


@each_augmentation
def test_takes_batches_and_images_of_unknown_size(augmentation, plain):
    images = draw_images()
    signature = [tf.TensorSpec([None, None, None, 3], tf.uint8), tf.TensorSpec([None, 2], tf.int64)]
    function = tf.function(lambda x, seed: augmentation(x, seed=seed), input_signature=signature)
    assert_same(function(images, SEEDS), augmentation(images, seed=SEEDS))


def test_a_seed_for_a_whole_batch_gives_each_example_its_own():
    images = np.stack([draw_images()[0]] * BATCH)
    crop = augment.random_crop(4)
    first, again, other = (crop(images, seed=[7, n]).numpy() for n in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert len({image.tobytes() for image in [*first, *other]}) >= 14


def test_draws_are_splitmix64():
    # The published first outputs of the generator from state 0.
    state_zero = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]
    gamma = 0x9E3779B97F4A7C15
    assert [mix(gamma * step & MASK) for step in (1, 2, 3)] == state_zero
    seeds = np.array([[0, 0], [-3, 2**40], [2**63 - 1, -(2**63)]])
    for stream in (0, 1, 5):
        expected = [words(seed, 4, stream) for seed in seeds]
        eager = augment._words(tf.constant(seeds), 4, stream=stream)
        np.testing.assert_array_equal(eager, np.array(expected, np.uint64))


def test_neighbouring_seeds_draw_independently():
    seeds = tf.constant([[seed, place] for seed in range(8) for place in range(2000)], tf.int64)
    draws = augment._uniform(seeds, 3).numpy()
    assert draws.min() >= 0
    assert draws.max() < 1
    counts = [np.histogram(column, bins=20, range=(0, 1))[0] for column in draws.T]
    chi_square = [((count - 800) ** 2 / 800).sum() for count in counts]
    assert max(chi_square) < 50  # 19 degrees of freedom: 1 in 10,000
    neighbours = np.corrcoef(np.concatenate([draws[:-1], draws[1:]], axis=1).T)
    assert np.abs(neighbours - np.eye(6)).max() < 0.035


def test_flips_half_of_the_images():
    images = np.zeros([600, 1, 2, 3], np.uint8)
    images[:, :, 0] = 255
    flipped = augment.flip_left_right()(images, seed=[[3, i] for i in range(600)]).numpy()
    assert 240 < (flipped[:, 0, 1, 0] == 255).sum() < 360


def test_random_crop_reaches_every_offset_alike():
    images = np.tile(np.arange(100, dtype=np.uint8).reshape(1, 10, 10, 1), [1800, 1, 1, 3])
    crops = augment.random_crop(1)(images, seed=[[1, i] for i in range(1800)]).numpy()
    offsets, counts = np.unique(crops[:, 1, 1, 0], return_counts=True)
    assert offsets.tolist() == [0, 1, 2, 10, 11, 12, 20, 21, 22]
    assert counts.min() > 140
    assert counts.max() < 260


def test_random_resized_crop_windows_have_the_area_and_ratio_asked():
    seeds = np.array([[2, i] for i in range(4000)])
    settings = (0.08, 1.0), (3 / 4, 4 / 3)
    top, left, rows, columns = (
        augment._inception_windows(tf.constant(seeds), 100, 100, *settings).numpy().T
    )
    assert min(top.min(), left.min()) == 0
    assert (top + rows).max() == (left + columns).max() == 100
    ratios, areas = columns / rows, rows * columns / 1e4
    assert 0.7 < ratios.min() < 0.8
    assert 1.25 < ratios.max() < 1.4
    assert 0.07 < areas.min() < 0.09
    assert areas.max() > 0.95
    assert abs(np.median(np.log(ratios))) < 0.02
    # Uniform areas have a mean of 0.54; large windows of extreme ratios do not fit.
    assert 0.48 < areas.mean() < 0.54


@pytest.mark.parametrize("shape", [(4, 200), (200, 4), (1, 1)])
def test_random_resized_crop_falls_back_to_the_largest_window(shape):
    seeds = np.array([[4, i] for i in range(200)])
    settings = (0.9, 1.0), (3 / 4, 4 / 3)
    windows = augment._inception_windows(tf.constant(seeds), *shape, *settings).numpy()
    side = min(shape)
    expected = [min(round(side * 4 / 3), size) for size in shape]
    assert np.unique(windows[:, 2:], axis=0).tolist() == [expected]
    assert (windows[:, :2] + windows[:, 2:] <= shape).all()
    assert (windows[:, :2] >= 0).all()


def test_the_whole_window_is_the_image():
    crop = augment.random_resized_crop(scale=(1.0, 1.0), ratio=(1.0, 1.0))
    images = draw_images(shape=(3, 16, 16, 3))
    assert_same(crop(images, seed=SEEDS[:3]), images)


def test_zero_strength_changes_nothing():
    nothing = augment.compose(
        augment.rotate(0), augment.brightness(0), augment.contrast(0), augment.saturation(0)
    )
    images = draw_images()
    assert_same(nothing(images, seed=SEEDS), images)
    assert_same(augment.hue(0)(images, seed=SEEDS), images)


def test_cutout_covers_the_same_share_everywhere_but_at_the_border():
    images = np.zeros([4000, 12, 12, 3], np.uint8)
    cut = augment.cutout(4, fill=(255, 255, 255))(images, seed=[[5, i] for i in range(4000)])
    part = (cut.numpy()[..., 0] == 255).mean(axis=0)
    inner, corner = part[3:9, 3:9], part[0, 0]
    assert_same(inner, np.full([6, 6], 16 / 144), within=0.025)
    assert corner == pytest.approx(9 / 144, abs=0.015)  # by centres in rows and columns 0 to 2


def test_cutout_larger_than_the_image_blanks_it():
    blank = augment.cutout(100)(draw_images(), seed=SEEDS).numpy()
    assert (blank == 128).all()


@each_dtype
def test_normalise_gives_mean_0_and_deviation_1(dtype):
    images = draw_images("uint8")
    mean, std = images.mean(axis=(0, 1, 2)), images.std(axis=(0, 1, 2))
    normalise = augment.normalise(tuple(mean.tolist()), tuple(std.tolist()))
    result = normalise(draw_images(dtype), seed=SEEDS).numpy()
    assert result.dtype == np.float32
    assert_same(result, (images - mean) / std, within=1e-5)
    assert_same(result.mean(axis=(0, 1, 2)), np.zeros(3), within=1e-5)
    assert_same(result.std(axis=(0, 1, 2)), np.ones(3), within=1e-5)


def permutation(seeds):
    return np.argsort([uniform(fold(seed, 2), 1)[0] for seed in seeds], kind="stable")


@each_dtype
def test_mixup_blends_images_and_labels_alike(dtype):
    images = draw_images(dtype)
    mixed, labels = augment.mixup(0.5)(images, LABELS, seed=SEEDS)
    others = permutation(SEEDS)
    weights = augment._beta(tf.constant(SEEDS), 0.5).numpy()
    expected = [w * LABELS[i] + (1 - w) * LABELS[others[i]] for i, w in enumerate(weights)]
    assert_same(labels, expected, within=1e-6)
    values = images.astype(np.float64)
    expected = [w * values[i] + (1 - w) * values[others[i]] for i, w in enumerate(weights)]
    assert mixed.dtype == dtype
    assert_same(mixed, expected, within=0.5 + 1e-3 if dtype == "uint8" else 1e-6)


@each_dtype
@pytest.mark.parametrize("alpha", [1e-4, 1.0, 1e4])
def test_cutmix_pastes_one_window_and_weighs_labels_by_its_area(dtype, alpha):
    images = draw_images(dtype)
    mixed, labels = augment.cutmix(alpha)(images, LABELS, seed=SEEDS)
    others = permutation(SEEDS)
    weights = augment._beta(tf.constant(SEEDS), alpha).numpy()
    for i, weight in enumerate(weights):
        sides = [int(size * math.sqrt(1 - weight)) for size in (HEIGHT, WIDTH)]
        rows, columns = spans(images[i], uniform(fold(SEEDS[i], 3), 2), sides)
        expected = images[i].copy()
        expected[rows, columns] = images[others[i], rows, columns]
        np.testing.assert_array_equal(mixed[i], expected)
        inside = np.zeros([HEIGHT, WIDTH])
        inside[rows, columns] = 1
        part = inside.mean()
        expected_label = (1 - part) * LABELS[i] + part * LABELS[others[i]]
        assert_same(labels[i], expected_label, within=1e-6)


@pytest.mark.parametrize("alpha", [0.2, 1.0, 4.0])
def test_weights_are_beta(alpha):
    seeds = tf.constant([[9, i] for i in range(20_000)], tf.int64)
    weights = augment._beta(seeds, alpha).numpy()
    assert weights.min() >= 0
    assert weights.max() <= 1
    variance = 1 / (4 * (2 * alpha + 1))
    assert weights.mean() == pytest.approx(0.5, abs=4 * math.sqrt(variance / 20_000))
    assert weights.var() == pytest.approx(variance, rel=0.05)


def test_weights_stay_numbers_at_extreme_alpha():
    seeds = tf.constant([[9, i] for i in range(500)], tf.int64)
    tiny = augment._beta(seeds, 1e-6).numpy()
    assert set(tiny.tolist()) == {0.0, 1.0}
    assert 180 < tiny.sum() < 320
    assert_same(augment._beta(seeds, 1e6), np.full(500, 0.5), within=0.005)


@each_dtype
@pytest.mark.parametrize("mix_batch", MIXES.values(), ids=MIXES.keys())
def test_mixing_in_dataset_map_is_as_eagerly(mix_batch, dtype):
    images = draw_images(dtype)
    result, labels = mix_batch(images, LABELS, seed=SEEDS)
    (in_map, labels_in_map), (spec, label_spec) = mapped(mix_batch, images, LABELS, SEEDS)
    assert_same(in_map, result, within=0 if dtype == "uint8" else 1e-6)
    assert_same(labels_in_map, labels, within=1e-6)
    assert (spec.shape, spec.dtype) == (images.shape, images.dtype)
    assert label_spec.shape == LABELS.shape
    assert_same(tf.reduce_sum(labels, axis=1), np.ones(BATCH), within=1e-6)
    other, _ = mix_batch(images, LABELS, seed=SEEDS + 1)
    assert not np.array_equal(other, result)


def test_compose_draws_apart_and_in_order():
    twice = augment.compose(augment.flip_left_right(), augment.flip_left_right())
    images = draw_images()
    expected = [
        numpy_flip(numpy_flip(image, fold(seed, 1)), fold(seed, 2))
        for image, seed in zip(images, SEEDS, strict=True)
    ]
    result = twice(images, seed=SEEDS)
    assert_same(result, expected)
    assert not np.array_equal(result, images)
    assert augment.compose()(images, seed=SEEDS).numpy().tobytes() == images.tobytes()


def test_labels_pass_through_whatever_they_are():
    images, labels = augment.cifar()(draw_images(), {"label": 3}, seed=SEEDS)
    assert labels == {"label": 3}
    assert images.shape == (BATCH, HEIGHT, WIDTH, 3)


def test_seeded_datasets_repeat_between_runs_and_differ_between_epochs():
    images = draw_images()
    labels = np.arange(BATCH)

    def run():
        dataset = tf.data.Dataset.from_tensor_slices((images, labels))
        dataset = dataset.apply(augment.cifar().seeded(7, parallelism=2))
        assert dataset.cardinality() == BATCH
        epochs = [list(dataset.as_numpy_iterator()) for _ in range(2)]
        assert [label for _, label in epochs[0]] == labels.tolist()
        return [[image.tobytes() for image, _ in epoch] for epoch in epochs]

    first, again = run(), run()
    assert first == again
    assert first[0] != first[1]


def test_seeded_takes_images_alone_and_batches():
    images = draw_images()
    alone = tf.data.Dataset.from_tensor_slices(images).apply(augment.cifar().seeded(7))
    assert alone.element_spec == tf.TensorSpec([HEIGHT, WIDTH, 3], tf.uint8)
    pairs = tf.data.Dataset.from_tensor_slices((images, LABELS)).batch(4, drop_remainder=True)
    pairs = pairs.apply(augment.mixup(0.2).seeded(7))
    assert [image.shape for image, _ in pairs] == [(4, HEIGHT, WIDTH, 3)] * 2


def test_seeded_iterators_resume_from_a_checkpoint(tmp_path):
    images = np.concatenate([draw_images()] * 4)
    dataset = tf.data.Dataset.from_tensor_slices(images).apply(augment.cifar().seeded(7))
    whole = list(dataset.as_numpy_iterator())

    def fresh():
        data = tf.data.Dataset.from_tensor_slices(images).apply(augment.cifar().seeded(7))
        return iter(data)

    stopped = fresh()
    for _ in range(11):
        next(stopped)
    path = tf.train.Checkpoint(iterator=stopped).save(str(tmp_path / "checkpoint"))
    resumed = fresh()
    tf.train.Checkpoint(iterator=resumed).restore(path)
    rest = [image.numpy() for image in resumed]
    assert len(rest) == 32 - 11
    np.testing.assert_array_equal(rest, whole[11:])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: augment.random_crop(0), "padding=0"),
        (lambda: augment.random_resized_crop(0), "size=0"),
        (lambda: augment.random_resized_crop(scale=(0.5, 0.1)), "scale="),
        (lambda: augment.random_resized_crop(ratio=(0, 1)), "ratio="),
        (lambda: augment.rotate(200), "degrees=200"),
        (lambda: augment.brightness(-0.1), "amount=-0.1"),
        (lambda: augment.hue(0.6), "amount=0.6"),
        (lambda: augment.cutout(0), "size=0"),
        (lambda: augment.cutout(fill=(0, 0, 256)), "fill="),
        (lambda: augment.normalise((0.485, 0.456, 0.406), (0.2, 0.2, 0.2)), "by 255"),
        (lambda: augment.normalise(MEAN, (0.0, 1.0, 1.0)), "std="),
        (lambda: augment.mixup(0), "alpha=0"),
        (lambda: augment.cutmix(-1), "alpha=-1"),
        (lambda: augment.compose(augment.normalise(MEAN, STD), augment.cifar()), "come last"),
    ],
)
def test_settings_out_of_range_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((np.zeros([4, 4], np.uint8),), r"not \(4, 4\)"),
        ((np.zeros([2, 4, 4, 1], np.uint8),), "must be"),
        ((np.zeros([2, 4, 4, 3], np.int32),), "not int32"),
        ((np.zeros([2, 4, 4, 3], np.uint8),), "with .images, labels."),
        ((np.zeros([2, 4, 4, 3], np.uint8), np.zeros(2, np.int64)), "one-hot"),
        ((np.zeros([4, 4, 3], np.uint8), np.zeros(2, np.float32)), "takes a batch"),
    ],
)
def test_wrong_arguments_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        augment.mixup(0.2)(*arguments, seed=[0, 0])


@pytest.mark.parametrize("seed", [7, [1, 2, 3], SEEDS[:3]])
def test_seeds_of_another_shape_are_refused(seed):
    with pytest.raises(ValueError, match=r"seed must be \[2\], or one for each image \[8, 2\]"):
        augment.cifar()(draw_images(), seed=seed)


def test_reflection_wider_than_the_image_is_refused():
    with pytest.raises(ValueError, match="padding=4 must be below 4"):
        augment.random_crop(4)(np.zeros([4, 9, 3], np.uint8), seed=[0, 0])


def test_names_say_how_they_were_made():
    assert repr(augment.cifar()) == "compose(random_crop(4), flip_left_right())"
