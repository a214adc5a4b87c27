"""A worker's own data, made by its own Python, for the steps that run on it.

The process that serves a worker calls the experiment's `train_data`, and hands the data
set to tf.data's own service, a dispatcher and a worker inside the process. The chief's
steps run on this worker's device, find the service there, and take batches
that never leave the process.
"""

import dataclasses
import json
import pickle
import threading
import time
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from dtrain import errors, experiment
from dtrain.config import RunConfig
from dtrain.console import Console
from dtrain.input.feed import Feed, Outline
from dtrain.input.share import START as START_PLACE
from dtrain.input.share import Place, Share
from dtrain.runtime import calls

OPEN, START, FAILURE, PAUSE = "open_input", "start_input", "input_failure", "pause"
_PAUSE_SECONDS = 0.1


@dataclasses.dataclass(frozen=True)
class Order:
    """What the chief tells each worker about its data.

    Attributes:
        config: fields of the chief's RunConfig.
        share: fields of a Share, which are the same for all workers.
        place: where in the data all workers were when this run began.
    """

    config: dict[str, Any]
    share: dict[str, Any]
    place: Place = START_PLACE

    @classmethod
    def from_json(cls, text: str) -> "Order":
        order = cls(**json.loads(text))
        return dataclasses.replace(order, place=Place(*order.place))

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self))


@dataclasses.dataclass(frozen=True)
class Opened:
    """What a worker tells the chief about its data.

    Attributes:
        outline: of its own part; `None` if it could not be opened.
        status: the exit status that a failure calls for; 0 if there is none.
        message: what failed, with the user's traceback.
    """

    outline: Outline | None = None
    status: int = 0
    message: str = ""


@dataclasses.dataclass(frozen=True)
class _Data:
    """What has been opened, and for what.

    Attributes:
        order: the chief's, but for the place.
        function: the experiment's `train_data`.
        config: what the experiment was built with.
        share: this worker's.
        feed: the data.
    """

    order: Order
    function: Callable[..., Any]
    config: RunConfig
    share: Share
    feed: Feed


class InputService:
    """The data of the worker that this process serves.

    Args:
        function: what to train; `None` to find it by the name that the chief tells.
        config: this command's own.
        index: which worker this is.
        console: for what a person who reads this worker's log wants to know.
    """

    def __init__(
        self,
        function: Callable[[RunConfig], experiment.Experiment] | None,
        config: RunConfig,
        index: int,
        console: Console,
    ):
        self._function = function
        self._own_config = config
        self._index = index
        self._console = console
        self._lock = threading.Lock()
        self._opened: _Data | None = None
        self._failure: Exception | None = None  # of what was started
        service = tf.data.experimental.service
        self._dispatcher = service.DispatchServer(service.DispatcherConfig(port=0))
        self._address = self._dispatcher.target.split("://")[1]
        self._worker = service.WorkerServer(
            service.WorkerConfig(dispatcher_address=self._address, port=0)
        )
        calls.answer(OPEN, self._answer_open)
        calls.answer(START, self._answer_start)
        calls.answer(FAILURE, self._answer_failure)
        calls.answer(PAUSE, self._answer_pause)

    def _answer_open(self, order: bytes, pipeline: int) -> bytes:
        """Returns a pickled `Opened`."""
        try:
            feed, share = self._open(order.decode(), int(pipeline))
            answer = Opened(feed.outline(share))
        except errors.DtrainError as error:
            answer = Opened(status=error.exit_status, message=str(error))
        except Exception as error:
            message = f"train_data failed: {errors.describe_with_traceback(error)}"
            answer = Opened(status=errors.TrainingFailed.exit_status, message=message)
        if answer.message:
            self._console.log(answer.message)
        return pickle.dumps(answer)

    def _answer_start(self, order: bytes, taken: int, pipeline: int) -> bytes:
        """Returns where this worker's batches are: "host:port id".

        A worker that was started again is told here for the first time.

        Args:
            order: as JSON.
            taken: batches that steps of this run have taken from this worker.
            pipeline: which of the run's workers this is; a lost one may be missing.
        """
        is_back = self._opened is None and taken
        try:
            feed, share = self._open(order.decode(), int(pipeline))
            place = Order.from_json(order.decode()).place
            share = share.at(place)
            if feed.deals and share.sharding == "dynamic" and place.batches:
                feed = self._open_again(share)
            share = dataclasses.replace(share, done=share.done + int(taken))
            if is_back:
                share = feed.from_pass(share)
                self._console.line(f"worker:{self._index} is back, and so is its data.")
            data = feed.batches(share, is_served=True)
        except Exception as error:
            self._failure = error
            raise
        name = tf.data.experimental.service.register_dataset(
            f"grpc://{self._address}", data, compression=None
        )
        return f"{self._address} {name.numpy().decode()}".encode()

    def _answer_failure(self) -> bytes:
        """Returns what the user's Python code raised here, for people; or nothing."""
        failure = self._failure or (self._opened and self._opened.feed.failure)
        return errors.describe_with_traceback(failure).encode() if failure else b""

    def _answer_pause(self) -> bytes:
        """Returns after a moment: this worker has no batch left, but others have."""
        time.sleep(_PAUSE_SECONDS)
        return b""

    def _open(self, order: str, pipeline: int) -> tuple[Feed, Share]:
        """Returns the data that an order asks for, opened once."""
        with self._lock:
            known = Order.from_json(order)
            key = dataclasses.replace(known, place=START_PLACE)
            if self._opened is None or self._opened.order != key:
                config = self._own_config.replace(**known.config)
                if self._own_config.data_dir is not None:  # where it is on this machine
                    config = config.replace(data_dir=self._own_config.data_dir)
                # A function that was sent here is this machine's own.
                own = self._own_config.experiment
                name = own if own.endswith(".pickle") else config.experiment
                function = self._function or experiment.find(name)
                what, config = experiment.build(function, config)
                share = Share(pipeline=pipeline, **known.share)
                feed = Feed(what.train_data, share, config.batch_size)
                self._opened = _Data(key, what.train_data, config, share, feed)
            return self._opened.feed, self._opened.share

    def _open_again(self, share: Share) -> Feed:
        """Returns the data with items that are dealt out from a place on.

        Raises:
            UsageError: nobody knows which passes are left.
        """
        if share.epochs is not None and not share.place.complete:
            raise errors.UsageError(
                f"--epochs={share.epochs} cannot go on from a checkpoint with "
                "--data_sharding=dynamic and ctx.deal: which items of a pass were "
                "read is not known. Use --train_steps, or --data_sharding=static."
            )
        known = self._opened
        feed = Feed(known.function, share, known.config.batch_size)
        self._opened = dataclasses.replace(known, feed=feed)
        return feed
