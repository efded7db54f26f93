"""Draws a folder of labelled images: three classes of shapes on textured grounds."""

from __future__ import annotations

import sys
from pathlib import Path

import cv2
import numpy as np
import numpy.typing as npt

PER_CLASS = 44
Pixels = npt.NDArray[np.uint8]


def main(folder: Path) -> None:
    rng = np.random.default_rng(7)
    for label in ("circle", "square", "triangle"):
        (folder / label).mkdir(parents=True, exist_ok=True)
        for number in range(PER_CLASS):
            suffix = ".png" if number % 8 == 0 else ".jpg"
            path = folder / label / f"{label}_{number:03d}{suffix}"
            cv2.imwrite(str(path), draw(label, rng))
    whole = (folder / "circle" / "circle_001.jpg").read_bytes()
    (folder / "circle" / "cut_short.jpg").write_bytes(whole[: len(whole) // 2])
    print(f"{folder}: {3 * PER_CLASS} images of 3 classes, and one that is cut short")


def draw(label: str, rng: np.random.Generator) -> Pixels:
    height, width = (int(side) for side in rng.integers(240, 480, 2))
    image = texture(height, width, rng)
    x, y = int(rng.uniform(0.3, 0.7) * width), int(rng.uniform(0.3, 0.7) * height)
    radius = int(rng.uniform(0.15, 0.28) * min(height, width))
    color = [int(value) for value in rng.integers(0, 256, 3)]
    if label == "circle":
        cv2.circle(image, (x, y), radius, color, -1, cv2.LINE_AA)
    else:
        corners = 4 if label == "square" else 3
        angles = rng.uniform(0, np.pi) + np.arange(corners) * 2 * np.pi / corners
        points = np.stack([x + radius * np.cos(angles), y + radius * np.sin(angles)], 1)
        cv2.fillPoly(image, [points.astype(np.int32)], color, cv2.LINE_AA)
    return image


def texture(height: int, width: int, rng: np.random.Generator) -> Pixels:
    """Noise at several scales around a colour, as grass, sand or cloth has it."""
    ground = np.full((height, width, 3), rng.uniform(60, 200, 3), np.float32)
    for scale in (4, 12, 40):
        noise = rng.normal(0, 18, (height // scale + 2, width // scale + 2, 3)).astype(np.float32)
        ground += cv2.resize(noise, (width, height), interpolation=cv2.INTER_CUBIC)
    pixels: Pixels = np.clip(ground, 0, 255).astype(np.uint8)
    return pixels


if __name__ == "__main__":
    main(Path(sys.argv[1]))
