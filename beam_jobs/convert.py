"""The conversion as a Beam job: a folder of images to sharded TFRecords and their manifest."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import apache_beam as beam
from apache_beam.pvalue import AsSingleton

from beam_jobs import launch
from tfrecordify import manifest, output, shards, storage
from tfrecordify.job import Job, make_job
from tfrecordify.planning import Plan, Settings, ShardId, Survey
from tfrecordify.progress import PROGRESS, show_bar
from tfrecordify.sources import Input, Skipped, Source


def convert(
    input: str,  # noqa: A002
    output: str,
    *,
    beam_flags: Sequence[str] = (),
    progress: bool = True,
    **settings: Any,
) -> manifest.Manifest:
    """Converts a folder of images to sharded TFRecords, on this machine or on any Beam runner.

    Args:
        input: folder of images, glob pattern or table of paths, local or gs://.
        output: folder of the dataset, made when it is not there.
        beam_flags: Beam's own flags, such as ["--runner=DataflowRunner", "--project=..."].
        progress: whether a local run shows a bar when stderr is a terminal.
        **settings: as `tfrecordify.job.make_job` takes them: image_size=224, splits={...}, ...

    Returns:
        The manifest of the finished dataset.

    Raises:
        SourceError: when the input cannot be used.
        PlanError: when settings contradict each other or the input.
        OptionError: when Beam does not know a flag.
        JobError: when the job failed.
    """
    options = launch.pipeline_options(beam_flags)
    job = make_job(input, output, **settings)
    with show_bar(shown=progress and launch.is_local(options)):
        launch.run(lambda pipeline: convert_images(pipeline, job), options)
    return manifest.load(output)


def convert_images(pipeline: beam.Pipeline, job: Job) -> beam.PCollection:
    """Converts a folder of images; only paths are ever shuffled, never image bytes.

    Args:
        pipeline: the pipeline to extend.
        job: what to convert.

    Returns:
        One element, the manifest, once it is written.
    """
    images = (
        pipeline
        | "Name the parts" >> beam.Create(job.input.parts(), reshuffle=True)  # part
        | "List images" >> beam.FlatMap(_list_part, job.input)  # Source | Skipped
    )
    plan = AsSingleton(
        images
        | "Survey them" >> beam.CombineGlobally(_SurveyFn(job.settings))  # Survey
        | "Plan the shards" >> beam.Map(shards.plan_shards, job.input.root)  # Plan
        | "Claim the output" >> beam.Map(output.claim, job.output, overwrite=job.run)  # Plan
    )
    return (
        images
        | "Send to shards" >> beam.FlatMap(_send_to_shards, plan)  # ((split, number), Source)
        | "Gather by shard" >> beam.GroupByKey()  # ((split, number), [Source])
        | "Write shards" >> beam.Map(_write_shard, plan, job)  # ShardInfo
        | "Gather results" >> beam.combiners.ToList()  # [ShardInfo]
        | "Write the manifest" >> beam.Map(output.finish, plan, job.output)  # Manifest
    )


def _list_part(part: storage.Part, source: Input) -> Iterator[Source | Skipped]:
    for item in source.list_part(part):
        PROGRESS.listed += 1
        yield item


def _send_to_shards(item: Source | Skipped, plan: Plan) -> list[tuple[tuple[str, int], Source]]:
    return plan.shards_for(item)


def _write_shard(
    gathered: tuple[tuple[str, int], Iterable[Source]], plan: Plan, job: Job
) -> shards.ShardInfo:
    shard, images = gathered
    return shards.write_shard(
        ShardId(*shard), images, plan=plan, root=job.input.root, output=job.output
    )


class _ListedCoder(beam.coders.Coder):  # type: ignore[misc]
    """Listed files as pickled plain tuples: a third of the size and time of Beam's fallback."""

    def encode(self, item: Source | Skipped) -> bytes:
        return pickle.dumps(tuple(item), protocol=5)

    def decode(self, encoded: bytes) -> Source | Skipped:
        values = pickle.loads(encoded)
        return Skipped(*values) if len(values) == len(Skipped._fields) else Source(*values)

    def is_deterministic(self) -> bool:
        return False


beam.coders.registry.register_coder(Source, _ListedCoder)


class _SurveyFn(beam.CombineFn):  # type: ignore[misc]
    """Adds up surveys."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def create_accumulator(self) -> Survey:
        return Survey(settings=self._settings)

    def add_input(self, survey: Survey, item: Source | Skipped) -> Survey:
        return survey.add(item)

    def merge_accumulators(self, surveys: Iterable[Survey]) -> Survey:
        merged = self.create_accumulator()
        for survey in surveys:
            merged.merge(survey)
        return merged

    def extract_output(self, survey: Survey) -> Survey:
        return survey


def main(argv: list[str] | None = None) -> int:
    """Runs `tfrecordify convert` with the same flags.

    Args:
        argv: the flags; those of the process by default.

    Returns:
        The exit code.
    """
    from tfrecordify import cli

    return cli.main(["convert", *(sys.argv[1:] if argv is None else argv)])


if __name__ == "__main__":
    sys.exit(main())
