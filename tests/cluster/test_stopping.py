"""How runs end before their time, and how they go on."""

import os
import signal

import pytest

CNN = (
    "--strategy=ps",
    "--experiment=mnist_cnn",
    "--num_ps=2",
    "--train_steps=200",
    "--batch_size=32",
    "--steps_per_loop=5",
    "--checkpoint_every=80",
    "--log_every=10",
)


def test_sigterm_saves_and_the_same_command_goes_on(lab):
    """Adam with cosine decay and clipping, batch norm and dropout, two ps."""
    result_flag = f"--result_file={lab.folder}/result.json"
    first = lab.dtrain(*CNN, result_flag, name="first")
    first.wait_for(r"^step (1\d\d)/200 ")
    first.process.send_signal(signal.SIGTERM)
    assert first.wait() == 143
    assert not (lab.folder / "result.json").exists()
    assert {t["exit_status"] for t in lab.tasks().values()} == {143}
    lab.check_nothing_left()
    saved = max(int(p.stem.split("-")[1]) for p in lab.model_dir.glob("ckpt-*.index"))
    assert 100 <= saved < 200
    assert f"Saved {lab.model_dir}/ckpt-{saved} before stopping." in first.output

    second = lab.dtrain(*CNN, result_flag, name="second")
    assert second.wait() == 0
    assert (
        f"Resumed from {lab.model_dir}/ckpt-{saved}, global step {saved}."
        in second.output
    )
    result = lab.result()
    assert result["global_step"] == 200
    assert result["examples_seen"] == (200 - saved) * 32
    assert result["eval"]["examples"] == 10000
    # It learns: ten classes, and moving averages that 200 steps have barely reached.
    assert result["eval"]["accuracy"] > 0.25
    assert "step 200/200" in second.output


ENDLESS = ("--strategy=ps", "--train_steps=1000000", "--checkpoint_every=100")


def test_ctrl_c_twice_stops_at_once_and_nothing_outlives_a_killed_launcher(lab):
    first = lab.dtrain(*ENDLESS, name="first")
    first.wait_for(r"^step ")
    # A live run's directory is refused, with the owner's pid.
    for strategy in ("ps", "local"):
        other = lab.dtrain(f"--strategy={strategy}", name=f"other-{strategy}")
        assert other.wait(20) == 2
        assert f"in use by process {first.process.pid}" in other.output
    first.process.send_signal(signal.SIGKILL)
    first.process.wait()
    lab.check_nothing_left()

    # A dead run's directory is taken over, and its checkpoint with it.
    second = lab.dtrain(*ENDLESS, name="second")
    second.wait_for(r"Resumed from .*/ckpt-\d+00,")
    second.wait_for(r"^step ")
    # A chief that does not answer: the first Ctrl-C waits for it, the second not.
    os.kill(lab.tasks()["chief:0"]["pid"], signal.SIGSTOP)
    second.process.send_signal(signal.SIGINT)
    second.wait_for("Once more stops at once")
    assert second.process.poll() is None
    second.process.send_signal(signal.SIGINT)
    assert second.wait(20) == 130


def test_ctrl_c_before_training_starts(lab):
    run = lab.dtrain(*ENDLESS)
    run.wait_for("Starting a local cluster")
    run.process.send_signal(signal.SIGINT)
    assert run.wait(5) == 130
    assert run.output.endswith("dtrain: Stopped by SIGINT.\n")
    assert "Traceback" not in run.output
    assert not list(lab.model_dir.glob("ckpt-*"))


@pytest.mark.parametrize("task", ["worker:1", "ps:0", "chief:0"])
def test_a_task_that_dies_is_named_with_its_log(lab, task):
    run = lab.dtrain(*ENDLESS, "--max_restarts=0")
    run.wait_for(r"^step ")
    entry = lab.tasks()[task]
    os.kill(entry["pid"], signal.SIGKILL)
    assert run.wait(30) == 3
    assert f"{task} (pid {entry['pid']}) was killed by SIGKILL" in run.output
    assert entry["log"] in run.output
    assert f"because {task} was lost" in run.output
    assert "Traceback" not in run.output
    after = lab.tasks()[task]
    assert (after["state"], after["exit_status"]) == ("failed", -signal.SIGKILL)


def test_the_loss_of_the_only_worker_ends_the_run(lab):
    """Nobody is left to do the steps that the chief waits for."""
    run = lab.dtrain(*ENDLESS, "--num_workers=1", "--max_restarts=0")
    run.wait_for(r"^step ")
    os.kill(lab.tasks()["worker:0"]["pid"], signal.SIGKILL)
    assert run.wait(30) == 3
    assert "because worker:0 was lost" in run.output


SLOW_EVALUATION = """
import dtrain, keras, time, tensorflow as tf

def data():
    return tf.data.Dataset.from_tensors((tf.ones([2]), tf.ones([1]))).repeat(4).batch(2)

def wait(x):
    return tf.py_function(lambda: time.sleep(0.2) or 0.0, [], tf.float32) * 0.0 + x

def slow():
    return data().repeat(1000).map(lambda x, y: (tf.ensure_shape(wait(x), x.shape), y))

def experiment(config):
    return dtrain.Experiment(
        model=lambda: keras.Sequential([keras.layers.Dense(1)]),
        optimizer=lambda: keras.optimizers.SGD(0.01),
        loss=keras.losses.MeanSquaredError(),
        train_data=data,
        eval_data=slow,
        callbacks=lambda: [Told()],
    )

class Told(dtrain.Callback):
    def on_save(self, session, path):
        print("saved", path)
"""


def test_a_signal_is_heard_during_an_evaluation(lab):
    (lab.folder / "my_model.py").write_text(SLOW_EVALUATION)
    run = lab.dtrain(
        "--strategy=local", "--experiment=my_model:experiment", "--train_steps=10"
    )
    run.wait_for("saved .*/ckpt-10")  # the evaluation follows
    run.process.send_signal(signal.SIGTERM)
    assert run.wait(10) == 143
    assert list(lab.model_dir.glob("ckpt-10.index"))


def test_a_lost_port_means_a_new_try(lab):
    taken = lab.free_ports(1)[0]
    lab.ports.clear()
    script = f"""
import socket, sys
from dtrain import main
from dtrain.launch import ports

thief = socket.create_server(("127.0.0.1", {taken}))
real, tries = ports.free, []

def free(count):
    tries.append(count)
    found = real(count)
    # Between choosing and binding, another program takes the last one: ps:0's.
    return found[:-1] + [{taken}] if len(tries) == 1 else found

ports.free = free
flags = ["--train_steps=20", "--private_network=off"]
sys.argv[1:] = [*flags, "--model_dir={lab.model_dir}"]
sys.exit(main.main())
"""
    run = lab.python(script)
    assert run.wait() == 0
    assert f"Port {taken} of ps:0 went to another program. Trying again" in run.output
    assert "Evaluation at step 20" in run.output
