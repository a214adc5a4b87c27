"""Saving that can be trusted: chiefs are killed, disks full, checkpoints truncated."""

import random
import re
import shutil
import subprocess
import time

import pytest
import tensorflow as tf

# Large enough that a good part of the time goes into saving: 2 MB of slots and weights.
WIDE = """
import dtrain, keras
from dtrain.data import digits

@dtrain.defaults(train_steps=100000, batch_size=32)
def experiment(config):
    return dtrain.Experiment(
        model=lambda: keras.Sequential([
            keras.Input((64,)), keras.layers.Dense(WIDTH), keras.layers.Dense(10)]),
        optimizer=lambda: keras.optimizers.Adam(0.001),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        train_data=lambda ctx: digits.train_batches(
            ctx, batch_size=config.batch_size, seed=config.seed),
    )
"""
KILLS = 20


def read_all(path):
    """Reads every tensor; fails if one is not whole. Returns the global step."""
    reader = tf.train.load_checkpoint(str(path))
    shapes = reader.get_variable_to_shape_map()
    values = {name: reader.get_tensor(name) for name in shapes}
    (step,) = [v for n, v in values.items() if n.startswith("global_step/")]
    return int(step)


def checkpoints(folder):
    """Returns all checkpoints of a folder, by step, each of which is whole."""
    found = {
        int(p.stem.partition("-")[2]): p.with_suffix("")
        for p in folder.glob("ckpt-*.index")
    }
    assert {step: read_all(path) for step, path in found.items()} == {
        s: s for s in found
    }
    return dict(sorted(found.items()))


@pytest.fixture
def servers(lab):
    """Starts what serves; returns the flags of the whole cluster."""
    (lab.folder / "wide.py").write_text(WIDE.replace("WIDTH", "2000"))
    chief, worker, ps = (f"127.0.0.1:{port}" for port in lab.free_ports(3))
    flags = (
        "--experiment=wide:experiment",
        f"--chief_host={chief}",
        f"--worker_hosts={worker}",
        f"--ps_hosts={ps}",
    )
    for job in ("worker", "ps"):
        lab.dtrain(*flags, f"--job_name={job}", name=job)
    return flags


@pytest.mark.timeout(900)
def test_whenever_the_chief_is_killed_a_restart_goes_on_from_a_whole_checkpoint(
    lab, servers
):
    """Servers stay; only the chief's command is started again."""
    flags = (*servers, "--job_name=chief", "--checkpoint_every=10", "--log_every=10")
    moments = random.Random(7)
    reached = cut_short = 0
    for attempt in range(KILLS):
        chief = lab.dtrain(*flags, name=f"chief{attempt}")
        if reached:
            resumed = int(chief.wait_for(r"^Resumed from .*, global step (\d+)")[1])
            assert resumed == reached
        lab.poll(
            lambda before=reached: max(steps_named(lab.model_dir), default=0) > before,
            60,
            f"a checkpoint after {reached}",
        )
        time.sleep(moments.uniform(0, 0.3))  # in the midst of steps, or of saving
        chief.process.kill()
        chief.wait()
        found = checkpoints(lab.model_dir)
        assert list(found)[-1] >= reached + 10
        reached = list(found)[-1]
        cut_short += len(list(lab.model_dir.glob("draft-*")))
    assert cut_short, "no kill came while a checkpoint was written"

    # The newest one is truncated, as by a machine that lost its power.
    newest, before = [found[step] for step in sorted(found)[-1:-3:-1]]
    data = max(
        lab.model_dir.glob(f"{newest.name}.data-*"), key=lambda p: p.stat().st_size
    )
    data.write_bytes(data.read_bytes()[:1000])
    last = reached + 20
    chief = lab.dtrain(*flags, f"--train_steps={last}", name="last")
    assert chief.wait() == 0
    assert f"Warning: {newest} is damaged and passed over" in chief.output
    assert f"Warning: in its place {before} is used" in chief.output
    assert f"Resumed from {before}, global step {before.name[5:]}" in chief.output
    assert list(checkpoints(lab.model_dir))[-1] == last
    assert not list(lab.model_dir.glob("draft-*"))


def steps_named(folder):
    return [int(path.stem.partition("-")[2]) for path in folder.glob("ckpt-*.index")]


def test_a_different_model_is_refused_with_what_differs(lab):
    """Nothing is changed by the attempt."""
    for width in (50, 60):
        (lab.folder / "wide.py").write_text(WIDE.replace("WIDTH", str(width)))
        command = lab.dtrain(
            "--strategy=local", "--experiment=wide:experiment", "--train_steps=10"
        )
        status = command.wait()
    assert status == 2
    shown = command.output
    assert "ckpt-10 does not fit this model and optimizer:" in shown
    assert re.search(
        r"dense/kernel is \(64, 60\) here, and \(64, 50\) in the chec", shown
    )
    assert re.search(
        r"velocity is \(60, 10\) here, and \(50, 10\) in the checkp", shown
    )
    assert "--init_checkpoint" in shown
    assert "Traceback" not in shown
    assert list(checkpoints(lab.model_dir)) == [10]


FULL = """
mount -t tmpfs -o size=4m none "$0"
"$@"
status=$?
umask 0
cp -r "$0" "$0-after"
exit $status
"""


def test_a_full_disk_stops_the_run_and_leaves_what_was_there(lab):
    """A disk of 4 MiB holds two checkpoints of 1.8 MB."""
    (lab.folder / "wide.py").write_text(WIDE.replace("WIDTH", "2000"))
    lab.model_dir.mkdir()
    command = lab.start(
        [
            "unshare",
            *(() if can_mount() else ("--user", "--map-root-user")),
            *("--mount", "sh", "-c", FULL, str(lab.model_dir)),
            *(lab.executable, "-m", "dtrain.main", "--strategy=local"),
            *("--experiment=wide:experiment", f"--model_dir={lab.model_dir}"),
            *("--checkpoint_every=20", "--train_steps=200"),
        ],
        None,
        "full",
    )
    assert command.wait() == 4
    (line,) = re.findall(r"^dtrain: .*", command.output, re.M)
    assert "ckpt-60 could not be written" in line
    assert "MiB are free there" in line
    assert "Intact: ckpt-20, ckpt-40." in line
    after = lab.folder / "model-after"
    assert list(checkpoints(after)) == [20, 40]
    assert not list(after.glob("draft-*"))


def can_mount():
    """Returns whether this user may mount without a user namespace of its own."""
    test = ["unshare", "--mount", "mount", "-t", "tmpfs", "none", "/mnt"]
    return shutil.which("unshare") and not subprocess.run(test, check=False).returncode
