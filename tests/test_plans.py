"""From inputs to shards: what is listed, and where each image goes."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfrecordify.planning import PlanError, Settings, ShardId, Survey, make_plan, rank_hash
from tfrecordify.sources import Columns, Skipped, Source, SourceError, recognise


def survey_of(sources: list[Source], **given_settings: object) -> Survey:
    survey = Survey(settings=Settings(name="x", **given_settings))
    for source in sources:
        survey.add(source)
    return survey


def listed(path: Path | str, columns: Columns | None = None) -> list[Source | Skipped]:
    found = recognise(str(path), columns)
    return [item for part in found.parts() for item in found.list_part(part)]


@settings(max_examples=30, deadline=None)
@given(images=st.integers(1, 300), shards=st.integers(1, 40), seed=st.integers(0, 2**31))
def test_ranks_are_exact_whatever_the_order(images: int, shards: int, seed: int) -> None:
    sources = [Source(f"{number}.jpg", 1) for number in range(images)]
    plan = make_plan(survey_of(sources, num_shards=shards, seed=seed), 0)
    random.Random(seed).shuffle(sources)
    sent: dict[tuple[str, int], list[Source]] = {}
    for source in sources:
        for shard, image in plan.shards_for(source):
            sent.setdefault(shard, []).append(image)
    ordered = [plan.in_order(ShardId(*shard), sent[shard]) for shard in sorted(sent)]
    assert [image for part in ordered for image in part] == sorted(
        sources, key=lambda source: rank_hash(source, seed)
    )
    assert max(map(len, ordered)) - min(map(len, ordered)) <= 1


def test_any_partition_gives_the_same_plan() -> None:
    sources = [Source(f"{n % 3}/{n}.jpg", n, str(n % 3)) for n in range(500)]
    whole = survey_of(sources)
    merged = Survey(settings=whole.settings)
    for start in (300, 0, 100):
        stop = {300: 500, 0: 100, 100: 300}[start]
        merged.merge(survey_of(sources[start:stop]))
    assert make_plan(merged, 1e6) == make_plan(whole, 1e6)
    assert merged.sample == whole.sample
    assert make_plan(survey_of(sources[:-1]), 0).fingerprint != make_plan(whole, 0).fingerprint


def test_a_group_stays_in_one_split() -> None:
    sources = [Source(f"{n}.jpg", 1, group=str(n // 5)) for n in range(2000)]
    plan = make_plan(survey_of(sources, splits={"train": 0.8, "test": 0.2}), 0)
    homes: dict[str | None, set[str]] = {}
    for source in sources:
        homes.setdefault(source.group, set()).add(plan.shards_for(source)[0][0][0])
    assert all(len(splits) == 1 for splits in homes.values())
    assert plan.splits["test"].images == pytest.approx(400, abs=90)


def test_labels_and_inputs_that_do_not_fit_are_refused() -> None:
    with pytest.raises(PlanError, match="no image found"):
        make_plan(survey_of([]), 0)
    with pytest.raises(PlanError, match="1 of 2 images of split train have no label"):
        make_plan(survey_of([Source("a", 1, "x"), Source("b", 1)]), 0)
    with pytest.raises(PlanError, match="did you mean cat"):
        make_plan(survey_of([Source("a", 1, "cats")], label_names=("cat", "dog")), 0)
    with pytest.raises(PlanError, match=r"sum to 0\.9"):
        Settings(name="x", splits={"train": 0.5, "test": 0.4})


def test_folders_splits_and_globs(tmp_path: Path) -> None:
    for name in ("train/cat/é 1.jpg", "train/dog/a/2.PNG", "test/cat/3.jpg", "test/x.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"12")
    (tmp_path / "test" / "x.txt").rename(tmp_path / "test" / "cat" / "x.txt")
    assert {item for item in listed(tmp_path) if isinstance(item, Skipped)} == {Skipped(".txt", 1)}
    assert [item[:4] for item in listed(tmp_path) if isinstance(item, Source)] == [
        ("test/cat/3.jpg", 2, "cat", "test"),
        ("train/cat/é 1.jpg", 2, "cat", "train"),
        ("train/dog/a/2.PNG", 2, "dog/a", "train"),
    ]
    assert [item[:4] for item in listed(f"{tmp_path}/train/*/*.jpg")] == [
        ("cat/é 1.jpg", 2, "cat", None)
    ]


def test_tables(tmp_path: Path) -> None:
    table = tmp_path / "t.csv"
    table.write_text("path,label,age,code,score\na.jpg,x,3,007,1\nb.jpg,y,,008,2.5\n")
    first, second = listed(table)
    assert first == Source("a.jpg", -1, "x", extra={"age": 3, "code": "007", "score": 1.0})
    assert second.extra == {"code": "008", "score": 2.5}
    plan = make_plan(survey_of([first, second]), 0)
    assert (plan.features["age"], plan.features["code"]) == ("int64[]", "bytes")
    table.write_text("path\na.jpg\nb.jpg\n./a.jpg\n")
    with pytest.raises(SourceError, match=r"rows 1 and 3 both name a\.jpg"):
        listed(table)
    with pytest.raises(SourceError, match=r"no column .pat.*did you mean path"):
        listed(table, Columns(path="pat"))


@pytest.mark.parametrize("module", ["tfrecordify", "tfrecordify.cli", "tfrecordify.shards"])
def test_converting_needs_no_tensorflow_and_reading_no_beam(module: str) -> None:
    script = (
        f"import sys, {module}; "
        "heavy = {'tensorflow', 'apache_beam', 'google.cloud.storage'} & set(sys.modules); "
        "sys.exit(str(heavy) if heavy else 0)"
    )
    root = Path(__file__).parent.parent
    subprocess.run([sys.executable, "-c", script], cwd=root, check=True)
