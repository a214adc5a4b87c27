"""Real clusters for tests: started through the command, watched, and cleaned up."""

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import psutil
import pytest

ROOT = Path(__file__).parents[1]
LEAVE_SECONDS = 10.0


def poll(condition, seconds: float, what: str):
    """Returns the condition's first true value; fails after that many seconds."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        value = condition()
        if value:
            return value
        time.sleep(0.05)
    pytest.fail(f"{what} did not happen within {seconds:g} s")


class Command:
    """One process with its output in a file."""

    def __init__(self, argv: list[str], folder: Path, name: str, env: dict, cwd: Path):
        self.name = name
        self.path = folder / f"{name}.out"
        with open(self.path, "wb") as output:
            self.process = subprocess.Popen(
                argv,
                stdout=output,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                env=env,
                cwd=cwd,
                start_new_session=True,
            )

    @property
    def output(self) -> str:
        return self.path.read_text(errors="replace")

    def wait(self, seconds: float = 120.0) -> int:
        """Returns the exit status."""
        poll(
            lambda: self.process.poll() is not None, seconds, f"the end of {self.name}"
        )
        return self.process.returncode

    def wait_for(self, pattern: str, seconds: float = 60.0) -> re.Match:
        """Returns the match once the output has it; fails if the process ends first."""

        def found():
            match = re.search(pattern, self.output, re.MULTILINE)
            if match is None and self.process.poll() is not None:
                pytest.fail(f"{self.name} ended without {pattern!r}")
            return match

        return poll(found, seconds, f"{pattern!r} from {self.name}")


class Lab:
    """Starts commands in a folder of their own, and sees that nothing is left."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.model_dir = folder / "model"
        self.commands: list[Command] = []
        self.ports: set[int] = set()

    poll = staticmethod(poll)
    kill = staticmethod(lambda pid, signum=signal.SIGKILL: os.kill(pid, signum))
    executable = sys.executable

    def dtrain(
        self,
        *flags: str,
        env: dict | None = None,
        name: str = "run",
        prefix: Sequence[str] = (),
    ) -> Command:
        """Starts the command with flags; `--model_dir` is added if not given."""
        if not any(flag.startswith("--model_dir") for flag in flags):
            flags = (*flags, f"--model_dir={self.model_dir}")
        command = [*prefix, sys.executable, "-m", "dtrain.main", *flags]
        return self.start(command, env, name)

    def python(self, script: str, env: dict | None = None) -> Command:
        """Starts a Python script given as text."""
        path = self.folder / "script.py"
        path.write_text(script)
        return self.start([sys.executable, str(path)], env, "script")

    def start(self, argv: list[str], env: dict | None, name: str) -> Command:
        unset = ("TF_CONFIG", "JOB_NAME", "PS_HOSTS", "WORKER_HOSTS")
        environ = {key: value for key, value in os.environ.items() if key not in unset}
        environ["PYTHONPATH"] = str(ROOT)
        environ.update(env or {})
        command = Command(argv, self.folder, name, environ, self.folder)
        self.commands.append(command)
        return command

    def free_ports(self, count: int) -> list[int]:
        sockets = [socket.socket() for _ in range(count)]
        for sock in sockets:
            sock.bind(("127.0.0.1", 0))
        found = [sock.getsockname()[1] for sock in sockets]
        for sock in sockets:
            sock.close()
        self.ports.update(found)
        return found

    def tasks(self) -> dict[str, dict]:
        """Returns tasks.json by task."""
        entries = json.loads((self.model_dir / "tasks.json").read_text())["tasks"]
        return {entry["task"]: entry for entry in entries}

    def stop(self, folder: Path | None = None) -> None:
        """Asks a run to end well, as an evaluator does."""
        path = (folder or self.model_dir) / "stop.json"
        path.with_suffix(".tmp").write_text(json.dumps({"reason": "enough"}))
        path.with_suffix(".tmp").rename(path)

    def result(self, name: str = "result.json") -> dict:
        return json.loads((self.folder / name).read_text())

    @staticmethod
    def events(folder: Path) -> dict[str, dict[int, float]]:
        """Returns tag -> step -> value of the scalars in a folder's event files."""
        import tensorflow as tf  # only those who read events wait for it

        tags: dict[str, dict[int, float]] = {}
        for path in folder.glob("events.*"):
            for event in tf.compat.v1.train.summary_iterator(str(path)):
                for value in event.summary.value:
                    if value.metadata.plugin_data.plugin_name != "scalars":
                        continue
                    number = float(tf.make_ndarray(value.tensor))
                    tags.setdefault(value.tag, {})[event.step] = number
        return {tag: dict(sorted(found.items())) for tag, found in tags.items()}

    def processes(self) -> list[psutil.Process]:
        """Returns the living processes whose command line names this folder."""
        found = []
        for process in psutil.process_iter():
            try:
                if any(str(self.folder) in part for part in process.cmdline()):
                    found.append(process)
            except (psutil.NoSuchProcess, psutil.ZombieProcess):
                continue
        return found

    def check_nothing_left(self) -> None:
        """Fails if a process or a listening port of this lab is still there."""
        if (self.model_dir / "tasks.json").exists():
            addresses = [entry["address"] for entry in self.tasks().values()]
            self.ports.update(int(a.rsplit(":", 1)[1]) for a in addresses)
        poll(lambda: not self.processes(), LEAVE_SECONDS, "the end of every process")
        # A killed process has lost its command line before its sockets.
        poll(lambda: not self.listening(), LEAVE_SECONDS, "the end of every port")

    def listening(self) -> set[int]:
        """Returns which of this lab's ports somebody listens on."""
        connections = psutil.net_connections("tcp")
        open_ports = {
            c.laddr.port for c in connections if c.status == psutil.CONN_LISTEN
        }
        return self.ports & open_ports

    def clean_up(self) -> None:
        for command in self.commands:
            if command.process.poll() is None:
                command.process.kill()
                command.process.wait()
        for process in self.processes():
            try:
                process.send_signal(signal.SIGKILL)
            except psutil.NoSuchProcess:
                continue

    def logs(self) -> str:
        """Returns everything that commands and tasks wrote."""
        paths = [c.path for c in self.commands] + sorted(self.folder.rglob("*.log"))
        return "\n".join(
            f"----- {path}\n{path.read_text(errors='replace')[-6000:]}"
            for path in paths
        )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    labs = [v for v in getattr(item, "funcargs", {}).values() if isinstance(v, Lab)]
    labs += [lab for lab in _open if lab not in labs]
    for lab in labs if report.failed else []:
        report.sections.append(("every task's log", lab.logs()))
    return report


_open: list[Lab] = []  # labs of more than one test


@contextlib.contextmanager
def open_lab(folder):
    """Gives a `Lab`; afterwards no process and no port of it may be left."""
    lab = Lab(folder)
    try:
        yield lab
        lab.check_nothing_left()
    finally:
        lab.clean_up()


@pytest.fixture
def lab(tmp_path):
    """A `Lab` for one test."""
    with open_lab(tmp_path) as lab:
        yield lab


@pytest.fixture(scope="module")
def make_lab(tmp_path_factory):
    """A function that makes a `Lab` for several tests, as a context."""

    @contextlib.contextmanager
    def make():
        with open_lab(tmp_path_factory.mktemp("lab")) as lab:
            _open.append(lab)
            try:
                yield lab
            finally:
                _open.remove(lab)

    return make
