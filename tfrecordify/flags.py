"""The command line: commands, flags and what they take; parsing alone, nothing heavy imported."""

from __future__ import annotations

import argparse
import difflib
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

from tfrecordify import __version__
from tfrecordify.text import did_you_mean


class UsageError(ValueError):
    """A flag that cannot be taken as it was given; one line that says what to do."""


def parse(argv: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """Parses a command line; of `convert` only the flags that were given are in the result.

    Args:
        argv: command and flags, with underscores or dashes.

    Returns:
        The parsed flags (`command` among them), and those meant for Beam.

    Raises:
        UsageError: when a flag is unknown, misplaced or cannot be read.
    """
    parser, commands = _parser()
    argv = [_with_underscores(flag) for flag in argv]
    command = next((word for word in argv if not word.startswith("-")), "")
    if command not in commands:
        args = parser.parse_args(argv)
        return args, []
    own = list(commands[command]._option_string_actions)
    mine, rest = _without_beam_flags(argv, own)
    for flag in (word.split("=", 1)[0] for word in rest if word.startswith("-")):
        near = difflib.get_close_matches(flag, own, n=1, cutoff=0.8)
        if near or command != "convert":
            raise UsageError(f"no such flag: {flag}{did_you_mean(flag, own)}")
    args, extra = parser.parse_known_args(mine)
    if extra:
        quoted = "; put a glob in quotes" if command == "convert" else ""
        raise UsageError(f"{extra[0]!r} is one argument too many{quoted}")
    return args, rest


def _without_beam_flags(argv: Sequence[str], own: Sequence[str]) -> tuple[list[str], list[str]]:
    """Takes out the flags that are not our own, each with the word behind it as its value."""
    mine: list[str] = []
    rest: list[str] = []
    takes_value = False
    for word in argv:
        if word.startswith("--"):
            known = word.split("=", 1)[0] in own
            (mine if known else rest).append(word)
            takes_value = not known and "=" not in word
        elif takes_value:
            rest.append(word)
            takes_value = False
        else:
            mine.append(word)
    return mine, rest


def _parser() -> tuple[argparse.ArgumentParser, Mapping[str, argparse.ArgumentParser]]:
    """The parser, and that of each command by name."""
    parser = _OneLineParser(
        prog="tfrecordify",
        description="Turns folders of images into sharded TFRecords.",
        epilog="tfrecordify COMMAND --help tells its flags.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"tfrecordify {__version__}")
    commands = parser.add_subparsers(
        title="commands", metavar="COMMAND", dest="command", required=True
    )
    for add in (_add_convert, _add_verify, _add_info, _add_inspect):
        add(commands)
    for command in commands.choices.values():
        command.add_argument("--debug", action="store_true", help="show where an error comes from")
    return parser, commands.choices


def _add_convert(commands: Any) -> None:
    parser = _add_command(commands, "convert", "convert a folder of images")
    parser.epilog = "Any flag of Beam is taken too: --runner, --project, --region, ..."
    parser.add_argument("input", help="folder of images, quoted glob, or table of paths; or gs://")
    parser.add_argument("output", help="folder of the dataset; or gs://")

    images = parser.add_argument_group("images")
    _add(images, "--image_size", _image_size, "224, or WIDTHxHEIGHT such as 256x192 (224)")
    _add(images, "--resize_mode", str, "stretch, crop, pad, shortest, longest or none (stretch)")
    images.add_argument(
        "--no_upscale", dest="upscale", action="store_false", help="never enlarge an image"
    )
    _add(images, "--encode_format", str, "jpeg or png (jpeg)")
    _add(images, "--encode_quality", int, "of JPEG, 1 to 100 (95)")
    _add(images, "--max_pixels", int, "reject larger images (178956970)")
    images.add_argument(
        "--keep_profile_colors",
        dest="to_srgb",
        action="store_false",
        help="do not convert images with a colour profile to sRGB",
    )

    labels = parser.add_argument_group("labels and splits")
    _add(labels, "--labels", str, "file with one label a line, which fixes their numbers")
    _add(labels, "--splits", _splits, "such as train=0.9,validation=0.1")
    _add(labels, "--group_by", str, "column of a table that must not be torn apart by splits")
    _add(labels, "--path_column", str, "column of a table that names the image (path)")
    _add(labels, "--label_column", str, "column of a table that holds the label (label)")
    _add(labels, "--split_column", str, "column of a table that holds the split (split)")

    shards = parser.add_argument_group("shards")
    _add(shards, "--name", str, "what the shards are called (the input's name)")
    _add(shards, "--num_shards", int, "shards of each split")
    _add(shards, "--shard_size", str, "size of a full shard (128MB)")
    _add(shards, "--compression", str, "gzip or none (gzip)")
    _add(shards, "--compression_level", int, "0 (stored: JPEG hardly shrinks) to 9 (0)")
    _add(shards, "--seed", int, "of the shuffling and of the splits (0)")

    running = parser.add_argument_group("running")
    running.add_argument(
        "--max_bad_fraction",
        type=float,
        default=0.01,
        metavar="SHARE",
        help="exit with 1 when more of the images are rejected (0.01)",
    )
    running.add_argument(
        "--overwrite", action="store_true", help="replace another conversion in the output"
    )
    running.add_argument(
        "--dry_run", action="store_true", help="say what would be made, and write nothing"
    )
    running.add_argument("--quiet", action="store_true", help="print nothing but errors")


def _add_verify(commands: Any) -> None:
    parser = _add_command(commands, "verify", "check a dataset for faults")
    parser.add_argument("dataset", help="folder of the dataset; or gs://")
    parser.add_argument("--decode", action="store_true", help="decode every image as well")


def _add_info(commands: Any) -> None:
    parser = _add_command(commands, "info", "say what a dataset holds")
    parser.add_argument("dataset", help="folder of the dataset; or gs://")
    parser.add_argument("--json", action="store_true", help="print the manifest as JSON")


def _add_inspect(commands: Any) -> None:
    parser = _add_command(commands, "inspect", "draw a sheet of examples with their labels")
    parser.add_argument("dataset", help="folder of the dataset; or gs://")
    parser.add_argument("--output", required=True, metavar="PNG", help="picture to write")
    parser.add_argument("--split", metavar="X", help="which split (the first)")
    parser.add_argument("--count", type=int, default=36, metavar="X", help="how many (36)")


def _add_command(commands: Any, name: str, text: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(
        name, help=text, description=text[0].upper() + text[1:] + ".", allow_abbrev=False
    )
    return parser


def _add(group: Any, flag: str, kind: Callable[[str], Any], text: str) -> None:
    """Adds a flag that is passed on only when given: the defaults are `make_job`'s alone."""
    group.add_argument(flag, type=kind, default=argparse.SUPPRESS, help=text, metavar="X")


def _with_underscores(flag: str) -> str:
    """Dashes inside a flag are taken for underscores."""
    if not flag.startswith("--"):
        return flag
    name, equals, value = flag.partition("=")
    return "--" + name[2:].replace("-", "_") + equals + value


def _image_size(text: str) -> int | tuple[int, int]:
    match = re.fullmatch(r"(\d+)(?:[xX](\d+))?", text)
    if not match or "0" in (match[1], match[2]):
        raise argparse.ArgumentTypeError(
            f"{text!r} is no size; write 224, or 256x192 (width x height)"
        )
    width, height = match.groups()
    return (int(height), int(width)) if height else int(width)


def _splits(text: str) -> dict[str, float]:
    splits: dict[str, float] = {}
    for pair in text.split(","):
        name, equals, share = (word.strip() for word in pair.partition("="))
        try:
            value = float(share)
        except ValueError:
            equals = ""
        if not equals or name in splits:
            raise argparse.ArgumentTypeError(
                f"{text!r} cannot be read; write such as train=0.9,validation=0.1"
            )
        splits[name] = value
    return splits


class _OneLineParser(argparse.ArgumentParser):
    """Says what is wrong in one line, without the usage."""

    def error(self, message: str) -> NoReturn:
        match = re.search(r"invalid choice: '([^']*)'.*?\(choose from (.*)\)", message)
        if match:
            names = [name.strip(" '") for name in match[2].split(",")]
            raise UsageError(
                f"no such command: {match[1]}{did_you_mean(match[1], names)}; "
                f"there are {', '.join(names)}"
            )
        raise UsageError(f"{message}; see {self.prog} --help")
