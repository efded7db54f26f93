"""The conversion as a Beam job: a folder of images to sharded TFRecords and their manifest."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import apache_beam as beam
from apache_beam.pvalue import AsSingleton

from tfrecordify import output, shards
from tfrecordify.planning import Plan, Settings, ShardId, Survey
from tfrecordify.sources import Input, Skipped, Source


@dataclass(frozen=True, kw_only=True)
class Job:
    """One conversion: from where, to where, how."""

    input: Input
    output: str
    settings: Settings
    run: str | None = None
    """A name for this run, which lets it overwrite another conversion in the output."""


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
        | "List images" >> beam.FlatMap(job.input.list_part)  # Source | Skipped
    )
    plan = AsSingleton(
        images
        | "Survey them" >> beam.CombineGlobally(SurveyFn(job.settings))  # Survey
        | "Plan the shards" >> beam.Map(shards.plan_shards)  # Plan
        | "Claim the output" >> beam.Map(output.claim, job.output, overwrite=job.run)  # Plan
    )
    return (
        images
        | "Send to shards" >> beam.FlatMap(send_to_shards, plan)  # ((split, index), Source)
        | "Gather by shard" >> beam.GroupByKey()  # ((split, index), [Source])
        | "Write shards" >> beam.Map(write_shard, plan, job.output)  # ShardInfo
        | "Gather results" >> beam.combiners.ToList()  # [ShardInfo]
        | "Write the manifest" >> beam.Map(output.finish, plan, job.output)  # Manifest
    )


def send_to_shards(
    item: Source | Skipped, plan: Plan
) -> Iterable[tuple[tuple[str, int], Source]]:
    return plan.shards_for(item)


def write_shard(
    gathered: tuple[tuple[str, int], Iterable[Source]], plan: Plan, output: str
) -> shards.ShardInfo:
    shard, sources = gathered
    return shards.write_shard(ShardId(*shard), sources, plan=plan, output=output)


class SurveyFn(beam.CombineFn):
    """Adds up surveys."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def create_accumulator(self) -> Survey:
        return Survey(settings=self._settings)

    def add_input(self, survey: Survey, item: Source | Skipped) -> Survey:
        return survey.add([item])

    def add_inputs(self, survey: Survey, items: Iterable[Source | Skipped]) -> Survey:
        return survey.add(items)

    def merge_accumulators(self, surveys: Iterable[Survey]) -> Survey:
        merged = self.create_accumulator()
        for survey in surveys:
            merged.merge(survey)
        return merged

    def extract_output(self, survey: Survey) -> Survey:
        return survey
