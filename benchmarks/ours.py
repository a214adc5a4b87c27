"""One run of dtrain: python -m benchmarks.ours --experiment=mnist_mlp ANY FLAGS

Runs `python -m dtrain.main` with these flags, in a model directory that is deleted
afterwards, and tells the steps per second of its result file: of the training loop,
without start-up, tracing, saving and evaluation, but with all that callbacks do.
"""

import json
import subprocess
import sys
import tempfile


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        result_file = f"{folder}/result.json"
        command = [sys.executable, "-m", "dtrain.main", *sys.argv[1:]]
        command += [f"--model_dir={folder}/model", f"--result_file={result_file}"]
        status = subprocess.run(command).returncode
        if status:
            return status
        with open(result_file) as file:
            result = json.load(file)
    told = {"value": result["steps_per_second"], "seconds": result["train_seconds"]}
    print(json.dumps({**told, "eval": result["eval"]}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
