"""What a worker and its ps tasks send each other in a step: few messages.

A message costs both its ends time whatever its size. So what is on one ps is laid end
to end there, travels as one tensor, and is cut up again on arrival: in both
directions, and whatever optimizer then updates it. Variables stay what they are, one by
one.
"""

import contextlib
from collections.abc import Callable, Sequence

import tensorflow as tf

from dtrain.strategies import rows as rows_lib

# A larger tensor travels alone: to lay it beside others costs as much as a message.
_ALONE_BYTES = 2 << 20
# Of more bytes than this, the first can be used while the next are on their way.
_BUCKET_BYTES = 8 << 20

Read = tuple[str, Callable[[], tf.Tensor]]


class Direct:
    """Where a step and its variables are on one device: nothing is sent."""

    is_remote = False

    def fetch(self, reads: Sequence[Read]) -> list[tf.Tensor]:
        return [read() for _, read in reads]

    def send(self, tensors: Sequence, devices: Sequence[str]) -> list:
        return list(tensors)

    def exact(self) -> "Direct":
        return self


class Packed:
    """Tensors travel together, between the device at hand and others.

    Args:
        dtype: in which what is float32 travels, "float32" or "bfloat16". It arrives as
            float32. Everything else arrives bit by bit as it was.
    """

    is_remote = True

    def __init__(self, dtype: str = "float32"):
        self._dtype = tf.as_dtype(dtype)

    def fetch(self, reads: Sequence[Read]) -> list[tf.Tensor]:
        """Brings tensors here.

        Args:
            reads: (device, function that returns a tensor on it).
        """
        tensors = []
        for device, read in reads:
            with tf.device(device):
                tensors.append(read())
        devices = [device for device, _ in reads]
        return self._move(tensors, devices, lambda device: device, lambda _: None)

    def send(self, tensors: Sequence, devices: Sequence[str]) -> list:
        """Takes tensors from here to a device each.

        Args:
            tensors: `IndexedSlices` and `None` are given back as they are.
            devices: where to.
        """
        return self._move(tensors, devices, lambda _: None, lambda device: device)

    def exact(self) -> "Packed":
        """Returns the same, with nothing rounded on the way."""
        return Packed()

    def _move(
        self,
        tensors: Sequence,
        devices: Sequence[str],
        source: Callable[[str], str | None],
        target: Callable[[str], str | None],
    ) -> list:
        moved = list(tensors)
        for device, bucket in self._buckets(tensors, devices):
            own = [tensors[i] for i in bucket]
            with _on(source(device)):
                message = self._pack(own)
            with _on(target(device)):
                parts = self._unpack(tf.identity(message), own)
            for i, part in zip(bucket, parts, strict=True):
                moved[i] = part
        return moved

    def _pack(self, tensors: Sequence[tf.Tensor]) -> tf.Tensor:
        if len(tensors) > 1:
            return tf.concat([self._encode(tensor) for tensor in tensors], 0)
        # As it is: in rows, all of it might have to be copied.
        (tensor,) = tensors
        is_cast = tensor.dtype == tf.float32
        return tf.cast(tensor, self._dtype) if is_cast else tensor

    def _unpack(self, message: tf.Tensor, like: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        if len(like) == 1:
            return [tf.cast(message, like[0].dtype)]
        counts = [self._count_rows(tensor) for tensor in like]
        parts = tf.split(message, counts)
        return [self._decode(part, t) for part, t in zip(parts, like, strict=True)]

    def _buckets(
        self, tensors: Sequence, devices: Sequence[str]
    ) -> list[tuple[str, list[int]]]:
        """Returns what travels together: a device, and which of the tensors."""
        buckets, is_open, sizes = [], {}, {}
        for i, (tensor, device) in enumerate(zip(tensors, devices, strict=True)):
            if not isinstance(tensor, tf.Tensor) or not tensor.shape.is_fully_defined():
                continue
            size = tensor.shape.num_elements() * tensor.dtype.size
            if size > _ALONE_BYTES:
                buckets.append((device, [i]))
                continue
            key = device, self._wire_dtype(tensor)
            if key not in is_open or sizes[key] + size > _BUCKET_BYTES:
                is_open[key], sizes[key] = [], 0
                buckets.append((device, is_open[key]))
            is_open[key].append(i)
            sizes[key] += size
        return buckets

    def _wire_dtype(self, tensor: tf.Tensor) -> tf.DType:
        is_mixed_in = tensor.dtype in (tf.float32, tf.int64)
        return self._dtype if is_mixed_in else tensor.dtype

    def _count_rows(self, tensor: tf.Tensor) -> int:
        return rows_lib.count(tensor.shape.num_elements() * self._wire_size(tensor))

    def _wire_size(self, tensor: tf.Tensor) -> int:
        """Returns the bytes of an element on its way."""
        is_cast = tensor.dtype == tf.float32
        return self._dtype.size if is_cast else tensor.dtype.size

    def _encode(self, tensor: tf.Tensor) -> tf.Tensor:
        """Returns a tensor as rows, in what it travels in."""
        dtype = self._wire_dtype(tensor)
        if tensor.dtype == tf.int64:  # exactly, whatever the dtype
            tensor = tf.bitcast(tensor, dtype)
        return rows_lib.lay(tf.cast(tensor, dtype))

    def _decode(self, rows: tf.Tensor, like: tf.Tensor) -> tf.Tensor:
        shape = like.shape.as_list()
        if like.dtype == tf.int64:
            shape.append(tf.int64.size // rows.dtype.size)
        part = rows_lib.take(rows, shape)
        if like.dtype == tf.int64:
            return tf.bitcast(part, tf.int64)
        return tf.cast(part, like.dtype)


def _on(device: str | None):
    """Returns a scope: of a device, or of whatever is at hand."""
    return contextlib.nullcontext() if device is None else tf.device(device)
