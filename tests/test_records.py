import gzip
import hashlib
import io
import pickle
import subprocess
import sys
import tracemalloc
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfrecordify import records
from tfrecordify.records import (
    CorruptRecordError,
    RecordWriter,
    decode_example,
    encode_example,
    feature_spec,
    frame,
    parse_examples,
    read_records,
    scan_records,
    split_example,
)

tf = pytest.importorskip("tensorflow")

EXAMPLE = {
    records.IMAGE: b"\xff\xd8\xff\xe0 not quite a JPEG",
    records.LABEL: 2,
    records.FILENAME: "cats/gr\u00e9y.jpg",
    records.HEIGHT: 224,
    records.WIDTH: 256,
    "boxes": [0.5, 1.0, -2.0],
    "tags": ["a", b"\xff", "\u4e2d"],
    "empty": [],
}
DECODED = {
    "image": [b"\xff\xd8\xff\xe0 not quite a JPEG"],
    "label": [2],
    "image/filename": [b"cats/gr\xc3\xa9y.jpg"],
    "image/height": [224],
    "image/width": [256],
    "boxes": [0.5, 1.0, -2.0],
    "tags": [b"a", b"\xff", b"\xe4\xb8\xad"],
    "empty": [],
}
BLOCK = 65535


def shard(payloads, **options):
    file = io.BytesIO()
    with RecordWriter(file, **options) as writer:
        for payload in payloads:
            writer.write(frame(payload))
    return file.getvalue()


def payloads(*sizes):
    return [np.random.default_rng(size).bytes(size) for size in sizes]


def tf_example(features):
    lists = {
        bytes: lambda values: tf.train.Feature(bytes_list=tf.train.BytesList(value=values)),
        int: lambda values: tf.train.Feature(int64_list=tf.train.Int64List(value=values)),
        float: lambda values: tf.train.Feature(float_list=tf.train.FloatList(value=values)),
    }
    feature = {
        name: lists[type(values[0])](values) if values else tf.train.Feature()
        for name, values in features.items()
    }
    return tf.train.Example(features=tf.train.Features(feature=feature))


def test_example_is_tensorflows_to_the_byte():
    expected = tf_example(DECODED).SerializeToString(deterministic=True)

    assert encode_example(EXAMPLE) == expected
    assert encode_example(dict(reversed(EXAMPLE.items()))) == expected


def test_example_is_understood_both_ways():
    assert tf.train.Example.FromString(encode_example(EXAMPLE)) == tf_example(DECODED)
    assert decode_example(tf_example(DECODED).SerializeToString()) == DECODED


VALUES = (
    st.lists(st.binary(), max_size=4)
    | st.lists(st.integers(-(2**63), 2**63 - 1), max_size=4)
    | st.lists(st.floats(width=32, allow_nan=False), max_size=4)
)


@given(st.dictionaries(st.text(max_size=8), VALUES, min_size=1, max_size=5))
def test_any_example_round_trips(features):
    encoded = encode_example(features)

    assert decode_example(encoded) == features
    assert encoded == tf_example(features).SerializeToString(deterministic=True)


def test_example_takes_numpy_values():
    features = {"i": np.int32(3), "f": np.float64(0.5), "is": np.arange(3), "fs": np.ones(2)}

    assert decode_example(encode_example(features)) == {
        "i": [3],
        "f": [0.5],
        "is": [0, 1, 2],
        "fs": [1.0, 1.0],
    }


@pytest.mark.parametrize(
    ("value", "error"),
    [(["a", 1], TypeError), (None, TypeError), ([None], TypeError), (2**63, ValueError)],
)
def test_a_value_no_example_can_hold_is_named(value, error):
    with pytest.raises(error, match="feature 'age'"):
        encode_example({"age": value})


def test_text_that_is_not_unicode_is_named():
    with pytest.raises(ValueError, match="feature 'name'"):
        encode_example({"name": "\udcff"})


def test_bytes_that_are_no_example_are_refused():
    with pytest.raises(CorruptRecordError, match="record 7: not a tf"):
        decode_example(b"\xff\xff\xff", index=7)


@given(st.dictionaries(st.text(max_size=8), VALUES, max_size=5), st.binary(max_size=300))
def test_one_feature_is_taken_out_of_an_example(others, image):
    others.pop("image", None)
    example = encode_example({"image": image, **others})

    value, rest = split_example(example, "image")

    assert value == image
    assert decode_example(rest) == others


def test_a_feature_is_taken_out_however_it_was_written():
    image = b"x" * 200
    example = encode_example({"image": image, "label": 3})
    entry = example[example.index(b"\x0a\x05image") :][: 7 + 3 + 3 + 3 + 200]
    value_first = entry[7:] + entry[:7]
    assert value_first != entry

    for written in (
        example.replace(entry, value_first),
        example + example,  # protobuf merges what is written twice
        b"\x1a\x00" + example,  # a field that is not known
    ):
        assert decode_example(written) == {"image": [image], "label": [3]}
        value, rest = split_example(written, "image")
        assert (value, decode_example(rest)) == (image, {"label": [3]})


@pytest.mark.parametrize("features", [{}, {"image": 1}, {"image": []}, {"image": [b"a", b"b"]}])
def test_a_feature_that_cannot_be_taken_out_is_named(features):
    with pytest.raises(CorruptRecordError, match="record 3: feature 'image' is not one bytes"):
        split_example(encode_example(features | {"label": 1}), "image", index=3)


def test_one_schema_parses_what_it_wrote():
    kinds = {"image": "bytes", "label": "int64", "boxes": "float[3]", "tags": "bytes[]"}

    parsed = parse_examples(tf.constant([encode_example(EXAMPLE)] * 2), kinds)

    assert parsed["image"].numpy().tolist() == [EXAMPLE["image"]] * 2
    assert parsed["label"].numpy().tolist() == [2, 2]
    assert parsed["boxes"].numpy().tolist() == [[0.5, 1.0, -2.0]] * 2
    assert parsed["tags"].to_list() == [DECODED["tags"]] * 2


@pytest.mark.parametrize("kind", ["int32", "int64[", "float[-1]", "", "bytes[][]"])
def test_an_unknown_kind_is_refused(kind):
    with pytest.raises(ValueError, match="feature 'x' is of unknown kind"):
        feature_spec({"x": kind})


SETTINGS = [
    {"compression": "none"},
    {"compression": "gzip"},
    {"compression": "gzip", "level": 1},
    {"compression": "gzip", "level": 9},
]


@pytest.mark.parametrize("options", SETTINGS)
def test_tensorflow_reads_our_shards(tmp_path, options):
    expected = payloads(0, 1, 100, 3 * BLOCK, 2_000_000, 5)
    path = tmp_path / "shard"
    path.write_bytes(shard(expected, **options))

    kind = {"gzip": "GZIP", "none": ""}[options["compression"]]
    assert list(tf.data.TFRecordDataset(str(path), kind).as_numpy_iterator()) == expected


@pytest.mark.parametrize("kind", ["", "GZIP", "ZLIB"])
def test_we_read_tensorflows_shards(tmp_path, kind):
    expected = payloads(0, 1, 100, 3 * BLOCK, 2_000_000, 5)
    path = tmp_path / "shard"
    with tf.io.TFRecordWriter(str(path), kind) as writer:
        for payload in expected:
            writer.write(payload)

    with path.open("rb") as file:
        assert list(read_records(file)) == expected


def test_plain_shard_is_tensorflows_to_the_byte(tmp_path):
    expected = payloads(0, 1, 1000)
    path = tmp_path / "shard"
    with tf.io.TFRecordWriter(str(path)) as writer:
        for payload in expected:
            writer.write(payload)

    assert path.read_bytes() == shard(expected, compression="none")


@given(st.lists(st.binary(max_size=200), max_size=8), st.sampled_from(SETTINGS))
def test_any_shard_round_trips(expected, options):
    assert list(read_records(io.BytesIO(shard(expected, **options)))) == expected


# The framed stream ends short of, at and after the end of a block, and spans several writes.
@pytest.mark.parametrize(
    "size", [0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK, 16 * BLOCK, 3 << 20]
)
def test_gzip_is_valid_at_the_edges_of_its_blocks(size):
    record = b"x" * (size - 16) if size >= 16 else b""
    framed = frame(record) if size >= 16 else b""

    data = shard([record] if framed else [])

    assert gzip.decompress(data) == framed
    assert zlib.decompress(data, wbits=31) == framed
    assert len(data) == 10 + len(framed) + 5 * (len(framed) // BLOCK + 1) + 8


def test_gzip_header_tells_nothing_of_when_and_where():
    for options in SETTINGS[1:]:
        assert shard([b"x"], **options)[:10] == b"\x1f\x8b\x08\0\0\0\0\0\0\xff"


@settings(max_examples=20)
@given(st.lists(st.integers(0, 300_000), max_size=12))
def test_blocks_do_not_depend_on_how_the_stream_was_written(sizes):
    expected = payloads(*sizes)
    joined = io.BytesIO()
    with RecordWriter(joined) as writer:
        writer.write(b"".join(frame(payload) for payload in expected))

    assert joined.getvalue() == shard(expected)


def test_shard_is_the_same_for_ever():
    image = bytes(range(256)) * 600
    examples = [
        encode_example({"image": image[i:], "label": i, "image/filename": f"a/{i}.jpg"})
        for i in range(3)
    ]

    data = shard(examples)

    assert len(data) == 461_125
    assert hashlib.sha256(data).hexdigest() == (
        "edc6acbfecb78548a948f7fec93e91e9eba0663d58ef2e7750c32fee210df9be"
    )


@pytest.mark.parametrize("options", SETTINGS)
def test_writer_counts_and_hashes_what_is_in_the_file(options):
    file = io.BytesIO()
    writer = RecordWriter(file, **options)
    for payload in payloads(10, 1_500_000, 700_000):
        writer.write(frame(payload))
    writer.close()
    written = file.getvalue()
    writer.close()

    assert file.getvalue() == written
    assert writer.bytes == len(written)
    assert writer.sha256 == hashlib.sha256(written).hexdigest()


def test_an_exception_leaves_a_file_that_reads_as_cut_off():
    file = io.BytesIO()

    def fail():
        with RecordWriter(file) as writer:
            writer.write(frame(bytes(1_500_000)))
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert file.getvalue()
    file.seek(0)
    with pytest.raises(CorruptRecordError, match=r"record 0: the gzip stream is cut off"):
        list(read_records(file))


@pytest.mark.parametrize(
    "options", [{"compression": "zlib"}, {"compression": "gzip", "level": 10}, {"level": -1}]
)
def test_unknown_compression_is_refused(options):
    with pytest.raises(ValueError, match="compression"):
        RecordWriter(io.BytesIO(), **options)


def flips(data):
    for place in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[place // 8] ^= 1 << place % 8
        yield place, bytes(flipped)


@pytest.mark.parametrize("compression", ["gzip", "none"])
def test_every_flipped_bit_is_found(compression):
    expected = payloads(20, 0, 33)
    data = shard(expected, compression=compression)
    # What gzip has no checksum for: the flag for text, time, hint and system in its header, and
    # the padding of a stored block. No record depends on it, and the SHA-256 covers it.
    unread = {24, *range(32, 80), *range(83, 88)} if compression == "gzip" else set()

    for place, flipped in flips(data):
        if place in unread:
            assert list(read_records(io.BytesIO(flipped))) == expected
        else:
            with pytest.raises(CorruptRecordError):
                list(read_records(io.BytesIO(flipped)))


@pytest.mark.parametrize("compression", ["gzip", "none"])
def test_every_cut_is_found(compression):
    expected = payloads(20, 0, 33)
    data = shard(expected, compression=compression)
    whole = {sum(map(len, map(frame, expected[:count]))) for count in range(4)}

    for size in range(1, len(data)):
        if compression == "none" and size in whole:
            continue  # A plain file cut between records is whole in itself.
        with pytest.raises(CorruptRecordError):
            list(read_records(io.BytesIO(data[:size])))


def test_the_damaged_record_and_the_damage_are_named():
    data = bytearray(shard(payloads(10, 10, 10), compression="none"))

    def reason(change):
        changed = bytearray(data)
        change(changed)
        read = []
        with pytest.raises(CorruptRecordError) as caught:
            read.extend(read_records(io.BytesIO(changed)))
        assert caught.value.index == len(read)
        return str(caught.value)

    def flip(place):
        return lambda changed: changed.__setitem__(place, changed[place] ^ 1)

    def cut(end):
        return lambda changed: changed.__delitem__(slice(end, None))

    assert reason(flip(26)) == "record 1: the checksum of its length is wrong"
    assert reason(flip(26 + 8)) == "record 1: the checksum of its length is wrong"
    assert reason(flip(52 + 12)) == "record 2: the checksum of its data is wrong"
    assert reason(flip(-1)) == "record 2: the checksum of its data is wrong"
    assert reason(cut(30)) == "record 1: cut off in its length"
    assert reason(cut(60 + 12)) == "record 2: cut off, 8 of 14 bytes are left"


def test_scanning_goes_on_after_damaged_data():
    expected = payloads(10, 11, 12, 13)
    data = bytearray(shard(expected, compression="none"))
    data[26 + 12] ^= 1
    data[-1] ^= 1

    first, second, third, fourth = scan_records(io.BytesIO(data))

    assert [first, third] == [expected[0], expected[2]]
    assert [str(second), str(fourth)] == [
        "record 1: the checksum of its data is wrong",
        "record 3: the checksum of its data is wrong",
    ]


def test_damage_to_the_gzip_stream_is_named():
    data = shard(payloads(10, 10))

    def reason(changed):
        with pytest.raises(CorruptRecordError) as caught:
            list(read_records(io.BytesIO(changed)))
        return str(caught.value)

    assert "incorrect data check" in reason(data[:-8] + bytes(4) + data[-4:])
    assert "incorrect length check" in reason(data[:-4] + bytes(4))
    assert reason(data[:-1]) == "record 2: the gzip stream is cut off"
    assert reason(data + b"\0") == "record 2: bytes follow the end of the gzip stream"


def test_an_error_survives_pickling():
    error = pickle.loads(pickle.dumps(CorruptRecordError(3, "cut off")))

    assert (error.index, error.reason, str(error)) == (3, "cut off", "record 3: cut off")


def test_a_plain_file_that_begins_with_gzips_magic_is_read():
    record = bytes(0x088B1F)
    data = shard([record], compression="none")

    assert data[:3] == b"\x1f\x8b\x08"
    assert list(read_records(io.BytesIO(data))) == [record]


def test_an_empty_file_has_no_records():
    assert list(read_records(io.BytesIO())) == []


@pytest.mark.parametrize("options", SETTINGS[:3])
def test_reading_takes_the_memory_of_a_record_not_of_the_file(tmp_path, options):
    path = tmp_path / "shard"
    framed = frame(bytes(100_000))
    with path.open("wb") as file, RecordWriter(file, **options) as writer:
        for _ in range(400):
            writer.write(framed)

    tracemalloc.start()
    with path.open("rb") as file:
        assert sum(len(record) for record in read_records(file)) == 40_000_000
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert peak < 8_000_000


def test_writing_and_checking_need_no_tensorflow():
    code = (
        "import sys, tfrecordify.records as r;"
        "r.decode_example(r.encode_example({'a': 1})); sys.exit('tensorflow' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
