from __future__ import annotations

import io
import os
import random
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from emulator import Bucket

from tfrecordify import gcs, storage
from tfrecordify.storage import File, Part, StorageError

AWKWARD = ["with space", "hash#", "question?", "percent%41", "ünï çödé", "写真", "a+b&c=d", "q'\"`"]
TREE = ["cat/1.jpg", "cat-big/2.jpg", "cat/old/3.jpg", "dog/.hidden", "dog/4.png", "top.txt", ".x"]
LISTED = [
    ".x",
    "cat-big/2.jpg",
    "cat/1.jpg",
    "cat/old/3.jpg",
    "dog/.hidden",
    "dog/4.png",
    "top.txt",
]


@pytest.fixture(autouse=True)
def _quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    quick = gcs._RETRY.with_delay(initial=0.01, maximum=0.1).with_timeout(5.0)
    monkeypatch.setattr(gcs, "_RETRY", quick)


@pytest.fixture(params=["local", "gs"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A folder that holds nothing yet, on a local disk and on gs://."""
    if request.param == "local":
        return str(tmp_path)
    return f"{request.getfixturevalue('bucket').root}/top"


def fill(root: str, names: list[str]) -> None:
    for name in names:
        path = storage.join(root, name)
        storage.make_folder(path.rpartition("/")[0])
        storage.write(path, name.encode())


def below(root: str, files: list[File]) -> list[str]:
    assert all(file.path.startswith(f"{root}/") for file in files)
    return [file.path.removeprefix(f"{root}/") for file in files]


def one_line(error: pytest.ExceptionInfo[OSError]) -> str:
    message = str(error.value)
    assert "\n" not in message
    return message


# Both halves.


def test_lists_everything_in_the_order_of_the_paths(root: str) -> None:
    fill(root, TREE)
    files = list(storage.list_files(root))
    assert below(root, files) == LISTED
    assert [file.size for file in files] == [len(name) for name in LISTED]
    assert files == list(storage.list_files(root + "/"))


@pytest.mark.parametrize(("most", "count"), [(1000, 3), (2, 2), (1, 1)])
def test_parts_make_the_whole(
    root: str, most: int, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage, "_MAX_PARTS", most)
    fill(root, TREE)
    parts = storage.list_parts(root)
    assert len(parts) == count
    listed = [file for part in parts for file in storage.list_files(part)]
    assert listed == list(storage.list_files(root))


def test_a_part_may_be_empty(root: str) -> None:
    fill(root, TREE)
    assert list(storage.list_files(Part(root, "x", "y"))) == []


def test_lists_folders(root: str) -> None:
    fill(root, TREE)
    assert storage.list_folders(root) == (["cat", "cat-big", "dog"], True)
    assert storage.list_folders(f"{root}/cat") == (["old"], True)
    fill(root, ["hid/.DS_Store", "hid/a/1"])
    assert storage.list_folders(f"{root}/hid") == (["a"], False)


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("*", [".x", "top.txt"]),
        ("*/*.jpg", ["cat-big/2.jpg", "cat/1.jpg"]),
        ("**/*.jpg", ["cat-big/2.jpg", "cat/1.jpg", "cat/old/3.jpg"]),
        ("cat*/?.jpg", ["cat-big/2.jpg", "cat/1.jpg"]),
        ("**", LISTED),
        ("cat/**", ["cat/1.jpg", "cat/old/3.jpg"]),
        ("**/old/*", ["cat/old/3.jpg"]),
        ("[cd]*/[0-9].*", ["cat-big/2.jpg", "cat/1.jpg", "dog/4.png"]),
        ("cat/1.jpg", ["cat/1.jpg"]),
        ("*.jpg", []),
        ("t*", ["top.txt"]),
    ],
)
def test_globs(root: str, pattern: str, found: list[str]) -> None:
    fill(root, TREE)
    assert below(root, list(storage.glob_files(f"{root}/{pattern}"))) == found


def test_round_trip_under_any_name(root: str) -> None:
    names = [
        f"{folder}/{name}.jpg" for folder, name in zip(AWKWARD, reversed(AWKWARD), strict=True)
    ]
    fill(root, names)
    assert below(root, list(storage.list_files(root))) == sorted(names)
    for name in names:
        path = storage.join(root, name)
        assert storage.read(path) == name.encode()
        assert storage.stat(path) == File(path, len(name.encode()))
        storage.remove(path)
        assert storage.stat(path) is None
        storage.remove(path)


def test_reads_no_more_than_asked(root: str) -> None:
    fill(root, ["f"])
    storage.write(f"{root}/f", b"0123456789")
    assert [storage.read(f"{root}/f", max_bytes=n) for n in (0, 1, 9, 10, 99)] == [
        b"",
        b"0",
        b"012345678",
        b"0123456789",
        b"0123456789",
    ]
    storage.write(f"{root}/f", b"")
    assert storage.read(f"{root}/f") == storage.read(f"{root}/f", max_bytes=5) == b""


def test_streams_seek_and_read_like_a_file(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gcs, "_READ_BUFFER", 64)
    data = random.Random(1).randbytes(1000)
    storage.make_folder(root)
    storage.write(f"{root}/f", data)
    steps, plain = random.Random(2), io.BytesIO(data)
    with storage.open_read(f"{root}/f") as stream:
        for _ in range(60):
            offset, size = steps.randrange(1100), steps.choice([0, 1, 50, 64, 200, 2000, -1])
            assert stream.seek(offset) == plain.seek(offset)
            assert stream.read(size) == plain.read(size)
        assert stream.seek(-7, os.SEEK_END) == 993
        assert stream.readline() + stream.read() == data[-7:]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_a_failed_publish_changes_nothing(root: str, error: type[BaseException]) -> None:
    fill(root, ["kept"])

    def fail(path: str) -> None:
        with storage.publish(path) as file:
            file.write(b"x" * 3_000_000)
            raise error

    for name in ("kept", "new"):
        with pytest.raises(error):
            fail(f"{root}/{name}")
    assert below(root, list(storage.list_files(root))) == ["kept"]
    assert storage.read(f"{root}/kept") == b"kept"


def test_publishes_as_the_last_act(root: str) -> None:
    fill(root, ["f"])
    with storage.publish(f"{root}/f") as file:
        file.write(b"new")
        file.flush()
        assert storage.read(f"{root}/f") == b"f"
    assert storage.read(f"{root}/f") == b"new"
    assert below(root, list(storage.list_files(root))) == ["f"]


def test_what_is_missing(root: str) -> None:
    fill(root, ["there"])
    for use in (storage.read, storage.open_read):
        with pytest.raises(FileNotFoundError, match="check the path") as error:
            use(f"{root}/gone")
        assert f"{root}/gone: " in one_line(error)
    for use in (
        lambda folder: list(storage.list_files(folder)),
        lambda folder: list(storage.glob_files(f"{folder}/*/*")),
        storage.list_folders,
        storage.list_parts,
    ):
        with pytest.raises(StorageError, match="check the path") as error:
            use(f"{root}/gone")
        assert f"{root}/gone: " in one_line(error)
    assert storage.stat(f"{root}/gone") is None


def test_a_folder_is_no_file(root: str) -> None:
    fill(root, ["folder/file"])
    assert storage.stat(f"{root}/folder") is None


def test_joins() -> None:
    assert storage.join("gs://b", "x", "y/z") == "gs://b/x/y/z"
    assert storage.join("gs://b/x/", "y") == "gs://b/x/y"
    assert storage.join("x", "y") == "x/y"
    assert storage.join("gs://b/x", "/y") == "/y"
    assert storage.join("x", "gs://b/y", "z") == "gs://b/y/z"


# Local disks.


def test_follows_links(tmp_path: Path) -> None:
    fill(str(tmp_path), ["real/f", "outside/g"])
    (tmp_path / "real" / "file link").symlink_to("f")
    (tmp_path / "real" / "folder link").symlink_to("../outside")
    (tmp_path / "real" / "dangling").symlink_to("nowhere")
    os.mkfifo(tmp_path / "real" / "pipe")
    files = list(storage.list_files(f"{tmp_path}/real"))
    assert below(f"{tmp_path}/real", files) == ["dangling", "f", "file link", "folder link/g"]
    assert [file.size for file in files] == [0, 6, 6, 9]
    with pytest.raises(FileNotFoundError):
        storage.read(files[0].path)


@pytest.mark.parametrize("target", ["..", "../..", "loop"])
def test_names_a_loop_of_links(tmp_path: Path, target: str) -> None:
    fill(str(tmp_path), ["top/sub/f"])
    (tmp_path / "top/sub/loop").symlink_to(target)
    with pytest.raises(StorageError, match="links go in a loop") as error:
        list(storage.list_files(str(tmp_path)))
    assert "loop: " in one_line(error)


def test_relative_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    storage.write("f.txt", b"1")
    assert list(storage.glob_files("*.txt")) == [File("f.txt", 1)]
    assert list(storage.list_files(".")) == [File("./f.txt", 1)]


def as_nobody(act: Callable[[], object]) -> str:
    """Run in a child process without root's rights, and return its error's type and message."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            if os.getuid() == 0:
                os.setgroups([])
                os.setgid(65534)
                os.setuid(65534)
            act()
        except BaseException as error:
            os.write(writing, f"{type(error).__name__} {error}".encode())
        finally:
            os._exit(0)
    os.close(writing)
    with open(reading) as pipe:
        told = pipe.read()
    os.waitpid(child, 0)
    return told


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_names_what_permission_is_missing_for(tmp_path: Path) -> None:
    fill(str(tmp_path), ["open/closed/f", "open/file"])
    for folder in [tmp_path, *list(tmp_path.parents)[:-2]]:
        if folder.owner() == Path(tmp_path).owner() and os.getuid() == 0:
            folder.chmod(folder.stat().st_mode | 0o055)
    closed = tmp_path / "open" / "closed"
    closed.chmod(0)
    (tmp_path / "open" / "file").chmod(0)
    (tmp_path / "open").chmod(0o555)
    try:
        for act, path in (
            (lambda: list(storage.list_files(f"{tmp_path}/open")), closed),
            (lambda: list(storage.glob_files(f"{tmp_path}/open/*/*")), closed),
            (lambda: storage.read(f"{tmp_path}/open/file"), tmp_path / "open/file"),
            (lambda: storage.write(f"{tmp_path}/open/new", b""), tmp_path / "open/new"),
            (lambda: storage.make_folder(f"{tmp_path}/open/a/b"), tmp_path / "open/a/b"),
            (lambda: storage.make_folder(f"{tmp_path}/open"), tmp_path / "open"),
            (lambda: storage.stat(f"{closed}/f"), closed / "f"),
        ):
            told = as_nobody(act)
            assert told.startswith(f"StorageError {path}: permission denied"), told
    finally:
        (tmp_path / "open").chmod(0o755)
        closed.chmod(0o755)


@pytest.mark.parametrize(
    ("act", "says"),
    [
        (lambda root: storage.write(f"{root}/folder", b""), "folder: this is a folder"),
        (lambda root: storage.read(f"{root}/folder"), "folder: this is a folder"),
        (lambda root: storage.write(f"{root}/no/f", b""), "no/f: no such file or folder"),
        (lambda root: storage.write(f"{root}/file/f", b""), "file/f: a file stands where a folder"),
        (lambda root: storage.make_folder(f"{root}/file"), "file: a file of that name"),
        (lambda root: storage.make_folder(f"{root}/file/a"), "file/a: a file stands where"),
        (lambda root: storage.list_folders(f"{root}/file"), "file: a file stands where"),
        (lambda root: storage.write(f"{root}/{'n' * 300}", b""), "the name is too long"),
        (lambda root: storage.read(f"{root}/a\nb\udcff"), r"a\nb\udcff': no such file"),
        (lambda root: storage.list_folders("s3://bucket/x"), "s3://bucket/x: no storage is known"),
    ],
)
def test_says_what_to_do(tmp_path: Path, act: Callable[[str], object], says: str) -> None:
    fill(str(tmp_path), ["folder/f", "file"])
    with pytest.raises(OSError, match=re.escape(says)) as error:
        act(str(tmp_path))
    one_line(error)
    assert sorted(os.listdir(tmp_path)) == ["file", "folder"]


def test_a_full_disk_leaves_nothing() -> None:
    script = """
import os, sys
from tfrecordify import storage
storage.write("/mnt/kept", b"kept")
try:
    with storage.publish("/mnt/kept") as file:
        for _ in range(100):
            file.write(bytes(100_000))
except OSError as error:
    print(type(error).__name__, error)
print(os.listdir("/mnt"), storage.read("/mnt/kept"))
"""
    mount = 'mount -t tmpfs -o size=1m none /mnt && exec "$@"'
    run = ["unshare", "--mount", "sh", "-c", mount, "sh", sys.executable, "-c", script]
    if subprocess.run([*run[:5], "sh", "true"], capture_output=True).returncode:
        pytest.skip("needs the right to mount a small tmpfs in a namespace of its own")
    told = subprocess.run(run, capture_output=True, text=True, check=True).stdout.splitlines()
    assert told[0].startswith("StorageError /mnt/kept: the disk is full: free some space")
    assert told[1:] == ["['kept'] b'kept'"]


def test_a_kill_leaves_a_hidden_name_alone(tmp_path: Path) -> None:
    fill(str(tmp_path), ["f", ".f.tmp-mine", ".tmp-0123456789abcdef"])
    script = """
import signal, sys
from tfrecordify import storage
with storage.publish(sys.argv[1]) as file:
    file.write(b"half" * 1_000_000)
    print("written", flush=True)
    signal.pause()
"""
    run = [sys.executable, "-c", script, str(tmp_path / "f")]
    with subprocess.Popen(run, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "written\n"
        process.kill()
    assert process.returncode == -signal.SIGKILL
    assert storage.read(str(tmp_path / "f")) == b"f"
    hidden = {p.name for p in tmp_path.iterdir()} - {"f", ".f.tmp-mine", ".tmp-0123456789abcdef"}
    assert len(hidden) == 1
    assert hidden.pop().startswith(".f.tmp-")
    storage.remove_stale(str(tmp_path))
    assert sorted(os.listdir(tmp_path)) == [".f.tmp-mine", ".tmp-0123456789abcdef", "f"]
    storage.remove_stale(str(tmp_path / "missing"))


def test_published_files_have_the_mode_of_other_files(tmp_path: Path) -> None:
    storage.write(str(tmp_path / "published"), b"")
    (tmp_path / "plain").write_bytes(b"")
    assert (tmp_path / "published").stat().st_mode == (tmp_path / "plain").stat().st_mode


# Cloud Storage.

SMALL, BIG = random.Random(3).randbytes(100_000), random.Random(4).randbytes(9_000_000)
STATUSES = [{"status": status} for status in (408, 429, 500, 502, 503, 504)]
CUTS = [{"cut": cut} for cut in ("before", "middle", "after")]


@pytest.fixture
def _small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gcs, "_UPLOAD_CHUNK", 4 << 20)
    monkeypatch.setattr(gcs, "_READ_BUFFER", 1 << 20)


@pytest.mark.parametrize("fault", [*STATUSES, *CUTS], ids=str)
def test_reads_through_faults(bucket: Bucket, fault: dict[str, object]) -> None:
    path = bucket.put("f", SMALL)
    hit = bucket.fail("GET /download", times=3, **fault)
    assert storage.read(path) == SMALL
    assert hit.seen == 3
    listed = bucket.fail("GET /storage/v1/b/[^/]*/o[?]", times=2, **fault)
    assert list(storage.list_files(bucket.root)) == [File(path, len(SMALL))]
    assert listed.seen == 2
    ranges = bucket.fail("GET /download", times=2, **fault)
    assert storage.read(path, max_bytes=1 << 20) == SMALL
    assert ranges.seen == 2


@pytest.mark.parametrize("fault", [STATUSES[1], STATUSES[4], *CUTS], ids=str)
def test_publishes_through_faults(bucket: Bucket, fault: dict[str, object]) -> None:
    path = bucket.put("f", b"old")
    for match in ("POST /upload", "GET /storage"):
        hit = bucket.fail(match, **fault)
        storage.write(path, SMALL)
        assert hit.seen
        assert bucket.get("f") == SMALL
        bucket.emulator.faults.clear()
        storage.write(path, b"old")


@pytest.mark.usefixtures("_small_chunks")
def test_streams_through_cuts(bucket: Bucket) -> None:
    path = bucket.put("f", BIG)
    hit = bucket.fail("GET /download", times=3, cut="middle")
    with storage.open_read(path) as stream:
        assert b"".join(iter(lambda: stream.read(700_000), b"")) == BIG
    assert hit.seen == 3


def test_another_writer_is_not_overwritten(bucket: Bucket) -> None:
    path = f"{bucket.root}/f"
    bucket.fail("GET /storage/v1/b/.*/o/f", act=lambda: bucket.put("f", b"theirs"))
    with pytest.raises(StorageError, match="another process wrote it") as error:
        storage.write(path, b"ours")
    assert path in one_line(error)
    assert bucket.get("f") == b"theirs"


def test_another_writer_of_the_same_bytes_is_welcome(bucket: Bucket) -> None:
    bucket.fail("GET /storage/v1/b/.*/o/f", act=lambda: bucket.put("f", SMALL))
    storage.write(f"{bucket.root}/f", SMALL)
    assert bucket.get("f") == SMALL


def test_damaged_bytes_are_refused(bucket: Bucket) -> None:
    path = bucket.put("f", SMALL)
    for max_bytes in (None, len(SMALL) + 1):
        bucket.fail("GET /download", flip="answer")
        with pytest.raises(StorageError, match="do not match its checksum"):
            storage.read(path, max_bytes=max_bytes)
    assert storage.read(path) == SMALL


def test_an_object_that_vanishes_after_listing(bucket: Bucket) -> None:
    bucket.put("a", b"1")
    bucket.put("b", b"2")
    bucket.fail("GET /storage/v1/b/[^/]*/o[?]", act=lambda: bucket.drop("b"))
    first, second = storage.list_files(bucket.root)
    assert storage.read(first.path) == b"1"
    with pytest.raises(FileNotFoundError, match="no such object"):
        storage.read(second.path)


@pytest.mark.usefixtures("_small_chunks")
def test_an_object_replaced_while_it_is_streamed(bucket: Bucket) -> None:
    path = bucket.put("f", BIG)
    with storage.open_read(path) as stream:
        assert stream.read(10) == BIG[:10]
        bucket.put("f", bytes(len(BIG)))
        with pytest.raises(FileNotFoundError):
            stream.read()


def test_lists_page_by_page(bucket: Bucket) -> None:
    fill(bucket.root, TREE)
    whole = list(storage.list_files(bucket.root))
    bucket.emulator.page_size = 2
    assert list(storage.list_files(bucket.root)) == whole
    assert storage.list_folders(bucket.root) == (["cat", "cat-big", "dog"], True)


def test_a_glob_asks_for_its_range_only(bucket: Bucket) -> None:
    fill(bucket.root, ["2023/a.jpg", "2024-01/b.jpg", "2024-02/c.jpg", "2025/d.jpg"])
    bucket.emulator.page_size = 2
    bucket.emulator.requests.clear()
    files = list(storage.glob_files(f"{bucket.root}/2024*/*.jpg"))
    assert below(bucket.root, files) == ["2024-01/b.jpg", "2024-02/c.jpg"]
    assert len(bucket.emulator.requests) == 1


def test_the_placeholder_of_a_folder_is_no_file(bucket: Bucket) -> None:
    bucket.put("photos/", b"")
    bucket.put("photos/empty/", b"")
    assert list(storage.list_files(f"{bucket.root}/photos")) == []
    assert storage.list_folders(f"{bucket.root}/photos") == (["empty"], False)


@pytest.mark.parametrize(
    ("status", "says"),
    [
        (401, "run `gcloud auth application-default login`"),
        (403, "permission denied: ask for the role"),
        (400, "Cloud Storage refused"),
        (503, "check the network connection"),
    ],
)
def test_says_what_the_service_refuses(bucket: Bucket, status: int, says: str) -> None:
    path = bucket.put("f", SMALL)
    bucket.fail(".", times=10**6, status=status)
    for act in (
        lambda: storage.read(path),
        lambda: storage.open_read(path),
        lambda: storage.write(path, b""),
        lambda: storage.stat(path),
        lambda: storage.remove(path),
        lambda: list(storage.list_files(bucket.root)),
    ):
        with pytest.raises(StorageError) as error:
            act()
        assert says in one_line(error)


def test_a_missing_bucket(bucket: Bucket) -> None:
    root = "gs://no-such-bucket"
    for act in (
        lambda: storage.write(f"{root}/f", b""),
        lambda: storage.list_folders(f"{root}/x"),
        lambda: list(storage.list_files(root)),
    ):
        with pytest.raises(StorageError, match="no such bucket") as error:
            act()
        assert root in one_line(error)
    with pytest.raises(FileNotFoundError):
        storage.read(f"{root}/f")
    with pytest.raises(StorageError, match="give gs://bucket/name"):
        storage.write(root, b"")


def test_missing_credentials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("STORAGE_EMULATOR_HOST", "GOOGLE_APPLICATION_CREDENTIALS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path))
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    with pytest.raises(StorageError, match="gcloud auth application-default login") as error:
        storage.read("gs://bucket/f")
    one_line(error)


def test_a_missing_library() -> None:
    script = """
import sys
sys.modules["google.cloud.storage"] = None
from tfrecordify import storage
try:
    storage.read("gs://bucket/f")
except storage.StorageError as error:
    print(error)
"""
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert run.stdout.count("\n") == 1
    assert "pip install 'tfrecordify[gcp]'" in run.stdout


def test_a_hung_answer_is_asked_for_again(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gcs, "_TIMEOUT", (1.0, 0.2))
    path = bucket.put("f", SMALL)
    hit = bucket.fail("GET /download", times=2, delay=600)
    assert storage.read(path) == SMALL
    assert hit.seen == 2
    monkeypatch.setattr(gcs, "_RETRY", gcs._RETRY.with_timeout(0.5))
    bucket.fail("GET /download", times=99, delay=600)
    with pytest.raises(StorageError, match="no answer from Cloud Storage"):
        storage.read(path)


def test_many_threads_keep_their_connections(bucket: Bucket) -> None:
    paths = [bucket.put(f"{i:03}", b"%d" % i) for i in range(200)]
    bucket.fail("GET /download", times=64, delay=0.2)  # so that 64 are under way at once
    threads = storage.read_threads(bucket.root)
    with ThreadPoolExecutor(threads) as pool:
        for _ in range(3):
            assert list(pool.map(storage.read, paths)) == [b"%d" % i for i in range(200)]
    assert threads == 64
    assert bucket.emulator.connections <= threads


def test_a_forked_process_has_a_client_of_its_own(bucket: Bucket) -> None:
    paths = [bucket.put(f"{i}", SMALL[i:]) for i in range(20)]
    script = """
import os, sys
from tfrecordify import storage
first = storage.read(sys.argv[1])
child = os.fork()
lengths = [len(storage.read(path)) for path in sys.argv[1:]]
if child == 0:
    os._exit(0 if lengths == [100_000 - i for i in range(20)] else 1)
_, status = os.waitpid(child, 0)
print(lengths == [100_000 - i for i in range(20)], status)
"""
    run = [sys.executable, "-c", script, *paths]
    told = subprocess.run(run, capture_output=True, text=True, check=True, timeout=60).stdout
    assert told == "True 0\n"
