"""A cluster and its tasks, as checked data: heir of `tf.train.ClusterSpec`."""

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from dtrain import errors
from dtrain.cluster.address import normalise_address, quote, split_address
from dtrain.cluster.task import JOBS, Task, near_name, read_index

__all__ = ["JOBS", "Cluster", "Task", "split_address"]

# The jobs that a strategy needs. One that runs in a single process needs none, and
# has no use for a cluster.
_NEEDED_JOBS = {
    "local": (),
    "mirrored": (),
    "ps": ("ps", "worker"),
    "sync": ("worker",),
}


@dataclasses.dataclass(frozen=True)
class Cluster:
    """Who takes part in a run, and where they listen.

    Attributes:
        jobs: Job name to the addresses of its tasks, by index; only jobs that have
            tasks, in the order of `JOBS`. Addresses are normalised (host names in
            lower case), so clusters that mean the same compare equal.

    Raises:
        UsageError: an unknown job, an empty list, what is no list, a bad address or
            one that is there twice, more than one chief, or no task at all.
    """

    jobs: Mapping[str, Sequence[str]]

    def __post_init__(self):
        if not isinstance(self.jobs, Mapping) or not self.jobs:
            raise errors.UsageError(
                f"The cluster {quote(self.jobs)} names no task. "
                'Give each job a list of addresses: {"worker": ["host:port"]}.'
            )
        for job in self.jobs:
            if job not in JOBS:
                raise errors.UsageError(
                    f"The cluster has a job {quote(job)}, which is unknown. "
                    f"Choose from: {', '.join(JOBS)}." + near_name(job, JOBS)
                )
        jobs = {
            job: _read_addresses(job, self.jobs[job])
            for job in JOBS
            if job in self.jobs
        }
        if len(jobs.get("chief", ())) > 1:
            raise errors.UsageError(
                f"The cluster has {len(jobs['chief'])} chief tasks "
                f"({', '.join(jobs['chief'])}). Keep one, make the others workers."
            )
        object.__setattr__(self, "jobs", jobs)
        self._check_each_address_once()

    def addresses(self, task_type: str) -> tuple[str, ...]:
        """Returns the addresses of a job's tasks, none if there is no such job."""
        return tuple(self.jobs.get(task_type, ()))

    def address(self, task: Task) -> str:
        """Returns the address of a task.

        Raises:
            UsageError: the cluster has no such task.
        """
        addresses = self.addresses(task.type)
        if task.index >= len(addresses):
            raise errors.UsageError(
                f"{task} is not in the cluster {quote(self.sizes())}. "
                f"Choose one of: {', '.join(map(str, self.tasks()))}."
            )
        return addresses[task.index]

    def tasks(self) -> tuple[Task, ...]:
        """Returns every task: the chief, the workers, the ps, the evaluators."""
        return tuple(
            Task(job, index)
            for job, addresses in self.jobs.items()
            for index in range(len(addresses))
        )

    def servers(self) -> tuple[Task, ...]:
        """Returns the tasks that serve a chief: the workers and the ps."""
        return tuple(task for task in self.tasks() if task.type in ("worker", "ps"))

    def rank_on_host(self, task: Task) -> Task:
        """Returns the task with its index counted among its job on the same host."""
        host, _ = split_address(self.address(task))
        before = self.addresses(task.type)[: task.index]
        return Task(task.type, sum(split_address(a)[0] == host for a in before))

    def place_on_host(self, task: Task) -> tuple[int, int]:
        """Returns which of all tasks on its host this one is, and of how many."""
        host, _ = split_address(self.address(task))
        here = [t for t in self.tasks() if split_address(self.address(t))[0] == host]
        return here.index(task), len(here)

    def sizes(self) -> dict[str, int]:
        """Returns how many tasks each job has; only jobs that have some."""
        return {job: len(addresses) for job, addresses in self.jobs.items()}

    @property
    def num_workers(self) -> int:
        """The number of worker tasks, the chief not counted."""
        return len(self.addresses("worker"))

    @property
    def num_ps(self) -> int:
        """The number of ps tasks."""
        return len(self.addresses("ps"))

    @property
    def chief(self) -> Task:
        """The task that leads: the chief if there is one, else worker 0."""
        return Task("chief", 0) if self.addresses("chief") else Task("worker", 0)

    def without(self, task_type: str) -> "Cluster":
        """Returns the cluster with a job left out; the same if it has no such job.

        Raises:
            UsageError: nobody would be left.
        """
        return Cluster({job: a for job, a in self.jobs.items() if job != task_type})

    def without_tasks(self, tasks: Collection[Task]) -> "Cluster":
        """Returns the cluster with some tasks left out, and the others renumbered."""
        return Cluster(
            {
                job: [
                    address
                    for index, address in enumerate(addresses)
                    if Task(job, index) not in tasks
                ]
                for job, addresses in self.jobs.items()
            }
        )

    def to_dict(self) -> dict[str, list[str]]:
        """Returns job name to list of addresses, as `tf.train.ClusterSpec` takes it."""
        return {job: list(addresses) for job, addresses in self.jobs.items()}

    def find_task(
        self,
        task_type: Any,
        index: Any,
        type_name: str = "task_type",
        index_name: str = "task_index",
    ) -> Task:
        """Returns the task that somebody named, if it is in this cluster.

        Args:
            task_type: What was given as the job.
            index: What was given as the index: a whole number, or one as a string;
                `None` where nothing was, which is enough for a job of one task.
            type_name: What messages call the first, for instance "--job_name".
            index_name: What messages call the second, for instance "--task_index".

        Raises:
            UsageError: the cluster has no such task.
        """
        # A tuple, because a list from JSON cannot be looked up in a dict.
        if task_type not in tuple(self.jobs):
            add = f", or add addresses for {task_type}" if task_type in JOBS else ""
            raise errors.UsageError(
                f"{type_name}={quote(task_type)} is no job of the cluster, which is "
                f"{quote(self.sizes())}. Choose one of: {', '.join(self.jobs)}{add}."
                + near_name(task_type, self.jobs)
            )
        size = len(self.jobs[task_type])
        return Task(task_type, read_index(index, size, task_type, index_name))

    def check_strategy(self, strategy: str) -> None:
        """Checks that this described cluster has the tasks that a strategy needs.

        Args:
            strategy: One of `config.STRATEGIES`.

        Raises:
            UsageError: a job is missing, or the strategy runs in one process.
        """
        needed = _NEEDED_JOBS[strategy]
        missing = [job for job in needed if job not in self.jobs]
        if needed and not missing:
            return
        others = [
            f"use --strategy={other}"
            for other, jobs in _NEEDED_JOBS.items()
            if jobs and all(job in self.jobs for job in jobs)
        ]
        if missing:
            jobs = " and ".join(f"one {job} task" for job in missing)
            flags = " and ".join(f"--{job}_hosts=host:port" for job in missing)
            problem = f"needs at least {jobs}, but the cluster is"
            ways = [f"add {flags} (or the job in TF_CONFIG)", *others]
            ways.append("give --cluster=local to start a local cluster instead")
        else:
            problem = "runs in one process, but a cluster is described:"
            ways = [*others, "give --cluster=local to ignore the description"]
        advice = ", or ".join(ways)
        raise errors.UsageError(
            f"--strategy={strategy} {problem} {quote(self.sizes())}. "
            f"{advice[0].upper()}{advice[1:]}."
        )

    def _check_each_address_once(self) -> None:
        owners = {}
        for task in self.tasks():
            address = self.address(task)
            if address in owners:
                raise errors.UsageError(
                    f"Address {address} is there twice, for {owners[address]} and for "
                    f"{task}. Give each task its own."
                )
            owners[address] = task


def _read_addresses(job: str, addresses: Any) -> tuple[str, ...]:
    given = f"The cluster's job {quote(job)}"
    if isinstance(addresses, str):
        raise errors.UsageError(
            f"{given} is the text {quote(addresses)}, not a list. "
            f"Write {quote([item.strip() for item in addresses.split(',')])}."
        )
    if not isinstance(addresses, list | tuple):
        raise errors.UsageError(
            f"{given} is {quote(addresses)}, not a list. Give the addresses of all "
            'its tasks, in order: ["a:1", "b:2"].'
        )
    if not addresses:
        raise errors.UsageError(
            f"{given} has an empty list. Give it addresses, or leave the job out."
        )
    for index, address in enumerate(addresses):
        if not isinstance(address, str) or not address.strip():
            raise errors.UsageError(
                f"{given} has {quote(address)} for task {index}, which is no address. "
                'Give each task a text "host:port".'
            )
    return tuple(normalise_address(address.strip()) for address in addresses)
