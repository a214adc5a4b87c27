"""Clusters that somebody else describes: flags, environment variables, TF_CONFIG."""

import json
import re
import signal
import sys

import pytest

FLAGS = ("--strategy=ps", "--experiment=digits_mlp", "--train_steps=300")


def start_by_flags(lab, hosts, task, *flags, name=None):
    job, index = task
    return lab.dtrain(
        *FLAGS,
        f"--ps_hosts={','.join(hosts['ps'])}",
        f"--worker_hosts={','.join(hosts['worker'])}",
        f"--job_name={job}",
        f"--task_index={index}",
        *flags,
        name=name or f"{job}-{index}",
    )


def start_by_env(lab, hosts, task, *flags):
    env = {
        "PS_HOSTS": ", ".join(hosts["ps"]),
        "WORKER_HOSTS": ",".join(hosts["worker"]),
        "JOB_NAME": task[0],
        "TASK_INDEX": str(task[1]),
    }
    return lab.dtrain(*FLAGS, *flags, env=env, name=f"{task[0]}-{task[1]}")


def start_by_tf_config(lab, hosts, task, *flags):
    cluster = {**hosts, "evaluator": ["127.0.0.1:1"]}
    config = {"cluster": cluster, "task": {"type": task[0], "index": task[1]}}
    env = {"TF_CONFIG": json.dumps(config)}
    return lab.dtrain(*FLAGS, *flags, env=env, name=f"{task[0]}-{task[1]}")


def check_run(lab, start, hosts, chief):
    """Starts every task, the chief neither first nor last, and sees all end well."""
    tasks = [
        (job, i) for job in hosts for i in range(len(hosts[job])) if (job, i) != chief
    ]
    tasks.insert(1, chief)
    commands = {}
    for task in tasks:
        flags = [f"--model_dir={lab.folder}/{task[0]}-{task[1]}"]
        if task == chief:
            flags.append(f"--result_file={lab.folder}/result.json")
        commands[task] = start(lab, hosts, task, *flags)
    assert {task: c.wait() for task, c in commands.items()} == dict.fromkeys(tasks, 0)
    result = lab.result()
    assert result["global_step"] == 300
    sizes = {job: len(addresses) for job, addresses in hosts.items()}
    assert result["cluster"] == sizes
    reporting = [t for t, c in commands.items() if "Evaluation at step 300" in c.output]
    assert reporting == [chief]
    for task, command in commands.items():
        if task != chief:
            assert f"{task[0]}:{task[1]} serves on" in command.output
            assert not re.search(r"^[IWE]\d{4} ", command.output, re.M)
    return commands[chief]


@pytest.mark.parametrize("start", [start_by_flags, start_by_env])
def test_tf1_layout_runs_as_it_is(lab, start):
    addresses = [f"127.0.0.1:{port}" for port in lab.free_ports(4)]
    hosts = {"ps": addresses[:2], "worker": addresses[2:]}
    chief = check_run(lab, start, hosts, chief=("worker", 0))
    assert re.search(r"ps:1 holds \d+ variable", chief.output)


def test_tf_config_with_a_chief_runs(lab):
    addresses = [f"localhost:{port}" for port in lab.free_ports(4)]
    hosts = {"chief": addresses[:1], "worker": addresses[1:3], "ps": addresses[3:]}
    check_run(lab, start_by_tf_config, hosts, chief=("chief", 0))


def test_a_port_that_is_taken_is_named_with_its_holder(lab):
    ports = lab.free_ports(2)
    hosts = {"ps": [f"127.0.0.1:{ports[0]}"], "worker": [f"127.0.0.1:{ports[1]}"]}
    script = f"""
import socket, time
taken = socket.create_server(("", {ports[0]}))
print("up", flush=True)
time.sleep(60)
"""
    holder = lab.start([sys.executable, "-c", script], None, "holder")
    holder.wait_for("up")
    ps = start_by_flags(lab, hosts, ("ps", 0))
    assert ps.wait() == 3
    assert f"port is taken by process {holder.process.pid}" in ps.output
    assert "Traceback" not in ps.output
    holder.process.kill()
    holder.process.wait()


def test_a_second_chief_leaves_the_live_run_alone(lab):
    addresses = [f"127.0.0.1:{port}" for port in lab.free_ports(3)]
    hosts = {"ps": addresses[:1], "worker": addresses[1:]}
    endless = ("--train_steps=1000000", "--log_every=1000")
    commands = [
        start_by_flags(lab, hosts, task, *endless, f"--model_dir={lab.folder}/{task}")
        for task in (("ps", 0), ("worker", 1), ("worker", 0))
    ]
    chief = commands[-1]
    chief.wait_for("^step ")
    second = start_by_flags(
        lab, hosts, ("worker", 0), f"--model_dir={lab.folder}/second", name="second"
    )
    assert second.wait(30) == 3
    assert "port is taken by process" in second.output
    steps = chief.output.count("\nstep ")
    lab.poll(lambda: chief.output.count("\nstep ") > steps + 1, 30, "another step")
    chief.process.send_signal(signal.SIGTERM)
    assert [command.wait() for command in commands] == [143, 143, 143]


def test_missing_tasks_are_named_and_the_wait_ends(lab):
    ports = lab.free_ports(2)
    hosts = {"ps": [f"127.0.0.1:{ports[0]}"], "worker": [f"127.0.0.1:{ports[1]}"]}
    chief = start_by_flags(lab, hosts, ("worker", 0), "--startup_timeout=5")
    assert chief.wait() == 3
    table = chief.output.split("tasks are not ready within")[1]
    assert re.search(f"ps:0 +127.0.0.1:{ports[0]} +does not listen there", table)
    assert re.search(f"worker:0 +127.0.0.1:{ports[1]} +is ready", table)


def test_a_chief_that_fails_before_it_connects_tells_the_servers(lab):
    addresses = [f"127.0.0.1:{port}" for port in lab.free_ports(3)]
    hosts = {"ps": addresses[:1], "worker": addresses[1:]}
    mistake = ("--experiment=mnist_mlp", f"--data_dir={lab.folder}/none")
    tasks = [("worker", 0), ("worker", 1), ("ps", 0)]
    commands = [start_by_flags(lab, hosts, task, *mistake) for task in tasks]
    assert [command.wait(60) for command in commands] == [2, 2, 2]
    assert f"--data_dir={lab.folder}/none is not a folder" in commands[0].output


def test_a_ps_that_cannot_see_the_model_directory(lab):
    """Its file system hides the chief's: checkpoints then go through the chief."""
    ports = lab.free_ports(3)
    hosts = {
        "ps": [f"127.0.0.1:{p}" for p in ports[:2]],
        "worker": [f"127.0.0.1:{ports[2]}"],
    }
    lab.model_dir.mkdir()
    flags = [f"--{job}_hosts={','.join(hosts[job])}" for job in hosts]
    hide = f'mount -t tmpfs none {lab.model_dir} && exec "$@"'
    for index in range(2):
        command = [sys.executable, "-m", "dtrain.main", *FLAGS, *flags]
        command += ["--job_name=ps", f"--task_index={index}"]
        command += [f"--model_dir={lab.folder}/ps-{index}"]
        lab.start(
            ["unshare", "-rm", "sh", "-c", hide, "sh", *command], None, f"ps-{index}"
        )
    chief = start_by_flags(
        lab, hosts, ("worker", 0), f"--result_file={lab.folder}/result.json"
    )
    assert [command.wait() for command in lab.commands] == [0, 0, 0]
    assert "checkpoints go through the chief: ps:0, ps:1 does not see" in chief.output
    result = lab.result()
    # The checkpoint is whole: another strategy restores it and measures the same.
    again = lab.dtrain(
        *FLAGS,
        "--strategy=local",
        f"--result_file={lab.folder}/again.json",
        name="again",
    )
    assert again.wait() == 0
    assert f"Resumed from {lab.model_dir}/ckpt-300" in again.output
    assert lab.result("again.json")["eval"] == pytest.approx(result["eval"], rel=1e-5)
    assert lab.result("again.json")["examples_seen"] == 0
