"""The output folder: claimed before the first shard, finished after the last."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable
from typing import Any

from tfrecordify import storage
from tfrecordify.manifest import (
    ERRORS,
    LABELS,
    MANIFEST,
    Manifest,
    Split,
    channel_mean_and_std,
    seal,
    unseal,
)
from tfrecordify.planning import Plan
from tfrecordify.progress import PROGRESS
from tfrecordify.shards import SIDECARS, ShardInfo, sum_channels

_PLAN = "plan.json"


class OutputError(ValueError):
    """The output folder holds something else; one line that says what to do."""


def claim(plan: Plan, output: str, *, overwrite: str | None = None) -> Plan:
    """Makes the output folder this conversion's, or refuses.

    A folder that an interrupted run of the same conversion left is taken up where it was. Safe
    to repeat, as a runner does with a step that failed.

    Args:
        plan: of this conversion.
        output: folder of the dataset.
        overwrite: a name for this run, when it may delete another dataset there.

    Returns:
        The plan, for those who wait for the claim.

    Raises:
        OutputError: when the folder holds another conversion and `overwrite` is None.
        StorageError: when the folder cannot be made or written to.
    """
    storage.make_folder(storage.join(output, SIDECARS))
    path = storage.join(output, SIDECARS, _PLAN)
    claimed = _read_claim(path)
    if claimed is None and storage.stat(storage.join(output, MANIFEST)) is not None:
        if overwrite is None:
            raise OutputError(f"{output} holds a dataset of unknown origin: choose another folder")
    elif claimed is not None and overwrite is None:
        _refuse_other(plan, claimed, output)
    if claimed is not None and overwrite is not None and claimed["run"] != overwrite:
        _clear(output, claimed)
        claimed = None
    for folder in (output, storage.join(output, SIDECARS)):
        storage.remove_stale(folder)
    if claimed is None:
        storage.write(path, seal(_claim_of(plan, overwrite)))
    PROGRESS.total = plan.images
    return plan


def finish(infos: Iterable[ShardInfo], plan: Plan, output: str) -> Manifest:
    """Writes the list of rejected images, the labels, and last the manifest.

    Args:
        infos: all shards, in any order.
        plan: of this conversion.
        output: folder of the dataset.

    Returns:
        The manifest.

    Raises:
        StorageError: when the output cannot be written.
    """
    by_split: dict[str, list[ShardInfo]] = {name: [] for name in plan.splits}
    for info in sorted(infos, key=lambda info: info.number):
        by_split[info.split].append(info)
    rejected = sorted(line for infos in by_split.values() for i in infos for line in i.rejected)
    files = {
        LABELS: "".join(f"{name}\n" for name in plan.label_names),
        ERRORS: "".join(json.dumps(line._asdict()) + "\n" for line in rejected),
    }
    contents = {name: text.encode(errors="backslashreplace") for name, text in files.items()}
    for name, content in contents.items():
        storage.write(storage.join(output, name), content)
    image = plan.settings.image
    manifest = Manifest(
        name=plan.settings.name,
        fingerprint=plan.fingerprint,
        settings=plan.settings.to_content(),
        image_shape=(*(image.size if image.fixed_size else (None, None)), 3),
        features=plan.features,
        label_names=plan.label_names,
        files={name: hashlib.sha256(content).hexdigest() for name, content in contents.items()},
        skipped=plan.skipped,
        splits={name: _split(infos, plan) for name, infos in by_split.items()},
    )
    storage.write(storage.join(output, MANIFEST), manifest.to_json())
    return manifest


def _split(infos: list[ShardInfo], plan: Plan) -> Split:
    channels = sum_channels(info.channels for info in infos)
    counts: Counter[int] = sum((Counter(info.class_counts) for info in infos), Counter())
    mean, std = channel_mean_and_std(*channels) if channels.pixels else (None, None)
    return Split(
        examples=sum(info.shard.examples for info in infos),
        rejected=sum(len(info.rejected) for info in infos),
        class_counts=tuple(counts[n] for n in range(len(plan.label_names))) if counts else (),
        mean=mean,
        std=std,
        shards=tuple(info.shard for info in infos),
    )


def _claim_of(plan: Plan, run: str | None) -> dict[str, Any]:
    return {
        "fingerprint": plan.fingerprint,
        "settings": plan.settings.to_content(),
        "images": plan.images,
        "files": [plan.file_name(shard) for shard in plan.shards],
        "run": run,
    }


def _read_claim(path: str) -> dict[str, Any] | None:
    if storage.stat(path) is None:
        return None
    return unseal(storage.read(path), path=path)


def _refuse_other(plan: Plan, claimed: dict[str, Any], output: str) -> None:
    if claimed["fingerprint"] == plan.fingerprint:
        return
    mine, its = _flatten(plan.settings.to_content()), _flatten(claimed["settings"])
    changed = [
        f"{name} was {its.get(name)}, now {value}"
        for name, value in mine.items()
        if its.get(name) != value
    ]
    if claimed["images"] != plan.images:
        changed.append(f"{claimed['images']} images were listed, now {plan.images}")
    raise OutputError(
        f"{output} holds another conversion ({'; '.join(changed) or 'of other images'}): "
        "choose another folder, or --overwrite it"
    )


def _clear(output: str, claimed: dict[str, Any]) -> None:
    """Deletes a dataset, the manifest first, so that no reader trusts what is half gone."""
    for name in (MANIFEST, LABELS, ERRORS):
        storage.remove(storage.join(output, name))
    for name in claimed["files"]:
        storage.remove(storage.join(output, name))
        storage.remove(storage.join(output, SIDECARS, f"{name}.json"))


def _flatten(settings: dict[str, Any]) -> dict[str, Any]:
    outer = {name: value for name, value in settings.items() if name != "image"}
    return outer | {f"image {name}": value for name, value in settings["image"].items()}
