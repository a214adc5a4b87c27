"""Learning rates under asynchrony: each step's own, and nobody else's."""

import json

import numpy as np
import pytest

# An optimizer that notes which step used which rate, and how often.
NOTING = """
import dtrain, keras, json
import numpy as np, tensorflow as tf

N = 600

class Noting(keras.optimizers.SGD):
    def build(self, variables):
        super().build(variables)
        zeros = {"shape": (N,), "initializer": "zeros", "trainable": False}
        self.rates = keras.Variable(**zeros)
        self.times = keras.Variable(**zeros)

    def update_step(self, gradient, variable, learning_rate):
        super().update_step(gradient, variable, learning_rate)
        if len(variable.shape) == 2:  # one of the two weights
            step = tf.reshape(keras.ops.cast(self.iterations, "int64"), [1])
            rate = tf.reshape(tf.cast(learning_rate, tf.float32), [1])
            self.rates.value.scatter_add(tf.IndexedSlices(rate, step))
            self.times.value.scatter_add(tf.IndexedSlices([1.0], step))

def noted(session):
    optimizer = session.trainer.optimizer
    return {
        "rates": optimizer.rates.numpy().tolist(),
        "times": optimizer.times.numpy().tolist(),
    }

@dtrain.defaults(train_steps=N, batch_size=4)
def experiment(config):
    x = np.ones((64, 2), "float32")
    return dtrain.Experiment(
        model=lambda: keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)]),
        optimizer=lambda: Noting(0.25),
        loss=keras.losses.MeanSquaredError(),
        train_data=lambda: (x, x[:, :1]),
        callbacks=lambda: [dtrain.callbacks.FinalValues(noted)],
    )
"""


def warm_cosine(step):
    """20 steps of warm-up, and then half a cosine down to 0."""
    if step < 20:
        return 0.25 * step / 20
    return 0.25 * (1 + np.cos(np.pi * (step - 20) / 580)) / 2


@pytest.mark.parametrize("workers", [3])
def test_every_step_uses_its_own_rate_once(workers, lab):
    (lab.folder / "noting.py").write_text(NOTING)
    result = lab.folder / "result.json"
    command = lab.dtrain(
        "--experiment=noting:experiment",
        f"--num_workers={workers}",
        "--num_ps=2",
        "--learning_rate_schedule=cosine",
        "--warmup_steps=20",
        "--checkpoint_every=0",
        "--steps_per_loop=7",
        f"--result_file={result}",
    )
    assert command.wait() == 0
    noted = json.loads(result.read_text())["final"]
    assert noted["times"] == [1] * 600
    expected = [warm_cosine(step) for step in range(600)]
    assert noted["rates"] == pytest.approx(expected, rel=1e-5, abs=1e-7)


# What an optimizer makes of a step's number beside the rate: bias correction, decay.
ADAM = """
import dtrain, keras
from dtrain.data import digits

@dtrain.defaults(train_steps=120, batch_size=32)
def experiment(config):
    rate = keras.optimizers.schedules.ExponentialDecay(0.02, 40, 0.5)
    return dtrain.Experiment(
        model=lambda: keras.Sequential([keras.Input((64,)), keras.layers.Dense(10)]),
        optimizer=lambda: keras.optimizers.AdamW(rate, weight_decay=0.5),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        train_data=lambda ctx: digits.train_batches(
            ctx, batch_size=config.batch_size, seed=config.seed),
        callbacks=lambda: [dtrain.callbacks.FinalValues(lambda session: [
            v.numpy().ravel().tolist() for v in session.model.weights])],
    )
"""


def test_one_worker_and_a_ps_do_what_one_process_does(lab):
    (lab.folder / "adam.py").write_text(ADAM)
    final = []
    for name, flags in (
        ("local", ["--strategy=local"]),
        ("ps", ["--strategy=ps", "--num_workers=1"]),
    ):
        result = lab.folder / f"{name}.json"
        command = lab.dtrain(
            "--experiment=adam:experiment",
            f"--model_dir={lab.folder / name}",
            f"--result_file={result}",
            *flags,
            name=name,
        )
        assert command.wait() == 0
        final.append(json.loads(result.read_text())["final"])
    for one, other in zip(*final, strict=True):
        assert one == pytest.approx(other, rel=1e-4, abs=1e-5)
