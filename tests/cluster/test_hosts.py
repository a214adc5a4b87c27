"""Machines are cut off and slowed: each host is a network namespace of its own.

What is printed are the figures of docs/failures.md: `pytest -rP` shows them.
"""

import json
import re
import sys
import time

PORT = 2222
STEP = re.compile(r"^step ([\d]+)/", re.M)


def steps_of(run):
    return [int(step) for step in STEP.findall(run.output)]


def start(lab, hosts, cluster, places, *flags):
    """Starts each task on its host; returns the commands by task."""
    commands = {}
    for (job, index), host in places.items():
        task = {"type": job, "index": index}
        env = {"TF_CONFIG": json.dumps({"cluster": cluster, "task": task})}
        name = f"{job}-{index}"
        commands[job, index] = lab.dtrain(
            *flags,
            f"--model_dir={lab.folder}/{name}",
            f"--result_file={lab.folder}/{name}.json",
            env=env,
            name=name,
            prefix=hosts.inside(host),
        )
    return commands


def more_steps(lab, run, seconds, what):
    before = len(steps_of(run))
    lab.poll(lambda: len(steps_of(run)) > before, seconds, what)


def start_three_workers(lab, make_hosts):
    """Returns four hosts, and a run on them with worker:2 on the last."""
    hosts = make_hosts(4)
    address = hosts.address
    cluster = {
        "chief": [f"{address(1)}:2221"],
        "ps": [f"{address(1)}:{PORT}"],
        "worker": [f"{address(i)}:{PORT}" for i in (2, 3, 4)],
    }
    places = {("chief", 0): 1, ("ps", 0): 1}
    places |= {("worker", i): i + 2 for i in range(3)}
    commands = start(
        lab,
        hosts,
        cluster,
        places,
        "--strategy=ps",
        "--train_steps=1000000",
        "--steps_per_loop=10",
        "--checkpoint_every=0",
        "--checkpoint_secs=0",
        "--log_every=100",
        "--log_workers",
    )
    commands["chief", 0].wait_for("^step ")
    # After the second line the chief has done once whatever it does, as the first
    # summary: what is new to TensorFlow waits for all workers.
    more_steps(lab, commands["chief", 0], 10, "a second line")
    return hosts, commands


def check_counts(result):
    """Sees that every update was asked for by the chief, or is told as repeated."""
    assert result["restarts"] == 0
    assert (result["global_step"] - result["repeated_steps"]) % 10 == 0
    assert 0 <= result["repeated_steps"] <= 2 * 10
    assert result["eval"]["accuracy"] > 0.95


def test_a_worker_that_is_cut_off_for_22_s_goes_on(lab, make_hosts):
    """For longer than the 20 s after which gRPC would close a server's connection."""
    hosts, commands = start_three_workers(lab, make_hosts)
    run = commands["chief", 0]
    hosts.cut(4)
    cut = time.monotonic()
    more_steps(lab, run, 5, "a step of the others")
    lab.poll(lambda: time.monotonic() > cut + 22, 23, "22 s")
    more_steps(lab, run, 5, "a step of the others")
    hosts.mend(4)
    told = run.output.count("worker:2  step")
    lab.poll(lambda: run.output.count("worker:2  step") > told, 60, "its own steps")
    print(f"it goes on {time.monotonic() - cut:.1f} s after the cut")
    lab.stop(lab.folder / "chief-0")
    assert run.wait(60) == 0
    assert "Starting again" not in run.output
    check_counts(lab.result("chief-0.json"))
    assert {command.wait(20) for command in commands.values()} == {0}


def test_a_worker_that_is_cut_off_for_ever_is_done_without(lab, make_hosts):
    hosts, commands = start_three_workers(lab, make_hosts)
    run, lost = commands["chief", 0], commands["worker", 2]
    hosts.cut(4)
    cut = time.monotonic()
    run.wait_for(r"^worker:2 \(10.77.0.4:2222\) is silent for longer", 40)
    noticed = time.monotonic() - cut
    print(f"noticed after {noticed:.1f} s")
    assert noticed < 35.0
    # It has left before the chief went on without it.
    assert "worker:2 starts again: its chief" in lost.output
    (step,) = re.findall(r"^Saved .*/ckpt-(\d+) before going on", run.output, re.M)
    run.wait_for(f"Resumed from .*/ckpt-{step}, global step {step}", 40)
    hosts.mend(4)  # it comes back, and finds that it is not needed
    more_steps(lab, run, 20, "a step of the others")
    print(f"went on after {time.monotonic() - cut:.1f} s")
    more_steps(lab, run, 20, "a step of the others")
    assert run.output.count("goes on without worker:2, which was lost") == 1
    lab.stop(lab.folder / "chief-0")
    assert run.wait(60) == 0
    check_counts(lab.result("chief-0.json"))  # nobody else wrote
    assert [commands[t, 0].wait(20) for t in ("ps", "worker")] == [0, 0]
    assert commands["worker", 1].wait(20) == 0
    assert "worker:2 serves on" in lost.output
    assert lost.wait(20) == 0  # nobody needed it, but nobody forgot it


def test_a_synchronous_task_that_is_cut_off_is_waited_for_and_named(lab, make_hosts):
    hosts = make_hosts(3)
    addresses = [f"{hosts.address(i)}:{PORT}" for i in (1, 2, 3)]
    commands = start(
        lab,
        hosts,
        {"worker": addresses},
        {("worker", i): i + 1 for i in range(3)},
        "--strategy=sync",
        "--train_steps=1000000",
        "--startup_timeout=20",
    )
    run = commands["worker", 0]
    run.wait_for("^step ")
    hosts.cut(3)
    cut = time.monotonic()
    lab.poll(lambda: time.monotonic() > cut + 20, 21, "20 s")
    hosts.mend(3)
    more_steps(lab, run, 30, "a step")
    print(f"after 20 s without a link it went on after {time.monotonic() - cut:.1f} s")
    more_steps(lab, run, 30, "a step")

    hosts.cut(3)
    cut = time.monotonic()
    run.wait_for("^The connection to worker:2 is lost", 40)
    noticed = time.monotonic() - cut
    print(f"noticed after {noticed:.1f} s")
    assert noticed < 35.0
    assert [command.wait(90) for command in commands.values()] == [3, 3, 3]
    print(f"ended after {time.monotonic() - cut:.1f} s")
    for index in (0, 1):
        text = f"No answer from worker:2 ({addresses[2]}) within"
        assert text in commands["worker", index].output
    text = f"No answer from worker:0 ({addresses[0]}) within"
    assert text in commands["worker", 2].output
    assert "Traceback" not in run.output


# Forwards one port to another host, and keeps everything back for a while.
DELAY = """
import asyncio, sys

async def pump(reader, writer):
    while data := await reader.read(65536):
        asyncio.get_running_loop().call_later(0.05, writer.write, data)
    asyncio.get_running_loop().call_later(0.1, writer.close)

async def serve(reader, writer):
    there, here = await asyncio.open_connection(sys.argv[1], int(sys.argv[2]))
    await asyncio.gather(pump(reader, here), pump(there, writer))

async def main():
    server = await asyncio.start_server(serve, "", int(sys.argv[2]))
    print("up", flush=True)
    await server.serve_forever()

asyncio.run(main())
"""


def test_slow_links_slow_their_own_workers_down_and_nobody_else(lab, make_hosts):
    """worker:1 has 10 Mbit/s; worker:2 answers after 100 ms, through a forwarder."""
    hosts = make_hosts(5)
    address = hosts.address
    script = lab.folder / "delay.py"
    script.write_text(DELAY)
    forwarder = lab.start(
        [*hosts.inside(5), sys.executable, str(script), address(4), str(PORT)],
        None,
        "forwarder",
    )
    forwarder.wait_for("up")
    hosts.slow(3, "10mbit")
    cluster = {
        "chief": [f"{address(1)}:2221"],
        "ps": [f"{address(1)}:{PORT}"],
        "worker": [f"{address(i)}:{PORT}" for i in (2, 3, 5)],  # 5 stands for 4
    }
    places = {("chief", 0): 1, ("ps", 0): 1}
    places |= {("worker", i): i + 2 for i in range(3)}
    commands = start(
        lab,
        hosts,
        cluster,
        places,
        "--strategy=ps",
        "--train_steps=6000",
        "--steps_per_loop=10",
    )
    assert commands["chief", 0].wait() == 0
    forwarder.process.terminate()
    result = lab.result("chief-0.json")
    assert (result["global_step"], result["repeated_steps"]) == (6000, 0)
    assert result["eval"]["accuracy"] > 0.95
    tags = lab.events(lab.folder / "chief-0" / "train")
    own = [max(tags[f"workers/{i}/steps"].values()) for i in range(3)]
    print(f"{result['steps_per_second']:.0f} steps/s, by worker {own}")
    assert own[0] > 2 * max(own[1:]), own
    assert min(own) > 0, own
    assert [commands["worker", i].wait(20) for i in range(3)] == [0, 0, 0]
