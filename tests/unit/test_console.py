"""The console: lines for people and a log for all the rest."""

import io
import subprocess
import sys

import pytest

from dtrain import errors
from dtrain.console import Console, redirect

# What a process writes in every possible way once its output is redirected.
PROGRAM = """
import logging, os, subprocess, sys
from dtrain import console

print("before")
c = console.redirect(sys.argv[1])
c.line("a line")
c.error("an error")
c.log("a note")
print("printed", "by the experiment")
print("printed in ", end="")
print("two parts")
print("to stderr", file=sys.stderr)
logging.warning("a warning")
os.write(1, b"C on 1\\n")
os.write(2, b"C on 2\\n")
subprocess.run(["sh", "-c", "echo child on 1; echo child on 2 >&2"])
"""


def lines_in(text):
    return [line.strip() for line in text.splitlines()]


@pytest.fixture(scope="module")
def redirected(tmp_path_factory):
    log = tmp_path_factory.mktemp("console") / "logs" / "chief-0.log"
    log.parent.mkdir()
    log.write_text("from an earlier run\n")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(log)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return lines_in(done.stdout), lines_in(done.stderr), lines_in(log.read_text())


def test_lines_and_prints_reach_the_terminal_in_order(redirected):
    stdout, _, _ = redirected
    assert stdout == [
        "before",
        "a line",
        "printed by the experiment",
        "printed in two parts",
    ]


def test_errors_reach_the_error_terminal_and_nothing_else_does(redirected):
    _, stderr, _ = redirected
    assert stderr == ["an error"]


@pytest.mark.parametrize(
    "line",
    [
        "from an earlier run",
        "a line",
        "an error",
        "a note",
        "printed by the experiment",
        "printed in two parts",
        "to stderr",
        "WARNING:root:a warning",
        "C on 1",
        "C on 2",
        "child on 1",
        "child on 2",
    ],
)
def test_the_log_has_everything_once(line, redirected):
    _, _, log = redirected
    assert log.count(line) == 1


def test_the_end_of_a_line_that_was_never_ended_is_not_lost(tmp_path, run_python):
    program = """
import os, sys
from dtrain import console
console.redirect(sys.argv[1])
print("no newline", end="")
sys.stdout.flush()
os._exit(0)
"""
    done = run_python(program, tmp_path / "chief.log")
    assert done.stdout.strip() == "no newline"


def test_text_that_is_no_text_for_the_terminal_does_not_stop_a_run(
    tmp_path, run_python
):
    program = """
import sys
from dtrain import console
c = console.redirect(sys.argv[1])
c.line("caf\\u00e9 \\udcff")
"""
    done = run_python(
        program,
        tmp_path / "chief.log",
        env={"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("caf")


def test_a_log_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "logs").write_text("in the way")
    path = str(tmp_path / "logs" / "chief-0.log")
    with pytest.raises(errors.UsageError, match="cannot be written"):
        redirect(path)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "short",
        "x" * 300,
        "[bold]no markup[/bold] :smile: [1, 2]",
        "--ps_hosts=a:1,b:2 'quoted' /a/path 3.25 True",
        "two\nlines",
        "  indented",
    ],
)
def test_a_line_is_shown_as_it_is(text):
    terminal, log = io.StringIO(), io.StringIO()
    Console(terminal, log=log).line(text)
    assert terminal.getvalue() == log.getvalue() == text + "\n"


def test_without_a_log_a_note_goes_nowhere():
    terminal = io.StringIO()
    console = Console(terminal)
    console.log("a note")
    console.error("an error")
    assert terminal.getvalue() == "an error\n"
    assert not console.is_terminal


CLOSED = """
import sys
from dtrain import console

terminal = console.redirect(sys.argv[1])
for number in range(3):
    terminal.line(f"line {number}")
    sys.stdin.readline()  # by now the test has closed its end
"""


def test_a_reader_that_goes_away_does_not_end_the_run(tmp_path):
    log = tmp_path / "logs" / "chief-0.log"
    process = subprocess.Popen(
        [sys.executable, "-c", CLOSED, str(log)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline() == "line 0\n"
    process.stdout.close()
    process.stdin.write("\n\n\n")
    process.stdin.close()
    assert process.wait(30) == 0
    lines = log.read_text().splitlines()
    assert [line for line in lines if line.startswith("line")] == [
        "line 0",
        "line 1",
        "line 2",
    ]
    assert "Nobody reads the terminal any more: the pipe is closed." in lines
