"""Saving that can be trusted: chiefs are killed, disks full, checkpoints truncated."""

import concurrent.futures
import dataclasses
import random
import re
import shutil
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

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


@dataclasses.dataclass
class Victim:
    """A chief that is started and killed; its servers stay."""

    lab: Any
    flags: Sequence[str]
    folder: Path
    moments: random.Random
    reached: int = 0
    cut_short: int = 0

    def dtrain(self, name, *flags):
        return self.lab.dtrain(
            *self.flags, *flags, f"--model_dir={self.folder}", name=name
        )

    def suffer(self, kills: int) -> None:
        """Each restart goes on from the newest checkpoint; all are whole."""
        for attempt in range(kills):
            chief = self.dtrain(
                f"{self.folder.name}-chief{attempt}", "--job_name=chief"
            )
            if self.reached:
                resumed = chief.wait_for(r"^Resumed from .*, global step (\d+)")
                assert int(resumed[1]) == self.reached
            self.lab.poll(
                lambda: max(steps_named(self.folder), default=0) > self.reached,
                60,
                f"a checkpoint after {self.reached}",
            )
            # In the midst of steps, or of saving.
            time.sleep(self.moments.uniform(0, 0.3))
            chief.process.kill()
            chief.wait()
            newest = list(checkpoints(self.folder))[-1]
            assert newest >= self.reached + 10
            self.reached = newest
            self.cut_short += len(list(self.folder.glob("draft-*")))


@pytest.fixture
def victims(lab):
    """Starts what serves two clusters: two chiefs' start-ups share the cores well."""
    (lab.folder / "wide.py").write_text(WIDE.replace("WIDTH", "2000"))
    addresses = [f"127.0.0.1:{port}" for port in lab.free_ports(6)]
    found = []
    for seed in (7, 8):
        folder = lab.folder / f"model-{seed}"
        chief, worker, ps = addresses[:3] if found else addresses[3:]
        flags = (
            "--experiment=wide:experiment",
            f"--chief_host={chief}",
            f"--worker_hosts={worker}",
            f"--ps_hosts={ps}",
            "--checkpoint_every=10",
            "--log_every=10",
        )
        victim = Victim(lab, flags, folder, random.Random(seed))
        for job in ("worker", "ps"):
            victim.dtrain(f"{folder.name}-{job}", f"--job_name={job}")
        found.append(victim)
    return found


@pytest.mark.timeout(900)
def test_whenever_the_chief_is_killed_a_restart_goes_on_from_a_whole_checkpoint(
    victims,
):
    """Servers stay; only the chief's command is started again."""
    with concurrent.futures.ThreadPoolExecutor() as threads:
        list(threads.map(Victim.suffer, victims, [KILLS // 2] * 2))
    assert sum(victim.cut_short for victim in victims), (
        "no kill came while a checkpoint was written"
    )

    # The newest one is truncated, as by a machine that lost its power.
    victim = victims[0]
    found = checkpoints(victim.folder)
    newest, before = [found[step] for step in sorted(found)[-1:-3:-1]]
    data = max(
        victim.folder.glob(f"{newest.name}.data-*"), key=lambda p: p.stat().st_size
    )
    data.write_bytes(data.read_bytes()[:1000])
    last = victim.reached + 20
    chief, other = (
        v.dtrain(
            f"{v.folder.name}-last",
            "--job_name=chief",
            f"--train_steps={v.reached + 20}",
        )
        for v in victims
    )
    assert [chief.wait(), other.wait()] == [0, 0]
    assert f"Warning: {newest} is damaged and passed over" in chief.output
    assert f"Warning: in its place {before} is used" in chief.output
    assert f"Resumed from {before}, global step {before.name[5:]}" in chief.output
    assert list(checkpoints(victim.folder))[-1] == last
    assert not list(victim.folder.glob("draft-*"))


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
