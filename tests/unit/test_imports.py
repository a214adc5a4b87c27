"""The layers: who may import whom, read from the source."""

import ast
import pathlib

import pytest

import dtrain

PACKAGE = pathlib.Path(dtrain.__file__).parent

# From the bottom to the top; a module imports from its own layer or from below.
LAYERS = (
    ("errors", "version"),
    ("config",),
    ("experiment",),
    ("cluster",),
    ("console",),
    ("launch",),
    ("input",),
    ("runtime",),
    ("strategies",),
    ("session",),
    ("assessment",),
    ("chief", "worker", "evaluator"),
    ("ending",),
    ("roles",),
    ("run",),
    ("flags",),
    ("main",),
)
# What comes with the package stands beside them, on the same ground as users' code.
CONTENT = ("data", "models", "experiments")
BASE = ("errors", "version", "config", "experiment")
GROUND = (*BASE, "input")

TENSORFLOW = ("tensorflow", "keras")
WITHOUT_TENSORFLOW = (*BASE, "cluster", "console", "launch")
# Of what is above, that which `import dtrain` needs.
EAGER = ("dtrain.input.context", "dtrain.input.share")


def read_package(folder):
    """Maps every module of a package to the names that it imports.

    Imports in functions count, since they bind modules together as well; those under
    TYPE_CHECKING never run, and are left out.
    """
    sources = {}
    for path in folder.rglob("*.py"):
        parts = (folder.name, *path.relative_to(folder).with_suffix("").parts)
        name = ".".join(parts).removesuffix(".__init__")
        sources[name] = path.read_text()
    return {
        name: list(imports_of(ast.parse(source), sources))
        for name, source in sources.items()
    }


def imports_of(tree, modules):
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"relative import in line {node.lineno}"
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                yield name if name in modules else node.module
        else:
            yield from imports_of(node, modules)


def layer_of(module):
    """Returns what stands right below the package: "cluster" of a.cluster.spec."""
    return module.split(".")[1] if "." in module else "__init__"


def is_part_of(name, packages):
    return name.split(".")[0] in packages


def upward_imports(graph):
    """Lists "importer -> imported" for each import that goes up, or aside."""
    rank = {name: index for index, layer in enumerate(LAYERS) for name in layer}
    found = []
    for module, names in graph.items():
        own = layer_of(module)
        if own == "__init__":
            continue  # the package itself shows parts of all of them
        for name in names:
            if not is_part_of(name, ("dtrain",)):
                continue
            other = layer_of(name)
            if own in CONTENT:
                allowed = other in CONTENT + GROUND
            else:
                allowed = other in rank and rank[other] <= rank[own]
            if not allowed:
                found.append(f"{module} -> {name}")
    return found


def cycles(graph):
    """Lists the cycles that a depth-first walk meets, each as a path."""
    found, done = [], set()

    def walk(module, path):
        if module in path:
            found.append(" -> ".join([*path[path.index(module) :], module]))
        elif module in graph and module not in done:
            for name in graph[module]:
                walk(name, [*path, module])
            done.add(module)

    for module in graph:
        walk(module, [])
    return found


@pytest.fixture(scope="module")
def graph():
    return read_package(PACKAGE)


def test_every_module_has_a_place(graph):
    known = {name for layer in LAYERS for name in layer} | set(CONTENT) | {"__init__"}
    assert {layer_of(module) for module in graph} == known


def test_no_import_goes_up(graph):
    assert upward_imports(graph) == []


def test_no_import_goes_in_a_circle(graph):
    assert cycles(graph) == []


def test_tensorflow_stays_out_of_what_starts_and_describes(graph):
    found = [
        f"{module} -> {name}"
        for module, names in graph.items()
        for name in names
        if layer_of(module) in WITHOUT_TENSORFLOW or module in EAGER
        if is_part_of(name, TENSORFLOW)
    ]
    assert found == []


def test_only_the_command_line_knows_flags(graph):
    found = {
        module
        for module, names in graph.items()
        if any(is_part_of(name, ("absl",)) for name in names)
    }
    assert found <= {"dtrain.flags", "dtrain.main"}


def test_the_session_knows_the_protocol_and_no_strategy(graph):
    found = {
        name
        for module, names in graph.items()
        if layer_of(module) == "session"
        for name in names
        if name.startswith("dtrain.strategies")
    }
    assert found <= {"dtrain.strategies.trainer", "dtrain.strategies.totals"}


# The reader itself.


def test_the_reader_finds_what_is_wrong(tmp_path):
    folder = tmp_path / "dtrain"
    for name, text in {
        "__init__": "from dtrain.main import run",
        "errors": "import os",
        "config": "from dtrain import errors\nimport dtrain.main",
        "cluster/__init__": "",
        "cluster/spec": "def f():\n    from dtrain.launch import local",
        "launch/local": "from dtrain.cluster.spec import Cluster",
        "main": "if typing.TYPE_CHECKING:\n    from dtrain import nothing",
        "data/idx": "from dtrain.cluster import spec",
        "strategies/ps": "import dtrain.session.loop as loop",
        "session/loop": "from dtrain import strategies",
    }.items():
        path = folder / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    graph = read_package(folder)
    assert graph["dtrain.errors"] == ["os"]
    assert graph["dtrain.main"] == []
    assert sorted(upward_imports(graph)) == [
        "dtrain.cluster.spec -> dtrain.launch.local",
        "dtrain.config -> dtrain.main",
        "dtrain.data.idx -> dtrain.cluster.spec",
        # A name that is no module of the package is the package's own.
        "dtrain.session.loop -> dtrain",
        "dtrain.strategies.ps -> dtrain.session.loop",
    ]
    (cycle,) = cycles(graph)
    assert set(cycle.split(" -> ")) == {"dtrain.cluster.spec", "dtrain.launch.local"}


# What really happens.

IMPORT = """
import importlib, sys
for name in sys.argv[1:]:
    importlib.import_module(name)
print([name for name in ("tensorflow", "keras") if name in sys.modules])
"""


@pytest.mark.parametrize(
    "modules",
    [
        ["dtrain"],
        ["dtrain.input.context"],
        ["dtrain.main", "dtrain.launch.local", "dtrain.session.callbacks.base"],
    ],
    ids=["package", "context", "launcher"],
)
def test_a_fresh_process_imports_no_tensorflow(modules, run_python):
    done = run_python(IMPORT, *modules)
    assert done.stdout == "[]\n", done.stderr
