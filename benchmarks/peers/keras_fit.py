"""Keras `fit` in one process: python -m benchmarks.peers.keras_fit

Tells steps per second.
"""

import time

from benchmarks.peers import command, data


def main() -> None:
    parser = command.parser(__doc__)
    parser.add_argument("--steps_per_execution", type=int, default=1)
    train(parser.parse_args())


def train(args) -> None:
    import keras

    from benchmarks.peers import keras_model

    class Clock(keras.callbacks.Callback):
        """Times what comes after the first tenth."""

        since = None

        def on_train_batch_end(self, batch, logs=None):
            if self.since is None and batch >= args.steps // 10:
                self.since, self.first = time.perf_counter(), batch
            self.last = batch

        def on_train_end(self, logs=None):
            seconds = time.perf_counter() - self.since
            command.tell((self.last - self.first) / seconds)

    images, labels = data.load()
    model = keras_model.model(args.model)
    model.compile(
        optimizer=keras_model.optimizer(args.optimizer),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        steps_per_execution=args.steps_per_execution,
    )
    steps = args.steps + args.steps // 10
    model.fit(
        data.batches(images, labels, len(images)),
        # Whole calls, in one epoch: it has no seam that would be charged.
        steps_per_epoch=-(-steps // args.steps_per_execution)
        * args.steps_per_execution,
        verbose=0,
        callbacks=[Clock()],
    )


if __name__ == "__main__":
    main()
