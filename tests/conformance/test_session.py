"""What the chief's session promises under every strategy, read from one run of each."""

import json
import re
import signal
import subprocess
import sys

import pytest
from tensorboard.backend.event_processing import event_accumulator
from tensorboard.plugins.hparams import plugin_data_pb2
from tensorflow.tsl.profiler.protobuf import xplane_pb2

# 300 is no multiple of any size of a loop.
WATCHED = (
    "--experiment=my_models:watched",
    "--checkpoint_every=100",
    "--keep_checkpoints=2",
    "--eval_every=100",
    "--best_metric=accuracy",
    "--summary_every=50",
    "--log_every=50",
    "--log_workers",
    "--profile_steps=50,90",
    "--learning_rate_schedule=piecewise",
    "--learning_rate=0.01",
    "--decay_boundaries=199",
    "--decay_rate=0.5",
    "--warmup_steps=20",
    "--clip_norm=5",
    "--weight_decay=0.0001",
)


@pytest.fixture(scope="module")
def watched(strategy, make_lab, run_in):
    """A run with everything that a session has to offer."""
    with make_lab() as lab:
        export = f"--export_dir={lab.folder / 'exported'}"
        command, result = run_in(lab, strategy, *WATCHED, export)
        lab.check_nothing_left()
        yield lab, command, result


def test_callbacks_hear_of_everything_in_order(watched):
    _, command, _ = watched
    told = re.findall(r"^WITNESS (\w+) (\d+)", command.output, re.M)
    expected = [("start", "0")]
    for step in ("100", "200", "300"):
        expected += [(what, step) for what in ("before_save", "save", "evaluation")]
    assert told == [*expected, ("end", "300")]


def test_hooks_of_the_experiments_own_are_at_work(watched):
    _, command, result = watched
    assert (
        len(re.findall(r"^step (150|300)  largest \d\.\d+$", command.output, re.M)) == 2
    )
    assert result["final"] == {"at": 300}
    assert result["stopped"] == "StopAtStep(300)"
    assert result["global_step"] == 300


def test_the_best_checkpoint_is_kept(watched):
    lab, _, result = watched
    best = json.loads((lab.model_dir / "best" / "best.json").read_text())
    found = lab.events(lab.model_dir / "eval")["eval/accuracy"]
    assert list(found) == [100, 200, 300]
    assert best["value"] == pytest.approx(max(found.values()))
    assert found[best["global_step"]] == pytest.approx(best["value"])
    assert result["best"]["checkpoint"] == best["checkpoint"]
    assert [p.name for p in (lab.model_dir / "best").glob("ckpt-*.index")] == [
        f"ckpt-{best['global_step']}.index"
    ]


# Runs where dtrain cannot be imported.
PREDICT = """
import sys
sys.modules["dtrain"] = None
import json, keras, numpy as np, tensorflow as tf
folder, data = sys.argv[1:]
arrays = np.load(data)
x, y = arrays["x"], arrays["y"]
saved = tf.saved_model.load(f"{folder}/saved_model")
model = keras.saving.load_model(f"{folder}/model.keras")
for logits in (saved.serve(x), model(x)):
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)(y, logits)
    print(json.dumps([float(loss), float(np.mean(np.argmax(logits, 1) == y))]))
"""


def test_plain_keras_and_tensorflow_predict_what_the_evaluation_did(watched, split):
    lab, _, result = watched
    data = lab.folder / "data.npz"
    split(data)
    command = [sys.executable, "-c", PREDICT, str(lab.folder / "exported"), str(data)]
    shown = subprocess.run(
        command, capture_output=True, text=True, check=True, cwd=lab.folder
    )
    expected = [result["eval"]["loss"], result["eval"]["accuracy"]]
    for line in shown.stdout.splitlines():
        assert json.loads(line) == pytest.approx(expected, rel=1e-5)
    assert len(shown.stdout.splitlines()) == 2


def test_there_is_a_profile_of_the_chief_and_of_servers(watched, strategy):
    lab, *_ = watched
    found = lab.model_dir.glob("train/plugins/profile/*/*.xplane.pb")
    profiles = {path.name.removesuffix(".xplane.pb"): path for path in found}
    jobs = strategy.cluster or {"chief": 1}
    if strategy.name == "sync":  # TensorFlow's profiler crashes who is not the chief
        jobs = {"worker": 1}
    assert profiles.keys() == {
        f"{job}-{index}" for job, count in jobs.items() for index in range(count)
    }
    for path in profiles.values():
        space = xplane_pb2.XSpace.FromString(path.read_bytes())
        events = sum(len(line.events) for plane in space.planes for line in plane.lines)
        assert events > 20, path


def test_tensorboard_reads_what_it_needs(watched, strategy):
    lab, *_ = watched
    train = event_accumulator.EventAccumulator(
        str(lab.model_dir / "train"), {"histograms": 0, "tensors": 0, "scalars": 0}
    ).Reload()
    tags = train.Tags()["tensors"]
    workers = strategy.cluster.get("worker", 0)
    groups = {"train", "learning_rate", "speed", "run"} | (
        {"workers"} if workers else set()
    )
    assert {tag.split("/")[0] for tag in tags if not tag.startswith("_")} == groups
    flags = train.Tensors("run/flags")[0].tensor_proto.string_val[0]
    assert b"| **--clip_norm** | **5.0** |" in flags
    if strategy.cluster:
        text = train.Tensors("run/cluster")[0].tensor_proto.string_val[0]
        assert all(f"{job}:0 on 127.0.0.1".encode() in text for job in strategy.cluster)
    for index in range(workers):
        shares = lab.events(lab.model_dir / "train")[f"workers/{index}/share"]
        assert all(0 <= share <= 1 for share in shares.values())
    compared = event_accumulator.EventAccumulator(str(lab.model_dir / "eval")).Reload()
    sessions = [
        plugin_data_pb2.HParamsPluginData.FromString(content)
        for content in compared.PluginTagToContent("hparams").values()
    ]
    (start,) = [
        s.session_start_info for s in sessions if s.HasField("session_start_info")
    ]
    assert start.hparams["strategy"].string_value == strategy.name
    assert any(s.session_end_info.status for s in sessions)


def test_staleness_is_shown_where_updates_can_be_stale(watched, strategy):
    lab, *_ = watched
    train = event_accumulator.EventAccumulator(
        str(lab.model_dir / "train"), {"tensors": 0}
    ).Reload()
    has_some = "workers/staleness" in train.Tags()["tensors"]
    assert has_some == (strategy.name == "ps")


def test_the_rate_is_what_its_schedule_says(watched):
    lab, *_ = watched
    rates = lab.events(lab.model_dir / "train")["learning_rate"]
    assert len(rates) >= 3
    for step, rate in rates.items():
        assert rate == pytest.approx(0.01 if step < 200 else 0.005)


def test_the_terminal_tells_who_does_what_and_how_it_ended(watched, strategy):
    lab, command, result = watched
    output = command.output
    assert re.search(
        r"^  Functional of 5,450 parameters; Adam, learning rate 0", output, re.M
    )
    if strategy.chief:
        assert re.search(rf"^  {strategy.chief} on \S+ \(this process\)$", output, re.M)
    workers = max(strategy.cluster.get("worker", 1), 1)
    shown = set(re.findall(r"^worker:(\d)  step \d+  global step \d+$", output, re.M))
    assert shown == {str(index) for index in range(workers)}
    end = output[output.index("Done: global step 300") :]
    for part in (
        "steps/s",
        f"evaluation: loss {result['eval']['loss']:.4f}",
        f"best accuracy {result['best']['value']:.4f}",
        f"checkpoint: {lab.model_dir}/ckpt-300",
        f"exported: {lab.folder}/exported/saved_model",
        f"tensorboard --logdir={lab.model_dir}",
    ):
        assert part in end


# Afterwards, in one process each.


def test_a_model_directory_is_enough_to_evaluate_export_and_watch(watched):
    """Three commands at once, none of which writes what another one does."""
    lab, _, result = watched
    out = lab.folder / "again.json"
    commands = {
        "eval": lab.dtrain("--mode=eval", f"--result_file={out}", name="eval"),
        "export": lab.dtrain("--mode=export", name="export"),
        "watch": lab.dtrain("--job_name=evaluator", name="watch"),
    }
    assert {name: c.wait() for name, c in commands.items()} == dict.fromkeys(
        commands, 0
    )
    again = json.loads(out.read_text())
    assert again["global_step"] == 300
    assert again["eval"] == pytest.approx(result["eval"], rel=1e-5)
    assert (lab.model_dir / "export" / "saved_model" / "saved_model.pb").exists()
    seen = lab.events(lab.model_dir / "evaluator")["eval/accuracy"]
    assert list(seen) == [200, 300]  # of which each is still there
    assert "2 checkpoints were evaluated" in commands["watch"].output


def test_another_run_starts_from_its_weights(watched, strategy, run_in):
    lab, _, first = watched
    other = f"--model_dir={lab.folder / 'other'}"
    flags = (
        "--experiment=my_models:watched",
        "--train_steps=1",
        "--learning_rate=1e-9",
    )
    command, result = run_in(
        lab, strategy, *flags, other, f"--init_checkpoint={lab.model_dir}", name="init"
    )
    assert "4 taken, 0 not" in command.output
    assert result["global_step"] == 1
    assert result["eval"]["loss"] == pytest.approx(first["eval"]["loss"], rel=1e-3)


def test_a_truncated_checkpoint_is_passed_over(watched, strategy, run_in):
    """The last one to use this directory: its newest checkpoint is gone after it."""
    lab, *_ = watched
    files = list(lab.model_dir.glob("ckpt-300.data-*"))
    largest = max(files, key=lambda path: path.stat().st_size)
    largest.write_bytes(largest.read_bytes()[:-5000])
    flags = ("--experiment=my_models:watched", "--train_steps=210")
    command, result = run_in(lab, strategy, *flags, name="truncated")
    newest, before = (f"{lab.model_dir}/ckpt-{step}" for step in (300, 200))
    assert f"Warning: {newest} is damaged and passed over" in command.output
    assert f"Warning: in its place {before} is used" in command.output
    assert result["checkpoint"] == f"{lab.model_dir}/ckpt-210"
    assert not list(lab.model_dir.glob("ckpt-300*"))


# How runs end.


def test_a_callback_that_raises_ends_the_run_with_the_users_traceback(
    strategy, lab, run_in
):
    command, _ = run_in(lab, strategy, "--experiment=my_models:raising", expect=4)
    shown = command.output[command.output.index("dtrain: ") :].splitlines()
    path = lab.folder / "my_models.py"
    assert re.match(rf"dtrain: Raiser.on_loop failed: KeyError: .*{path}", shown[0])
    assert shown[1] == "Traceback (most recent call last):"
    assert str(path) in shown[2]
    assert shown[-1] == "KeyError: 'no such thing'"
    assert "WITNESS error TrainingFailed" in command.output
    lab.check_nothing_left()
    if strategy.cluster:
        assert {t["exit_status"] for t in lab.tasks().values()} == {4}


def test_a_loss_that_is_no_number_keeps_the_last_good_checkpoint(strategy, lab, run_in):
    """The rate of step 57 breaks the weights: it is step 58 whose loss tells.

    Under `ps`, that of the first one to read them then: the other worker may have taken
    the next numbers before. All are done by the next checkpoint.
    """
    command, _ = run_in(
        lab,
        strategy,
        "--experiment=my_models:breaking",
        "--checkpoint_every=50",
        expect=4,
    )
    (step,) = re.findall(r"no number in the step to global step (\d+)", command.output)
    assert 59 <= int(step) <= (100 if strategy.name == "ps" else 59)
    assert [p.name for p in lab.model_dir.glob("ckpt-*.index")] == ["ckpt-50.index"]
    command, _ = run_in(
        lab, strategy, "--experiment=my_models:breaking", "--train_steps=52", name="on"
    )
    assert "Resumed from" in command.output


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_it_learns_in_half_the_bits(precision, strategy, lab, run_in):
    command, result = run_in(
        lab,
        strategy,
        f"--mixed_precision={precision}",
        "--train_steps=250",
        "--summary_every=50",
        "--clip_norm=1",
    )
    assert f"parameters, {precision};" in command.output
    assert result["eval"]["accuracy"] >= 0.9
    scales = lab.events(lab.model_dir / "train").get("loss_scale", {})
    assert bool(scales) == (precision == "float16") == ("skipped_updates" in result)


def weights_at_the_end(command):
    return re.findall(r"^WEIGHTS end (\d+) (\S+)", command.output, re.M)


@pytest.mark.parametrize("name", ["local", "mirrored", "sync"])
def test_interrupted_and_resumed_is_as_good_as_not_interrupted(
    name, strategies, lab, run_in
):
    """Down to the last bit, where steps are not asynchronous."""
    strategy = strategies[name]
    flags = ("--experiment=my_models:arrays", "--train_steps=150", "--log_every=10")
    whole, _ = run_in(
        lab, strategy, *flags, f"--model_dir={lab.folder / 'w'}", name="w"
    )
    (lab.folder / "my_models.py").touch()
    part = lab.dtrain(
        f"--strategy={strategy.name}", *strategy.flags, *flags, name="part"
    )
    part.wait_for(r"^step \d+/150")
    lab.kill(part.process.pid, signal.SIGTERM)
    status = part.wait()
    rest, _ = run_in(lab, strategy, *flags, name="rest")
    if status:  # it was not faster than the signal
        assert status == 128 + signal.SIGTERM
        assert re.search(r"Resumed from \S+, global step \d+", rest.output)
    assert weights_at_the_end(rest) == weights_at_the_end(whole) != []
