import io
import pickle
import random
import re
import struct
import subprocess
import sys
import zlib
from concurrent.futures import ThreadPoolExecutor

import cv2
import numpy as np
import pillow_heif
import pytest
import simplejpeg
from drawing import cmyk_profile, encode, exif, matrix_profile, quarters, texture
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageCms

from tfrecordify.images import (
    BadImageError,
    ChannelSums,
    ImageSpec,
    convert_image,
    decode_image,
    render_image,
)

pillow_heif.register_heif_opener()

AS_PNG = ImageSpec(resize_mode="none", encode_format="png")
LOSSLESS = {
    "PNG": {},
    "BMP": {},
    "TIFF": {"compression": "tiff_lzw"},
    "WEBP": {"lossless": True},
}
LOSSY = {
    "JPEG": {"quality": 100, "subsampling": 0},
    "AVIF": {"quality": 95, "subsampling": "4:4:4"},
    "HEIF": {"quality": 95, "chroma": 444},
}
OPTIONS = LOSSLESS | LOSSY


def assert_close(pixels, expected, *, mean):
    assert pixels.shape == np.shape(expected)
    assert pixels.dtype == np.uint8
    assert np.abs(pixels.astype(int) - expected).mean() <= mean


def flat(color, mode="RGB"):
    return Image.new(mode, (16, 16), color)


def only_color(data):
    """The one color of a flat image, which a lossy format keeps within a level or so."""
    pixels = decode_image(data)
    assert np.ptp(pixels, axis=(0, 1)).max() <= 1
    return pixels[8, 8].astype(int)


def rejection(data, spec=AS_PNG):
    with pytest.raises(BadImageError) as caught:
        convert_image(data, spec)
    assert caught.value.reason == str(caught.value)
    assert "\n" not in caught.value.reason
    return caught.value.reason


# ---- Settings ----


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"resize_mode": "squash"}, "'squash'; it must be one of stretch, crop, pad"),
        ({"encode_format": "webp"}, "'webp'; it must be jpeg or png"),
        ({"encode_quality": 0}, "is 0; it must be 1 to 100"),
        ({"encode_quality": 101}, "is 101; it must be 1 to 100"),
        ({"max_pixels": 0}, "is 0; it must be at least 1"),
        ({"size": (0, 5)}, "0x5; each side must be 1 to 65500"),
        ({"size": (5, 65_501)}, "5x65501; each side must be 1 to 65500"),
        ({"size": (20, 20), "max_pixels": 399}, "20x20, more than max_pixels=399 allows"),
        ({"size": (256, 192), "resize_mode": "shortest"}, "takes one number, such as 256x256"),
        ({"size": (256, 192), "resize_mode": "longest"}, "takes one number, such as 256x256"),
    ],
)
def test_a_wrong_setting_is_shown_with_what_would_be_right(settings, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        ImageSpec(**settings)


def test_fixed_size_says_which_settings_give_every_image_one_size():
    fixed = {
        (mode, upscale)
        for mode in ("stretch", "crop", "pad", "shortest", "longest", "none")
        for upscale in (True, False)
        if ImageSpec(resize_mode=mode, upscale=upscale).fixed_size
    }
    assert fixed == {("stretch", True), ("crop", True), ("pad", True), ("pad", False)}


def test_a_rejection_survives_pickling():
    error = pickle.loads(pickle.dumps(BadImageError("two\nlines")))
    assert error.reason == str(error) == "two lines"


# ---- Formats and pixel layouts ----


@pytest.mark.parametrize("kind", LOSSLESS)
def test_lossless_formats_keep_every_pixel(kind):
    pixels = texture(40, 60)
    assert np.array_equal(decode_image(encode(pixels, kind, **LOSSLESS[kind])), pixels)


@pytest.mark.parametrize("kind", LOSSY)
def test_lossy_formats_come_close(kind):
    pixels = quarters()
    assert_close(decode_image(encode(pixels, kind, **LOSSY[kind])), pixels, mean=2)


@pytest.mark.parametrize("kind", ["GIF", "WEBP", "PNG", "TIFF"])
def test_of_an_animation_or_several_pages_the_first_counts(kind):
    first, second = flat((200, 40, 40)), flat((40, 60, 200))
    options = {"lossless": True} if kind == "WEBP" else {}
    data = encode(first, kind, save_all=True, append_images=[second], **options)
    assert tuple(only_color(data)) == (200, 40, 40)


def test_jpeg_pixels_are_libjpegs_to_the_bit():
    data = encode(texture(), "JPEG", quality=90)
    assert np.array_equal(decode_image(data), np.asarray(Image.open(io.BytesIO(data))))


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "TIFF", "WEBP"])
def test_grey_becomes_rgb(kind):
    assert tuple(only_color(encode(flat(77, "L"), kind, **LOSSLESS.get(kind, {})))) == (77,) * 3


def test_one_bit_is_black_and_white():
    pixels = quarters()[:, :, 0] > 100
    expected = np.repeat(pixels[:, :, None], 3, axis=2) * np.uint8(255)
    assert np.array_equal(decode_image(encode(Image.fromarray(pixels), "PNG")), expected)


def test_a_palette_is_looked_up():
    image = Image.fromarray(quarters()).quantize(4)
    assert np.array_equal(decode_image(encode(image, "PNG")), np.asarray(image.convert("RGB")))


@pytest.mark.parametrize("kind", ["PNG", "TIFF"])
def test_16_bit_grey_is_scaled_not_clipped(kind):
    ramp = np.arange(0, 65536, 257, dtype=np.uint16).reshape(16, 16)
    expected = np.repeat(np.arange(256, dtype=np.uint8).reshape(16, 16, 1), 3, axis=2)
    assert np.array_equal(decode_image(encode(ramp, kind)), expected)


def test_big_endian_16_bit_tiff():
    image = Image.fromarray(np.full((4, 4), 0x1234, ">u2"))
    assert image.mode == "I;16B"
    assert decode_image(encode(image, "TIFF")).max() == 0x12


def tiff(bits, photometric, row):
    """One row of two grey pixels, in layouts that Pillow reads but does not write."""
    entries = [(256, 2), (257, 1), (258, bits), (259, 1), (262, photometric)]
    entries += [(273, 8 + 2 + 12 * 8 + 4), (278, 1), (279, len(row))]
    packed = b"".join(struct.pack("<HHIHH", tag, 3, 1, value, 0) for tag, value in entries)
    return b"II*\0" + struct.pack("<IH", 8, len(entries)) + packed + b"\0" * 4 + row


def test_12_bit_tiff_uses_its_own_range():
    assert decode_image(tiff(12, 1, b"\xab\xc1\x23"))[0, :, 0].tolist() == [0xAB, 0x12]


def test_16_bit_tiff_in_which_zero_is_white():
    row = struct.pack("<HH", 0x1200, 0xFFFF)
    assert decode_image(tiff(16, 1, row))[0, :, 0].tolist() == [0x12, 0xFF]
    assert decode_image(tiff(16, 0, row))[0, :, 0].tolist() == [0xED, 0]


def test_16_bit_color_png():
    row = b"\0" + struct.pack(">6H", 0x1234, 0x5678, 0x9ABC, 0xFFFF, 0, 0x8000)
    assert decode_image(png(16, 2, row)).tolist() == [[[0x12, 0x56, 0x9A], [0xFF, 0, 0x80]]]


def png(bits, color_type, row, transparent=b""):
    """One row of two pixels, in layouts that Pillow reads but does not write."""
    header = struct.pack(">IIBBBBB", 2, 1, bits, color_type, 0, 0, 0)
    chunks = [(b"IHDR", header), (b"tRNS", transparent), (b"IDAT", zlib.compress(row))]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))
        for name, body in [*chunks, (b"IEND", b"")]
        if body or name == b"IEND"
    )


@pytest.mark.parametrize("mode", ["I", "F"])
def test_modes_of_unknown_range_are_rejected(mode):
    assert f"mode {mode} have no known range" in rejection(encode(flat(9, mode), "TIFF"))


@pytest.mark.parametrize("kind", ["PNG", "WEBP", "TIFF", "AVIF"])
@pytest.mark.parametrize("mode", ["RGBA", "LA"])
def test_alpha_lies_over_white(kind, mode):
    image = Image.fromarray(np.full((16, 16, 3), 55, np.uint8)).convert(mode)
    image.putalpha(64)
    blended = 55 * 64 / 255 + 255 * (1 - 64 / 255)
    if kind == "AVIF" and mode == "LA":
        image = image.convert("RGBA")
    assert np.abs(only_color(encode(image, kind, **OPTIONS[kind])) - blended).max() <= 2


@pytest.mark.parametrize("kind", ["PNG", "GIF"])
def test_a_transparent_palette_entry_is_white(kind):
    image = Image.fromarray(quarters()).quantize(4)
    entry = image.getpixel((0, 0))
    expected = quarters()
    expected[:24, :32] = 255
    assert np.array_equal(decode_image(encode(image, kind, transparency=entry)), expected)


def test_translucent_palette_entries_are_blended():
    image = flat(0, "P")
    image.putpalette([0, 0, 0])
    pixels = decode_image(encode(image, "PNG", transparency=bytes([128])))
    assert_close(pixels, np.full((16, 16, 3), 127), mean=1)


def test_a_transparent_color_or_grey_is_white():
    color = png(8, 2, bytes([0, 1, 2, 3, 4, 5, 6]), struct.pack(">3H", 1, 2, 3))
    assert decode_image(color).tolist() == [[[255] * 3, [4, 5, 6]]]
    grey = png(8, 0, bytes([0, 7, 8]), struct.pack(">H", 7))
    assert decode_image(grey).tolist() == [[[255] * 3, [8] * 3]]
    deep = png(16, 0, b"\0\x12\x34\x12\x35", struct.pack(">H", 0x1234))
    assert decode_image(deep).tolist() == [[[255] * 3, [0x12] * 3]]


@pytest.mark.parametrize("inks", [(0, 0, 0, 0), (255, 0, 0, 0), (0, 200, 100, 0), (9, 99, 0, 77)])
def test_cmyk_and_ycck_jpegs(inks):
    cyan, magenta, yellow, black = inks
    expected = np.array([255 - cyan, 255 - magenta, 255 - yellow]) * (255 - black) / 255
    cmyk = encode(flat(inks, "CMYK"), "JPEG", quality=100)
    # Adobe's convention: stored inverted.
    ycck = simplejpeg.encode_jpeg(
        255 - np.asarray(flat(inks, "CMYK")), quality=100, colorspace="CMYK"
    )
    for data, colorspace in ((cmyk, "CMYK"), (ycck, "YCCK")):
        assert simplejpeg.decode_jpeg_header(data)[2] == colorspace
        assert np.abs(only_color(data) - expected).max() <= 3


def test_cmyk_tiff():
    assert tuple(only_color(encode(flat((0, 255, 255, 0), "CMYK"), "TIFF"))) == (255, 0, 0)


def test_jpegs_in_rgb_without_chroma_transform():
    data = encode(texture(), "JPEG", quality=95, keep_rgb=True, subsampling=0)
    assert simplejpeg.decode_jpeg_header(data)[2] == "RGB"
    assert_close(decode_image(data), texture(), mean=2)


def test_a_jpeg_with_sampling_factors_that_turbojpeg_refuses():
    data = bytearray(encode(np.full((8, 24, 3), 128, np.uint8), "JPEG", subsampling=0))
    frame, scan = data.index(b"\xff\xc0"), data.index(b"\xff\xda")
    data[frame + 11] = 0x31  # three luma blocks wide: one block row is one unit
    # Three luma and two chroma blocks, all of them 0 and end of block, padded with ones.
    bits = int("001010" * 3 + "0000" * 2 + "1" * 6, 2)
    data[scan + 14 :] = bits.to_bytes(4, "big") + b"\xff\xd9"
    with pytest.raises(ValueError, match="subsampling"):
        simplejpeg.decode_jpeg(bytes(data))
    assert np.array_equal(decode_image(bytes(data)), np.full((8, 24, 3), 128))


# ---- What is told from the bytes ----


def test_the_format_is_told_from_the_bytes(tmp_path):
    misnamed = tmp_path / "n02105855_2933.JPEG"
    misnamed.write_bytes(encode(texture(40, 40), "PNG"))
    assert np.array_equal(decode_image(misnamed.read_bytes()), texture(40, 40))


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "the file is empty"),
        (b"<!DOCTYPE html><html>", "not an image of a supported format: it begins with b'<!DOC"),
        (b"\0\0\0\1Bud1", "not an image of a supported format"),  # a .DS_Store
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "not an image of a supported"),
        (b"\xff\xd8\xff", "truncated or corrupt JPEG: no frame header"),
        (b"\xff\xd8\xff" + b"\xff" * 999, "truncated or corrupt JPEG: no frame header"),
        (b"\x89PNG\r\n\x1a\n", "truncated or corrupt PNG"),
    ],
)
def test_what_is_no_image_is_rejected(data, reason):
    assert reason in rejection(data)


def test_heic_without_pillow_heif_says_what_to_install():
    script = """if True:
        import sys
        sys.modules["pillow_heif"] = None
        from tfrecordify.images import BadImageError, decode_image
        try:
            decode_image(sys.stdin.buffer.read())
        except BadImageError as error:
            print(error.reason)
    """
    result = subprocess.run(
        [sys.executable, "-c", script],
        input=encode(quarters(), "HEIF"),
        capture_output=True,
        check=True,
    )
    assert b"pip install tfrecordify[heif]" in result.stdout


# ---- Broken files ----


ENCODED = {
    "jpeg": encode(texture(60, 90), "JPEG", exif=exif(6)),
    "progressive": encode(texture(60, 90), "JPEG", progressive=True),
    "restarts": encode(texture(60, 90), "JPEG", restart_marker_rows=1),
    "cmyk": encode(Image.fromarray(texture(60, 90)).convert("CMYK"), "JPEG"),
    "png": encode(texture(60, 90), "PNG", exif=exif(6)),
    "palette": encode(Image.fromarray(texture(60, 90)).quantize(99), "PNG"),
    "webp": encode(texture(60, 90), "WEBP", lossless=True),
    "avif": encode(texture(60, 90), "AVIF"),
    "heif": encode(texture(60, 90), "HEIF"),
    "gif": encode(texture(60, 90), "GIF"),
    "bmp": encode(texture(60, 90), "BMP"),
    "tiff": encode(texture(60, 90), "TIFF", compression="tiff_adobe_deflate"),
}


@pytest.mark.parametrize("kind", ENCODED)
def test_a_truncated_file_is_rejected(kind):
    data = ENCODED[kind]
    for kept in (0.02, 0.3, 0.6, 0.9):
        assert "truncated or corrupt" in rejection(data[: int(len(data) * kept)])
    assert "truncated or corrupt" in rejection(data[:-40])


def with_entropy(data, change):
    """The JPEG with the bytes between its scan header and its end marker changed."""
    scan = data.rindex(b"\xff\xda")
    start = scan + 2 + int.from_bytes(data[scan + 2 : scan + 4], "big")
    return data[:start] + change(data[start:-2]) + data[-2:]


def test_a_jpeg_without_its_end_marker_is_rejected():
    assert "Premature end of JPEG file" in rejection(ENCODED["jpeg"][:-2])


@pytest.mark.parametrize("kind", ["jpeg", "progressive", "restarts", "cmyk"])
def test_a_jpeg_cut_in_its_data_is_rejected_though_it_has_an_end(kind):
    damaged = with_entropy(ENCODED[kind], lambda scan: scan[: len(scan) // 2])
    assert "premature end of data segment" in rejection(damaged)


def test_a_jpeg_with_a_bad_huffman_code_is_rejected():
    damaged = with_entropy(ENCODED["jpeg"], lambda scan: b"\xff\0" * (len(scan) // 2))
    assert "bad Huffman code" in rejection(damaged)


def test_a_jpeg_with_a_wrong_or_missing_restart_marker_is_rejected():
    wrong = ENCODED["restarts"].replace(b"\xff\xd1", b"\xff\xd4", 1)
    assert "found marker 0xd4 instead of RST1" in rejection(wrong)
    assert "before marker 0xd2" in rejection(ENCODED["restarts"].replace(b"\xff\xd1", b"", 1))


def test_a_jpeg_with_garbage_between_its_headers_is_rejected():
    damaged = ENCODED["jpeg"][:2] + b"garbage" + ENCODED["jpeg"][2:]
    assert "not an image" in rejection(damaged)
    frame = ENCODED["jpeg"].index(b"\xff\xc0")
    damaged = ENCODED["jpeg"][:frame] + b"garbage" + ENCODED["jpeg"][frame:]
    assert "truncated or corrupt JPEG" in rejection(damaged)


@pytest.mark.parametrize("kind", ["jpeg", "progressive", "restarts", "cmyk"])
def test_bytes_between_the_last_row_and_the_end_marker_are_harmless(kind):
    whole = ENCODED[kind]
    extraneous = with_entropy(whole, lambda scan: scan + b"\x00\x11\x22" * 30)
    with pytest.raises(ValueError, match=r"8\d extraneous bytes before marker 0xd9"):
        simplejpeg.decode_jpeg(extraneous)
    assert np.array_equal(decode_image(extraneous), decode_image(whole))


def test_bytes_after_the_end_marker_are_harmless():
    for kind in ("jpeg", "progressive", "cmyk"):
        data = ENCODED[kind]
        assert np.array_equal(decode_image(data + b"trailing\xff\xd9" * 9), decode_image(data))


@pytest.mark.parametrize("kind", ["png", "palette"])
def test_a_flipped_bit_in_a_png_is_rejected(kind):
    data = ENCODED[kind]
    start = data.index(b"IDAT") + 4
    for position in range(start, len(data) - 16, 97):
        flipped = bytearray(data)
        flipped[position] ^= 0x10
        assert "truncated or corrupt PNG" in rejection(bytes(flipped))


@pytest.mark.filterwarnings("ignore::UserWarning:PIL")  # of Pillow's TIFF reader: it goes on
@pytest.mark.parametrize("kind", ENCODED)
def test_random_damage_gives_an_image_or_a_rejection_and_nothing_else(kind):
    rng = random.Random(kind)
    outcomes = set()
    for _ in range(60):
        data = bytearray(ENCODED[kind])
        at = rng.randrange(len(data))
        damage = rng.choice(("flip", "cut", "delete", "insert", "header"))
        if damage == "flip":
            data[at] ^= 1 << rng.randrange(8)
        elif damage == "cut":
            del data[at:]
        elif damage == "delete":
            del data[at : at + rng.randrange(1, 40)]
        elif damage == "insert":
            data[at:at] = rng.randbytes(rng.randrange(1, 40))
        else:
            data[rng.randrange(min(len(data), 100))] = rng.choice((0, 1, 127, 128, 255))
        try:
            converted = convert_image(bytes(data), ImageSpec(size=(8, 8), max_pixels=10**6))
            outcomes.add((converted.height, converted.width))
        except BadImageError as error:
            outcomes.add("rejected" if error.reason.isprintable() else error.reason)
    assert outcomes <= {"rejected", (8, 8)}
    assert "rejected" in outcomes


def test_the_pixel_limit_is_checked_before_decoding():
    bomb = encode(Image.new("L", (20_000, 20_000)), "PNG")  # 400 megapixels in half a megabyte
    assert "20000x20000 pixels is over the limit of 178956970" in rejection(bomb)
    for kind in ("jpeg", "png", "webp", "gif", "tiff", "bmp", "avif", "heif"):
        height, width = decode_image(ENCODED[kind]).shape[:2]
        limit = height * width
        assert decode_image(ENCODED[kind], max_pixels=limit).shape == (height, width, 3)
        with pytest.raises(BadImageError, match=f"over the limit of {limit - 1} pixels"):
            decode_image(ENCODED[kind], max_pixels=limit - 1)


def test_an_image_that_pillow_would_warn_of_is_just_converted():
    large = encode(Image.new("1", (9_500, 9_500)), "PNG")
    assert Image.MAX_IMAGE_PIXELS < 9_500**2
    assert convert_image(large, ImageSpec()).height == 224


def test_a_jpeg_bomb_is_rejected_from_its_header():
    data = bytearray(ENCODED["jpeg"])
    frame = data.index(b"\xff\xc0")
    data[frame + 5 : frame + 9] = struct.pack(">HH", 65_000, 65_000)
    assert "65000x65000 pixels is over the limit" in rejection(bytes(data))
    data[frame + 5 : frame + 9] = struct.pack(">HH", 0, 90)
    assert "is empty" in rejection(bytes(data))


def test_a_result_too_long_for_its_format_is_rejected():
    strip = encode(np.zeros((1, 70_000, 3), np.uint8), "PNG")
    assert "too large for JPEG" in rejection(strip, ImageSpec(resize_mode="none"))
    assert "would become 2240000x32" in rejection(
        strip, ImageSpec(resize_mode="shortest", size=(32, 32))
    )
    assert decode_image(strip).shape == (1, 70_000, 3)


# ---- Orientation ----


def stored(upright, orientation):
    """The pixels as a camera stores them under an Exif orientation."""
    return {
        1: upright,
        2: upright[:, ::-1],
        3: upright[::-1, ::-1],
        4: upright[::-1],
        5: upright.transpose(1, 0, 2),
        6: upright.transpose(1, 0, 2)[::-1],
        7: upright.transpose(1, 0, 2)[::-1, ::-1],
        8: upright.transpose(1, 0, 2)[:, ::-1],
    }[orientation]


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF", "AVIF", "HEIF"])
def test_images_come_out_upright(kind, orientation):
    upright = quarters(32, 48)
    pixels = stored(upright, orientation)
    data = encode(pixels, kind, exif=exif(orientation), **OPTIONS[kind])
    assert_close(decode_image(data), upright, mean=3)


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("mode", ["stretch", "crop", "pad", "shortest", "longest"])
def test_a_turned_jpeg_scales_like_the_upright_one(mode, orientation):
    """Narrow, and large enough that decoding scales it down, by its stored height and width."""
    upright = cv2.GaussianBlur(texture(400, 1000), (0, 0), 4)
    spec = ImageSpec(size=(32, 32), resize_mode=mode)
    data = encode(stored(upright, orientation), "JPEG", quality=95, exif=exif(orientation))
    expected = render_image(encode(upright, "PNG"), spec)
    assert_close(render_image(data, spec), expected, mean=2)


def test_malformed_exif_is_ignored():
    good = exif(6)
    broken = [
        good[:20],
        good[:6] + b"XX" + good[8:],
        good[:10] + struct.pack("<I", 2**32 - 1) + good[14:],
        good[:14] + b"\xff\xff" + good[16:22],
        exif(0),
        exif(9),
        b"Exif\0\0",
    ]
    reference = decode_image(encode(quarters(), "JPEG", **LOSSY["JPEG"]))
    for block in broken:
        data = encode(quarters(), "JPEG", exif=block, **LOSSY["JPEG"])
        assert block in data
        assert np.array_equal(decode_image(data), reference)


def test_big_endian_exif():
    block = b"Exif\0\0MM\0*" + struct.pack(">IHHHIHHI", 8, 1, 0x0112, 3, 1, 3, 0, 0)
    data = encode(stored(quarters(), 3), "JPEG", exif=block, **LOSSY["JPEG"])
    assert_close(decode_image(data), quarters(), mean=2)


# ---- Colors ----

ADOBE_RGB = matrix_profile(
    [(0.60974, 0.31111, 0.01947), (0.20528, 0.62567, 0.06087), (0.14919, 0.06322, 0.74457)],
    np.linspace(0, 1, 1024) ** 2.19921875,
)
SRGB_CURVE = np.where(
    np.linspace(0, 1, 1024) <= 0.04045,
    np.linspace(0, 1, 1024) / 12.92,
    ((np.linspace(0, 1, 1024) + 0.055) / 1.055) ** 2.4,
)
DISPLAY_P3 = matrix_profile(
    [(0.51512, 0.24120, -0.00105), (0.29198, 0.69225, 0.04189), (0.15710, 0.06657, 0.78407)],
    SRGB_CURVE,
)
SRGB_PRIMARIES = [
    (0.43607, 0.22249, 0.01392),
    (0.38515, 0.71687, 0.09708),
    (0.14307, 0.06061, 0.71410),
]


# The red, green and blue of sRGB as they are written in the wider space: published values.
@pytest.mark.parametrize(
    ("profile", "stored_color", "color"),
    [
        (DISPLAY_P3, (234, 51, 35), (255, 0, 0)),
        (DISPLAY_P3, (117, 251, 76), (0, 255, 0)),
        (DISPLAY_P3, (0, 0, 245), (0, 0, 255)),
        (DISPLAY_P3, (119, 119, 119), (119, 119, 119)),
        (ADOBE_RGB, (219, 0, 0), (255, 0, 0)),
        (ADOBE_RGB, (144, 255, 60), (0, 255, 0)),
        (ADOBE_RGB, (0, 0, 250), (0, 0, 255)),
        (ADOBE_RGB, (127, 127, 127), (128, 128, 128)),
    ],
)
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "TIFF", "WEBP", "AVIF", "HEIF"])
def test_wide_gamut_colors_become_srgb(kind, profile, stored_color, color):
    data = encode(flat(stored_color), kind, icc_profile=profile, **OPTIONS[kind])
    # A level of rounding in the file can weigh up to 25 in the dark channels of a pure color.
    tolerance = 30 if 0 in color else 3
    assert np.abs(only_color(data) - color).max() <= tolerance
    untouched = render_image(data, ImageSpec(resize_mode="none", to_srgb=False))
    assert np.abs(untouched[8, 8].astype(int) - stored_color).max() <= 4


def test_what_a_profile_does_counts_not_its_name():
    pixels = texture(40, 40)
    srgb = matrix_profile(SRGB_PRIMARIES, SRGB_CURVE)
    linear = matrix_profile(SRGB_PRIMARIES, np.linspace(0, 1, 1024))
    assert np.array_equal(decode_image(encode(pixels, "PNG", icc_profile=srgb)), pixels)
    assert decode_image(encode(flat((55, 55, 55)), "PNG", icc_profile=linear)).max() == 128


def test_a_profile_in_several_jpeg_segments():
    profile = matrix_profile(SRGB_PRIMARIES, np.linspace(0, 1, 30_000))
    data = encode(flat((55, 55, 55)), "JPEG", quality=100, icc_profile=profile)
    assert data.count(b"ICC_PROFILE\0") == 3
    assert only_color(data).tolist() == [128] * 3


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
@pytest.mark.parametrize(
    "profile",
    [
        b"not a profile",
        DISPLAY_P3[:200],
        ImageCms.ImageCmsProfile(ImageCms.createProfile("LAB")).tobytes(),
        cmyk_profile((128, 128, 128)),
    ],
    ids=["garbage", "truncated", "Lab", "CMYK"],
)
def test_a_profile_that_is_broken_or_not_rgb_is_ignored(kind, profile):
    options = {"quality": 95} if kind == "JPEG" else {}
    plain, tagged = (
        decode_image(encode(texture(40, 40), kind, icc_profile=icc, **options))
        for icc in (None, profile)
    )
    assert np.array_equal(plain, tagged)


def test_cmyk_with_a_profile():
    """In this profile cyan prints as Lab (50, 0, 0), which is sRGB 119; plainly it is aqua."""
    profile = cmyk_profile((128, 128, 128))
    for kind in ("JPEG", "TIFF"):
        cyan, paper = (
            only_color(encode(flat(inks, "CMYK"), kind, icc_profile=profile))
            for inks in ((255, 0, 0, 0), (0, 0, 0, 0))
        )
        assert np.abs(cyan - 119).max() <= 2
        assert paper.min() >= 253
        plain = encode(flat((255, 0, 0, 0), "CMYK"), kind, icc_profile=DISPLAY_P3)
        assert np.abs(only_color(plain) - (0, 255, 255)).max() <= 2


def test_threads_share_a_color_transform():
    images = [encode(texture(64, 64, seed), "PNG", icc_profile=ADOBE_RGB) for seed in range(20)]
    alone = [decode_image(data) for data in images]
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(decode_image, images * 10))
    for index, pixels in enumerate(together):
        assert np.array_equal(pixels, alone[index % 20])


# ---- Sizes ----


@pytest.mark.parametrize(
    ("mode", "source", "expected", "without_upscale"),
    [
        ("stretch", (300, 400), (64, 96), (64, 96)),
        ("stretch", (20, 400), (64, 96), (20, 96)),
        ("stretch", (20, 30), (64, 96), (20, 30)),
        ("crop", (300, 400), (64, 96), (64, 96)),
        ("crop", (20, 400), (64, 96), (20, 96)),
        ("crop", (20, 30), (64, 96), (20, 30)),
        ("pad", (300, 400), (64, 96), (64, 96)),
        ("pad", (20, 30), (64, 96), (64, 96)),
        ("none", (300, 400), (300, 400), (300, 400)),
    ],
)
def test_sizes(mode, source, expected, without_upscale):
    for upscale, size in ((True, expected), (False, without_upscale)):
        spec = ImageSpec(size=(64, 96), resize_mode=mode, upscale=upscale)
        for kind in ("JPEG", "PNG"):
            converted = convert_image(encode(texture(*source), kind), spec)
            assert (converted.height, converted.width) == size
            assert decode_image(converted.data).shape == (*size, 3)


@pytest.mark.parametrize(
    ("mode", "source", "expected", "without_upscale"),
    [
        ("shortest", (300, 400), (64, 85), (64, 85)),
        ("shortest", (400, 300), (85, 64), (85, 64)),
        ("shortest", (20, 30), (64, 96), (20, 30)),
        ("shortest", (20, 300), (64, 960), (20, 300)),
        ("longest", (300, 400), (48, 64), (48, 64)),
        ("longest", (400, 300), (64, 48), (64, 48)),
        ("longest", (20, 30), (43, 64), (20, 30)),
        ("longest", (1, 999), (1, 64), (1, 64)),
    ],
)
def test_sizes_that_keep_the_aspect_ratio(mode, source, expected, without_upscale):
    for upscale, size in ((True, expected), (False, without_upscale)):
        spec = ImageSpec(size=(64, 64), resize_mode=mode, upscale=upscale)
        for kind in ("JPEG", "PNG"):
            assert render_image(encode(texture(*source), kind), spec).shape == (*size, 3)


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_crop_takes_the_centre(kind):
    pixels = np.zeros((90, 240, 3), np.uint8)
    pixels[:, 75:165] = 200
    cropped = render_image(encode(pixels, kind), ImageSpec(size=(30, 30), resize_mode="crop"))
    assert_close(cropped[:, 1:-1], np.full((30, 28, 3), 200), mean=2)
    outside = render_image(encode(pixels, kind), ImageSpec(size=(30, 40), resize_mode="crop"))
    assert outside[:, :3].max() < 20
    assert outside[:, -3:].max() < 20
    kept = render_image(
        encode(pixels, kind), ImageSpec(size=(100, 90), resize_mode="crop", upscale=False)
    )
    assert_close(kept[:, 8:-8], np.full((90, 74, 3), 200), mean=2)


def test_pad_centres_on_black():
    white = encode(np.full((100, 50, 3), 255, np.uint8), "PNG")
    expected = np.zeros((64, 64, 3), np.uint8)
    expected[:, 16:48] = 255
    assert np.array_equal(
        render_image(white, ImageSpec(size=(64, 64), resize_mode="pad")), expected
    )
    small = encode(np.full((10, 20, 3), 255, np.uint8), "PNG")
    expected = np.zeros((64, 64, 3), np.uint8)
    expected[27:37, 22:42] = 255
    spec = ImageSpec(size=(64, 64), resize_mode="pad", upscale=False)
    assert np.array_equal(render_image(small, spec), expected)


def test_one_axis_shrinks_while_the_other_grows():
    columns = np.tile(np.array([0, 255], np.uint8), 200)  # averages to grey when it shrinks
    pixels = np.repeat(np.tile(columns, (10, 1))[:, :, None], 3, axis=2)
    resized = render_image(encode(pixels, "PNG"), ImageSpec(size=(50, 100)))
    assert_close(resized, np.full((50, 100, 3), 127.5), mean=1)


@given(
    height=st.integers(1, 90),
    width=st.integers(1, 400),
    target=st.tuples(st.integers(1, 60), st.integers(1, 60)),
    mode=st.sampled_from(["stretch", "crop", "pad", "shortest", "longest", "none"]),
    upscale=st.booleans(),
    kind=st.sampled_from(["JPEG", "PNG"]),
    encode_format=st.sampled_from(["jpeg", "png"]),
)
@settings(max_examples=150, deadline=None, derandomize=True)
def test_any_size_becomes_a_whole_image(height, width, target, mode, upscale, kind, encode_format):
    if mode in ("shortest", "longest"):
        target = (target[0], target[0])
    spec = ImageSpec(size=target, resize_mode=mode, upscale=upscale, encode_format=encode_format)
    data = encode(texture(height, width), kind)
    converted = convert_image(data, spec)
    assert converted == convert_image(data, spec)
    size = (converted.height, converted.width)
    assert decode_image(converted.data).shape == (*size, 3)
    if spec.fixed_size:
        assert size == target
    if mode == "shortest" and upscale:
        assert min(size) == target[0]
    if mode == "longest" and upscale:
        assert max(size) == target[0]
    if not upscale and mode != "pad":
        assert size[0] <= height
        assert size[1] <= width
    if mode in ("shortest", "longest"):
        assert abs(size[0] * width - size[1] * height) <= max(height, width)  # half a pixel, twice


# ---- Fidelity, pass-through, sums ----


def similarity(one, other):
    """Structural similarity (Wang et al. 2004), with their 11-pixel Gaussian window."""
    one, other = one.astype(np.float64), other.astype(np.float64)

    def blur(pixels):
        return cv2.GaussianBlur(pixels, (11, 11), 1.5)

    mean, other_mean = blur(one), blur(other)
    variance = blur(one * one) - mean**2
    other_variance = blur(other * other) - other_mean**2
    covariance = blur(one * other) - mean * other_mean
    low, high = (0.01 * 255) ** 2, (0.03 * 255) ** 2
    luminance = (2 * mean * other_mean + low) / (mean**2 + other_mean**2 + low)
    return (luminance * (2 * covariance + high) / (variance + other_variance + high)).mean()


def test_scaled_decoding_looks_like_full_decoding():
    scores = []
    for side in (500, 900, 1300, 1800, 2600, 4100):
        data = encode(texture(side * 3 // 4, side, seed=side), "JPEG", quality=92)
        full = cv2.resize(decode_image(data), (224, 224), interpolation=cv2.INTER_AREA)
        scores.append(similarity(render_image(data, ImageSpec()), full))
    # Scaled down to once the size instead of twice, the same textures score 0.975 and 0.948.
    assert np.mean(scores) >= 0.99
    assert min(scores) >= 0.98


@pytest.mark.parametrize("mode", ["crop", "pad", "shortest", "longest"])
def test_scaled_decoding_keeps_twice_the_size_in_every_mode(mode):
    pixels = texture(500, 2000)
    spec = ImageSpec(size=(64, 64), resize_mode=mode)
    rendered = render_image(encode(pixels, "JPEG", quality=95), spec)
    assert similarity(rendered, render_image(encode(pixels, "PNG"), spec)) >= 0.98


@pytest.mark.parametrize("encode_format", ["jpeg", "png"])
@pytest.mark.parametrize("mode", ["stretch", "crop", "pad", "shortest", "longest", "none"])
def test_what_is_final_already_passes_through_untouched(encode_format, mode):
    spec = ImageSpec(size=(64, 64), resize_mode=mode, encode_format=encode_format)
    data = encode(texture(64, 64), encode_format)
    converted = convert_image(data, spec)
    assert converted.data is data
    assert converted.channels == numpy_sums(decode_image(data))
    once = convert_image(encode(texture(200, 300), "WEBP"), spec)
    assert convert_image(once.data, spec) == once._replace(
        channels=numpy_sums(decode_image(once.data))
    )


def test_an_srgb_profile_does_not_hinder_passing_through():
    srgb = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    for kind in ("jpeg", "png"):
        data = encode(texture(64, 64), kind, icc_profile=srgb, exif=exif(1))
        spec = ImageSpec(size=(64, 64), encode_format=kind)
        assert convert_image(data, spec).data is data


NOT_FINAL = {
    "jpeg": [
        encode(texture(64, 64), "PNG"),
        encode(texture(64, 65), "JPEG"),
        encode(texture(64, 64), "JPEG", exif=exif(3)),
        encode(texture(64, 64), "JPEG", icc_profile=DISPLAY_P3),
        encode(texture(64, 64)[:, :, 0], "JPEG"),
        encode(texture(64, 64), "JPEG", keep_rgb=True, subsampling=0),
        encode(Image.fromarray(texture(64, 64)).convert("CMYK"), "JPEG"),
        with_entropy(encode(texture(64, 64), "JPEG"), lambda scan: scan + b"\0\1\2" * 9),
    ],
    "png": [
        encode(texture(64, 64), "JPEG"),
        encode(texture(64, 65), "PNG"),
        encode(texture(64, 64), "PNG", exif=exif(3)),
        encode(texture(64, 64), "PNG", icc_profile=DISPLAY_P3),
        encode(texture(64, 64)[:, :, 0], "PNG"),
        encode(Image.fromarray(texture(64, 64)).quantize(9), "PNG"),
        encode(Image.fromarray(texture(64, 64)).convert("RGBA"), "PNG"),
        encode(texture(64, 64), "PNG", transparency=(1, 2, 3)),
    ],
}


@pytest.mark.parametrize(
    ("encode_format", "data"), [(key, data) for key, items in NOT_FINAL.items() for data in items]
)
def test_what_is_not_final_is_encoded_anew(encode_format, data):
    spec = ImageSpec(size=(64, 64), encode_format=encode_format)
    converted = convert_image(data, spec)
    assert converted.data != data
    signature = {"jpeg": b"\xff\xd8\xff", "png": b"\x89PNG"}[encode_format]
    assert converted.data.startswith(signature)
    assert_close(decode_image(converted.data), render_image(data, spec), mean=4)


def test_a_broken_image_of_the_final_size_is_rejected():
    data = encode(texture(64, 64), "JPEG")
    assert "Premature end" in rejection(data[:-100], ImageSpec(size=(64, 64)))


def test_quality_and_chroma_subsampling():
    data = encode(texture(), "JPEG")
    sizes = [
        len(convert_image(data, ImageSpec(encode_quality=quality)).data) for quality in (50, 95)
    ]
    assert sizes[0] < sizes[1] / 2
    converted = convert_image(data, ImageSpec())
    assert simplejpeg.decode_jpeg_header(converted.data) == (224, 224, "YCbCr", "420")
    assert_close(decode_image(converted.data), render_image(data, ImageSpec()), mean=3)


def numpy_sums(pixels):
    flat_pixels = pixels.reshape(-1, 3).astype(np.int64)
    return ChannelSums(
        len(flat_pixels),
        tuple(flat_pixels.sum(axis=0).tolist()),
        tuple((flat_pixels**2).sum(axis=0).tolist()),
    )


@pytest.mark.parametrize("size", [(1, 1), (1, 999), (224, 224), (333, 777), (2000, 3000)])
def test_channel_sums_are_exact(size):
    rng = np.random.default_rng(size)
    for pixels in (
        rng.integers(0, 256, (*size, 3), np.uint8),
        rng.integers(254, 256, (*size, 3), np.uint8),
        np.full((*size, 3), (0, 1, 255), np.uint8),
    ):
        channels = convert_image(encode(pixels, "BMP"), AS_PNG).channels
        assert channels == numpy_sums(pixels)
        assert all(type(value) is int for value in (*channels.sums, *channels.squares))


def test_channel_sums_are_exact_at_the_pixel_limit():
    rng = np.random.default_rng(0)
    side = 13_377  # 178.9 megapixels: the largest square under the limit
    grey = np.tile(rng.integers(0, 256, (side, 1), np.uint8), (1, side))
    row_sums = grey[:, 0].astype(np.int64)
    data = encode(grey, "PNG", compress_level=1)
    channels = convert_image(data, ImageSpec(resize_mode="none", encode_quality=1)).channels
    assert channels.pixels == side * side
    assert channels.sums == (int(row_sums.sum()) * side,) * 3
    assert channels.squares == (int((row_sums**2).sum()) * side,) * 3


def test_importing_images_turns_opencvs_own_threads_off():
    script = "import cv2, tfrecordify.images; print(cv2.getNumThreads())"
    result = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, check=True, text=True
    )
    assert result.stdout.strip() == "1"
