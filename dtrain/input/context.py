"""What an experiment's data functions are told: which pipeline they are to make."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Iterable

from dtrain.input.share import Share

if typing.TYPE_CHECKING:
    import tensorflow as tf


@dataclasses.dataclass(frozen=True)
class InputContext:
    """Which part of the input this pipeline reads.

    It is true in every process and under every strategy. A function may shard by it,
    with `tf.data.Dataset.shard` or in Python, or ask it for its part with `deal`.

    Attributes:
        num_input_pipelines: how many pipelines read the data together; 1 under
            `--data_sharding=off`, where each of them reads all.
        input_pipeline_id: which of them this one is, 0-based.
        num_replicas_in_sync: replicas that compute one global batch together; more
            than pipelines, where a process has several devices. Where it is above
            1, shard after shuffling and repeating: then a global batch holds the
            same examples however many share it.
        share: what the run says beyond that; for `deal` and `repeat`.
        used: which of these two a function has called, in order.
    """

    num_input_pipelines: int = 1
    input_pipeline_id: int = 0
    num_replicas_in_sync: int = 1
    share: Share | None = dataclasses.field(default=None, repr=False, compare=False)
    used: list[str] = dataclasses.field(default_factory=list, repr=False, compare=False)

    @classmethod
    def of(cls, share: Share) -> InputContext:
        """Returns the context of one pipeline of a run."""
        if share.sharding == "off":
            return cls(1, 0, share.num_replicas, share)
        return cls(share.num_pipelines, share.pipeline, share.num_replicas, share)

    def deal(self, items: Iterable | int) -> tf.data.Dataset:
        """Returns this pipeline's items, pass after pass, as `--data_sharding` says.

        Every pass has each item once, over all pipelines, in an order of its own that
        depends on the seed. "static": every n-th item goes to pipeline i. "dynamic":
        each goes to whoever asks next, while the chief counts. "off": each pipeline
        gets all of them. There is no need to repeat or shuffle: passes follow each
        other without end, or up to `--epochs`.

        Args:
            items: for instance file names, of which every process has the same in the
                same order; or how many there are, to get their numbers.

        Returns:
            A data set of single items; of int64 scalars, if only their number is given.
            Python code may iterate over it as well.

        Raises:
            UsageError: there is no item, or it is no name, number or array.
        """
        from dtrain.input import stream

        self.used.append("deal")
        return stream.deal(items, self._share(), f"deal-{self.used.count('deal')}")

    def repeat(self, data: tf.data.Dataset) -> tf.data.Dataset:
        """Returns the data set over and over: without end, or up to `--epochs`.

        dtrain repeats what a function returns. Repeat by this earlier, before
        `shard` and `batch`, to let batches run from one pass into the next.
        """
        self.used.append("repeat")
        return data.repeat(self._share().epochs)

    def _share(self) -> Share:
        """Returns the run's share; of a context that was made by hand, a static one."""
        return self.share or Share(
            self.input_pipeline_id, self.num_input_pipelines, self.num_replicas_in_sync
        )
