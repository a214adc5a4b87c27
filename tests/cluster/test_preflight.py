"""What keeps a run from starting is named, and nobody waits for ever."""

import http.client
import re
import sys
import time

TIMEOUT = 8


def flags_for(hosts, job, index, *flags):
    return [
        "--strategy=ps",
        "--train_steps=100",
        f"--ps_hosts={','.join(hosts['ps'])}",
        f"--worker_hosts={','.join(hosts['worker'])}",
        f"--chief_host={hosts['chief']}",
        f"--job_name={job}",
        f"--task_index={index}",
        *flags,
    ]


def test_every_task_that_keeps_a_run_from_starting_is_named(lab):
    """One is missing, in one's place is a web server, one is another run's."""
    chief, web, missing, old, good, other, another = (
        f"127.0.0.1:{port}" for port in lab.free_ports(7)
    )
    hosts = {"chief": chief, "ps": [web, good], "worker": [missing, old]}
    port = web.split(":")[1]
    server = lab.start([sys.executable, "-m", "http.server", port], None, "web")
    lab.poll(lambda: int(port) in lab.listening(), 20, "the web server")
    folder = f"--model_dir={lab.folder}/servers"
    before = {"chief": other, "ps": [another], "worker": [old]}  # an older run's hosts
    left = lab.dtrain(
        *flags_for(before, "worker", 0, folder, "--chief_timeout=40"), name="left"
    )
    own = lab.dtrain(*flags_for(hosts, "ps", 1, folder), name="own")
    for command in (left, own):
        command.wait_for("serves on")
    started = time.monotonic()
    wait = f"--startup_timeout={TIMEOUT}"
    run = lab.dtrain(*flags_for(hosts, "chief", 0, wait))
    assert run.wait(60) == 3
    # With what it takes to import TensorFlow.
    assert time.monotonic() - started < TIMEOUT + 15
    text = run.output
    assert f"3 of 4 tasks are not ready within --startup_timeout={TIMEOUT} s" in text
    rows = dict(re.findall(r"^  (\w+:\d) +127.0.0.1:\d+ +(.*)$", text, re.M))
    assert rows["worker:0"] == "does not listen there"
    assert rows["ps:0"] == "is no TensorFlow server, but another program"
    assert rows["ps:1"] == "is ready"
    assert rows["worker:1"].startswith(
        f"belongs to another cluster: as process {left.process.pid} on"
    )
    assert "Traceback" not in text
    assert own.wait(20) == 3  # it was told, and leaves at once
    assert left.process.poll() is None  # that is another run's affair
    # A stranger is no harm, and nobody's chief.
    connection = http.client.HTTPConnection(old, timeout=5)
    connection.request("GET", "/")
    left.process.terminate()
    assert left.wait(20) == 143
    server.process.terminate()
    server.wait(20)


def test_who_has_the_wrong_index_or_no_chief_is_told(lab):
    addresses = [f"127.0.0.1:{port}" for port in lab.free_ports(4)]
    hosts = {"chief": addresses[0], "ps": addresses[1:2], "worker": addresses[2:]}
    twice = {**hosts, "worker": [addresses[2], addresses[2]]}
    double = lab.dtrain(*flags_for(twice, "worker", 0), name="double")
    folder = f"--model_dir={lab.folder}/servers"
    # worker:1's command on worker:0's machine: the hosts are swapped.
    swapped = {**hosts, "worker": hosts["worker"][::-1]}
    server = lab.dtrain(
        *flags_for(swapped, "worker", 1, folder, "--chief_timeout=12"), name="swapped"
    )
    server.wait_for("serves on")
    run = lab.dtrain(*flags_for(hosts, "chief", 0, "--startup_timeout=4"))
    assert run.wait(60) == 3
    assert re.search(r"worker:0 .* belongs to another cluster: .* worker:1", run.output)
    assert server.wait(40) == 3
    assert "there was no chief for --chief_timeout=12 s" in server.output
    assert double.wait(20) == 2
    assert f"{addresses[2]} is there twice" in double.output
