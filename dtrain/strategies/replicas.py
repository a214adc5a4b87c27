"""Replicas that compute one global batch together: what `mirrored` and `sync` share.

Each replica has a model and an optimizer of its own, made from the same seed and
overwritten with the first one's values. A step sums gradients over all replicas, and
every replica applies the same mean to the same weights. So its variables are plain
ones, and all that Keras does when it updates (clipping, decay, constraints, averages)
is done as in a single process. `tf.distribute` finds the devices, runs a function on
each, and sums.
"""

import enum
import time
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from dtrain import errors
from dtrain.config import RunConfig
from dtrain.console import Console
from dtrain.experiment import Experiment
from dtrain.input.reading import Reading
from dtrain.input.share import Share
from dtrain.runtime.collectives import Group, all_reduce
from dtrain.strategies import aside, base, failures, packing, parts, pipelines
from dtrain.strategies import gradients as gradients_lib
from dtrain.strategies import tally as tally_lib
from dtrain.strategies.agreement import Agreement
from dtrain.strategies.common import CommonTrainer
from dtrain.strategies.loop_size import CALL_SECONDS
from dtrain.strategies.reduction import Reduction

# Before each call all processes hear what comes, and their collectives find each other
# anew: 16 to 19 ms a call with four, on one machine.
_CALL_SECONDS_TOGETHER = 1.0

_TAIL = 3  # what follows what each process tells of itself in the totals of a call


class Work(enum.IntEnum):
    """What all processes of a run do together, at the same time."""

    SHARE = 1
    TRAIN = 2
    SETTLE = 3


class ReplicatedTrainer(CommonTrainer):
    """A Trainer whose replicas train on one global batch.

    Args:
        experiment: what to train.
        config: without gaps.
        group: all replicas of the run.
        console: for warnings.
    """

    def __init__(
        self,
        experiment: Experiment,
        config: RunConfig,
        group: Group,
        console: Console,
    ):
        self.is_synchronous = True
        self.replicas = group.size
        self.checkpoint_options = tf.train.CheckpointOptions()
        self._group = group
        self._is_shared = False
        self._first_step = 0  # of this run
        self._own = np.zeros(len(group.devices))  # batches, by local replica
        self._reduction = Reduction(config.gradient_dtype, group.size)

        share = Share(
            group.process,
            group.num_processes,
            group.size,
            config.data_sharding,
            config.seed,
            config.epochs,
        )
        self._inputs = pipelines.OwnInputs(
            experiment.train_data, share, config.batch_size
        )
        self._reading: Reading | None = None

        with tf.device(group.host()):  # where it can be counted up
            counter = tf.Variable(0, dtype=tf.int64, name="global_step")
        self._models, self._optimizers = [], []
        for device in group.devices:
            keras.utils.set_random_seed(config.seed)
            with tf.device(device):
                model = parts.build_model(
                    experiment, self._inputs.outline.spec, config.mixed_precision
                )
                optimizer = parts.make_optimizer(experiment, config)
                optimizer.build(model.trainable_variables)
            self._models.append(model)
            self._optimizers.append(optimizer)
        _check_own("model", [v for m in self._models for v in m.variables])
        _check_own("optimizer", self._optimizers)
        is_alone = group.num_processes == 1
        call_seconds = CALL_SECONDS if is_alone else _CALL_SECONDS_TOGETHER
        super().__init__(
            experiment,
            config,
            self._inputs.outline,
            group.num_processes,
            self._models[0],
            self._optimizers[0],
            counter,
            call_seconds=call_seconds,
            replica=group.first,
        )
        self._steps = [self._step] + [
            base.Step(
                self._models[k],
                self._optimizers[k],
                self._objective,
                counter,
                config.accumulate_steps,
                group.first + k,
                config.seed,
                parts.make_loss_scale(config),
            )
            for k in range(1, len(self._models))
        ]
        self._agreement = Agreement(
            group, self._call, self._variables(), self._changed, console
        )
        self._works: dict[Work, Callable[[int], Any]] = {
            Work.SHARE: self._share,
            Work.TRAIN: self._train,
            Work.SETTLE: self._settle,
        }
        # TensorFlow's own random operations differ from process to process, too.
        tf.random.set_seed(config.seed + group.first)
        self._packed: Callable | None = None

    def train(self, num_steps: int) -> None:
        self._share_once()
        started = time.monotonic()
        with self._loop_size.timed(num_steps):
            totals = self._together(Work.TRAIN, num_steps)
        seconds = time.monotonic() - started
        processes = self._group.num_processes
        begun, updates, batches = (int(value) for value in totals[-_TAIL:])
        bad, waits = totals[-_TAIL - 2 * processes : -_TAIL].reshape(2, processes)
        bad_steps = [tally_lib.bad_step(step) for step in bad if step]
        if self._may_end:
            # A step without any batch is none; the last ones had none.
            self.is_over = batches < num_steps
        elif not batches:
            raise errors.TrainingFailed(failures.NO_BATCH)
        waits = [(i, waited, seconds) for i, waited in enumerate(waits)]
        self._note(totals, updates, batches, begun, waits, min(bad_steps, default=None))

    def wait(self) -> None:
        """Does nothing: no step is ever under way between two calls."""

    def evaluate(self, is_over: Callable[[], bool]) -> dict[str, float] | None:
        self.before_save()
        return super().evaluate(is_over)

    def before_save(self) -> None:
        super().before_save()
        self._share_once()
        self._together(Work.SETTLE, self.global_step)

    @property
    def worker_steps(self) -> list[int]:
        done = self.global_step - self._first_step
        processes = self._group.num_processes
        return [done] * processes if processes > 1 else []

    def after_restore(self) -> None:
        super().after_restore()
        self._first_step = self.global_step
        self._is_shared = False

    def _share_once(self) -> None:
        if not self._is_shared:
            self._together(Work.SHARE, self.global_step)
            self._is_shared = True

    def _together(self, work: Work, number: int = 0) -> Any:
        """Does what all processes do at the same time; here there is one."""
        with self._inputs.explained():
            return self._works[work](number)

    def _call(self, function: Callable, *args) -> Any:
        """Calls a traced function in which all replicas take part."""
        return aside.call(function, *args)

    # The work itself.

    def _share(self, step: int) -> None:
        """Gives every replica the first one's variables, and the place in the data."""
        self._counter.assign(step)
        place = self._call(self._tell, tf.constant(self._place, tf.int64)).numpy()
        self._set_place(place)
        if self._reading is None or self._opened_at != self._place:
            self._opened_at = self._place
            self._reading = self._inputs.open(self._place)
        if self.replicas > 1:
            self._agreement.share()

    def _train(self, num_steps: int) -> np.ndarray:
        """Returns totals as `_pack` makes them."""
        totals, own = self._call(
            self._traced(), self._reading.iterator, tf.constant(num_steps, tf.int64)
        )
        self._own += own.numpy()
        return totals.numpy()

    def _settle(self, step: int) -> None:
        """Makes replicas agree on what each has for itself, and sees that they do.

        Moving averages are averaged over the replicas; what a model counts in
        integers is the first replica's.
        """
        for optimizer in self._optimizers:
            optimizer.iterations.assign(step)
        if self.replicas > 1:
            self._agreement.average(self._own > 0)
            self._agreement.check(step)

    # A step.

    def _traced(self) -> Callable:
        """Returns the packed steps, traced in this thread, by which Keras keeps."""
        if self._packed is None:
            self._packed = pipelines.trace(self._pack(), self._inputs.outline.spec)
        return self._packed

    def _pack(self) -> Callable:
        def start():
            tallies = [self._start_tally() for _ in self._group.devices]
            return tf.zeros([len(self._group.devices)]), tallies

        batches = self._accumulate_steps * len(self._group.devices)
        unroll = max(1, packing.UNROLL // batches)
        packed = packing.pack(self._take_step, start, unroll)

        def all_steps(iterator, num_steps):
            loss, (own, tallies) = packed(iterator, num_steps)
            local = [tf.add_n(list(parts)) for parts in zip(*tallies, strict=True)]
            totals = self._objective.pack(loss, tally_lib.metrics(local))
            # Replicas look at the clock one after the other: their waits add up.
            bad, waited, begun, batches, _ = tally_lib.extras(local)
            group = self._group
            own_place = tf.one_hot(group.process, group.num_processes, dtype=tf.float64)
            # All make the same updates: the first one counts them.
            updates = tally_lib.extras(tallies[0])[-1] * (group.process == 0)
            totals = tf.concat(
                [
                    totals,
                    own_place * bad,
                    own_place * waited,
                    tf.stack([begun, updates, batches]),
                ],
                0,
            )
            return group.sum_over_processes(totals), own

        return all_steps

    def _take_step(self, iterator, state) -> tuple[tf.Tensor, tuple]:
        """Makes one update from one global batch."""
        own, tallies = state
        first = self._steps[0]
        step = first.peek_ticket() if self._may_end else first.take_ticket()

        def micro(index, tallies):
            batches = [pipelines.next_or_zeros(iterator) for _ in self._group.devices]
            return self._group.each(
                lambda k: self._steps[k].sums(
                    batches[k][0], step, tallies[k], index, batches[k][1]
                )
            )

        sums = gradients_lib.accumulate(
            micro,
            self._accumulate_steps,
            lambda k: self._steps[k].zeros(),
            tallies,
        )
        reduced = self._group.each(
            lambda k: self._reduction.sum(
                sums[k].gradients, sums[k].weight, self._group.first + k, all_reduce
            )
        )

        def update() -> tf.Tensor:
            for k, device in enumerate(self._group.devices):
                gradients, total = reduced[k]
                with tf.device(device):
                    self._steps[k].apply(gradients_lib.divide(gradients, total), step)
            if self._may_end:
                first.take_ticket()
            return tf.ones([], tf.float64)

        total = reduced[0][1]
        if self._may_end:  # where no replica has a batch, there is nothing to do
            batches = self._group.each(lambda k: all_reduce(sums[k].batches))[0]
            updates = tf.cond(batches > 0, update, lambda: tf.zeros([], tf.float64))
        else:
            updates = update()
        loss = tf.math.divide_no_nan(tf.add_n([s.loss for s in sums]), total)
        own += tf.stack([s.batches for s in sums])
        # The loss is this process's part of the whole: the first replica notes it.
        losses = [loss] + [tf.zeros([])] * (len(sums) - 1)
        tallies = [
            tally_lib.with_update(s.tally, part, step, updates)
            for s, part in zip(sums, losses, strict=True)
        ]
        return loss, (own, tallies)

    # Over all processes.

    @tf.function(autograph=False)
    def _tell(self, own: tf.Tensor) -> tf.Tensor:
        """Returns what the first process gives."""
        mine = own if self._group.process == 0 else tf.zeros_like(own)
        return self._group.sum_over_processes(mine)

    def _variables(self) -> list[list[tf.Variable]]:
        """Returns what a checkpoint holds, but for the count, by local replica."""
        return [
            [
                *(v.value for v in (*model.variables, *optimizer.variables)),
                *(step.loss_scale.variables if step.loss_scale else ()),
            ]
            for model, optimizer, step in zip(
                self._models, self._optimizers, self._steps, strict=True
            )
        ]

    def _changed(self) -> list[list[tf.Variable]]:
        """Returns what the traced steps change beside the weights."""
        return [
            [v.value for v in model.non_trainable_variables if id(v) in step.changed]
            for model, step in zip(self._models, self._steps, strict=True)
        ]


def _check_own(field: str, things: Sequence) -> None:
    """Sees that every replica has things of its own.

    Raises:
        UsageError: an experiment's function returned the same twice.
    """
    if len({id(thing) for thing in things}) != len(things):
        raise errors.UsageError(
            f"Experiment({field}=...) returned the same {field} for several replicas. "
            f"Make a new one each time the function is called: {field}=lambda: ..."
        )
