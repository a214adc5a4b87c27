"""Finding an experiment by its name, building it, and sending it to other processes."""

import re
import sys
import threading

import cloudpickle
import pytest

from dtrain import errors
from dtrain import experiment as experiment_lib
from dtrain.config import RunConfig
from dtrain.experiment import Experiment

# Factories are called by a strategy only, so here they need not make anything real.
FIELDS = {"model": list, "optimizer": list, "loss": abs, "train_data": list}


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A function that writes files into the working directory; modules are forgotten
    afterwards, and so is the working directory's place on the path."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)

    def write(**files):
        for name, text in files.items():
            path = tmp_path / f"{name.replace('__in__', '/')}.py"
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
        return tmp_path

    yield write
    for name in set(sys.modules) - before:
        if not name.startswith("dtrain."):
            del sys.modules[name]


def message_of(function, *args):
    with pytest.raises(errors.UsageError) as caught:
        function(*args)
    return str(caught.value)


def assert_parts(message, parts):
    assert not [part for part in parts if part not in message], message


# Finding.


@pytest.mark.parametrize("name", experiment_lib.PACKAGED)
def test_finds_what_comes_with_the_package(name):
    function = experiment_lib.find(name)
    assert function.__module__ == f"dtrain.experiments.{name}"
    assert set(function.dtrain_defaults) == {"train_steps", "batch_size"}


def test_finds_a_function_in_the_working_directory(project):
    project(my_model="def train(config):\n    return 'mine'\n")
    assert experiment_lib.find("my_model:train")(None) == "mine"


def test_finds_a_function_in_a_package_of_the_working_directory(project):
    project(mine__in____init__="", mine__in__model="def train(config):\n    return 1\n")
    assert experiment_lib.find("mine.model:train")(None) == 1


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("digits_mpl", ["--experiment=digits_mpl", "Did you mean digits_mlp?"]),
        ("resnet", ["--experiment=resnet", "digits_mlp, mnist_mlp, mnist_cnn"]),
        ("my_model", ["package.module:function"]),
        ("my_model/train:f", ["no package.module:function"]),
        ("my_model:", ["no package.module:function"]),
        (":train", ["no package.module:function"]),
        ("my_model:a:b", ["no package.module:function"]),
        ("my-model:train", ["no package.module:function"]),
    ],
)
@pytest.mark.parametrize("check", ["find", "check_name"])
def test_a_name_that_is_none_is_refused_before_any_import(check, name, parts, project):
    project(my_model="raise SystemExit('imported')")
    assert_parts(message_of(getattr(experiment_lib, check), name), parts)


@pytest.mark.parametrize(
    ("name", "module"),
    [
        ("no_such_module:train", "'no_such_module'"),
        ("no_such_package.model:train", "'no_such_package'"),
        ("mine.no_such_module:train", "'mine.no_such_module'"),
        ("my_model.py:train", "'my_model.py'"),
    ],
)
def test_a_module_that_is_missing_is_named_with_where_it_was_looked_for(
    name, module, project
):
    folder = project(mine__in____init__="", my_model="")
    message = message_of(experiment_lib.find, name)
    assert_parts(message, [f"no module {module}", str(folder), "PYTHONPATH"])


@pytest.mark.parametrize(
    ("text", "line", "parts"),
    [
        ("import json\n1 / 0\n", 2, ["ZeroDivisionError: division by zero"]),
        ("\n\nimport no_such\n", 3, ["ModuleNotFoundError", "'no_such'"]),
        ("def f():\n    1 / 0\nf()\n", 2, ["ZeroDivisionError"]),
        ("x = 1\nimport json\njson.loads('?')\n", 3, ["JSONDecodeError"]),
        ("x = 1\ndef f(:\n", 2, ["SyntaxError"]),
    ],
    ids=["raises", "imports", "calls", "library", "syntax"],
)
def test_a_module_that_fails_is_named_with_the_line(text, line, parts, project):
    folder = project(broken=text)
    message = message_of(experiment_lib.find, "broken:train")
    place = f"{folder / 'broken.py'}, line {line}"
    assert_parts(message, [*parts, "broken", place])


def test_a_module_that_fails_in_what_it_imports_is_named_with_the_line(project):
    folder = project(outer="import inner\n", inner="x = 1\nx.y\n")
    message = message_of(experiment_lib.find, "outer:train")
    assert_parts(message, ["AttributeError", f"{folder / 'inner.py'}, line 2"])


def test_a_misspelt_function_gets_a_suggestion(project):
    folder = project(my_model="def experiment(config):\n    pass\n")
    message = message_of(experiment_lib.find, "my_model:experimnt")
    parts = [str(folder / "my_model.py"), "'experimnt'", "Did you mean experiment?"]
    assert_parts(message, parts)


def test_what_is_no_function_is_refused(project):
    project(my_model="experiment = 3\n")
    message = message_of(experiment_lib.find, "my_model:experiment")
    assert_parts(message, ["no function 'experiment'"])


@pytest.mark.parametrize("name", ["folder:train", "sys:train"])
def test_a_module_without_a_file_is_no_exception(name, project):
    folder = project()
    (folder / "folder").mkdir()
    message = message_of(experiment_lib.find, name)
    assert_parts(message, ["no function 'train'"])
    assert "None" not in message


@pytest.mark.parametrize(
    ("name", "shown"),
    [("digits_mlp", "digits_mlp"), ("/a/b/mine.pickle", "mine"), ("m:f", "m:f")],
)
def test_display_name(name, shown):
    assert experiment_lib.display_name(name) == shown


# Building.


def test_the_function_sees_a_config_without_gaps():
    seen = []

    def function(config):
        seen.append(config)
        return Experiment(**FIELDS)

    what, config = experiment_lib.build(function, RunConfig())
    assert isinstance(what, Experiment)
    assert seen == [config] == [RunConfig(train_steps=1000, batch_size=32)]


def test_an_experiments_defaults_come_before_the_packages_and_after_the_flags():
    @experiment_lib.defaults(train_steps=50, batch_size=8)
    def function(config):
        return Experiment(**FIELDS)

    _, config = experiment_lib.build(function, RunConfig(batch_size=4))
    assert config == RunConfig(train_steps=50, batch_size=4)


def test_defaults_are_refused_for_what_belongs_to_the_run():
    with pytest.raises(errors.UsageError, match=r"num_workers=.*train_steps"):
        experiment_lib.defaults(num_workers=3)


@pytest.mark.parametrize("result", [None, {"model": list}, Experiment], ids=repr)
def test_a_function_that_returns_something_else_is_refused(result):
    config = RunConfig(experiment="mine")
    message = message_of(experiment_lib.build, lambda config: result, config)
    assert_parts(message, ["mine", type(result).__name__, "dtrain.Experiment("])


def test_a_function_that_raises_is_named_with_file_and_line():
    def function(config):
        return {}["key"]

    line = function.__code__.co_firstlineno + 1
    config = RunConfig(experiment="mine")
    message = message_of(experiment_lib.build, function, config)
    assert_parts(message, ["mine", "KeyError: 'key'", f"{__file__}, line {line}"])


def test_dtrains_own_errors_pass_through():
    def function(config):
        raise errors.UsageError("No data here.")

    assert message_of(experiment_lib.build, function, RunConfig()) == "No data here."


@pytest.mark.parametrize(
    "field",
    ["model", "optimizer", "train_data", "eval_data", "metrics", "callbacks"],
)
def test_a_field_that_should_be_a_function_is_named(field):
    message = message_of(lambda: Experiment(**{**FIELDS, field: [1]}))
    assert_parts(message, [f"Experiment({field}=[1])", f"{field}=lambda: ..."])


def test_a_built_model_is_refused_though_it_can_be_called():
    class Model:
        trainable_variables = ()

        def __call__(self):
            pass

    message = message_of(lambda: Experiment(**{**FIELDS, "model": Model()}))
    assert_parts(message, ["already built", "model=lambda: ..."])


def test_only_the_evaluation_data_may_be_left_out_as_none():
    assert Experiment(**FIELDS, eval_data=None).eval_data is None
    with pytest.raises(errors.UsageError, match="train_data=None"):
        Experiment(**{**FIELDS, "train_data": None})


# Sending to other processes.

SCRIPT = """
import sys
import dtrain
from dtrain import experiment

SCALE = 3

def helper(x):
    return SCALE * x

def closure(y):
    return lambda ctx: helper(y)

@dtrain.defaults(train_steps=5, batch_size=2)
def my_experiment(config):
    return dtrain.Experiment(
        model=lambda: helper(config.batch_size),
        optimizer=list,
        loss=None,
        train_data=closure(7),
    )

experiment.save({function}, sys.argv[1])
"""

LOAD = """
import sys
from dtrain import experiment
from dtrain.config import RunConfig

what, config = experiment.build(experiment.find(sys.argv[1]), RunConfig())
print(what.model(), what.train_data(None), config.train_steps, config.batch_size)
"""


@pytest.mark.parametrize(
    ("function", "printed"),
    [
        ("my_experiment", "6 21 5 2"),
        ("lambda config: my_experiment(config)", "96 21 1000 32"),
    ],
)
def test_a_scripts_own_function_travels_with_all_it_needs(
    function, printed, tmp_path, run_python
):
    path = tmp_path / "mine.pickle"
    saved = run_python(SCRIPT.format(function=function), path)
    assert saved.returncode == 0, saved.stderr
    loaded = run_python(LOAD, path)
    assert loaded.stdout.split() == printed.split(), loaded.stderr


@pytest.mark.parametrize(
    "make", [threading.Lock, lambda: (i for i in "abc")], ids=["lock", "generator"]
)
def test_what_cannot_travel_is_refused_by_name(make, tmp_path):
    thing = make()

    def my_experiment(config):
        return thing

    path = tmp_path / "mine.pickle"
    message = message_of(experiment_lib.save, my_experiment, str(path))
    assert_parts(message, ["'my_experiment'", "cannot", "inside the function"])
    assert not path.exists()


class Opens:
    """What needs a file when it is loaded."""

    def __init__(self, path):
        self._path = path

    def __reduce__(self):
        return open, (self._path,)


def test_a_saved_file_that_is_missing_is_named(tmp_path):
    path = str(tmp_path / "mine.pickle")
    message = message_of(experiment_lib.find, path)
    assert_parts(message, [f"--experiment={path}", f"needs {path}", "not there"])


def test_a_file_that_a_saved_one_needs_is_named(tmp_path):
    path, needed = tmp_path / "mine.pickle", str(tmp_path / "needed.txt")
    path.write_bytes(cloudpickle.dumps(Opens(needed)))
    message = message_of(experiment_lib.find, str(path))
    assert_parts(message, [f"--experiment={path}", f"needs {needed}", "not there"])


def test_a_saved_file_that_is_damaged_is_named(tmp_path):
    path = tmp_path / "mine.pickle"
    path.write_bytes(b"\x80damaged")
    message = message_of(experiment_lib.find, str(path))
    assert re.search(rf"{path} failed: \w+Error: ", message)
