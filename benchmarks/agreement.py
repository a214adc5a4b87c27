"""Whether updates in one operation a weight compute what Keras' own updates do.

    python -m benchmarks.agreement [--steps=200]

Trains a model of 7.9 million parameters twice with `--strategy=sync`, two workers and
SGD: at the defaults, and with an optimizer whose own `update_step` has Keras update
instead. The last line is {"value": by how much a weight differs at most, of the largest
weight of its tensor; "values": by tensor}.

Not with Adam: it divides by the root of a mean of squares, and so makes a large step of
what is next to nothing. After 200 updates weights are elsewhere, whatever rounds
differently: the order in which gradients are summed does so, too.
"""

import argparse
import dataclasses
import json
import subprocess
import sys
import tempfile

import dtrain
from benchmarks import experiments
from benchmarks.peers import data

_WEIGHTS = "weights/"  # under which a checkpoint has them


@dtrain.defaults(batch_size=data.BATCH_SIZE)
def plain(config):
    """The same model and rate, with an update that is left as it is: Keras'."""
    import keras

    class Plain(keras.optimizers.SGD):
        def update_step(self, gradient, variable, learning_rate):
            super().update_step(gradient, variable, learning_rate)

    what = experiments.wide_mlp(config)
    return dataclasses.replace(
        what, optimizer=lambda: Plain.from_config(what.optimizer().get_config())
    )


def train(experiment: str, steps: int, model_dir: str) -> dict:
    """Returns the weights after so many updates, by their numbers."""
    command = [
        *(sys.executable, "-m", "dtrain.main", f"--experiment={experiment}"),
        *("--strategy=sync", "--num_workers=2", "--learning_rate=0.1"),
        *(f"--train_steps={steps}", f"--model_dir={model_dir}"),
    ]
    subprocess.run(command, check=True)
    import tensorflow as tf

    reader = tf.train.load_checkpoint(f"{model_dir}/ckpt-{steps}")
    names = [n for n in reader.get_variable_to_shape_map() if n.startswith(_WEIGHTS)]
    return {
        name.removeprefix(_WEIGHTS).split("/")[0]: reader.get_tensor(name)
        for name in sorted(names)
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=200)
    steps = parser.parse_args().steps
    with tempfile.TemporaryDirectory() as folder:
        ours = train("benchmarks.experiments:wide_mlp", steps, f"{folder}/ours")
        keras = train("benchmarks.agreement:plain", steps, f"{folder}/keras")
    differences = {
        f"weights {name}": float(abs(ours[name] - keras[name]).max())
        / float(abs(keras[name]).max())
        for name in keras
    }
    print(json.dumps({"value": max(differences.values()), "values": differences}))


if __name__ == "__main__":
    main()
