"""Which part of the data one pipeline takes, in which order, and from where on."""

import dataclasses

# 2**32 over the golden ratio: its multiples, the pipelines' seeds, lie far apart.
_GOLDEN = 0x9E3779B1


@dataclasses.dataclass(frozen=True)
class Share:
    """One pipeline's part of the data, of this run.

    Attributes:
        pipeline: which of the pipelines this is, 0-based.
        num_pipelines: how many read the data together.
        num_replicas: replicas that compute one global batch together.
        sharding: "static", "dynamic" or "off": the flag `--data_sharding`.
        seed: of the order.
        epochs: passes over the data, of all runs together; `None` for no end.
        done: batches that this pipeline has given already, which come no more.
        all_done: batches that all pipelines had given when this run began.
        passes: passes that had been begun when this run began.
        dealer: address of the service that deals out numbers, under "dynamic".
    """

    pipeline: int = 0
    num_pipelines: int = 1
    num_replicas: int = 1
    sharding: str = "static"
    seed: int = 0
    epochs: int | None = None
    done: int = 0
    all_done: int = 0
    passes: int = 0
    dealer: str | None = None

    @property
    def stride(self) -> tuple[int, int]:
        """Which elements of one stream this pipeline takes: (first, every)."""
        if self.sharding == "static":
            return self.pipeline, self.num_pipelines
        return 0, 1

    @property
    def order_seed(self) -> int:
        """The seed of this pipeline's order: its own, if everyone sees all."""
        if self.sharding == "off":
            return (self.seed + (self.pipeline + 1) * _GOLDEN) % 2**32
        return self.seed

    @property
    def passes_left(self) -> int | None:
        """Passes still to make, where one that was interrupted starts again."""
        if self.epochs is None:
            return None
        return max(self.epochs - max(self.passes - 1, 0), 0)

    def at(self, done: int, passes: int) -> "Share":
        """Returns the share from a place in the data on.

        Args:
            done: batches that all pipelines together have given.
            passes: passes that have been begun.
        """
        own = done // self.num_pipelines + (self.pipeline < done % self.num_pipelines)
        return dataclasses.replace(self, done=own, all_done=done, passes=passes)
