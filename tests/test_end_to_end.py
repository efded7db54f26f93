"""The guarantees, shown on whole conversions of real folders by the real command."""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import cv2
import numpy as np
import pytest

from tfrecordify import manifest, records
from tfrecordify.cli import main
from tfrecordify.verify import verify

ROOT = Path(__file__).parent.parent
PER_LABEL = 40
SHARDS = 12


def draw_folder(folder: Path, *, per_label: int = PER_LABEL, side: int = 96) -> Path:
    rng = np.random.default_rng(3)
    for label in ("ant", "bee", "cow"):
        (folder / label).mkdir(parents=True)
        for number in range(per_label):
            pixels = rng.integers(0, 256, (side // 8, side // 8, 3), dtype=np.uint8)
            suffix = "png" if number % 4 == 0 else "jpg"
            image = cv2.resize(pixels, (side, side), interpolation=cv2.INTER_CUBIC)
            cv2.imwrite(str(folder / label / f"{number:03d}.{suffix}"), image)
    return folder


def command(*flags: object) -> list[str]:
    return [sys.executable, "-m", "tfrecordify.cli", *map(str, flags)]


def run(*flags: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(*flags), capture_output=True, text=True, cwd=ROOT, check=False)


def contents(folder: Path) -> dict[str, str]:
    """Hash of each file that the guarantee of equal bytes is about."""
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.iterdir())
        if path.is_file()
    }


def example_keys(dataset: Path, split: str = "train") -> list[str]:
    keys = []
    for shard in manifest.load(str(dataset)).splits[split].shards:
        with (dataset / shard.file).open("rb") as file:
            for record in records.read_records(file):
                keys.append(records.decode_example(record)["image/filename"][0].decode())
    return keys


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return draw_folder(tmp_path_factory.mktemp("images") / "zoo")


@pytest.fixture(scope="module")
def dataset(images: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("dataset") / "out"
    done = run("convert", images, out, "--num_shards", SHARDS, "--image_size", 64)
    assert done.returncode == 0, done.stderr
    return out


def test_every_image_is_in_one_shard_once(images: Path, dataset: Path) -> None:
    listed = sorted(p.relative_to(images).as_posix() for p in images.rglob("*.*"))
    assert sorted(example_keys(dataset)) == listed
    counts = [shard.examples for shard in manifest.load(str(dataset)).splits["train"].shards]
    assert counts == [3 * PER_LABEL // SHARDS] * SHARDS


def test_the_order_is_shuffled_and_the_same_for_ever(dataset: Path) -> None:
    assert example_keys(dataset)[:6] == [
        "cow/019.jpg",
        "cow/032.png",
        "ant/010.jpg",
        "ant/016.png",
        "bee/037.jpg",
        "ant/015.jpg",
    ]


def test_one_core_gives_the_same_bytes(images: Path, dataset: Path, tmp_path: Path) -> None:
    flags = ("convert", images, tmp_path / "out", "--num_shards", SHARDS, "--image_size", 64)
    script = "import os, sys; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}); "
    script += "from tfrecordify.cli import main; sys.exit(main(sys.argv[1:]))"
    subprocess.run(
        [sys.executable, "-c", script, *map(str, flags)], cwd=ROOT, check=True, capture_output=True
    )
    assert contents(tmp_path / "out") == contents(dataset)


def test_killed_ten_times_ends_with_the_same_bytes(
    images: Path, dataset: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    flags = ("convert", images, out, "--num_shards", SHARDS, "--image_size", 64)
    rng = random.Random(11)
    stamps: dict[str, int] = {}
    for _ in range(10):
        process = subprocess.Popen(
            command(*flags), cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        wanted = len(stamps) + rng.choice((0, 1, 1, 2))
        kill_when(process, out, wanted, rng.uniform(0, 0.01))
        for path in out.glob("*.tfrecord.gz"):
            stamp = path.stat().st_mtime_ns
            assert stamps.setdefault(path.name, stamp) == stamp, "a finished shard was rewritten"
    done = run(*flags)
    assert done.returncode == 0, done.stderr
    assert stamps
    assert {name: (out / name).stat().st_mtime_ns for name in stamps} == stamps
    assert contents(out) == contents(dataset)
    assert not list(out.rglob(".*"))


def kill_when(process: subprocess.Popen[bytes], out: Path, shards: int, more: float) -> None:
    """Kills a conversion once so many shards are published, and a moment more has passed."""
    while process.poll() is None and len(list(out.glob("*.tfrecord.gz"))) < shards:
        time.sleep(0.001)
    time.sleep(more)
    process.send_signal(signal.SIGKILL)
    process.wait()


def test_what_cannot_be_converted_is_listed(tmp_path: Path) -> None:
    images = draw_folder(tmp_path / "in", per_label=6)
    whole = (images / "ant" / "001.jpg").read_bytes()
    (images / "ant" / "cut.jpg").write_bytes(whole[: len(whole) // 2])
    (images / "bee" / "empty.png").write_bytes(b"")
    (images / "cow" / "gone.jpg").symlink_to(tmp_path / "nowhere.jpg")
    (images / "cow" / "notes.txt").write_text("not an image")
    (images / "cow" / ".DS_Store").write_bytes(b"x")
    done = run("convert", images, tmp_path / "out")
    assert done.returncode == 1
    assert "3 of 21 images were rejected" in done.stderr
    lines = [json.loads(x) for x in (tmp_path / "out" / "errors.jsonl").read_text().splitlines()]
    assert [(line["path"], line["stage"]) for line in lines] == [
        ("ant/cut.jpg", "decode"),
        ("bee/empty.png", "decode"),
        ("cow/gone.jpg", "read"),
    ]
    assert all(line["reason"] for line in lines)
    made = manifest.load(str(tmp_path / "out"))
    assert (made.examples, made.rejected) == (18, 3)
    assert made.skipped == {".txt": 1, "hidden": 1}
    assert made.splits["train"].class_counts == [6, 6, 6]


def test_other_settings_or_images_are_refused(tmp_path: Path) -> None:
    images, out = draw_folder(tmp_path / "in", per_label=4), tmp_path / "out"
    assert run("convert", images, out, "--num_shards", 3).returncode == 0
    before = contents(out)
    refused = run("convert", images, out, "--num_shards", 2)
    assert refused.returncode == 2
    assert "num_shards was 3, now 2" in refused.stderr
    assert refused.stderr.count("\n") == 1
    (images / "ant" / "new.jpg").write_bytes((images / "ant" / "001.jpg").read_bytes())
    refused = run("convert", images, out, "--num_shards", 3)
    assert refused.returncode == 2
    assert "12 images were listed, now 13" in refused.stderr
    assert contents(out) == before
    assert run("convert", images, out, "--num_shards", 2, "--overwrite").returncode == 0
    assert [p.name for p in sorted(out.glob("*.tfrecord*"))] == [
        "in-train-00000-of-00002.tfrecord.gz",
        "in-train-00001-of-00002.tfrecord.gz",
    ]
    assert verify(str(out), decode=True).ok


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small disk needs root")
def test_a_full_disk_leaves_nothing_half_written(tmp_path: Path) -> None:
    images, out = draw_folder(tmp_path / "in", per_label=60, side=256), tmp_path / "disk"
    out.mkdir()
    script = 'mount -t tmpfs -o size=1m tmpfs "$1" || exit 99; shift; "$@"; echo "code $?"; '
    script += f'ls "{out}"'
    flags = command("convert", images, out, "--num_shards", 3, "--encode_quality", 100)
    done = subprocess.run(
        ["unshare", "-m", "bash", "-c", script, "_", str(out), *flags],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )
    if done.returncode == 99:
        pytest.skip("this container may not mount")
    assert "code 2" in done.stdout
    assert "dataset.json" not in done.stdout
    assert done.stderr.count("\n") == 1
    assert "space" in done.stderr


def test_a_worker_fault_names_the_image(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    images = draw_folder(tmp_path / "in", per_label=2)

    def broken(*_: object) -> None:
        raise RuntimeError("out of luck")

    monkeypatch.setattr("tfrecordify.shards.convert_image", broken)
    assert main(["convert", str(images), str(tmp_path / "out"), "--num_shards", "1"]) == 2
    error = capsys.readouterr().err
    assert "out of luck" in error
    assert "/00" in error
    assert error.count("\n") == 1
    assert not list((tmp_path / "out").glob("*.tfrecord*"))


def test_splits_stay_when_images_are_added(tmp_path: Path) -> None:
    images = draw_folder(tmp_path / "in", per_label=20)
    flags = ("--splits", "train=0.7,validation=0.3")
    assert main(["convert", str(images), str(tmp_path / "a"), *flags]) == 0
    for path in list(images.rglob("*.jpg")):
        path.with_name("more_" + path.name).write_bytes(path.read_bytes())
    assert main(["convert", str(images), str(tmp_path / "b"), *flags]) == 0
    for split in ("train", "validation"):
        before = set(example_keys(tmp_path / "a", split))
        assert before
        assert before < set(example_keys(tmp_path / "b", split))


def test_statistics_are_those_of_the_pixels(tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    (tmp_path / "in").mkdir()
    images = [rng.integers(0, 256, (8, 8, 3), dtype=np.uint8) for _ in range(5)]
    for number, image in enumerate(images):
        cv2.imwrite(str(tmp_path / "in" / f"{number}.png"), image[..., ::-1])
    flags = ["--resize_mode", "none", "--encode_format", "png", "--compression", "none"]
    assert main(["convert", str(tmp_path / "in"), str(tmp_path / "out"), *flags]) == 0
    made = manifest.load(str(tmp_path / "out"))
    split = made.splits["train"]
    pixels = np.concatenate(images).reshape(-1, 3).astype(float)
    assert np.allclose(split.mean, pixels.mean(0))
    assert np.allclose(split.std, pixels.std(0))
    assert made.image_shape == [None, None, 3]
    assert split.shards[0].file == "in-train.tfrecord-00000-of-00001"
    assert not split.labelled


def flips(dataset: Path, count: int) -> Iterator[tuple[Path, int, int]]:
    rng = random.Random(2)
    files = sorted(path for path in dataset.rglob("*") if path.is_file() and path.stat().st_size)
    sizes = [path.stat().st_size for path in files]
    for number in range(count):
        small = number % 4 == 0
        path = rng.choice(files) if small else rng.choices(files, sizes)[0]
        yield path, rng.randrange(path.stat().st_size), rng.randrange(8)


def test_any_flipped_bit_is_found(dataset: Path) -> None:
    assert verify(str(dataset), decode=True).ok
    for path, place, bit in flips(dataset, 200):
        data = path.read_bytes()
        damaged = bytearray(data)
        damaged[place] ^= 1 << bit
        path.write_bytes(damaged)
        faults = verify(str(dataset)).faults
        path.write_bytes(data)
        assert [Path(fault.file).name for fault in faults] == [path.name], (path, place, bit)
    assert verify(str(dataset)).ok


def test_a_flipped_bit_names_its_record(dataset: Path) -> None:
    shard = manifest.load(str(dataset)).splits["train"].shards[0]
    path = dataset / shard.file
    data = path.read_bytes()
    place = data.index(example_keys(dataset)[4].encode())
    path.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
    (fault,) = verify(str(dataset)).faults
    path.write_bytes(data)
    assert (fault.file, fault.record) == (shard.file, 4)


def test_missing_cut_and_foreign_shards_are_named(dataset: Path, tmp_path: Path) -> None:
    shards = manifest.load(str(dataset)).splits["train"].shards
    first, second = (dataset / shard.file for shard in shards[:2])
    kept = first.read_bytes(), second.read_bytes()
    first.unlink()
    second.write_bytes(kept[1][:-9])
    foreign = dataset / "zoo-train-00000-of-00099.tfrecord.gz"
    foreign.write_bytes(kept[0])
    faults = {fault.file: fault.reason for fault in verify(str(dataset)).faults}
    foreign.unlink()
    first.write_bytes(kept[0])
    second.write_bytes(kept[1])
    assert set(faults) == {first.name, second.name, foreign.name}
    assert "missing" in faults[first.name]
    assert "foreign" in faults[foreign.name]
