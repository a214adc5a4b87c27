"""The table of comparisons: what it names is there, and no bar is missing."""

import ast
import pathlib

import pytest
from absl.testing import flagsaver

from benchmarks.comparisons import COMPARISONS
from dtrain import flags

ROOT = pathlib.Path(__file__).parents[3]
COMMANDS = {
    f"{comparison.name}: {name}": command
    for comparison in COMPARISONS
    for name, command in comparison.contenders.items()
}
# What holds, whatever else is compared: numerator, denominators, divided by, bar.
KERAS = "keras_fit 1, keras_fit 10, keras_fit 50, keras_fit 100"
BARS = {
    "ps_sgd": [
        ("dtrain", "tf1", 1, "at least 2"),
        ("dtrain", "coordinator", 1, "at least 3"),
    ],
    "ps_adam": [("dtrain", "tf1", 1, "at least 1.5")],
    "ps_wide": [("dtrain", "tf1", 1, "at least 1.2")],
    "sync": [
        ("dtrain", "tf1", 1, "at least 1.5"),
        ("dtrain", "ddp", 1, "at least 1"),
    ],
    "local": [
        ("dtrain", "tf_function", 1, "at least 0.97"),
        ("dtrain", KERAS, 1, "at least 1"),
    ],
    "callbacks": [("defaults", "none", 1, "at least 0.97")],
    "scaling_ps": [
        ("2 workers", "1 worker", 2, "at least 0.95"),
        ("4 workers", "1 worker", 4, "at least 0.95"),
        ("8 workers", "1 worker", 8, "at least 0.95"),
    ],
    # All workers do each step together: one is as fast as many.
    "scaling_sync": [
        ("2 workers", "1 worker", 1, "at least 0.9"),
        ("4 workers", "1 worker", 1, "at least 0.9"),
    ],
    "startup": [("dtrain", "imports", 1, "at most 2")],
}


@pytest.fixture(autouse=True)
def fresh_flags():
    """Each test reads flags as a new process would."""
    saved = flagsaver.save_flag_values(flags.FLAGS)
    yield
    flagsaver.restore_flag_values(saved, flags.FLAGS)


def named(name):
    (found,) = [one for one in COMPARISONS if one.name == name]
    return found


def path_of(module):
    return ROOT / f"{module.replace('.', '/')}.py"


def ours():
    """Returns the flags of each contender that is dtrain, by comparison and name."""
    return {
        name: command[3:]
        for name, command in COMMANDS.items()
        if command[2] == "benchmarks.ours"
    }


def names_at_the_top(path):
    """Returns the functions and variables of a module, read from the source."""
    found = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.Assign):
            found.update(target.id for target in node.targets)
    return found


def test_no_two_comparisons_have_one_name():
    names = [comparison.name for comparison in COMPARISONS]
    assert sorted(set(names)) == sorted(names)
    # They stand between commas in --only.
    assert [name for name in names if "," in name or " " in name] == []


def test_every_name_in_a_ratio_is_a_contender():
    unknown = [
        f"{comparison.name}: {name}"
        for comparison in COMPARISONS
        for ratio in comparison.ratios
        for name in (ratio.numerator, *ratio.denominators)
        if name not in comparison.contenders
    ]
    assert unknown == []


def test_every_contender_is_held_against_something():
    idle = [
        f"{comparison.name}: {name}"
        for comparison in COMPARISONS
        if comparison.each is None
        for name in comparison.contenders
        if not any(
            name in (ratio.numerator, *ratio.denominators)
            for ratio in comparison.ratios
        )
    ]
    assert idle == []


def test_every_command_is_a_module_that_is_there():
    starts = {command[:2] for command in COMMANDS.values()}
    assert starts == {("{python}", "-m"), ("{torch_python}", "-m")}
    modules = {command[2] for command in COMMANDS.values()}
    assert [module for module in modules if not path_of(module).is_file()] == []


def test_every_experiment_of_a_command_is_there():
    experiments = {
        flags.parse(["dtrain", *given]).experiment for given in ours().values()
    }
    missing = []
    for experiment in experiments:
        module, _, function = experiment.partition(":")
        if not function:  # one that comes with the package
            module, function = f"dtrain.experiments.{module}", "experiment"
        if function not in names_at_the_top(path_of(module)):
            missing.append(experiment)
    assert missing == []


@pytest.mark.parametrize("name", ours())
def test_dtrain_knows_every_flag_that_it_is_given(name):
    given = ours()[name]
    config = flags.parse(["dtrain", *given])
    assert config.experiment
    # Where the run and its result are, only benchmarks.ours says.
    assert config.model_dir is None and config.result_file is None
    names = [flag.partition("=")[0] for flag in given]
    assert len(set(names)) == len(names), "the last one counts, unnoticed"


@pytest.mark.parametrize("name", BARS)
def test_every_bar_is_there(name):
    ratios = [
        (one.numerator, ", ".join(one.denominators), one.divided_by, str(one.bar))
        for one in named(name).ratios
    ]
    assert [bar for bar in BARS[name] if bar not in ratios] == []


def test_memory_has_a_bar_for_each_task():
    assert str(named("memory").each) == "at most 1.02"
