"""A small CNN on MNIST's files or Fashion-MNIST's: Adam, a schedule and clipping."""

import keras

from dtrain import config as config_lib
from dtrain import experiment as experiment_lib
from dtrain.data import mnist
from dtrain.models import cnn


@experiment_lib.defaults(train_steps=2000, batch_size=64)
def experiment(config: config_lib.RunConfig) -> experiment_lib.Experiment:
    """Returns a CNN trained by Adam, from a learning rate down to 0 along a cosine.

    Raises:
        UsageError: a data file is missing or damaged.
    """
    train, test = mnist.find(config.data_dir)

    def optimizer() -> keras.optimizers.Optimizer:
        schedule = keras.optimizers.schedules.CosineDecay(
            config.learning_rate or 1e-3, decay_steps=config.train_steps
        )
        return keras.optimizers.Adam(schedule, global_clipnorm=1.0)

    return experiment_lib.Experiment(
        model=lambda: cnn.cnn(mnist.NUM_CLASSES),
        optimizer=optimizer,
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=lambda: [keras.metrics.SparseCategoricalAccuracy(name="accuracy")],
        train_data=lambda ctx: mnist.train_batches(
            train, ctx, batch_size=config.batch_size, seed=config.seed
        ),
        eval_data=lambda ctx: mnist.eval_batches(
            test, ctx, batch_size=config.batch_size
        ),
    )
