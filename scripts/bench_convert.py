"""Measures `tfrecordify convert` beside the bound and other ways, on the images of a folder.

Every job runs in a process of its own, one after the other, round after round; the table holds
medians and spreads. The bound is the codec loop alone: the same `convert_image` over the same
files, in as many threads as there are cores, nothing written.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil

SIZE, QUALITY = 224, 95
SHARDS = 8


def bound(images: Path, out: Path) -> float:
    """The codec loop alone; images a second."""
    from tfrecordify.images import ImageSpec, convert_image
    from tfrecordify.shards import usable_cores

    paths = sorted(path for path in images.rglob("*") if path.is_file())
    spec = ImageSpec(size=(SIZE, SIZE), encode_quality=QUALITY)

    def loop(share: list[Path]) -> None:
        for path in share:
            convert_image(path.read_bytes(), spec)

    cores = usable_cores()
    start = time.perf_counter()
    with ThreadPoolExecutor(cores) as pool:
        list(pool.map(loop, [paths[core::cores] for core in range(cores)]))
    return len(paths) / (time.perf_counter() - start)


def tfrecordify(images: Path, out: Path) -> float:
    """The tool; images a second between the first and the last tenth."""
    from beam_jobs.convert import convert
    from tfrecordify.progress import PROGRESS

    seen: list[tuple[float, int]] = []
    done = threading.Event()

    def watch() -> None:
        while not done.wait(0.02):
            seen.append((time.perf_counter(), PROGRESS.converted))

    watcher = threading.Thread(target=watch)
    watcher.start()
    made = convert(str(images), str(out), image_size=SIZE, encode_quality=QUALITY, progress=False)
    done.set()
    watcher.join()
    first = next(mark for mark in seen if mark[1] >= 0.1 * made.examples)
    last = next(mark for mark in seen if mark[1] >= 0.9 * made.examples)
    return (last[1] - first[1]) / (last[0] - first[0])


def plain_beam(images: Path, out: Path) -> None:
    """A ParDo for each image, then WriteToTFRecord."""
    import apache_beam as beam
    from apache_beam.runners.portability.fn_api_runner import FnApiRunner

    from tfrecordify.images import ImageSpec, convert_image
    from tfrecordify.records import encode_example

    spec = ImageSpec(size=(SIZE, SIZE), encode_quality=QUALITY)

    def encode(path: str) -> bytes:
        image = convert_image(Path(path).read_bytes(), spec)
        return encode_example({"image": image.data, "image/filename": path})

    paths = [str(path) for path in images.rglob("*") if path.is_file()]
    options = beam.options.pipeline_options.PipelineOptions(
        direct_num_workers=os.cpu_count(), direct_running_mode="multi_threading"
    )
    with beam.Pipeline(runner=FnApiRunner(), options=options) as pipeline:
        _ = (
            pipeline
            | beam.Create(paths)
            | beam.Reshuffle()
            | beam.Map(encode)
            | beam.io.WriteToTFRecord(str(out / "x"), file_name_suffix=".gz", num_shards=SHARDS)
        )


def tutorial(images: Path, out: Path) -> None:
    """The tutorials' loop: tf.data decodes and resizes (nearest), a TFRecordWriter writes."""
    import tensorflow as tf

    def load(path: Any) -> tuple[Any, Any]:
        image = tf.io.decode_image(tf.io.read_file(path), channels=3, expand_animations=False)
        image = tf.image.resize(image, (SIZE, SIZE), method="nearest")
        return path, tf.io.encode_jpeg(image, quality=QUALITY)

    paths = [str(path) for path in images.rglob("*") if path.is_file()]
    dataset = tf.data.Dataset.from_tensor_slices(paths).map(load, tf.data.AUTOTUNE).prefetch(64)
    options = tf.io.TFRecordOptions(compression_type="GZIP")
    out.mkdir(exist_ok=True)
    writers = [tf.io.TFRecordWriter(str(out / f"{n}.gz"), options) for n in range(SHARDS)]
    for number, (path, image) in enumerate(dataset.as_numpy_iterator()):
        features = {
            name: tf.train.Feature(bytes_list=tf.train.BytesList(value=[value]))
            for name, value in (("image", image), ("image/filename", path))
        }
        example = tf.train.Example(features=tf.train.Features(feature=features))
        writers[number % SHARDS].write(example.SerializeToString())
    for writer in writers:
        writer.close()


JOBS: dict[str, tuple[str, Callable[[Path, Path], float | None]]] = {
    "bound": ("the codec loop alone (the bound)", bound),
    "tfrecordify": ("`tfrecordify convert`", tfrecordify),
    "plain_beam": ("Beam: ParDo an image, WriteToTFRecord", plain_beam),
    "tutorial": ("the tutorials' tf.data loop", tutorial),
}


def measure(job: str, images: Path, count: int) -> dict[str, float]:
    """Runs a job in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, __file__, "--job", job, str(images), folder + "/out"]
        start = time.perf_counter()
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        peak = 0
        watched = psutil.Process(process.pid)
        output: list[bytes] = []
        reader = threading.Thread(target=lambda: output.extend(process.communicate()))
        reader.start()
        while reader.is_alive():
            peak = max(peak, _memory(watched))
            reader.join(0.05)
        seconds = time.perf_counter() - start
        if process.returncode:
            sys.exit(f"{job} failed: {output[1].decode()[-2000:]}")
    said = json.loads(output[0].decode().strip().splitlines()[-1])
    return {
        "whole": count / seconds,
        "steady": said["steady"] or 0.0,
        "cpu": said["cpu"] / seconds / (os.cpu_count() or 1),
        "memory": peak / 1e6,
    }


def _memory(process: psutil.Process) -> int:
    try:
        family = [process, *process.children(recursive=True)]
        return sum(member.memory_info().rss for member in family)
    except psutil.Error:
        return 0


def multiply(folder: Path, count: int, into: Path) -> Path:
    """A folder of `count` images: those of a folder, again and again as files of their own."""
    suffixes = {".jpg", ".jpeg", ".png"}
    found = sorted(path for path in folder.rglob("*") if path.suffix.lower() in suffixes)
    if not found:
        sys.exit(f"no image in {folder}")
    for number in range(count):
        source = found[number % len(found)]
        target = into / source.parent.name / f"{number:07d}{source.suffix}"
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)
    return into


def table(results: dict[str, list[dict[str, float]]]) -> Iterator[str]:
    """Rows of Markdown, and the lines above them."""
    yield "| job | img/s, whole process | img/s, steady | of the bound | CPU | peak memory |"
    yield "| --- | --- | --- | --- | --- | --- |"
    for job, runs in results.items():
        median = {key: statistics.median(run[key] for run in runs) for key in runs[0]}
        low, high = min(run["whole"] for run in runs), max(run["whole"] for run in runs)
        rate = "steady" if median["steady"] else "whole"
        pairs = zip(runs, results["bound"], strict=True)
        ratios = [run[rate] / other["steady"] for run, other in pairs]
        steady = f"{median['steady']:.0f}" if median["steady"] else ""
        yield (
            f"| {JOBS[job][0]} | {median['whole']:.0f} ({low:.0f} to {high:.0f}) | {steady} | "
            f"{statistics.median(ratios):.2f} | {median['cpu']:.0%} | {median['memory']:.0f} MB |"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="folder of photos")
    parser.add_argument("out", type=Path, nargs="?", help=argparse.SUPPRESS)
    parser.add_argument("--images", type=int, default=10_000, help="how many (10000)")
    parser.add_argument("--rounds", type=int, default=3, help="how often (3)")
    parser.add_argument("--only", default=",".join(JOBS), help="jobs, separated by commas")
    parser.add_argument("--job", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.job:
        args.out.parent.mkdir(exist_ok=True)
        if args.job == "plain_beam":
            args.out.mkdir()
        steady = JOBS[args.job][1](args.folder, args.out)
        times = os.times()
        cpu = times.user + times.system + times.children_user + times.children_system
        print(json.dumps({"steady": steady, "cpu": cpu}))
        return
    jobs = ["bound", *(job for job in args.only.split(",") if job != "bound")]
    results: dict[str, list[dict[str, float]]] = {job: [] for job in jobs}
    with tempfile.TemporaryDirectory() as folder:
        images = multiply(args.folder, args.images, Path(folder) / "images")
        for _ in range(args.rounds):
            for job in jobs:
                results[job].append(measure(job, images, args.images))
                print(f"{job}: {results[job][-1]['whole']:.0f} img/s", file=sys.stderr)
    print("\n".join(table(results)))


if __name__ == "__main__":
    main()
