"""What the session costs: python benchmarks/session_speed.py

`mnist_mlp` under `ps`, 2 workers, 1 ps, batches of 100, in steps per second, as the
result file tells them (so without the time of saving and evaluating):

    none        no callback at all, not even the one that looks for NaN, and no
                staleness counted
    defaults    as `python -m dtrain.main --experiment=mnist_mlp` runs

Medians of interleaved rounds, on a machine that does nothing else. Needs Fashion-MNIST
(apt-get install dataset-fashion-mnist).
"""

import interleaved

from dtrain.experiments import mnist_mlp

STEPS = "--train_steps=8000"
RUNS = {
    "none": ("session_speed:bare", STEPS, "--summary_every=0"),
    "defaults": ("mnist_mlp", STEPS),
}


def bare(config):
    """Leaves out all that the chief hangs on the session by itself."""
    from dtrain import chief

    chief._make_callbacks = lambda *_: []
    return mnist_mlp.experiment(config)


bare.dtrain_defaults = mnist_mlp.experiment.dtrain_defaults

if __name__ == "__main__":
    interleaved.main(__doc__, RUNS, [("defaults", "none")])
