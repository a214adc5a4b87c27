"""Whether a run's memory grows: every task's after many steps, over that after few.

    python -m benchmarks.memory [--steps=20000]

`mnist_mlp` under `ps` with the command's defaults, so with a checkpoint each 1,000
steps and summaries each 100. The last line is {"value": the largest ratio, "values":
{"chief:0": ratio, "worker:0": ..., ...}}: memory at the end, over that at step 1,000.

Memory is the resident set and what of it was swapped out: what a machine has to have
for the process. It includes TensorFlow's own code, some 300 MB that never grow, so the
growth in MB and the ratio of private memory alone (USS) are shown, too. Needs
Fashion-MNIST (apt-get install dataset-fashion-mnist).
"""

import argparse
import dataclasses
import json
import os
import statistics
import subprocess
import sys
import tempfile

import psutil

import dtrain
from dtrain.session.callbacks.base import Callback

_FIRST = 1000
_SPAN = 500  # steps over which samples are taken, since memory jitters
_SHOWN = (1000, 2000, 5000, 10_000)
_FILE = os.path.abspath(__file__)
_MB = 1e6


class MemoryNoter(Callback):
    """Notes the memory of all tasks, from the chief, between its calls."""

    def on_start(self, session):
        last = session.last_step
        spans = {step: (step, step + _SPAN) for step in _SHOWN if step + _SPAN < last}
        self._spans = spans | {last: (last - _SPAN, last)}
        self._samples = {step: [] for step in self._spans}

    def on_loop(self, session):
        for step, (start, end) in self._spans.items():
            if start <= session.step <= end:
                self._samples[step].append(_measure(session.config.model_dir))

    def on_end(self, session):
        with open(f"{session.config.model_dir}/memory.json", "w") as file:
            json.dump(self._samples, file)


@dtrain.defaults(batch_size=100)
def experiment(config):
    from dtrain.experiments import mnist_mlp

    what = mnist_mlp.experiment(config)
    return dataclasses.replace(what, callbacks=lambda: [MemoryNoter()])


def _measure(model_dir: str) -> dict[str, tuple[int, int]]:
    """Returns bytes by task: resident with swapped ones, and of these the private."""
    with open(f"{model_dir}/tasks.json") as file:
        tasks = json.load(file)["tasks"]
    found = {}
    for task in tasks:
        info = psutil.Process(task["pid"]).memory_full_info()
        found[task["task"]] = info.rss + info.swap, info.uss + info.swap
    return found


def run(train_steps: int) -> dict[int, dict[str, tuple[float, float]]]:
    """Returns medians by step and task, in bytes: all memory, and private memory."""
    with tempfile.TemporaryDirectory() as scratch:
        command = [
            *(sys.executable, "-m", "dtrain.main", "--strategy=ps"),
            "--experiment=benchmarks.memory:experiment",
            f"--train_steps={train_steps}",
            f"--model_dir={scratch}",
        ]
        root = os.path.dirname(os.path.dirname(_FILE))
        subprocess.run(command, cwd=root, check=True)
        with open(f"{scratch}/memory.json") as file:
            samples = json.load(file)
    return {
        int(step): {
            task: tuple(
                statistics.median(values)
                for values in zip(*(sample[task] for sample in found), strict=True)
            )
            for task in found[0]
        }
        for step, found in samples.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=20_000)
    last = parser.parse_args().steps
    found = run(last)
    print(f"\n{'MB':10}" + "".join(f"{f'step {step:,}':>14}" for step in found))
    ratios = {}
    for task, (before, private_before) in found[_FIRST].items():
        after, private_after = found[last][task]
        ratios[task] = after / before
        cells = (f"{found[step][task][0] / _MB:14.1f}" for step in found)
        private = f"private x {private_after / private_before:.4f}"
        print(f"{task:10}{''.join(cells)}   x {ratios[task]:.4f}, {private}")
    print(json.dumps({"value": max(ratios.values()), "values": ratios}))


if __name__ == "__main__":
    main()
