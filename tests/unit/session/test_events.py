"""Event files, read back as TensorBoard reads them."""

import json

import numpy as np
import pytest
import tensorflow as tf
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams import metadata, plugin_data_pb2

from dtrain import errors, version
from dtrain.config import RunConfig
from dtrain.session import events
from dtrain.session.callbacks.base import Callback
from dtrain.session.callbacks.summary import SummaryWriter
from dtrain.session.events import Events


def read(folder):
    accumulator = EventAccumulator(str(folder), size_guidance={"tensors": 0})
    accumulator.Reload()
    return accumulator


def tensors(folder, tag):
    return {
        event.step: tf.make_ndarray(event.tensor_proto)
        for event in read(folder).Tensors(tag)
    }


def text(folder, tag):
    """Returns a text by step."""
    assert plugin(folder, tag) == "text"
    return {step: a.item().decode() for step, a in tensors(folder, tag).items()}


def plugin(folder, tag):
    return read(folder).SummaryMetadata(tag).plugin_data.plugin_name


def hparams(folder):
    """Returns what the HParams plugin reads: experiment, start and end of a run."""
    contents = read(folder).PluginTagToContent("hparams")
    found = {}
    for tag, content in contents.items():
        data = plugin_data_pb2.HParamsPluginData.FromString(content)
        found[tag] = getattr(data, data.WhichOneof("data"))
    names = metadata.EXPERIMENT_TAG, metadata.SESSION_START_INFO_TAG
    return [found.get(name) for name in (*names, metadata.SESSION_END_INFO_TAG)]


def plain(value):
    return getattr(value, value.WhichOneof("kind"))


# Writing.


@pytest.fixture
def log(tmp_path):
    log = Events(str(tmp_path), "train")
    yield log
    log.close()


def test_numbers_are_read_back(log, tmp_path):
    log.scalars(3, {"a/b": 0.5, "c": 2})
    log.scalars(4, {"a/b": 0.25})
    log.flush()
    folder = tmp_path / "train"
    assert tensors(folder, "a/b") == {3: 0.5, 4: 0.25}
    assert tensors(folder, "c") == {3: 2}
    assert plugin(folder, "c") == "scalars"


def test_texts_are_read_back(log, tmp_path):
    log.texts(7, {"run/flags": "**bold**", "run/cluster": "- a\n- b"})
    log.flush()
    assert text(tmp_path / "train", "run/flags") == {7: "**bold**"}
    assert text(tmp_path / "train", "run/cluster") == {7: "- a\n- b"}


@pytest.mark.parametrize(
    "counts",
    [[3, 0, 2, 1], [0, 5, 0], [4.0, 0.0, 0.0, 1.0]],
    ids=["some", "one bin", "floats"],
)
def test_counts_are_read_back(counts, log, tmp_path):
    log.histogram(5, "workers/staleness", np.array(counts), "how stale")
    log.flush()
    folder = tmp_path / "train"
    assert plugin(folder, "workers/staleness") == "histograms"
    meta = read(folder).SummaryMetadata("workers/staleness")
    assert meta.summary_description == "how stale"
    (bins,) = tensors(folder, "workers/staleness").values()
    assert bins[:, 2].sum() == sum(counts)
    for value, count in enumerate(counts):
        inside = (bins[:, 0] <= value) & (value <= bins[:, 1])
        assert bins[inside, 2].sum() >= count


def test_nothing_is_written_where_nothing_is_told(tmp_path):
    log = Events(str(tmp_path), "train")
    log.flush()
    log.close()
    assert list(tmp_path.iterdir()) == []


def test_a_log_that_was_closed_goes_on_in_another_file(log, tmp_path):
    log.scalars(1, {"x": 1})
    log.close()
    log.scalars(2, {"x": 2})
    log.close()
    assert tensors(tmp_path / "train", "x") == {1: 1, 2: 2}


def test_hparams_are_read_back(log, tmp_path):
    values = {"batch_size": 8, "learning_rate": 0.5, "optimizer": "SGD", "flag": True}
    log.hparams(values, ["eval/loss", "eval/auc"], "my run")
    log.flush()
    experiment, start, end = hparams(tmp_path / "train")
    assert {info.name for info in experiment.hparam_infos} == set(values)
    shown = {(info.name.tag, info.name.group) for info in experiment.metric_infos}
    assert shown == {("eval/loss", ""), ("eval/auc", "")}
    assert {name: plain(value) for name, value in start.hparams.items()} == values
    assert end is None
    log.end_of_hparams()
    log.flush()
    assert hparams(tmp_path / "train")[2].status == 1  # STATUS_SUCCESS


def test_runs_with_the_same_values_are_told_apart(tmp_path):
    names = set()
    for run in ("one", "two"):
        log = Events(str(tmp_path), run)
        log.hparams({"a": 1}, [], run)
        log.close()
        names.add(hparams(tmp_path / run)[1].group_name)
    assert len(names) == 2


# What there is to tell.


def test_an_evaluation_s_examples_are_no_result():
    results = {"loss": 1.0, "auc": 0.5, "examples": 10}
    assert events.evaluation(results) == {"eval/loss": 1.0, "eval/auc": 0.5}


def test_flags_are_a_table_and_those_that_were_given_are_bold():
    config = RunConfig(strategy="local", train_steps=30, seed=0)
    head, empty, *rows = events.flags_text(config).splitlines()
    assert (head, empty) == (f"dtrain {version.__version__}", "")
    assert rows[:2] == ["| flag | value |", "|---|---|"]
    assert len(rows) == 2 + len(vars(config))
    bold = [row for row in rows if "**" in row]
    assert bold == [
        "| **--strategy** | **local** |",
        "| **--train_steps** | **30** |",
    ]
    assert "| --seed | 0 |" in rows


@pytest.mark.parametrize(
    ("options", "present", "absent"),
    [
        ({"train_steps": 30}, {"train_steps": 30}, ["epochs", "clip_norm"]),
        ({"epochs": 2, "train_steps": None}, {"epochs": 2}, ["train_steps"]),
        (
            {"clip_norm": 0.5, "mixed_precision": "bfloat16"},
            {"clip_norm": 0.5, "mixed_precision": "bfloat16"},
            ["weight_decay", "model_dir"],
        ),
    ],
    ids=["steps", "epochs", "others"],
)
def test_runs_are_compared_by_what_they_were_given(options, present, absent):
    config = RunConfig(strategy="local", batch_size=8, **options)
    values = events.hparams_of(config, 0.125, "Adam")
    expected = {"learning_rate": 0.125, "optimizer": "Adam", "batch_size": 8, **present}
    assert {name: values.get(name) for name in expected} == expected
    assert [name for name in absent if name in values] == []
    json.dumps(values)


def test_a_rate_is_the_number_that_people_mean():
    config = RunConfig(strategy="local", batch_size=8)
    values = events.hparams_of(config, float(np.float32(0.1)), "SGD")
    assert values["learning_rate"] == 0.1


# In a run.


@pytest.mark.parametrize(
    ("has_evaluation", "group"), [(True, "eval"), (False, "train")]
)
def test_a_run_tells_what_it_is(has_evaluation, group, prepare, clock, tmp_path):
    lines = ["worker:0 on a:1", "worker:1 on b:2"]
    writer = SummaryWriter(str(tmp_path), 10, lines, has_evaluation, now=clock)
    setup = prepare(writer, seed=7, warmup_steps=3)
    setup.run()
    folder = tmp_path / "train"
    assert "**--seed** | **7**" in text(folder, "run/flags")[0]
    assert text(folder, "run/cluster")[0] == "- worker:0 on a:1\n- worker:1 on b:2"
    # Where what is compared is, too: that is where the page looks for it.
    experiment, start, end = hparams(tmp_path / group)
    values = {name: plain(value) for name, value in start.hparams.items()}
    assert values["seed"] == 7
    assert values["strategy"] == "local"
    # The rate is that of the first step after warm-up.
    assert (values["learning_rate"], values["optimizer"]) == (3.125, "object")
    shown = {info.name.tag: info.name.group for info in experiment.metric_infos}
    assert shown == {f"{group}/loss": "", f"{group}/accuracy": ""}
    assert end.status == 1


def test_a_run_that_fails_has_no_good_end(prepare, clock, tmp_path):
    class Fail(Callback):
        def on_loop(self, session):
            raise RuntimeError("boom")

    with pytest.raises(errors.TrainingFailed):
        prepare(SummaryWriter(str(tmp_path), 10, now=clock), Fail()).run()
    assert hparams(tmp_path / "train")[2] is None


def test_how_stale_updates_are_since_the_last_time_is_shown(
    prepare, make_trainer, clock, tmp_path
):
    class Staleness:
        counts = iter([[5, 3, 2], [6, 5, 5], [6, 5, 5]])

        def read(self):
            return np.array(next(self.counts))

    trainer = make_trainer()
    trainer.staleness = Staleness()
    prepare(SummaryWriter(str(tmp_path), 10, now=clock), trainer=trainer).run()
    found = tensors(tmp_path / "train", "workers/staleness")
    assert [list(found[step][:, 2]) for step in (10, 20, 30)] == [
        [5, 3, 2],
        [1, 2, 3],
        [0, 0, 0],
    ]
    assert list(found[10][1][:2]) == [0.5, 1.5]


def test_a_loss_scale_is_shown(prepare, make_trainer, clock, tmp_path):
    class Scale:
        skipped = 2

        def read(self):
            return 1024.0

    trainer = make_trainer()
    trainer.loss_scale = Scale()
    result = prepare(SummaryWriter(str(tmp_path), 10, now=clock), trainer=trainer).run()
    assert tensors(tmp_path / "train", "loss_scale") == {10: 1024, 20: 1024, 30: 1024}
    assert result["skipped_updates"] == 2
