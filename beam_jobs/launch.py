"""Runs a pipeline: its options, its runner, and what went wrong in one line."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions, StandardOptions
from apache_beam.runners.portability.fn_api_runner import FnApiRunner

from tfrecordify.text import did_you_mean

# Said by name in a worker's traceback, which is all that comes back from any runner.
_OUR_ERROR = re.compile(
    r"^tfrecordify\.\w+\.(\w+Error): (.*?)(?: \[while running '[^']*'\])?$", re.MULTILINE
)
_ANY_ERROR = re.compile(
    r"^([\w.]+(?:Error|Exception)): (.*?)(?: \[while running .*)?$", re.MULTILINE
)


class JobError(RuntimeError):
    """The job failed; one line that says why, with the runner's own words as its cause."""


class OptionError(ValueError):
    """A flag that Beam does not know; one line that names the nearest one."""


def pipeline_options(flags: Sequence[str]) -> PipelineOptions:
    """Makes Beam's options, and refuses flags that no runner would read.

    Args:
        flags: Beam's own, such as --runner=DataflowRunner; none for a local run.

    Returns:
        The options.

    Raises:
        OptionError: when Beam does not know a flag.
    """
    known = _known_flags()
    for flag in flags:
        name = flag.split("=", 1)[0]
        if name.startswith("--") and name not in known:
            raise OptionError(f"no such flag: {name}{did_you_mean(name, known)}")
    return PipelineOptions(list(flags))


def is_local(options: PipelineOptions) -> bool:
    """Tells whether a pipeline with these options runs in this process.

    Args:
        options: Beam's options.

    Returns:
        True when no runner is asked for, or Beam's direct one.
    """
    return options.view_as(StandardOptions).runner in (None, "DirectRunner", "FnApiRunner")


def run(build: Callable[[beam.Pipeline], object], options: PipelineOptions) -> None:
    """Runs a pipeline to its end.

    Args:
        build: adds the transforms.
        options: Beam's options.

    Raises:
        JobError: when the job failed.
    """
    # Named, because DirectRunner first tries to download and start another runner (Prism), and
    # shards go through threads of their own, so that one worker in this process is enough.
    runner = FnApiRunner() if is_local(options) else None
    pipeline = beam.Pipeline(runner=runner, options=options)
    build(pipeline)
    try:
        pipeline.run().wait_until_finish()
    except Exception as error:
        if _was_interrupted(error):
            raise KeyboardInterrupt from None
        raise JobError(_reason(error)) from error


def _was_interrupted(error: BaseException | None) -> bool:
    """Beam's worker turns Ctrl-C into an error of the step it was in."""
    while error is not None:
        if isinstance(error, KeyboardInterrupt) or str(error).startswith("KeyboardInterrupt"):
            return True
        error = error.__cause__ or error.__context__
    return False


def _reason(error: Exception) -> str:
    module = type(error).__module__.removeprefix("builtins")
    text = f"{module}{'.' if module else ''}{type(error).__qualname__}: {error}"
    if found := _OUR_ERROR.findall(text):
        return str(found[-1][1])
    found = _ANY_ERROR.findall(text)
    name, message = found[-1] if found else (type(error).__name__, text.splitlines()[0])
    return f"the job failed: {name}: {message}; --debug shows where"


def _known_flags() -> set[str]:
    known: set[str] = set()
    PipelineOptions([]).get_all_options(
        add_extra_args_fn=lambda parser: known.update(parser._option_string_actions)
    )
    return known
