"""A conversion as asked for: what goes in, where it goes, and how; and what it would make."""

from __future__ import annotations

import posixpath
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tfrecordify import shards, sources, storage
from tfrecordify.images import ImageSpec
from tfrecordify.planning import Plan, PlanError, Settings, Survey
from tfrecordify.records import Compression
from tfrecordify.text import parse_bytes


@dataclass(frozen=True, kw_only=True)
class Job:
    """One conversion: from where, to where, how."""

    input: sources.Input
    output: str
    settings: Settings
    run: str | None = None
    """A name for this run, which lets it overwrite another conversion in the output."""


@dataclass(frozen=True, kw_only=True)
class Preview:
    """What a conversion would make."""

    survey: Survey
    plan: Plan
    bytes: int | None
    """Estimated size of all shards; None when no image of the sample could be converted."""
    seconds: float | None
    """Estimated time on this machine, from the sample; None as above."""


def make_job(
    input: str,  # noqa: A002
    output: str,
    *,
    name: str | None = None,
    image_size: int | tuple[int, int] | None = None,
    resize_mode: str = "stretch",
    upscale: bool = True,
    encode_format: str = "jpeg",
    encode_quality: int | None = None,
    max_pixels: int = ImageSpec.max_pixels,
    to_srgb: bool = True,
    splits: Mapping[str, float] | None = None,
    num_shards: int | None = None,
    shard_size: int | str | None = None,
    compression: Compression = "gzip",
    compression_level: int = 0,
    labels: str | Sequence[str] | None = None,
    seed: int = 0,
    path_column: str = "path",
    label_column: str = "label",
    split_column: str = "split",
    group_by: str | None = None,
    overwrite: bool = False,
) -> Job:
    """Checks what was asked for, and recognises the input.

    Args:
        input: folder of images, glob pattern or table of paths, local or gs://.
        output: folder of the dataset, made when it is not there.
        name: what the shards are called; by default the input's last name.
        image_size: 224 for 224 x 224 pixels, or (height, width); 224 by default.
        resize_mode: stretch, crop, pad, shortest, longest or none.
        upscale: whether images smaller than the target are enlarged.
        encode_format: jpeg or png.
        encode_quality: of JPEG, 1 to 100; 95 by default.
        max_pixels: images with more pixels are rejected.
        to_srgb: whether images with another colour profile are converted to sRGB.
        splits: share of each split, for inputs that give none; all of it train by default.
        num_shards: shards of each split.
        shard_size: bytes of a full shard, or such as "128MB", which is the default.
        compression: gzip or none.
        compression_level: 0 (stored) to 9.
        labels: a file with one label a line, or the labels: their order fixes their numbers.
        seed: of the shuffling and of the splits.
        path_column: column of a table that names the image.
        label_column: column of a table that holds the label.
        split_column: column of a table that holds the split.
        group_by: column of a table whose equal values stay in one split.
        overwrite: whether another conversion in the output may be deleted.

    Returns:
        The job.

    Raises:
        SourceError: when the input is not there or cannot be used.
        PlanError: when the settings contradict each other or the input.
    """
    columns = sources.Columns(
        path=path_column, label=label_column, split=split_column, group=group_by
    )
    recognised = sources.recognise(input, columns)
    if recognised.has_splits and splits is not None:
        raise PlanError(f"{input} has splits of its own: leave --splits out")
    settings = Settings(
        name=name or _default_name(input),
        image=_image_spec(
            image_size=image_size,
            resize_mode=resize_mode,
            upscale=upscale,
            encode_format=encode_format,
            encode_quality=encode_quality,
            max_pixels=max_pixels,
            to_srgb=to_srgb,
        ),
        seed=seed,
        splits=dict(splits) if splits is not None else {"train": 1.0},
        **_sharding(num_shards, shard_size),
        compression=compression,
        compression_level=compression_level,
        label_names=_label_names(labels),
    )
    run = secrets.token_hex(8) if overwrite else None
    return Job(input=recognised, output=output, settings=settings, run=run)


def preview(job: Job) -> Preview:
    """Lists the images, plans the shards and converts a sample; writes nothing.

    Args:
        job: the conversion.

    Returns:
        What it would make.

    Raises:
        PlanError: when images and settings do not go together.
        StorageError: when a folder cannot be listed.
    """
    survey = Survey(settings=job.settings)
    for part in job.input.parts():
        for item in job.input.list_part(part):
            survey.add(item)
    plan = shards.plan_shards(survey, job.input.root)
    start = time.perf_counter()
    sample = [source for _, source in survey.sample]
    outcomes = list(shards.convert_all(sample, plan, root=job.input.root))
    seconds = (time.perf_counter() - start) / len(sample) * plan.images
    sizes = [len(o.framed) for o in outcomes if isinstance(o, shards.Converted)]
    if not sizes:
        return Preview(survey=survey, plan=plan, bytes=None, seconds=None)
    return Preview(
        survey=survey,
        plan=plan,
        bytes=round(sum(sizes) / len(sample) * plan.images),
        seconds=seconds,
    )


def _default_name(path: str) -> str:
    base = path.rstrip("/")
    while any(mark in posixpath.basename(base) for mark in "*?["):
        base = posixpath.dirname(base)
    stem = posixpath.basename(base)
    if base.lower().endswith(sources.TABLE_SUFFIXES):
        stem = posixpath.splitext(stem)[0]
    return stem if stem.strip(".") else "dataset"


def _image_spec(
    *, image_size: int | tuple[int, int] | None, encode_quality: int | None, **given: Any
) -> ImageSpec:
    if given["resize_mode"] == "none" and image_size is not None:
        raise PlanError("resize_mode none keeps the size: leave image_size out")
    if given["encode_format"] == "png" and encode_quality is not None:
        raise PlanError("PNG has no encode_quality: leave it out, or choose encode_format jpeg")
    size = image_size or 224
    try:
        return ImageSpec(
            size=(size, size) if isinstance(size, int) else size,
            encode_quality=95 if encode_quality is None else encode_quality,
            **given,
        )
    except ValueError as error:
        raise PlanError(str(error)) from None


def _sharding(num_shards: int | None, shard_size: int | str | None) -> dict[str, Any]:
    if num_shards is not None and shard_size is not None:
        raise PlanError("num_shards and shard_size exclude each other: leave one of them out")
    if shard_size is None:
        return {"num_shards": num_shards}
    try:
        return {
            "shard_size": parse_bytes(shard_size) if isinstance(shard_size, str) else shard_size
        }
    except ValueError as error:
        raise PlanError(f"shard_size: {error}") from None


def _label_names(labels: str | Sequence[str] | None) -> tuple[str, ...]:
    if labels is None:
        return ()
    if not isinstance(labels, str):
        return tuple(labels)
    try:
        text = storage.read(labels).decode("utf-8-sig")
    except FileNotFoundError:
        raise PlanError(f"no such file: {labels}; give a file with one label a line") from None
    except UnicodeDecodeError:
        raise PlanError(f"{labels} is not UTF-8 text; give a file with one label a line") from None
    names = tuple(line.strip() for line in text.splitlines() if line.strip())
    if not names:
        raise PlanError(f"{labels} is empty; give a file with one label a line")
    return names
