"""How gradients cross between replicas: in few messages, and weighted rightly.

Every message costs a round through all replicas, whatever its size. So dense
gradients are laid end to end, a bucket a message, and what a replica's batch weighs
travels in the first of them.
"""

from collections.abc import Callable, Iterator, Sequence

import tensorflow as tf

from dtrain.strategies import rows

# As in other systems that reduce in buckets (PyTorch's DDP: 25 MiB): large enough
# that latency costs nothing, small enough that the next one is computed meanwhile.
_BUCKET_BYTES = 32 * 2**20

_BYTES_OF_A_WEIGHT = 4  # float32


class Reduction:
    """Sums over all replicas, packed.

    Args:
        dtype: in which dense gradients travel, "float32" or "bfloat16". They come
            out in their own.
        num_replicas: how many replicas take part.
    """

    def __init__(self, dtype: str, num_replicas: int):
        self._dtype = tf.as_dtype(dtype)
        self._num_replicas = num_replicas

    def sum(
        self,
        gradients: Sequence,
        weight: tf.Tensor,
        replica: int,
        all_reduce: Callable[[tf.Tensor | tf.IndexedSlices], tf.Tensor],
    ) -> tuple[list, tf.Tensor]:
        """Adds up gradients and weights of all replicas.

        Args:
            gradients: dense, sparse or `None`; the same kinds on every replica.
            weight: of this replica's batches, a float32 scalar.
            replica: which one this is.
            all_reduce: sums one tensor, or `IndexedSlices`, over all replicas.

        Returns:
            The gradients' sums, and that of `weight`, a float32 scalar.
        """
        results = list(gradients)
        place = self._encode(weight, replica)
        for bucket in self._buckets(gradients):
            own = [gradients[i] for i in bucket]
            dtype = self._wire_dtype(own)
            laid = [rows.lay(tf.cast(part, dtype)) for part in (*own, place)]
            counts = [part.shape[0] for part in laid]
            *parts, rest = tf.split(all_reduce(tf.concat(laid, 0)), counts)
            if counts[-1]:
                total = self._decode(rest)
                place = tf.zeros([0], tf.float32)  # the others carry none
            for i, part in zip(bucket, parts, strict=True):
                part = rows.take(part, gradients[i].shape.as_list())
                results[i] = tf.cast(part, gradients[i].dtype)
        for i, gradient in enumerate(gradients):
            if isinstance(gradient, tf.IndexedSlices):
                results[i] = all_reduce(gradient)
        return results, total

    def _buckets(self, gradients: Sequence) -> Iterator[list[int]]:
        """Yields indices, the last weights first: their gradients are ready first."""
        bucket, size = [], 0
        for i in reversed(range(len(gradients))):
            if gradients[i] is None or isinstance(gradients[i], tf.IndexedSlices):
                continue
            own = gradients[i].shape.num_elements() * gradients[i].dtype.size
            if bucket and size + own > _BUCKET_BYTES:
                yield bucket
                bucket, size = [], 0
            bucket.append(i)
            size += own
        yield bucket  # an empty one, too: the weight needs a message

    def _wire_dtype(self, own: Sequence[tf.Tensor]) -> tf.DType:
        if self._dtype == tf.float32 and any(t.dtype == tf.float64 for t in own):
            return tf.float64
        return self._dtype

    def _encode(self, weight: tf.Tensor, replica: int) -> tf.Tensor:
        """Returns a weight's bytes in this replica's own place.

        A byte is exact in every dtype, bfloat16 with its 8 bits too, and where the
        others have zeros it stays so in the sum.
        """
        own = tf.cast(tf.bitcast(weight, tf.uint8), tf.float32)
        place = tf.one_hot(replica, self._num_replicas)
        return tf.reshape(place[:, tf.newaxis] * own, [-1])

    def _decode(self, places: tf.Tensor) -> tf.Tensor:
        own = rows.take(places, [self._num_replicas, _BYTES_OF_A_WEIGHT])
        return tf.reduce_sum(tf.bitcast(tf.cast(own, tf.uint8), tf.float32))
