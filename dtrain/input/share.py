"""Which part of the data one pipeline takes, in which order, and from where on."""

import dataclasses
from typing import NamedTuple

# 2**32 over the golden ratio: its multiples, the pipelines' seeds, lie far apart.
GOLDEN = 0x9E3779B1


class Place(NamedTuple):
    """Where in the data a run is, over all pipelines; a checkpoint holds it.

    Attributes:
        batches: that have been given.
        begun: passes that have begun.
        complete: passes that are over: one less, but at the very end.
    """

    batches: int = 0
    begun: int = 0
    complete: int = 0


START = Place()


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
        place: where all of them were when this run began.
        dealer: address of the service that deals out numbers, under "dynamic".
    """

    pipeline: int = 0
    num_pipelines: int = 1
    num_replicas: int = 1
    sharding: str = "static"
    seed: int = 0
    epochs: int | None = None
    done: int = 0
    place: Place = START
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
            return (self.seed + (self.pipeline + 1) * GOLDEN) % 2**32
        return self.seed

    @property
    def passes_left(self) -> int | None:
        """Passes still to make, where one that was interrupted starts again."""
        if self.epochs is None:
            return None
        return max(self.epochs - self.place.complete, 0)

    def at(self, place: Place) -> "Share":
        """Returns the share from a place in the data on."""
        whole, rest = divmod(place.batches, self.num_pipelines)
        done = whole + (self.pipeline < rest)
        return dataclasses.replace(self, done=done, place=place)
