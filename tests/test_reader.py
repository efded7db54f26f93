import gzip
import json
import logging
import os
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import simplejpeg
from drawing import encode, texture

from tfrecordify import manifest, records
from tfrecordify.manifest import ManifestError
from tfrecordify.records import RecordWriter, encode_example, frame

tf = pytest.importorskip("tensorflow")

from tfrecordify import augment  # noqa: E402
from tfrecordify.reader import ShardError, read, read_files  # noqa: E402

EXAMPLES, SHARDS, SIZE = 203, 5, (24, 32)


def picture(number, size=SIZE):
    """An image that tells its number: its mean, and all of its pixels, follow from it."""
    return texture(*size, seed=number)


def make(folder, *, examples=EXAMPLES, shards=SHARDS, kind="jpeg", labelled=True, **changes):
    """Writes a dataset as the converter would, and returns its images by key."""
    folder.mkdir(parents=True, exist_ok=True)
    sizes = changes.pop("sizes", [SIZE])
    compression = changes.pop("compression", "gzip")
    pixels, entries = {}, []
    for place in range(shards):
        path = folder / f"x-train-{place:05}-of-{shards:05}.tfrecord"
        numbers = range(place, examples, shards)
        with path.open("wb") as file, RecordWriter(file, compression=compression) as writer:
            for number in numbers:
                data = encode(picture(number, sizes[number % len(sizes)]), kind)
                key = f"{number}.jpg"
                height, width = sizes[number % len(sizes)]
                features = {
                    "image": data,
                    "label": number % 7,
                    "image/filename": key,
                    "image/height": height,
                    "image/width": width,
                    "weight": number / 8,
                    "tags": [number] * (number % 3),
                }
                if not labelled:
                    del features["label"]
                if number % 3 == 0:
                    features["tags"] = []
                writer.write(frame(encode_example(features)))
                pixels[key] = tf.io.decode_image(data).numpy()
                if kind == "jpeg":
                    pixels[key] = simplejpeg.decode_jpeg(data)
        entries.append(
            manifest.Shard(
                file=path.name, examples=len(numbers), bytes=writer.bytes, sha256=writer.sha256
            )
        )
    kinds = {"image": "bytes", "label": "int64", "image/filename": "bytes"}
    kinds |= {"image/height": "int64", "image/width": "int64", "weight": "float", "tags": "int64[]"}
    counts = [len(range(label, examples, 7)) for label in range(7)]
    split = manifest.Split(
        examples=examples,
        rejected=0,
        class_counts=counts if labelled else [],
        mean=None,
        std=None,
        shards=entries,
    )
    content = {
        "name": "x",
        "fingerprint": f"{kind} {sizes} {examples}",
        "settings": {"compression": compression, "image": {"encode_format": kind}},
        "image_shape": (*(sizes[0] if len(sizes) == 1 else (None, None)), 3),
        "features": kinds,
        "label_names": [f"class {label}" for label in range(7)] if labelled else [],
        "files": {},
        "skipped": {},
        "splits": {"train": split},
    }
    (folder / "dataset.json").write_bytes(manifest.Manifest(**content | changes).to_json())
    return pixels


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dataset") / "x"
    return folder, make(folder)


KEYS = ["image/filename"]


def keys(elements):
    """The keys of all examples, in order."""
    found = []
    for element in elements:
        found += np.atleast_1d(element["image/filename"].numpy()).tolist()
    return [key.decode() for key in found]


ALL = sorted(f"{number}.jpg" for number in range(EXAMPLES))
CACHES = [None, "records", "images", "disk"]


def cache_of(name, tmp_path):
    return tmp_path / "cache" if name == "disk" else name


# What comes out.


@pytest.mark.parametrize("cache", CACHES)
@pytest.mark.parametrize("batch_size", [None, 1, 32])
def test_every_example_comes_out_whole(dataset, tmp_path, cache, batch_size):
    folder, pixels = dataset
    names = ["image/filename", "image/height", "weight", "tags"]
    data = read(
        folder,
        split="train",
        batch_size=batch_size,
        features=names,
        shuffle=True,
        cache=cache_of(cache, tmp_path),
    )
    single = data if batch_size is None else data.unbatch()
    for _ in range(2):
        seen = []
        for element in single:
            key = element["image/filename"].numpy().decode()
            number = int(key.partition(".")[0])
            np.testing.assert_array_equal(element["image"], pixels[key])
            assert element["label"].numpy() == number % 7
            assert element["weight"].numpy() == number / 8
            assert element["tags"].numpy().tolist() == [number] * (number % 3)
            assert element["image/height"].numpy() == SIZE[0]
            seen.append(key)
        assert sorted(seen) == ALL


def test_elements_go_straight_into_keras(dataset):
    folder, _ = dataset
    data = read(folder, split="train", batch_size=32, image_dtype="float32", shuffle=True)
    model = tf.keras.Sequential(
        [tf.keras.Input((*SIZE, 3)), tf.keras.layers.Flatten(), tf.keras.layers.Dense(7)]
    )
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("sgd", loss)

    history = model.fit(data, epochs=2, shuffle=False, verbose=0)

    assert len(history.history["loss"]) == 2
    assert model.predict(data.map(lambda image, label: image), verbose=0).shape == (EXAMPLES, 7)


def test_shapes_and_cardinality_are_known(dataset):
    folder, _ = dataset

    def spec(**options):
        data = read(folder, split="train", **options)
        image, label = data.element_spec
        assert (image.dtype, label.dtype) == (tf.uint8, tf.int64)
        return image.shape.as_list(), label.shape.as_list(), data.cardinality().numpy()

    assert spec() == ([24, 32, 3], [], 203)
    assert spec(batch_size=10) == ([None, 24, 32, 3], [None], 21)
    assert spec(batch_size=10, drop_remainder=True) == ([10, 24, 32, 3], [10], 20)
    assert spec(batch_size=10, repeat=2) == ([None, 24, 32, 3], [None], 41)
    assert spec(batch_size=10, repeat=True)[2] == tf.data.INFINITE_CARDINALITY
    assert spec(resize=12) == ([12, 12, 3], [], 203)


@pytest.mark.parametrize("decoder", ["turbo", "tensorflow"])
def test_labels_and_dtypes(dataset, decoder):
    folder, pixels = dataset
    data = read(
        folder,
        split="train",
        batch_size=50,
        features=KEYS,
        one_hot=True,
        image_dtype="float32",
        decoder=decoder,
    )

    for element in data.unbatch():
        key = element["image/filename"].numpy().decode()
        expected = np.eye(7, dtype=np.float32)[int(key.partition(".")[0]) % 7]
        np.testing.assert_array_equal(element["label"], expected)
        np.testing.assert_allclose(element["image"], pixels[key] / np.float32(255), atol=1e-6)


def test_without_labels_images_come_alone(tmp_path):
    make(tmp_path, examples=20, labelled=False)

    assert [image.shape for image in read(tmp_path, split="train", batch_size=20)] == [
        (20, *SIZE, 3)
    ]
    with pytest.raises(ValueError, match="no labels"):
        read(tmp_path, split="train", one_hot=True)


@pytest.mark.parametrize("decoder", ["turbo", "tensorflow"])
def test_png_datasets_are_read(tmp_path, decoder):
    pixels = make(tmp_path, examples=20, kind="png", compression="none")
    data = read(tmp_path, split="train", batch_size=8, features=KEYS, decoder=decoder)

    for element in data.unbatch():
        key = element["image/filename"].numpy().decode()
        np.testing.assert_array_equal(element["image"], pixels[key])


def test_a_batch_that_is_kept_is_not_written_over(dataset):
    folder, _ = dataset
    data = read(folder, split="train", batch_size=16, repeat=3)
    kept = [(images, images.numpy().copy()) for images, _ in data]

    for images, copy in kept:
        np.testing.assert_array_equal(images, copy)


def test_memory_of_batches_is_used_again(dataset):
    folder, _ = dataset
    places = set()
    for images, _ in read(folder, split="train", batch_size=16, drop_remainder=True, repeat=10):
        places.add(np.asarray(memoryview(images)).ctypes.data)

    assert len(places) < 12  # of 126 batches


# Images of varied size.


@pytest.fixture(scope="module")
def varied(tmp_path_factory):
    folder = tmp_path_factory.mktemp("varied") / "x"
    return folder, make(folder, examples=40, sizes=[(24, 32), (40, 20), (16, 16)])


@pytest.mark.parametrize("decoder", ["turbo", "tensorflow"])
@pytest.mark.parametrize("ragged", [False, True])
def test_images_of_varied_size(varied, decoder, ragged):
    folder, pixels = varied
    batch = {"batch_size": 7, "ragged": True} if ragged else {}
    data = read(folder, split="train", features=KEYS, decoder=decoder, **batch)

    assert data.cardinality() == (6 if ragged else 40)
    seen = []
    for element in data.unbatch() if ragged else data:
        image = element["image"].to_tensor() if ragged else element["image"]
        key = element["image/filename"].numpy().decode()
        np.testing.assert_array_equal(image, pixels[key])
        seen.append(key)
    assert len(set(seen)) == 40


def test_images_of_varied_size_are_resized(varied):
    folder, pixels = varied
    for decoder in ("turbo", "tensorflow"):
        data = read(
            folder, split="train", batch_size=40, features=KEYS, resize=(20, 24), decoder=decoder
        )
        for element in data.unbatch():
            image = element["image"].numpy()
            expected = pixels[element["image/filename"].numpy().decode()]
            assert image.shape == (20, 24, 3)
            assert abs(image.mean() - expected.mean()) < 3


@pytest.mark.parametrize("options", [{"batch_size": 2}, {"cache": "images"}])
def test_images_of_varied_size_need_a_decision(varied, options):
    with pytest.raises(ValueError, match=r"varied size cannot be .*ed: give resize="):
        read(varied[0], split="train", **options)


def test_an_image_of_another_size_than_the_manifest_says_is_named(tmp_path):
    make(tmp_path, examples=10, sizes=[(24, 32), (24, 33)], image_shape=(24, 32, 3))

    with pytest.raises(
        tf.errors.InvalidArgumentError, match=r"train-0000.*33x24 pixels, not 32x24"
    ):
        list(read(tmp_path, split="train", batch_size=5))


# Order.


@pytest.mark.parametrize("cache", CACHES)
def test_the_order_follows_from_the_seed_and_differs_between_epochs(dataset, tmp_path, cache):
    folder, _ = dataset

    def order(seed, **options):
        return read(
            folder, split="train", batch_size=10, features=KEYS, shuffle=True, seed=seed, **options
        )

    first, again = order(1, cache=cache_of(cache, tmp_path)), order(1)
    epochs = [keys(first) for _ in range(3)]

    assert [keys(again) for _ in range(3)] == epochs  # with a cache and without
    repeated = keys(order(1, repeat=3))
    assert repeated == keys(order(1, repeat=3))
    epochs += [repeated[start : start + EXAMPLES] for start in range(0, 3 * EXAMPLES, EXAMPLES)]
    assert all(sorted(epoch) == ALL for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 5  # both begin with the same one
    assert keys(order(2)) != epochs[0]
    assert keys(order(None)) != keys(order(None))


def test_the_order_is_the_same_in_another_process(dataset):
    folder, _ = dataset
    data = read(folder, split="train", batch_size=50, features=KEYS, shuffle=True, seed=3)
    here = [keys(data), keys(data)]

    assert json.loads(in_a_process("order", folder)) == here


def test_without_shuffling_the_order_is_that_of_the_shards_in_turns(dataset):
    folder, _ = dataset
    order = keys(read(folder, split="train", batch_size=10, features=KEYS))

    by_turns = [f"{number}.jpg" for place in range(SHARDS) for number in range(place, 80, SHARDS)]
    assert order[:80] == by_turns
    assert order == keys(
        read(folder, split="train", batch_size=10, features=KEYS, decoder="tensorflow")
    )


def test_iterators_do_not_disturb_each_other(dataset):
    folder, _ = dataset
    data = read(folder, split="train", features=KEYS, shuffle=50)
    iterators = [iter(data) for _ in range(6)]
    seen = [[] for _ in iterators]
    for step in range(EXAMPLES):
        for place, iterator in enumerate(iterators):
            if step % (place + 1) == 0:
                seen[place] += keys([next(iterator)])
    for place, iterator in enumerate(iterators):
        seen[place] += keys(iterator)

    assert all(sorted(found) == ALL for found in seen)


def test_epochs_that_are_cut_short_leave_the_next_whole(dataset, tmp_path):
    folder, _ = dataset
    for cache in CACHES:
        data = read(
            folder,
            split="train",
            batch_size=10,
            features=KEYS,
            shuffle=True,
            cache=cache_of(cache, tmp_path),
        )
        for count in (1, 5, 12):
            assert len(set(keys(data.take(count)))) == 10 * count
        assert sorted(keys(data)) == ALL


# Several readers.


@pytest.mark.parametrize("count", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("equal", [False, True])
def test_each_example_goes_to_one_reader(dataset, count, equal):
    folder, _ = dataset
    readers = [
        read(
            folder,
            split="train",
            batch_size=9,
            features=KEYS,
            shard=(index, count),
            equal_lengths=equal,
            shuffle=True,
        )
        for index in range(count)
    ]
    found = [keys(reader) for reader in readers]
    lengths = [len(keys_of_one) for keys_of_one in found]
    together = sorted(key for reader in found for key in reader)

    assert len(set(together)) == len(together)
    if equal:
        assert len(set(lengths)) == 1
        assert EXAMPLES - len(together) < max(count, SHARDS)
    else:
        assert together == ALL
        assert max(lengths) - min(lengths) <= 1
    assert [reader.cardinality().numpy() for reader in readers] == [-(-n // 9) for n in lengths]


def test_more_readers_than_examples_is_refused(tmp_path):
    make(tmp_path, examples=4, shards=2)
    with pytest.raises(ValueError, match="use fewer readers"):
        read(tmp_path, split="train", shard=(0, 5))
    with pytest.raises(ValueError, match="index < count"):
        read(tmp_path, split="train", shard=(2, 2))


# Two devices need the process for themselves: they are set before TensorFlow starts.
def test_distribution_strategies_take_their_share(dataset):
    assert sorted(json.loads(in_a_process("distribute", dataset[0]))) == ALL


def test_input_contexts_are_shards(dataset):
    folder, _ = dataset
    found = []
    for index in range(3):
        context = tf.distribute.InputContext(3, index, 3)
        shard = (context.input_pipeline_id, context.num_input_pipelines)
        found += keys(read(folder, split="train", features=KEYS, shard=shard))

    assert sorted(found) == ALL


# Resuming.


def in_a_process(*arguments):
    """Runs `main`, below, in a process of its own; returns what it printed."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, __file__, *map(str, arguments)]
    return subprocess.run(
        command, env=environment, stdout=subprocess.PIPE, timeout=60, check=True, text=True
    ).stdout


def interrupted(folder, prefix, stops, **options):
    """Reads with a new dataset and iterator after each stop, from a checkpoint."""
    seen = []
    for start, stop in zip([None, *stops], [*stops, None], strict=True):
        iterator = iter(read(folder, split="train", features=KEYS, **options))
        checkpoint = tf.train.Checkpoint(iterator=iterator)
        if start is not None:
            checkpoint.read(f"{prefix}-{start}").assert_consumed()
        count = 0 if start is None else start
        for element in iterator:
            seen += keys([element])
            count += 1
            if count == stop:
                checkpoint.write(f"{prefix}-{stop}")
                break
    return seen


@pytest.mark.parametrize("cache", CACHES)
@pytest.mark.parametrize("shuffle", [False, 20, True])
def test_training_goes_on_with_the_next_example(dataset, tmp_path, cache, shuffle):
    folder, _ = dataset
    options = {"batch_size": 8, "shuffle": shuffle, "seed": 5, "repeat": 2}
    cache = cache_of(cache, tmp_path)

    seen = interrupted(folder, tmp_path / "at", [1, 4, 13, 26, 40], **options, cache=cache)

    assert seen == keys(read(folder, split="train", features=KEYS, **options))
    assert Counter(seen) == dict.fromkeys(ALL, 2)


@pytest.mark.parametrize("options", [{"decoder": "tensorflow"}, {"batch_size": None}])
def test_other_ways_of_reading_resume_too(dataset, tmp_path, options):
    options = {"batch_size": 8, "shuffle": True, "seed": 5} | options

    seen = interrupted(dataset[0], tmp_path / "at", [1, 7, 20], **options)

    assert sorted(seen) == ALL


def test_augmentation_resumes_with_its_draws(dataset, tmp_path):
    folder, _ = dataset

    def data():
        return read(
            folder,
            split="train",
            batch_size=20,
            shuffle=True,
            seed=4,
            repeat=2,
            augment=augment.flip_left_right(),
        )

    whole = [images.numpy() for images, _ in data()]
    iterator = iter(data())
    for _ in range(7):
        next(iterator)
    tf.train.Checkpoint(iterator=iterator).write(tmp_path / "at")
    iterator = iter(data())
    tf.train.Checkpoint(iterator=iterator).read(tmp_path / "at")

    for expected, (images, _) in zip(whole[7:], iterator, strict=True):
        np.testing.assert_array_equal(images, expected)
    assert not np.array_equal(whole[0], next(iter(data().skip(11)))[0])


def test_a_fresh_process_goes_on(dataset, tmp_path):
    folder, _ = dataset
    seen = []
    for _ in range(3):
        seen += json.loads(in_a_process("resume", folder, tmp_path / "at"))

    data = read(folder, split="train", batch_size=8, features=KEYS, shuffle=True, seed=5)
    assert seen == keys(data) + keys(data)  # the second epoch is shuffled as if nothing had been


def test_a_checkpoint_holds_numbers_not_records(dataset, tmp_path):
    iterator = iter(read(dataset[0], split="train", batch_size=4, shuffle=True, prefetch=1))
    next(iterator)
    tf.train.Checkpoint(iterator=iterator).write(tmp_path / "at")

    encoded = sum(path.stat().st_size for path in shards_of(dataset[0]))
    batches = 4 * 4 * SIZE[0] * SIZE[1] * 3  # decoded ahead
    written = sum(path.stat().st_size for path in tmp_path.glob("at*"))
    assert written - batches < 300 * EXAMPLES < encoded / 3


# Faults.


@pytest.fixture
def damaged(dataset, tmp_path):
    folder = tmp_path / "x"
    shutil.copytree(dataset[0], folder)
    return folder


def read_shard(path):
    with path.open("rb") as file:
        return list(records.read_records(file))


def shards_of(folder):
    return sorted(folder.glob("*.tfrecord"))


def test_a_missing_shard_is_named_before_anything_is_read(damaged, caplog):
    path = shards_of(damaged)[2]
    path.unlink()

    with pytest.raises(ShardError, match=f"{path.name} is missing: restore it"):
        read(damaged, split="train")
    data = read(damaged, split="train", features=KEYS, on_error="skip")
    assert sorted(keys(data)) == sorted(key for key in ALL if int(key.split(".")[0]) % SHARDS != 2)
    assert f"{path.name} is missing" in caplog.text


@pytest.mark.parametrize("change", [-1, 1])
def test_a_shard_of_another_length_is_named_before_anything_is_read(damaged, change):
    path = shards_of(damaged)[1]
    data = path.read_bytes()
    path.write_bytes(data[:-1] if change < 0 else data + b"x")

    with pytest.raises(ShardError, match=rf"{path.name} has \d+ bytes, not the \d+ of its"):
        read(damaged, split="train")


def damage(path, spoil):
    """Changes the framed records of a gzip shard, at the same length."""
    content = bytearray(gzip.decompress(path.read_bytes()))
    spoil(content)
    with path.open("wb") as file, RecordWriter(file) as writer:
        writer.write(bytes(content))


@pytest.mark.parametrize("cache", CACHES)
@pytest.mark.parametrize("batch_size", [None, 8])
def test_a_corrupt_record_is_named_or_skipped(damaged, tmp_path, caplog, cache, batch_size):
    path = shards_of(damaged)[3]
    records_of = read_shard(path)
    start = sum(len(frame(record)) for record in records_of[:5])
    damage(path, lambda content: content.__setitem__(start + 40, content[start + 40] ^ 1))
    options = {"batch_size": batch_size, "cache": cache_of(cache, tmp_path), "features": KEYS}

    with pytest.raises(tf.errors.InvalidArgumentError, match=rf"{path.name}: record 5: the check"):
        list(read(damaged, split="train", **options))
    data = read(damaged, split="train", on_error="skip", **options)
    for _ in range(2):
        assert sorted(keys(data)) == sorted(set(ALL) - {f"{3 + 5 * SHARDS}.jpg"})
    assert f"1 examples skipped so far; {path}: record 5" in caplog.text


def test_a_corrupt_image_is_named_or_skipped(tmp_path, caplog):
    make(tmp_path, examples=20, shards=2)
    manifest_before = json.loads((tmp_path / "dataset.json").read_bytes())
    path = shards_of(tmp_path)[1]
    all_records = read_shard(path)
    example = records.decode_example(all_records[4])
    (image,) = example["image"]
    example["image"] = [image[:200] + bytes(len(image) - 200)]
    all_records[4] = encode_example(example)
    with path.open("wb") as file, RecordWriter(file) as writer:
        for record in all_records:
            writer.write(frame(record))
    assert path.stat().st_size == manifest_before["splits"]["train"]["shards"][1]["bytes"]

    with pytest.raises(tf.errors.InvalidArgumentError, match=rf"{path.name}: record 4: "):
        list(read(tmp_path, split="train", batch_size=4))
    data = read(tmp_path, split="train", batch_size=4, features=KEYS, on_error="skip")
    assert len(keys(data)) == 19
    assert f"{path}: record 4" in caplog.text


def test_a_shard_with_other_examples_than_its_manifest_says_is_named(damaged):
    path = shards_of(damaged)[0]
    whole = read_shard(path)
    size = path.stat().st_size

    def rewrite(kept):
        with path.open("wb") as file, RecordWriter(file) as writer:
            for record in kept:
                writer.write(frame(record))
            missing = size - 10 - 8 - 5 - sum(len(frame(record)) for record in kept)
            if missing:
                writer.write(frame(bytes(missing - 16)))

    rewrite(whole[:-2])
    assert path.stat().st_size == size
    with pytest.raises(
        tf.errors.InvalidArgumentError, match=f"{path.name}: 40 examples, not the 41"
    ):
        list(read(damaged, split="train", batch_size=8))


def test_a_shard_that_goes_on_past_its_last_example_is_named(damaged):
    path = damaged / "dataset.json"
    content = manifest.unseal(path.read_bytes(), path="")
    content["splits"]["train"]["shards"][2]["examples"] -= 1
    path.write_bytes(manifest.seal(content))

    with pytest.raises(
        tf.errors.InvalidArgumentError, match=r"train-00002.*: more than the 40 examples it should"
    ):
        list(read(damaged, split="train", batch_size=8))


def test_a_wrong_split_or_feature_names_the_right_one(dataset):
    folder, _ = dataset
    with pytest.raises(ValueError, match="no split 'tran'; did you mean train"):
        read(folder, split="tran")
    with pytest.raises(ValueError, match="no split 'test'; there are train"):
        read(folder, split="test")
    with pytest.raises(ValueError, match="no feature 'wieght'; did you mean weight"):
        read(folder, split="train", features=["wieght"])


def test_a_manifest_of_a_later_version_is_refused(damaged):
    path = damaged / "dataset.json"
    content = manifest.unseal(path.read_bytes(), path="")
    path.write_bytes(manifest.seal(content | {"format_version": 2}))
    with pytest.raises(ManifestError, match="version 2"):
        read(damaged, split="train")


@pytest.mark.parametrize(
    "options",
    [
        {"batch_size": 0},
        {"shuffle": -1},
        {"repeat": 0},
        {"image_dtype": "float16"},
        {"decoder": "opencv"},
        {"on_error": "ignore"},
        {"cache": "image"},
        {"prefetch": 0},
        {"parallelism": "auto"},
        {"parallelism": 0},
        {"resize": 0},
        {"decoder": "tensorflow", "cache": "images"},
    ],
)
def test_wrong_options_are_refused(dataset, options):
    (name, *_) = options
    with pytest.raises(ValueError, match=name):
        read(dataset[0], split="train", **options)


def test_a_process_that_stops_in_an_epoch_ends(dataset):
    assert in_a_process("abandon", dataset[0]) == "done\n"


# Caches.


def test_a_cache_of_records_keeps_no_more_than_the_records(dataset):
    from tfrecordify.fetching import Piece, Records, Shards

    path = shards_of(dataset[0])[0]
    pieces = [Piece(path=str(path), start=0, stop=41, examples=41)]
    source = Records(Shards(pieces), keep=True)
    fetched = source.fetch(range(41))

    assert sum(map(sys.getsizeof, fetched)) < 1.1 * path.stat().st_size
    assert [a is b for a, b in zip(fetched, source.fetch(range(41)), strict=True)] == [True] * 41


@pytest.mark.parametrize("cache", ["records", "images", "disk"])
def test_later_epochs_do_not_read_the_shards(damaged, tmp_path, cache):
    data = read(
        damaged,
        split="train",
        batch_size=10,
        features=KEYS,
        shuffle=True,
        cache=cache_of(cache, tmp_path),
    )
    first = keys(data)
    for path in shards_of(damaged):
        path.unlink()

    assert sorted(keys(data)) == ALL == sorted(first)


def test_a_later_run_goes_on_with_what_is_on_disk(damaged, tmp_path):
    def data(**options):
        return read(
            damaged,
            split="train",
            batch_size=10,
            features=KEYS,
            cache=tmp_path / "cache",
            **options,
        )

    keys(data(shuffle=True, seed=1).take(5))
    keys(data(shuffle=True, seed=2))
    held = {path: path.read_bytes() for path in shards_of(damaged)}
    for path, content in held.items():
        path.write_bytes(bytes(len(content)))

    assert sorted(keys(data(shuffle=True, seed=3))) == ALL
    with pytest.raises(tf.errors.InvalidArgumentError, match="record 0"):
        keys(data(resize=10))  # other pixels, so not those on disk


def test_datasets_share_a_folder_for_their_caches(dataset, tmp_path):
    other = make(tmp_path / "x", examples=30, shards=2, kind="png")

    for folder, pixels in (dataset, (tmp_path / "x", other)):
        data = read(folder, split="train", batch_size=9, features=KEYS, cache=tmp_path / "cache")
        for _ in range(2):
            for element in data.unbatch():
                key = element["image/filename"].numpy().decode()
                np.testing.assert_array_equal(element["image"], pixels[key])


def test_damage_to_a_cache_on_disk_is_repaired(dataset, tmp_path):
    folder, pixels = dataset

    def check():
        data = read(folder, split="train", batch_size=10, features=KEYS, cache=tmp_path / "cache")
        for element in data.unbatch():
            key = element["image/filename"].numpy().decode()
            np.testing.assert_array_equal(element["image"], pixels[key])

    check()
    (stored,) = (tmp_path / "cache").glob("*.pixels")
    (log,) = (tmp_path / "cache").glob("*.log")
    content = bytearray(stored.read_bytes())
    content[5000] ^= 1
    stored.write_bytes(content[:-5000])
    check()
    log.write_bytes(log.read_bytes()[:-7])
    check()
    log.write_bytes(b"rubbish" + log.read_bytes())
    check()
    before = log.stat().st_size
    check()
    assert log.stat().st_size == before


# Files of others.


def tf_example(**features):
    def feature(value):
        values = value if isinstance(value, list) else [value]
        if isinstance(values[0], bytes):
            return tf.train.Feature(bytes_list=tf.train.BytesList(value=values))
        if isinstance(values[0], int):
            return tf.train.Feature(int64_list=tf.train.Int64List(value=values))
        return tf.train.Feature(float_list=tf.train.FloatList(value=values))

    found = {name.replace("__", "/"): feature(value) for name, value in features.items()}
    return tf.train.Example(features=tf.train.Features(feature=found)).SerializeToString()


@pytest.fixture(scope="module", params=["", "GZIP", "ZLIB"])
def foreign(request, tmp_path_factory):
    """Shards as the tutorials write them: one-hot labels, and as imagenet_to_gcs names features."""
    folder = tmp_path_factory.mktemp("foreign")
    for place in range(3):
        path = folder / f"train-{place:05}-of-00003"
        with tf.io.TFRecordWriter(str(path), request.param) as writer:
            for number in range(place, 50, 3):
                writer.write(
                    tf_example(
                        image__encoded=encode(picture(number, (20 + number % 2, 30)), "jpeg"),
                        image__class__label=number % 5,
                        image__class__text=f"class {number % 5}".encode(),
                        label=[float(number % 5 == label) for label in range(5)],
                        id=number,
                    )
                )
    return folder


def test_files_of_others_are_read(foreign):
    data = read_files(
        f"{foreign}/train-*",
        image="image/encoded",
        label="label",
        features=["id", "image/class/text"],
        batch_size=8,
        resize=(20, 30),
        shuffle=True,
    )
    seen = []
    for element in data.unbatch():
        number = element["id"].numpy()
        assert element["label"].numpy().tolist() == np.eye(5)[number % 5].tolist()
        assert element["image/class/text"].numpy().decode() == f"class {number % 5}"
        expected = simplejpeg.decode_jpeg(encode(picture(number, (20 + number % 2, 30)), "jpeg"))
        assert element["image/encoded"].shape == (20, 30, 3)
        if number % 2 == 0:
            np.testing.assert_array_equal(element["image/encoded"], expected)
        seen.append(number)
    assert sorted(seen) == list(range(50))


def test_files_of_others_are_shared_out(foreign):
    paths = [str(path) for path in sorted(foreign.glob("train-*"))]
    for count in (3, 4):
        seen = []
        for index in range(count):
            data = read_files(
                paths, image="image/encoded", label="id", shard=(index, count), shuffle=True
            )
            seen += [label.numpy() for _, label in data]
        assert sorted(seen) == list(range(50))


def test_reading_files_of_others_resumes(foreign, tmp_path):
    def data():
        return read_files(
            f"{foreign}/train-*", image="image/encoded", label="id", shuffle=10, seed=1
        )

    seen = []
    for step in range(3):
        iterator = iter(data())
        checkpoint = tf.train.Checkpoint(iterator=iterator)
        if step:
            checkpoint.read(tmp_path / "at")
        for _, label in iterator:
            seen.append(label.numpy())
            if step < 2 and len(seen) % 17 == 0:
                checkpoint.write(tmp_path / "at")
                break
    assert sorted(seen) == list(range(50))


def test_a_feature_that_is_not_there_names_what_is(foreign):
    with pytest.raises(ValueError, match="no feature 'image/encode'; did you mean image/encoded"):
        read_files(f"{foreign}/train-*", image="image/encode")
    with pytest.raises(ValueError, match="no file matches"):
        read_files(f"{foreign}/test-*", image="image/encoded")


def test_files_that_are_no_records_are_named(tmp_path):
    (tmp_path / "x").write_bytes(b"not a record, but long enough")
    with pytest.raises(ShardError, match="x: record 0: the checksum of its length is wrong; is it"):
        read_files(str(tmp_path / "x"), image="image")


def test_damaged_files_of_others_are_named_or_read_past(tmp_path):
    path = tmp_path / "x"
    with tf.io.TFRecordWriter(str(path)) as writer:
        for number in range(40):
            writer.write(tf_example(image=encode(picture(number), "jpeg"), label=number))
    content = bytearray(path.read_bytes())
    content[100] ^= 1
    path.write_bytes(content)

    with pytest.raises(ShardError, match="record 0"):
        read_files(str(path), image="image", label="label")
    content[100] ^= 1
    content[-100] ^= 1
    path.write_bytes(content)
    with pytest.raises(tf.errors.InvalidArgumentError, match="x: record 39"):
        list(read_files(str(path), image="image", label="label"))
    data = read_files(str(path), image="image", label="label", on_error="skip")
    assert sorted(int(label) for _, label in data) == list(range(39))


def test_shards_of_tensorflow_datasets_are_read(tmp_path):
    tfds = pytest.importorskip("tensorflow_datasets")

    class CatsVsDogs(tfds.core.GeneratorBasedBuilder):
        VERSION = tfds.core.Version("1.0.0")
        pkg_dir_path = tmp_path

        def _info(self):
            features = {
                "image": tfds.features.Image(encoding_format="jpeg"),
                "image/filename": tfds.features.Text(),
                "label": tfds.features.ClassLabel(names=["cat", "dog"]),
            }
            return tfds.core.DatasetInfo(
                builder=self, features=tfds.features.FeaturesDict(features)
            )

        def _split_generators(self, dl_manager):
            return {"train": self._generate_examples()}

        def _generate_examples(self):
            for number in range(12):
                name = f"{number}.jpg"
                yield (
                    name,
                    {"image": picture(number), "image/filename": name, "label": number % 2},
                )

    CatsVsDogs(data_dir=tmp_path).download_and_prepare()
    (path,) = tmp_path.rglob("cats_vs_dogs-train.tfrecord*")

    data = read_files(
        str(path.parent / "cats_vs_dogs-train.tfrecord*"),
        image="image",
        label="label",
        features=KEYS,
    )

    seen = {}
    for element in data:
        assert element["image"].shape == (*SIZE, 3)
        seen[element["image/filename"].numpy().decode()] = int(element["label"])
    assert seen == {f"{number}.jpg": number % 2 for number in range(12)}


# Augmentation.


def test_augmentation_is_applied_and_seeded(dataset):
    folder, pixels = dataset

    def epochs(seed, **options):
        data = read(
            folder,
            split="train",
            features=KEYS,
            seed=seed,
            augment=augment.flip_left_right(),
            **options,
        )
        data = data.unbatch() if options else data
        return [
            {e["image/filename"].numpy().decode(): e["image"].numpy() for e in data}
            for _ in range(2)
        ]

    for options in ({}, {"batch_size": 8}):
        first, second = epochs(1, **options)
        flipped = [np.array_equal(first[key], pixels[key][:, ::-1]) for key in first]
        whole = [np.array_equal(first[key], pixels[key]) for key in first]
        assert all(a != b for a, b in zip(flipped, whole, strict=True))
        assert 60 < sum(flipped) < 140
        assert any(not np.array_equal(first[key], second[key]) for key in first)
        again, _ = epochs(1, **options)
        assert all(np.array_equal(first[key], again[key]) for key in first)


def test_labels_are_mixed_with_their_images(dataset):
    data = read(
        dataset[0],
        split="train",
        batch_size=8,
        image_dtype="float32",
        one_hot=True,
        augment=augment.mixup(),
    )

    images, labels = next(iter(data))

    assert images.shape == (8, *SIZE, 3)
    np.testing.assert_allclose(tf.reduce_sum(labels, 1), 1, rtol=1e-5)


def main(what, folder, prefix=None):
    """What a process of its own does for a test above."""
    if what == "distribute":
        cpu = tf.config.list_physical_devices("CPU")[0]
        tf.config.set_logical_device_configuration(
            cpu, [tf.config.LogicalDeviceConfiguration()] * 2
        )
        strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])

        def share(context):
            shard = (context.input_pipeline_id, context.num_input_pipelines)
            size = context.get_per_replica_batch_size(20)
            return read(folder, split="train", batch_size=size, features=KEYS, shard=shard)

        found = []
        for element in strategy.distribute_datasets_from_function(share):
            for value in strategy.experimental_local_results(element["image/filename"]):
                found += [key.decode() for key in value.numpy()]
        print(json.dumps(found))
        return
    size = {"order": 50, "resume": 8, "abandon": 10}[what]
    data = read(folder, split="train", batch_size=size, features=KEYS, shuffle=True, seed=5)
    if what == "order":
        data = read(folder, split="train", batch_size=50, features=KEYS, shuffle=True, seed=3)
        print(json.dumps([keys(data), keys(data)]))
    elif what == "abandon":
        data = read(folder, split="train", batch_size=10, features=KEYS, repeat=True)
        keys(data.take(3))
        iterator = iter(data)
        next(iterator)
        print("done", flush=True)
    else:
        iterator = iter(data)
        checkpoint = tf.train.Checkpoint(iterator=iterator)
        found, fresh = [], not Path(f"{prefix}.index").exists()
        if not fresh:
            checkpoint.read(prefix)
        for element in iterator:
            found += keys([element])
            if len(found) == 80:
                checkpoint.write(prefix)
                break
        else:
            found += keys(data)
        print(json.dumps(found))


if __name__ == "__main__":
    logging.disable()
    main(*sys.argv[1:])
