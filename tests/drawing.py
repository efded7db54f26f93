"""Draws test images, and encodes them with Pillow: a hand other than the one under test."""

import io
import struct

import cv2
import numpy as np
from PIL import Image

COLORS = {
    "red": (200, 40, 40),
    "green": (40, 180, 60),
    "blue": (40, 60, 200),
    "yellow": (210, 200, 50),
}


def quarters(height=48, width=64):
    """Four flat quarters: red, green above blue, yellow. No two turns or mirrorings look alike."""
    pixels = np.empty((height, width, 3), np.uint8)
    top, left = height // 2, width // 2
    pixels[:top, :left], pixels[:top, left:] = COLORS["red"], COLORS["green"]
    pixels[top:, :left], pixels[top:, left:] = COLORS["blue"], COLORS["yellow"]
    return pixels


def texture(height=300, width=400, seed=0):
    """Noise of several scales, with the falling spectrum of a photograph."""
    rng = np.random.default_rng(seed)
    pixels = np.zeros((height, width, 3), np.float32)
    for scale, weight in ((64, 60), (16, 30), (4, 15), (1, 4)):
        noise = rng.standard_normal((height // scale + 2, width // scale + 2, 3), np.float32)
        pixels += weight * cv2.resize(noise, (width, height), interpolation=cv2.INTER_CUBIC)
    return np.clip(pixels + 128, 0, 255).astype(np.uint8)


def encode(pixels, kind, **options):
    """Encodes an array, or a Pillow image, in one of Pillow's formats."""
    image = pixels if isinstance(pixels, Image.Image) else Image.fromarray(pixels)
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def exif(orientation):
    """An Exif block that holds an orientation and nothing else."""
    block = Image.Exif()
    block[0x0112] = orientation
    return block.tobytes()


def matrix_profile(primaries, curve):
    """An ICC v2 display profile: the D50 XYZ of red, green and blue, and one curve for all."""
    xyz = {b"wtpt": (0.9642, 1.0, 0.8249)}
    xyz |= dict(zip((b"rXYZ", b"gXYZ", b"bXYZ"), primaries, strict=True))
    tags = {name: b"XYZ \0\0\0\0" + _fixed(*value) for name, value in xyz.items()}
    table = np.round(np.asarray(curve) * 65535).astype(">u2")
    for name in (b"rTRC", b"gTRC", b"bTRC"):
        tags[name] = b"curv\0\0\0\0" + struct.pack(">I", len(table)) + table.tobytes()
    return _profile(b"mntr", b"RGB ", b"XYZ ", tags)


def cmyk_profile(cyan):
    """An ICC v2 printer profile with white paper, cyan of this Lab color, and all else black."""
    corners = np.full((16, 3), (0, 128, 128), np.uint8)
    corners[0], corners[8] = (255, 128, 128), cyan
    ramp = np.arange(256, dtype=np.uint8).tobytes()
    lut = b"mft1\0\0\0\0" + bytes((4, 3, 2, 0)) + _fixed(1, 0, 0, 0, 1, 0, 0, 0, 1)
    lut += ramp * 4 + corners.tobytes() + ramp * 3
    tags = {b"wtpt": b"XYZ \0\0\0\0" + _fixed(0.9642, 1.0, 0.8249), b"A2B0": lut}
    return _profile(b"prtr", b"CMYK", b"Lab ", tags)


def _fixed(*values):
    return struct.pack(f">{len(values)}i", *(round(value * 65536) for value in values))


def _profile(device, space, connection, tags):
    tags = {b"desc": b"desc\0\0\0\0" + struct.pack(">I", 5) + b"test\0" + b"\0" * 78} | tags
    directory, body = struct.pack(">I", len(tags)), b""
    start = 128 + 4 + 12 * len(tags)
    for name, data in tags.items():
        directory += name + struct.pack(">II", start + len(body), len(data))
        body += data + b"\0" * (-len(data) % 4)
    head = struct.pack(">I4sI", start + len(body), b"\0" * 4, 0x02100000)
    head += device + space + connection + b"\0" * 12 + b"acsp" + b"\0" * 28
    head += _fixed(0.9642, 1.0, 0.8249)
    return head.ljust(128, b"\0") + directory + body
