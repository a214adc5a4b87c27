"""How training scales where a step waits instead of computing.

    python -m benchmarks.waiting --strategy=ps --num_workers=8

Each step waits 50 ms, so workers need next to none of the machine's cores, and as many
of them as one likes can be compared on few: what they lose is lost to dtrain. The last
line is {"value": steps per second}, of a local cluster with the command's defaults.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile

import dtrain

_MICROSECONDS = 50_000
_FILE = os.path.abspath(__file__)


@dtrain.defaults(batch_size=1)
def experiment(config):
    """Returns a model of one weight, whose steps cannot overlap their waiting."""
    import keras
    import tensorflow as tf
    from tensorflow.python.data.experimental.ops import testing

    class Wait(keras.layers.Layer):
        def build(self, shape):
            self.scale = self.add_weight(shape=(1,), initializer="ones")

        def call(self, x):
            # A data set that sleeps, read by the step itself on the device that it runs
            # on. It needs the weight, and the gradient needs it: so each step begins to
            # wait when the update before it is done, also where steps are written out
            # one after the other.
            scale = tf.convert_to_tensor(self.scale)
            data = tf.data.Dataset.from_tensors(scale)
            # Without `take`, it would sleep once more before it tells of its end.
            data = data.apply(testing.sleep(_MICROSECONDS)).take(1)
            waited = data.get_single_element()
            return x * (scale + tf.stop_gradient(waited - scale))

    def batches():
        return tf.data.Dataset.from_tensors((tf.ones([1, 1]), tf.zeros([1, 1])))

    return dtrain.Experiment(
        model=lambda: keras.Sequential([keras.Input((1,)), Wait()]),
        optimizer=lambda: keras.optimizers.SGD(0.001),
        loss=keras.losses.MeanSquaredError(),
        train_data=lambda: batches().repeat(),
    )


def measure(strategy: str, num_workers: int, train_steps: int) -> dict:
    """Returns the result file of one run."""
    with tempfile.TemporaryDirectory() as scratch:
        result = f"{scratch}/result.json"
        command = [
            *(sys.executable, "-m", "dtrain.main"),
            f"--strategy={strategy}",
            "--experiment=benchmarks.waiting:experiment",
            f"--num_workers={num_workers}",
            f"--train_steps={train_steps}",
            f"--model_dir={scratch}/model",
            f"--result_file={result}",
        ]
        root = os.path.dirname(os.path.dirname(_FILE))
        subprocess.run(command, cwd=root, check=True)
        with open(result) as file:
            return json.load(file)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--strategy", choices=["ps", "sync"], default="ps")
    parser.add_argument("--num_workers", type=int, default=1)
    parser.add_argument(
        "--steps_a_worker", type=int, default=400, help="20 s (default: %(default)s)"
    )
    args = parser.parse_args()
    updates = args.steps_a_worker
    if args.strategy == "ps":  # under which each worker makes its own
        updates *= args.num_workers
    result = measure(args.strategy, args.num_workers, updates)
    print(json.dumps({"value": result["steps_per_second"]}))


if __name__ == "__main__":
    main()
