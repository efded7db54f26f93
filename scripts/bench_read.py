"""Compares readers of the same images, side by side: scripts/bench read FOLDER."""

from __future__ import annotations

import argparse
import gc
import io
import itertools
import os
import shutil
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import simplejpeg
import tensorflow as tf
from PIL import Image, ImageDraw, ImageFont

import tfrecordify
from tfrecordify import manifest, records
from tfrecordify.decoding import usable_cores

SIZE = 224
STEPS_BEFORE_WAITING = 10
FEATURES = {
    "image": tf.io.FixedLenFeature([], tf.string),
    "label": tf.io.FixedLenFeature([], tf.int64),
}


@dataclass(frozen=True, kw_only=True)
class Reader:
    """A way of reading, and how many epochs of it are worth timing."""

    name: str
    make: Callable[[int], Any]  # batch size -> dataset
    images: int
    later: bool = False
    """Whether later epochs differ from the first."""


# The data.


def multiply(folder: Path, target: Path, images: int) -> list[Path]:
    """Links the images of a folder to new names, in their class folders, until they suffice."""
    sources = sorted(path for path in folder.rglob("*") if path.suffix.lower() in (".jpg", ".jpeg"))
    if not sources:
        raise SystemExit(f"no JPEG below {folder}: give a folder of photos")
    made = []
    for number, source in enumerate(itertools.islice(itertools.cycle(sources), images)):
        path = target / source.parent.name / f"{number:06}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(source.resolve())
        made.append(path)
    return made


def shard_paths(dataset: Path) -> list[Path]:
    return [dataset / shard.file for shard in manifest.load(str(dataset)).splits["train"].shards]


def write_tutorial_shards(dataset: Path, target: Path) -> list[str]:
    """The same records at gzip's level 6, as TensorFlow and the tutorials compress them."""
    target.mkdir()
    for path in shard_paths(dataset):
        with (
            path.open("rb") as source,
            (target / path.name).open("wb") as file,
            records.RecordWriter(file, level=6) as writer,
        ):
            for record in records.read_records(source):
                writer.write(records.frame(record))
    return sorted(str(path) for path in target.iterdir())


def examples(dataset: Path) -> Iterator[dict[str, list[Any]]]:
    for path in shard_paths(dataset):
        with path.open("rb") as file:
            yield from map(records.decode_example, records.read_records(file))


def tfds_reader(dataset: Path, target: Path) -> Callable[[int], Any] | None:
    """A TensorFlow Datasets builder of the same images, if it is installed."""
    try:
        import tensorflow_datasets as tfds
    except ImportError:
        return None

    class SameImages(tfds.core.GeneratorBasedBuilder):
        VERSION = tfds.core.Version("1.0.0")
        pkg_dir_path = target

        def _info(self) -> Any:
            features = {
                "image": tfds.features.Image(shape=(SIZE, SIZE, 3), encoding_format="jpeg"),
                "label": tfds.features.Scalar(tf.int64),
            }
            return tfds.core.DatasetInfo(
                builder=self, features=tfds.features.FeaturesDict(features)
            )

        def _split_generators(self, dl_manager: Any) -> Any:
            return {"train": self._generate_examples()}

        def _generate_examples(self) -> Any:
            for number, example in enumerate(examples(dataset)):
                image = io.BytesIO(example["image"][0])
                yield number, {"image": image, "label": example["label"][0]}

    tfds.disable_progress_bar()
    builder = SameImages(data_dir=target)
    builder.download_and_prepare()

    def make(batch_size: int) -> Any:
        data = builder.as_dataset(split="train", as_supervised=False)
        return data.map(lambda e: (e["image"], e["label"])).batch(batch_size).prefetch(2)

    return make


# The readers.


def decode_loose(path: Any) -> Any:
    image = tf.io.decode_jpeg(tf.io.read_file(path), 3)
    return tf.cast(tf.image.resize(image, (SIZE, SIZE)), tf.uint8), tf.constant(0, tf.int64)


def loose(paths: Sequence[str], cache: Path | str | None) -> Callable[[int], Any]:
    """Files read, decoded and resized in tf.data; `cache` is a folder, or "" for memory."""

    def make(batch_size: int) -> Any:
        data = tf.data.Dataset.from_tensor_slices(list(paths))
        data = data.map(decode_loose, num_parallel_calls=tf.data.AUTOTUNE)
        if isinstance(cache, Path):
            shutil.rmtree(cache, ignore_errors=True)
            cache.mkdir()
            data = data.cache(str(cache / "images"))
        elif cache is not None:
            data = data.cache()
        return data.batch(batch_size).prefetch(tf.data.AUTOTUNE)

    return make


def tutorial(paths: Sequence[str], *, vectorised: bool) -> Callable[[int], Any]:
    """Interleave, parse, decode, float32, batch and prefetch, all left to AUTOTUNE."""

    def decode(encoded: Any) -> Any:
        image = tf.io.decode_jpeg(encoded, 3)
        image = tf.image.convert_image_dtype(image, tf.float32)
        return tf.ensure_shape(image, (SIZE, SIZE, 3))

    def parse_one(serialized: Any) -> Any:
        example = tf.io.parse_single_example(serialized, FEATURES)
        return decode(example["image"]), example["label"]

    def parse_batch(serialized: Any) -> Any:
        batch = tf.io.parse_example(serialized, FEATURES)
        spec = tf.TensorSpec((SIZE, SIZE, 3), tf.float32)
        return tf.map_fn(decode, batch["image"], fn_output_signature=spec), batch["label"]

    def make(batch_size: int) -> Any:
        data = tf.data.Dataset.from_tensor_slices(list(paths)).interleave(
            lambda path: tf.data.TFRecordDataset(path, "GZIP"),
            num_parallel_calls=tf.data.AUTOTUNE,
        )
        if vectorised:
            data = data.batch(batch_size).map(parse_batch, num_parallel_calls=tf.data.AUTOTUNE)
        else:
            data = data.map(parse_one, num_parallel_calls=tf.data.AUTOTUNE).batch(batch_size)
        return data.prefetch(tf.data.AUTOTUNE)

    return make


def ours(dataset: Path, **options: Any) -> Callable[[int], Any]:
    def make(batch_size: int) -> Any:
        if "/" in options.get("cache", ""):
            shutil.rmtree(options["cache"], ignore_errors=True)
        return tfrecordify.read(dataset, split="train", batch_size=batch_size, **options)

    return make


def readers(folder: Path, work: Path, images: int, loose_images: int) -> list[Reader]:
    paths = multiply(folder, work / "loose", images)
    dataset = work / "dataset"
    tfrecordify.convert(str(work / "loose"), str(dataset), image_size=SIZE, num_shards=16)
    count = manifest.load(str(dataset)).examples
    level6 = write_tutorial_shards(dataset, work / "level6")
    some = [str(path) for path in paths[:loose_images]]
    rows = [
        ("loose files", loose(some, None), len(some), False),
        ("loose files, cache() in memory", loose(some, ""), len(some), True),
        ("loose files, cache() on disk", loose(some, work / "tf_cache"), len(some), True),
        ("TFRecord tutorial", tutorial(level6, vectorised=False), count, False),
        ("TFRecord tutorial, vectorised", tutorial(level6, vectorised=True), count, False),
        ("TensorFlow Datasets", tfds_reader(dataset, work / "tfds"), count, False),
        ("tfrecordify.read", ours(dataset), count, False),
        ("... shuffle=True", ours(dataset, shuffle=True), count, False),
        ('... image_dtype="float32"', ours(dataset, image_dtype="float32"), count, False),
        ('... decoder="tensorflow"', ours(dataset, decoder="tensorflow"), count, False),
        ('... cache="records"', ours(dataset, shuffle=True, cache="records"), count, True),
        ('... cache="images"', ours(dataset, shuffle=True, cache="images"), count, True),
        ("... cache on disk", ours(dataset, shuffle=True, cache=f"{work}/cache/"), count, True),
    ]
    return [
        Reader(name=name, make=make, images=number, later=later)
        for name, make, number, later in rows
        if make is not None
    ]


# The measurements.


def bound(encoded: Sequence[bytes]) -> float:
    """Images per second of libjpeg-turbo alone: all cores, one buffer, accurate flags."""
    cores = usable_cores()
    buffer = np.zeros((256, SIZE, SIZE, 3), np.uint8)

    def decode(first: int) -> None:
        for number in range(first, len(encoded), cores):
            simplejpeg.decode_jpeg(encoded[number], buffer=buffer[number % 256])

    threads = [threading.Thread(target=decode, args=(core,)) for core in range(cores)]
    start = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return len(encoded) / (time.perf_counter() - start)


def epoch(data: Any) -> tuple[float, float]:
    """Seconds from the first request to the last batch, and from there to the iterator's end."""
    start = time.perf_counter()
    iterator = iter(data)
    for _ in iterator:
        pass
    last = time.perf_counter()
    del iterator
    return last - start, time.perf_counter() - last


def waiting(data: Any, step: float) -> float:
    """Share of the time that a loop with steps of so many seconds waits for its batches."""
    waits = []
    iterator = iter(data.repeat(2))
    while True:
        start = time.perf_counter()
        if next(iterator, None) is None:
            break
        waits.append(time.perf_counter() - start)
        time.sleep(step)  # as a device that computes while the processor reads
    waited = sum(waits[STEPS_BEFORE_WAITING:])
    return waited / (waited + step * (len(waits) - STEPS_BEFORE_WAITING))


Rates = dict[tuple[str, int, str], list[float]]  # (reader, batch size, epoch) -> images/s


def measure(todo: Sequence[Reader], dataset: Path, batch_sizes: Sequence[int], runs: int) -> Rates:
    """All readers in turn, run after run, so that a slow minute of the machine meets them all."""
    encoded = [example["image"][0] for example in examples(dataset)]
    rates: Rates = {}

    def note(name: str, batch_size: int, which: str, rate: float) -> None:
        rates.setdefault((name, batch_size, which), []).append(rate)

    for run in range(runs + 1):  # the first warms up: page cache, libraries, memory
        for batch_size in batch_sizes:
            rate = bound(encoded)
            if run:
                note("bound", batch_size, "first", rate)
            for reader in todo:
                data = reader.make(batch_size)
                which = ["first", "later"] if reader.later else ["first"]
                for name in which:
                    rate = reader.images / epoch(data)[0]
                    if run:
                        note(reader.name, batch_size, name, rate)
                del data
                gc.collect()
        print(f"run {run} of {runs} done", file=sys.stderr)
    return rates


# The report.


def table(rates: Rates, batch_size: int) -> str:
    limit = statistics.median(rates["bound", batch_size, "first"])
    reference = statistics.median(rates["TFRecord tutorial", batch_size, "first"])
    lines = [
        f"Batches of {batch_size}:",
        "",
        "| reader | first epoch, images/s | of the bound | x tutorial | later epochs | x first |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for name in dict.fromkeys(name for name, size, _ in rates if size == batch_size):
        first = rates[name, batch_size, "first"]
        later = rates.get((name, batch_size, "later"))
        rate = statistics.median(first)
        cells = [name, spread(first), f"{rate / limit:.2f}", f"{rate / reference:.2f}"]
        cells += [spread(later), f"{statistics.median(later) / rate:.1f}"] if later else ["", ""]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def spread(values: Sequence[float]) -> str:
    return f"{statistics.median(values):,.0f} ({min(values):,.0f} to {max(values):,.0f})"


def stalls(dataset: Path, epochs: int) -> str:
    """How long the end of an epoch takes, here and with AUTOTUNE."""
    lines = [
        f"From the last batch to the iterator's end, {epochs} epochs:",
        "",
        "| tfrecordify.read | median, ms | longest, ms | above 100 ms |",
        "| --- | --- | --- | --- |",
    ]
    for name, options in (
        ("as it is", {}),
        ('parallelism="autotune"', {"parallelism": "autotune"}),
    ):
        data = tfrecordify.read(dataset, split="train", batch_size=256, **options)
        ends = [1000 * epoch(data)[1] for _ in range(epochs)]
        long = sum(end > 100 for end in ends)
        median, longest = statistics.median(ends), max(ends)
        lines.append(f"| {name} | {median:.1f} | {longest:.0f} | {long} of {epochs} |")
    return "\n".join(lines)


def waits(todo: Sequence[Reader], step_ms: float) -> str:
    lines = [
        f"Share of the time spent waiting, steps of {step_ms:.0f} ms for 256 images:",
        "",
        "| reader | waiting |",
        "| --- | --- |",
    ]
    for reader in todo:
        if reader.name in ("TFRecord tutorial", "tfrecordify.read", "... shuffle=True"):
            share = waiting(reader.make(256), step_ms / 1000)
            lines.append(f"| {reader.name} | {100 * share:.1f}% |")
    return "\n".join(lines)


def draw(rates: Rates, batch_size: int, path: Path) -> None:
    """Bars of the medians: the first epoch dark, later ones light where they differ."""
    rows = [key for key in rates if key[1] == batch_size]
    medians = [statistics.median(rates[row]) for row in rows]
    limit = statistics.median(rates["bound", batch_size, "first"])
    font = ImageFont.load_default(15)
    left, bar, width = 310, 24, 1000
    image = Image.new("RGB", (width, 50 + bar * len(rows)), "white")
    pen = ImageDraw.Draw(image)
    pen.text((10, 8), f"Images per second, batches of {batch_size}", "black", font)
    scale = (width - left - 90) / (1.5 * limit)
    for place, (row, rate) in enumerate(zip(rows, medians, strict=True)):
        top = 40 + place * bar
        later = row[2] == "later"
        mine = row[0].startswith(("tfrecordify", "..."))
        color = {(True, False): "#1b6e3c", (True, True): "#8cc9a1", (False, False): "#5f6b7a"}
        length = min(rate, 1.5 * limit) * scale
        pen.rectangle(
            (left, top, left + length, top + bar - 6), color.get((mine, later), "#b4bcc6")
        )
        pen.text((10, top), row[0] + (", later epochs" if later else ""), "black", font)
        arrow = " >" if rate > 1.5 * limit else ""
        pen.text((left + length + 6, top), f"{rate:,.0f}{arrow}", "black", font)
    pen.line((left + limit * scale, 36, left + limit * scale, image.height), "#c0392b")
    image.save(path)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="bench read", description=__doc__)
    parser.add_argument("folder", type=Path, help="photos; they are repeated to make --images")
    parser.add_argument("--images", type=int, default=8192)
    parser.add_argument("--loose_images", type=int, default=1024, help="of them, for loose files")
    parser.add_argument("--batch_sizes", type=int, nargs="+", default=[32, 256])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=20, help="to look for stalls in")
    parser.add_argument("--step_ms", type=float, help="of training; default: twice the decoding")
    parser.add_argument("--output", type=Path, default=Path("bench_read"), help=".md and .png")
    parser.add_argument(
        "--work", type=Path, help="folder for shards and caches; default: temporary"
    )
    args = parser.parse_args(argv)

    with tempfile.TemporaryDirectory(prefix="bench_read", dir=args.work) as work:
        todo = readers(args.folder, Path(work), args.images, args.loose_images)
        dataset = Path(work) / "dataset"
        rates = measure(todo, dataset, args.batch_sizes, args.runs)
        limit = statistics.median(rates["bound", args.batch_sizes[-1], "first"])
        step_ms = args.step_ms or 2 * 256 / limit * 1000
        parts = [table(rates, batch_size) for batch_size in args.batch_sizes]
        parts += [stalls(dataset, args.epochs), waits(todo, step_ms)]
    report = "\n\n".join(parts) + "\n"
    args.output.with_suffix(".md").write_text(report)
    draw(rates, args.batch_sizes[-1], args.output.with_suffix(".png"))
    print(report)


if __name__ == "__main__":
    main()
