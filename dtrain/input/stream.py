"""Endless numbers, dealt out to pipelines, and the examples that they stand for.

Number t stands for place t % count of pass t // count, in an order that is a function
of the seed and the pass. So nothing is held in memory, any place can be found at once,
and pipelines that take different numbers read nothing twice in a pass.
"""

import numbers as numbers_lib
import os
from collections.abc import Iterable

import numpy as np
import tensorflow as tf
from tensorflow.python.data.experimental.ops import data_service_ops

from dtrain import errors
from dtrain.input.share import Share

MOST = 2**62

# With seeds of zeros, or four rounds, sets of a few dozen come out almost in order.
_ROUNDS = 8
_SALT = np.int64(0x9E3779B1)


def draw(share: Share, count: int, size: int, job: str, start: int) -> tf.data.Dataset:
    """Returns the indices that this pipeline takes, pass after pass.

    Args:
        share: which.
        count: how many examples a pass has, at least one.
        size: how many to give at a time. What is left at the end of the last epoch is
            less, and may run from one pass into the next.
        job: under "dynamic", the name under which all pipelines ask for the same.
        start: elements that are left out.

    Returns:
        Elements (numbers, indices), both int64 (size,).
    """
    first, every = share.stride
    end = MOST if share.epochs is None else share.epochs * count

    @tf.autograph.experimental.do_not_convert
    def element(number):
        t = first + every * (number * size + tf.range(size, dtype=tf.int64))
        if share.epochs is not None:
            t = tf.boolean_mask(t, t < end)
        passes, place = t // count, t % count
        seed = tf.fill(tf.shape(t), tf.constant(share.order_seed, tf.int64))
        # The public index_shuffle takes one seed for all.
        index = tf.raw_ops.RandomIndexShuffle(
            index=place,
            seed=tf.stack([seed, passes, tf.fill(tf.shape(t), _SALT)], 1),
            max_index=tf.constant(count - 1, tf.int64),
            rounds=_ROUNDS,
        )
        return t, index

    if share.sharding == "dynamic" and share.dealer is not None:
        numbers = _dealt(share.dealer, job, start)
        if share.epochs is not None:
            numbers = numbers.take_while(lambda number: number * size < end)
        return numbers.map(element)
    return tf.data.Dataset.range(start, _batches(end, first, every * size)).map(element)


def begun(numbers: tf.Tensor, count: int, share: Share) -> tf.Tensor:
    """Returns how many passes begin with these numbers, an int64 scalar.

    For this pipeline, which may not get the first number of a pass; where numbers are
    dealt out to whoever asks, for all pipelines together.
    """
    if share.sharding == "dynamic":
        return tf.math.count_nonzero(numbers % count == 0, dtype=tf.int64)
    _, every = share.stride
    return numbers[-1] // count - (numbers[0] - every) // count


def length(share: Share, count: int, size: int) -> int | None:
    """Returns how many elements `draw` has from the very start; `None` for no end."""
    if share.epochs is None:
        return None
    first, every = (0, 1) if share.sharding == "dynamic" else share.stride
    return _batches(share.epochs * count, first, every * size)


def _batches(end: int, first: int, step: int) -> int:
    return max(-(-(end - first) // step), 0)


def deal(items: Iterable | int, share: Share, job: str) -> tf.data.Dataset:
    """Returns a data set of this pipeline's items: see `InputContext.deal`."""
    is_count = isinstance(items, numbers_lib.Integral) and not isinstance(items, bool)
    if not is_count:
        items = _items(items)
    count = int(items) if is_count else len(items)
    if count < 1:
        raise errors.UsageError(
            "ctx.deal(items) was given no item. See that the pattern of file names or "
            "the folder is right, on this machine, too."
        )
    start = 0
    if share.sharding == "dynamic" and share.dealer is not None:
        # A place is counted in batches, not in items: so another pass is begun.
        start = (share.place.complete or share.place.batches) * count
    data = draw(share, count, 1, job, start).map(lambda _, index: index[0])
    if is_count:
        return data
    table = tf.constant(items)
    return data.map(lambda index: table[index])


def _items(items: Iterable) -> np.ndarray:
    """Returns items as an array.

    Raises:
        UsageError: they are no names, numbers or arrays.
    """
    try:
        listed = [
            os.fspath(item) if isinstance(item, os.PathLike) else item for item in items
        ]
        array = np.asarray(listed)
    except (TypeError, ValueError):
        array = np.empty([0], object)
        listed = [items]
    if isinstance(items, (str, bytes, dict)) or (array.dtype.hasobject and listed):
        raise errors.UsageError(
            f"ctx.deal({items!r}) is not possible. Give a list of file names or of "
            "numbers, or how many items there are."
        )
    return array


def _dealt(dealer: str, job: str, start: int) -> tf.data.Dataset:
    """Returns increasing numbers, each of which one pipeline gets."""
    data_set = f"from-{start}"
    data_service_ops.register_dataset(
        f"grpc://{dealer}", tf.data.Dataset.range(start, MOST), None, data_set
    )
    return read(
        dealer, data_set, tf.TensorSpec([], tf.int64), "ANY", f"{job}-{data_set}", 2
    )


def read(
    address,
    data_set,
    element_spec,
    target_workers: str,
    job: str = "",
    most_requests: int | None = None,
) -> tf.data.Dataset:
    """Returns what a tf.data service gives.

    The public function asks the service for the element spec while it is traced,
    and takes no address that is only known where it runs.

    Args:
        address: "host:port"; a string or a tensor.
        data_set: its id with that service; a string or a tensor.
        element_spec: its elements'.
        target_workers: "LOCAL" to let batches stay in the process; or "ANY".
        job: readers of the same job share its elements; else each gets all.
        most_requests: under way at a time; `None` to let TensorFlow choose.
    """
    return data_service_ops._DataServiceDataset(
        dataset_id=data_set,
        processing_mode=data_service_ops.ShardingPolicy.OFF,
        address=address,
        element_spec=element_spec,
        protocol="grpc",
        data_transfer_protocol=None,
        job_name=job or None,
        max_outstanding_requests=most_requests,
        target_workers=target_workers,
    )


class Dealer:
    """The chief's end of dealing: counts, and knows nothing of the data.

    Args:
        host: under which the workers reach this process.

    Attributes:
        address: where they ask.
    """

    def __init__(self, host: str):
        service = tf.data.experimental.service
        self._dispatcher = service.DispatchServer(service.DispatcherConfig(port=0))
        port = self._dispatcher.target.rsplit(":", 1)[1]
        self.address = f"{host}:{port}"
        self._worker = service.WorkerServer(
            service.WorkerConfig(
                dispatcher_address=f"localhost:{port}",
                worker_address=f"{host}:%port%",
                port=0,
            )
        )
