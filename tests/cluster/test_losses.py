"""Tasks are killed, and the run ends well all the same.

What is printed are the figures of docs/failures.md: `pytest -rP` shows them.
"""

import random
import re
import signal
import statistics
import time

import psutil
import pytest

STEP = re.compile(r"^step ([\d]+)/", re.M)


def steps_of(run):
    """Returns the steps that progress lines have told so far."""
    return [int(step) for step in STEP.findall(run.output)]


def goes_on(lab, run, seconds=30.0):
    """Returns how long it takes until the next line of progress."""
    before, started = len(steps_of(run)), time.monotonic()
    lab.poll(lambda: len(steps_of(run)) > before, seconds, "a step after the loss")
    return time.monotonic() - started


def wait_for_state(lab, task, state, restarts):
    def is_so():
        entry = lab.tasks()[task]
        return (entry["state"], entry["restarts"]) == (state, restarts)

    lab.poll(is_so, 40, f"{task} {state} after {restarts} restarts")


def longest_gap(lab, run, until):
    """Returns the longest time between two lines of progress, until something is so."""
    seen, last, longest = len(steps_of(run)), time.monotonic(), 0.0
    while not until():
        assert run.process.poll() is None
        now = time.monotonic()
        longest = max(longest, now - last)
        if len(steps_of(run)) > seen:
            seen, last = len(steps_of(run)), now
        time.sleep(0.02)
    return longest


def stop_well(lab, run):
    lab.stop()
    assert run.wait(60) == 0


def test_workers_come_and_go_and_the_others_never_stop(lab):
    """One is killed three times; then one is asked to leave, and loses no step."""
    run = lab.dtrain(
        "--strategy=ps",
        "--train_steps=1000000",
        "--steps_per_loop=10",
        "--log_every=50",
        "--checkpoint_every=0",
        f"--result_file={lab.folder}/result.json",
    )
    # Both have trained: who has taken no batch has none to come back to.
    run.wait_for(r"^step .* input \d+%/\d+%")
    gaps, log = [], lab.model_dir / "logs" / "worker-1.log"
    for restarts in range(1, 4):
        lab.kill(lab.tasks()["worker:1"]["pid"])

        def is_back(restarts=restarts):
            entry = lab.tasks()["worker:1"]
            return (entry["state"], entry["restarts"]) == ("running", restarts)

        gaps.append(longest_gap(lab, run, is_back))
        lab.poll(
            lambda n=restarts: log.read_text().count("is back, and so is") == n,
            30,
            "its data again",
        )
    print(f"longest pause of the others: {max(gaps):.2f} s")
    assert max(gaps) < 2.0, gaps
    lab.kill(lab.tasks()["worker:0"]["pid"], signal.SIGTERM)
    lab.poll(lambda: lab.tasks()["worker:0"]["state"] == "exited", 20, "its leaving")
    assert lab.tasks()["worker:0"]["exit_status"] == 143
    assert goes_on(lab, run) < 2.0
    stop_well(lab, run)
    result = lab.result()
    assert result["restarts"] == 3
    assert 0 <= result["repeated_steps"] <= 3 * 10
    assert result["global_step"] % 10 == result["repeated_steps"] % 10
    assert result["eval"]["accuracy"] > 0.95
    told = r"worker:1 \(pid \d+\) was killed by SIGKILL. It is started again"
    assert len(re.findall(told, run.output)) == 3
    assert max(lab.events(lab.model_dir / "train")["restarts"].values()) == 3


def test_a_lost_ps_and_a_lost_chief_cost_the_steps_since_the_last_checkpoint(lab):
    run = lab.dtrain(
        "--strategy=ps",
        "--train_steps=1000000",
        "--checkpoint_every=500",
        "--log_every=100",
        f"--result_file={lab.folder}/result.json",
    )
    run.wait_for("^step ")
    lab.poll(lambda: list(lab.model_dir.glob("ckpt-*.index")), 60, "a checkpoint")
    seconds, restarts = {}, 0
    for lost in (["ps:0"], ["chief:0"], ["worker:0", "ps:0"], ["chief:0", "ps:0"]):
        before = max(steps_of(run))
        pids = [lab.tasks()[task]["pid"] for task in lost]
        resumed = run.output.count("Resumed from")
        killed = time.monotonic()
        for pid in pids:
            lab.kill(pid)
        lab.poll(
            lambda n=resumed: run.output.count("Resumed from") > n, 30, "a new life"
        )
        goes_on(lab, run)
        seconds["+".join(lost)] = time.monotonic() - killed
        restarts += len(lost)
        start = int(re.findall(r"Resumed from .*, global step (\d+)", run.output)[-1])
        assert start > before - 500 - 400  # what is under way is not told yet
        saved = start + 600  # so that there is a newer checkpoint
        lab.poll(lambda n=saved: max(steps_of(run)[-1:]) >= n, 60, "some steps more")
    print({lost: f"{pause:.1f} s" for lost, pause in seconds.items()})
    stop_well(lab, run)
    result = lab.result()
    assert result["restarts"] == restarts
    assert result["examples_seen"] == result["global_step"] * 32
    assert result["eval"]["accuracy"] > 0.95
    assert "Traceback" not in run.output


def test_a_synchronous_run_starts_again_whoever_is_lost(lab):
    run = lab.dtrain(
        "--strategy=sync",
        "--train_steps=4000",
        "--checkpoint_every=300",
        f"--result_file={lab.folder}/result.json",
    )
    run.wait_for("^step [4-9]00")
    for task in ("worker:1", "worker:0"):
        lab.kill(lab.tasks()[task]["pid"])
        pause = goes_on(lab, run)
        print(f"{task}: {pause:.1f} s")
        assert pause < 30.0
        last = steps_of(run)[-1]
        lab.poll(lambda n=last: steps_of(run)[-1] > n + 300, 60, "some steps more")
    assert run.wait() == 0
    result = lab.result()
    assert (result["global_step"], result["restarts"]) == (4000, 2)
    assert result["repeated_steps"] == 0
    assert result["examples_seen"] == 4000 * 64
    assert result["eval"]["accuracy"] > 0.95
    # The survivors' own lives are no restarts.
    assert {t: e["restarts"] for t, e in lab.tasks().items()} == {
        "worker:0": 1,
        "worker:1": 1,
    }


LARGE = """
import dtrain, keras, tensorflow as tf

class Ballast(keras.layers.Layer):
    def build(self, shape):
        self.add_weight(shape=(64, 1024, 1024), initializer="zeros", trainable=False)
        super().build(shape)

    def call(self, x):
        return x

def experiment(config):
    x = tf.random.stateless_uniform([64, 16], [1, 2])
    return dtrain.Experiment(
        model=lambda: keras.Sequential(
            [keras.Input((16,)), Ballast(), keras.layers.Dense(1)]
        ),
        optimizer=lambda: keras.optimizers.SGD(1e-6),
        loss=keras.losses.MeanSquaredError(),
        train_data=lambda: tf.data.Dataset.from_tensors((x, x[:, :1])).repeat(),
    )
"""


def median_memory(command):
    """Returns what a process holds while it is at work, in bytes."""
    process, sizes = psutil.Process(command.process.pid), []
    end = time.monotonic() + 4.0
    while time.monotonic() < end:
        sizes.append(process.memory_info().rss)
        time.sleep(0.05)
    return statistics.median(sizes)


def test_a_chief_that_is_killed_five_times_leaves_no_memory_on_its_ps(lab):
    """256 MiB of weights; the chief of a described cluster, with --supervise."""
    (lab.folder / "large.py").write_text(LARGE)
    addresses = [f"127.0.0.1:{port}" for port in lab.free_ports(3)]
    flags = [
        "--strategy=ps",
        "--experiment=large:experiment",
        "--train_steps=1000000",
        "--checkpoint_every=0",
        "--checkpoint_secs=0",
        "--log_every=500",
        f"--chief_host={addresses[0]}",
        f"--worker_hosts={addresses[1]}",
        f"--ps_hosts={addresses[2]}",
    ]
    folder = f"--model_dir={lab.folder}/servers"
    ps, worker = (
        lab.dtrain(*flags, f"--job_name={job}", folder, name=job)
        for job in ("ps", "worker")
    )
    result = f"--result_file={lab.folder}/result.json"
    run = lab.dtrain(*flags, "--job_name=chief", "--supervise", result)
    run.wait_for("^step ")
    sizes = [median_memory(ps)]
    for _ in range(5):
        (chief,) = psutil.Process(run.process.pid).children()
        chief.kill()
        pause = goes_on(lab, run)
        print(f"a supervised chief: {pause:.1f} s")
        assert pause < 30.0
        sizes.append(median_memory(ps))
    print("a ps holds", [f"{int(size) >> 20} MiB" for size in sizes])
    assert max(sizes[1:]) < 1.1 * sizes[0], [int(size) >> 20 for size in sizes]
    stop_well(lab, run)
    assert [command.wait(20) for command in (ps, worker)] == [0, 0]
    assert lab.result()["restarts"] == 5
    assert run.output.count("It is started again") == 5


@pytest.mark.timeout(400)
@pytest.mark.parametrize("strategy", ["ps", "sync"])
def test_chaos(lab, strategy):
    """Every 5 s a random task is killed, for two minutes."""
    chance = random.Random(strategy)
    run = lab.dtrain(
        f"--strategy={strategy}",
        "--train_steps=10000000",
        "--num_workers=2",
        "--checkpoint_every=100",
        "--checkpoint_secs=1",
        "--max_restarts=100",
        f"--result_file={lab.folder}/result.json",
    )
    run.wait_for("^step ")
    end, kills = time.monotonic() + 120, 0
    while time.monotonic() < end:
        alive = [e for e in lab.tasks().values() if e["state"] != "restarting"]
        if alive:
            try:
                lab.kill(chance.choice(alive)["pid"])
                kills += 1
            except ProcessLookupError:  # it was killed a moment ago
                continue
        next_one = time.monotonic() + 5.0
        lab.poll(lambda n=next_one: time.monotonic() >= n, 6, "the next kill")
        assert run.process.poll() is None
    goes_on(lab, run, 60)
    goes_on(lab, run, 60)
    stop_well(lab, run)
    result = lab.result()
    print(f"{kills} kills, {result['global_step']} steps")
    assert result["restarts"] == kills
    assert result["eval"]["accuracy"] > 0.9
    assert {e["exit_status"] for e in lab.tasks().values()} == {0}
