"""The tfrecordify command."""

from __future__ import annotations

import argparse
import logging
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from tfrecordify import flags
from tfrecordify.text import format_bytes, format_count, format_seconds

# Nothing heavy is imported up here: `tfrecordify --help` answers at once.
if TYPE_CHECKING:
    from tfrecordify.job import Preview
    from tfrecordify.manifest import Manifest

DONE, FAULTY, FAILED, INTERRUPTED = 0, 1, 2, 130


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command.

    Args:
        argv: command and flags; those of the process by default.

    Returns:
        The exit code: 0 done; 1 done, but too many images were rejected or verify found faults;
        2 usage or input error, said in one line; 130 interrupted.
    """
    argv = sys.argv[1:] if argv is None else argv
    try:
        args, beam_flags = flags.parse(argv)
    except flags.UsageError as error:
        return _fail(error)
    # Beam logs the traceback of each error that is said in one line here.
    logging.basicConfig(level=logging.INFO if args.debug else logging.CRITICAL)
    commands: dict[str, Callable[[argparse.Namespace, list[str]], int]] = {
        "convert": _convert,
        "verify": _verify,
        "info": _info,
        "inspect": _inspect,
    }
    try:
        return commands[args.command](args, beam_flags)
    except KeyboardInterrupt:
        print("\ninterrupted; the same command again goes on from here", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return DONE
    except Exception as error:
        if args.debug or not isinstance(error, _expected_errors()):
            raise
        return _fail(error)


def _convert(args: argparse.Namespace, beam_flags: list[str]) -> int:
    settings = vars(args).copy()
    for name in ("command", "debug", "dry_run", "quiet", "max_bad_fraction"):
        del settings[name]
    if args.dry_run:
        from tfrecordify.job import make_job, preview

        print(describe_preview(preview(make_job(**settings))))
        return DONE
    from beam_jobs.convert import convert

    manifest = convert(**settings, beam_flags=beam_flags, progress=not args.quiet)
    if not args.quiet:
        print(describe(manifest, args.output))
    listed = manifest.examples + manifest.rejected
    if manifest.rejected > args.max_bad_fraction * listed:
        print(
            f"tfrecordify: {manifest.rejected} of {listed} images were rejected, more than "
            f"--max_bad_fraction {args.max_bad_fraction:g} allows",
            file=sys.stderr,
        )
        return FAULTY
    return DONE


def _verify(args: argparse.Namespace, _: list[str]) -> int:
    from tqdm import tqdm

    from tfrecordify.verify import verify

    start = time.perf_counter()
    with tqdm(unit="B", unit_scale=True, desc="verifying", leave=False, disable=None) as bar:
        report = verify(args.dataset, decode=args.decode, on_bytes=bar.update)
    for fault in report.faults:
        print(fault)
    print(
        f"{format_count(report.examples, 'example')} in {format_count(report.shards, 'shard')}, "
        f"{format_bytes(report.bytes)}, {'every image decoded, ' if report.decoded else ''}"
        f"{format_count(len(report.faults), 'fault')} "
        f"({format_seconds(time.perf_counter() - start)})"
    )
    return DONE if report.ok else FAULTY


def _info(args: argparse.Namespace, _: list[str]) -> int:
    from tfrecordify import manifest, storage

    if args.json:
        print(storage.read(manifest.manifest_path(args.dataset)).decode(), end="")
    else:
        print(describe(manifest.load(args.dataset), args.dataset, classes=True))
    return DONE


def _inspect(args: argparse.Namespace, _: list[str]) -> int:
    from tfrecordify.sheet import draw_sheet

    drawn = draw_sheet(args.dataset, args.output, split=args.split, count=args.count)
    print(f"{args.output}: {format_count(drawn, 'example')}")
    return DONE


def describe(manifest: Manifest, path: str, *, classes: bool = False) -> str:
    """Says what a dataset holds.

    Args:
        manifest: its manifest.
        path: its folder.
        classes: whether to count the examples of each class.

    Returns:
        A few lines.
    """
    height, width, _ = manifest.image_shape
    size = f"{width}x{height}" if height else "of varied size"
    lines = [
        f"{path}: {format_count(manifest.examples, 'example')}, {manifest.encode_format} {size}"
    ]
    widest = max(map(len, manifest.splits))
    for name, split in manifest.splits.items():
        lines.append(
            f"  {name:{widest}}  {format_count(split.examples, 'example')} in "
            f"{format_count(len(split.shards), 'shard')}, {format_bytes(split.bytes)}"
        )
        if classes and split.mean and split.std:
            mean, std = (" ".join(f"{v:.1f}" for v in stat) for stat in (split.mean, split.std))
            lines.append(f"  {'':{widest}}  mean {mean}, standard deviation {std} (RGB, 0..255)")
    if manifest.label_names:
        lines.append(f"  {format_count(len(manifest.label_names), 'label')}, see labels.txt")
    if classes:
        lines += _class_lines(manifest)
    if manifest.rejected:
        lines.append(f"  {format_count(manifest.rejected, 'image')} rejected, see errors.jsonl")
    if manifest.skipped:
        lines.append(f"  skipped what is no image: {_describe_skipped(manifest.skipped)}")
    return "\n".join(lines)


def describe_preview(preview: Preview) -> str:
    """Says what a conversion would make.

    Args:
        preview: of the conversion.

    Returns:
        A few lines.
    """
    plan, survey = preview.plan, preview.survey
    lines = [f"{format_count(plan.images, 'image')}; nothing is written (--dry_run)"]
    for name, split in plan.splits.items():
        lines.append(
            f"  {name}: {format_count(split.images, 'image')} in "
            f"{format_count(split.num_shards, 'shard')}"
        )
        counts = survey.splits[name].labels
        lines += [f"    {label}: {counts[label]:,}" for label in plan.label_names if counts[label]]
    if preview.bytes is None or preview.seconds is None:
        lines.append("  none of the images in the sample could be converted: look at a few of them")
    else:
        lines.append(
            f"  about {format_bytes(preview.bytes)}, in about {format_seconds(preview.seconds)} "
            "on this machine"
        )
    if plan.skipped:
        lines.append(f"  skipped what is no image: {_describe_skipped(plan.skipped)}")
    return "\n".join(lines)


def _class_lines(manifest: Manifest) -> list[str]:
    lines = []
    for number, label in enumerate(manifest.label_names):
        counts = [
            f"{name} {split.class_counts[number]:,}"
            for name, split in manifest.splits.items()
            if split.labelled
        ]
        lines.append(f"    {number} {label}: {', '.join(counts)}")
    return lines


def _describe_skipped(skipped: Mapping[str, int]) -> str:
    by_count = sorted(skipped.items(), key=lambda pair: (-pair[1], pair[0]))
    return ", ".join(f"{count:,} {kind}" for kind, count in by_count)


def _expected_errors() -> tuple[type[Exception], ...]:
    from tfrecordify.manifest import ManifestError
    from tfrecordify.planning import PlanError
    from tfrecordify.sources import SourceError
    from tfrecordify.storage import StorageError

    expected: list[type[Exception]] = [ManifestError, PlanError, SourceError, StorageError]
    launch = sys.modules.get("beam_jobs.launch")
    if launch is not None:
        expected += [launch.JobError, launch.OptionError]
    return tuple(expected)


def _fail(error: Exception) -> int:
    print(f"tfrecordify: {error}", file=sys.stderr)
    return FAILED


if __name__ == "__main__":
    sys.exit(main())
