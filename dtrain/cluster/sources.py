"""Where the description of the cluster comes from: flags, environment, TF_CONFIG."""

import dataclasses
from collections.abc import Mapping, Sequence

from dtrain import errors
from dtrain.cluster import tf_config
from dtrain.cluster.address import quote, split_address
from dtrain.cluster.spec import Cluster
from dtrain.cluster.task import JOBS, Task
from dtrain.config import RunConfig

# How each source names the same five things.
_FLAGS = {
    "ps": "--ps_hosts",
    "worker": "--worker_hosts",
    "chief": "--chief_host",
    "type": "--job_name",
    "index": "--task_index",
}
_ENV = {
    "ps": "PS_HOSTS",
    "worker": "WORKER_HOSTS",
    "chief": "CHIEF_HOST",
    "type": "JOB_NAME",
    "index": "TASK_INDEX",
}
_HOST_LISTS = ("ps", "worker", "chief")

# In the order in which --cluster=auto takes them, with what messages call them.
_TITLES = {"flags": "the flags", "env": "the environment", "tf_config": "TF_CONFIG"}
_NOT_THERE = {
    "flags": "none of --ps_hosts, --worker_hosts, --chief_host, --job_name and "
    "--task_index is given. Add them",
    "env": "neither PS_HOSTS nor WORKER_HOSTS is set. Set them, JOB_NAME and "
    "TASK_INDEX",
    "tf_config": "the environment variable TF_CONFIG is not set, or empty. Set it",
}


@dataclasses.dataclass(frozen=True)
class Source:
    """The cluster of a run, this process's task in it, and who said so.

    Attributes:
        name: "flags", "env", "tf_config" or "local".
        cluster: The described cluster; `None` for "local", and for an evaluator that
            knows none.
        task: Which of its tasks this process is; `None` for "local".
        notices: Sentences that the user should see.
    """

    name: str
    cluster: Cluster | None = None
    task: Task | None = None
    notices: tuple[str, ...] = ()


def find(config: RunConfig, environ: Mapping[str, str]) -> Source:
    """Finds the description of the cluster, following `--cluster`.

    With `auto`, flags come before the environment, the environment before TF_CONFIG,
    and a local cluster is what is left. Any other value takes that source alone.

    Args:
        config: The options of the run, of which the cluster's are read.
        environ: The environment variables, usually `os.environ`.

    Raises:
        UsageError: the description is malformed, two sources disagree, or the one
            asked for is not there.
    """
    if config.cluster == "local":
        return Source("local")
    there = _list_sources(config, environ)
    if config.cluster != "auto":
        if config.cluster not in there:
            raise errors.UsageError(
                f"--cluster={config.cluster}, but {_NOT_THERE[config.cluster]}, or "
                "leave out --cluster."
            )
        there = [config.cluster]
    sources = [_read(name, there, config, environ) for name in there]
    if not sources:
        return Source("local")
    for other in sources[1:]:
        _check_agreement(sources[0], other)
    _check_has_task(sources[0])
    return sources[0]


def leftover_message(leftovers: Sequence[str]) -> str:
    """Returns the one line that tells what is wrong with leftover arguments.

    Args:
        leftovers: The positional arguments, at least one. dtrain takes none; most
            are the rest of a list of hosts with a space after a comma.
    """
    what = "argument" if len(leftovers) == 1 else "arguments"
    given = f"Leftover {what} {', '.join(map(quote, leftovers))}."
    if any(map(_looks_like_hosts, leftovers)):
        return (
            f"{given} A list of hosts is one argument: write --ps_hosts=a:1,b:2 "
            'without spaces, or quote it: --ps_hosts="a:1, b:2".'
        )
    return f"{given} Everything is a flag: write --name=value, or see --help."


def _list_sources(config: RunConfig, environ: Mapping[str, str]) -> list[str]:
    flags = _read_flags(config)
    env = _read_env(environ)
    there = {
        "flags": any(value is not None for value in flags.values()),
        # JOB_NAME alone is no cluster: build servers set it too.
        "env": env["ps"] is not None or env["worker"] is not None,
        "tf_config": tf_config.is_there(environ.get("TF_CONFIG")),
    }
    return [name for name in _TITLES if there[name]]


def _read_flags(config: RunConfig) -> dict[str, str | int | None]:
    return {key: getattr(config, name[2:]) for key, name in _FLAGS.items()}


def _read_env(environ: Mapping[str, str]) -> dict[str, str | int | None]:
    # As in a shell script, an empty variable is one that is not set.
    return {key: environ.get(name, "").strip() or None for key, name in _ENV.items()}


def _read(
    name: str, there: list[str], config: RunConfig, environ: Mapping[str, str]
) -> Source:
    try:
        if name == "flags":
            return _read_hosts("flags", _read_flags(config), _FLAGS)
        if name == "env":
            return _read_hosts("env", _read_env(environ), _ENV)
        cluster, task, notices = tf_config.parse(environ["TF_CONFIG"])
        return Source("tf_config", cluster, task, tuple(notices))
    except errors.UsageError as error:
        others = [f"--cluster={other}" for other in there if other != name]
        if not others:
            raise
        raise errors.UsageError(
            f"{error} Or ignore {_TITLES[name]}: {' or '.join(others)}."
        ) from error


def _read_hosts(
    source: str, values: Mapping[str, str | int | None], names: Mapping[str, str]
) -> Source:
    jobs = {
        job: _split_hosts(values[job], names[job])
        for job in _HOST_LISTS
        if values[job] is not None
    }
    evaluator = Task("evaluator") if values["type"] == "evaluator" else None
    if not jobs and evaluator is not None:  # which needs a model directory, no hosts
        return Source(source, None, evaluator)
    if not jobs and values["type"] not in (None, *JOBS):
        Task(values["type"])  # says what is wrong
    if not jobs:
        given = names["type" if values["type"] is not None else "index"]
        raise errors.UsageError(
            f"{given} is given, but no hosts. Add {names['ps']}=host:port,... and "
            f"{names['worker']}=host:port,..., the same for every task, or leave "
            f"{given} out."
        )
    try:
        cluster = Cluster(jobs)
    except errors.UsageError as error:
        lists = ", ".join(names[job] for job in jobs)
        raise errors.UsageError(f"{lists}: {error}") from error
    if values["type"] is None:
        return Source(source, cluster)
    if evaluator is not None:
        return Source(source, cluster, evaluator)
    task = cluster.find_task(
        values["type"], values["index"], names["type"], names["index"]
    )
    return Source(source, cluster, task)


def _split_hosts(hosts: str, name: str) -> list[str]:
    given = f"{name}={quote(hosts)}"
    addresses = [item.strip() for item in hosts.split(",")]
    if not any(addresses):
        raise errors.UsageError(
            f"{given} is an empty list of hosts. Write {name}=a:1,b:2, or leave it out."
        )
    if "" in addresses:
        raise errors.UsageError(
            f"{given} has nothing as item {addresses.index('') + 1}. Put one "
            f"comma between two hosts: {name}={','.join(filter(None, addresses))}."
        )
    for address in addresses:
        try:
            split_address(address)
        except errors.UsageError as error:
            raise errors.UsageError(f"{given}: {error}") from error
    return addresses


def _check_agreement(first: Source, other: Source) -> None:
    ours, theirs = _TITLES[first.name], _TITLES[other.name]
    differences = []
    for job in JOBS if None not in (first.cluster, other.cluster) else ():
        here, there = first.cluster.addresses(job), other.cluster.addresses(job)
        if here != there:
            differences.append(
                f"{job} is {','.join(here) or 'absent'} in {ours} and "
                f"{','.join(there) or 'absent'} in {theirs}"
            )
    # A script that exports PS_HOSTS and passes it on as a flag sets no JOB_NAME.
    if None not in (first.task, other.task) and first.task != other.task:
        differences.append(
            f"the task is {first.task} in {ours} and {other.task} in {theirs}"
        )
    if differences:
        raise errors.UsageError(
            f"{ours[0].upper()}{ours[1:]} and {theirs} disagree: "
            f"{'; '.join(differences)}. Make them agree, or pick one: "
            f"--cluster={first.name} or --cluster={other.name}."
        )


def _check_has_task(source: Source) -> None:
    if source.task is None:
        names = _FLAGS if source.name == "flags" else _ENV
        jobs = " or ".join(source.cluster.jobs)
        raise errors.UsageError(
            f"{names['type']} is missing: the cluster is "
            f"{quote(source.cluster.sizes())}, but which of its tasks is this process? "
            f"Give {names['type']} ({jobs}) and {names['index']}."
        )


def _looks_like_hosts(argument: str) -> bool:
    addresses = [item for item in argument.split(",") if item.strip()]
    try:
        for address in addresses:
            split_address(address.strip())
    except errors.UsageError:
        return False
    return bool(addresses)
