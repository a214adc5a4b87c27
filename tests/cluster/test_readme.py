"""What the README shows is true."""

import json
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_experiment_in_the_readme_trains_as_a_file_outside_the_package(lab):
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S)
    (experiment,) = [block for block in blocks if "def experiment" in block]
    (lab.folder / "my_model.py").write_text(experiment)
    for name in ("train", "test"):
        rows = [[i % 7, i % 5, i % 3, i % 2] for i in range(210)]
        lines = [",".join(map(str, [*row, sum(row)])) for row in rows]
        (lab.folder / f"{name}.csv").write_text("\n".join(lines) + "\n")
    run = lab.dtrain(
        "--experiment=my_model:experiment",
        f"--data_dir={lab.folder}",
        f"--result_file={lab.folder}/result.json",
    )
    assert run.wait() == 0
    result = lab.result()
    assert result["eval"]["examples"] == 210
    assert result["eval"]["error"] < 1.0
    assert f"tensorboard --logdir={lab.model_dir}" in run.output

    # The keys that docs/flags.md promises are those that are there.
    page = (ROOT / "docs" / "flags.md").read_text()
    shown = json.loads(re.search(r"\n\n(    \{\"strategy.*?\}\})\n", page, re.S)[1])
    assert shown.keys() == result.keys()
