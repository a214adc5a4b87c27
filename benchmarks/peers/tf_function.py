"""A hand-written training loop in one process: python -m benchmarks.peers.tf_function

Many steps of a Keras model and optimizer in one `tf.function`. How many, it finds out
by itself: the fastest of a few. Tells steps per second.
"""

import time

from benchmarks.peers import command, data

STEPS_PER_CALL = (1, 10, 50, 100, 200)


def main() -> None:
    train(command.parser(__doc__).parse_args())


def train(args) -> None:
    import keras
    import tensorflow as tf

    from benchmarks.peers import keras_model

    images, labels = data.load()
    iterator = iter(data.batches(images, labels, len(images)))
    model = keras_model.model(args.model)
    optimizer = keras_model.optimizer(args.optimizer)
    optimizer.build(model.trainable_variables)
    loss_function = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    @tf.function
    def steps(iterator, count):
        for _ in tf.range(count):
            x, y = next(iterator)
            with tf.GradientTape() as tape:
                loss = loss_function(y, model(x, training=True))
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(
                zip(gradients, model.trainable_variables, strict=True)
            )

    def speed(per_call: int, num_steps: int) -> float:
        calls = max(num_steps // per_call, 1)
        since = time.perf_counter()
        for _ in range(calls):
            steps(iterator, tf.constant(per_call))
        return calls * per_call / (time.perf_counter() - since)

    speed(10, args.steps // 10)  # holds tracing
    tried = {count: speed(count, args.steps // 10) for count in STEPS_PER_CALL}
    best = max(tried, key=tried.get)
    command.tell(speed(best, args.steps), steps_per_call=best)


if __name__ == "__main__":
    main()
