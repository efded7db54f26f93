"""A sheet of a dataset's examples, to look at."""

from __future__ import annotations

import io
import itertools
import math
from collections.abc import Iterator
from typing import Any

from PIL import Image, ImageDraw, ImageOps

from tfrecordify import manifest as manifests
from tfrecordify import records, storage
from tfrecordify.manifest import Manifest, ManifestError
from tfrecordify.text import did_you_mean

_CELL = 144  # pixels: some 36 examples fit on a screen
_LINE = 14


def draw_sheet(dataset: str, path: str, *, split: str | None = None, count: int = 36) -> int:
    """Draws examples with their labels, from the first shards of a split.

    Args:
        dataset: folder of the dataset, local or gs://.
        path: picture to write, as its suffix says.
        split: which split; the first by default.
        count: how many examples.

    Returns:
        How many were drawn; fewer when the split has no more.

    Raises:
        ManifestError: when there is no dataset, or no such split.
        StorageError: when the picture cannot be written.
    """
    manifest = manifests.load(dataset)
    name = split or next(iter(manifest.splits))
    if name not in manifest.splits:
        hint = did_you_mean(name, manifest.splits)
        raise ManifestError(
            f"{dataset} has no split {name!r}{hint}; it has {', '.join(manifest.splits)}"
        )
    if count < 1:
        raise ManifestError(f"count is {count}: draw at least 1")
    cells = [_draw_cell(e, manifest) for e in itertools.islice(_examples(dataset, name), count)]
    columns = max(1, math.ceil(math.sqrt(len(cells))))
    rows = max(1, math.ceil(len(cells) / columns))
    sheet = Image.new("RGB", (columns * _CELL, rows * (_CELL + _LINE)), "white")
    for place, cell in enumerate(cells):
        sheet.paste(cell, (place % columns * _CELL, place // columns * (_CELL + _LINE)))
    encoded = io.BytesIO()
    sheet.save(encoded, _format_of(path))
    storage.write(path, encoded.getvalue())
    return len(cells)


def _examples(dataset: str, split: str) -> Iterator[dict[str, list[Any]]]:
    for shard in manifests.load(dataset).splits[split].shards:
        with storage.open_read(storage.join(dataset, shard.file)) as file:
            for record in records.read_records(file):
                yield records.decode_example(record)


def _draw_cell(example: dict[str, list[Any]], manifest: Manifest) -> Image.Image:
    image = Image.open(io.BytesIO(example[records.IMAGE][0])).convert("RGB")
    cell = Image.new("RGB", (_CELL, _CELL + _LINE), "white")
    thumbnail = ImageOps.contain(image, (_CELL - 4, _CELL - 4))
    cell.paste(thumbnail, ((_CELL - thumbnail.width) // 2, (_CELL - thumbnail.height) // 2))
    label = example.get(records.LABEL)
    text = (
        manifest.label_names[label[0]]
        if label
        else example[records.FILENAME][0].decode(errors="replace")
    )
    ImageDraw.Draw(cell).text((3, _CELL), text[-24:], fill="black")
    return cell


def _format_of(path: str) -> str:
    return Image.registered_extensions().get(path[path.rfind(".") :].lower(), "PNG")
