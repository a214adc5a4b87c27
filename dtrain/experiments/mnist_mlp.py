"""The MLP of the TF1 distributed tutorials, on MNIST's files or Fashion-MNIST's."""

import keras

from dtrain import config as config_lib
from dtrain import experiment as experiment_lib
from dtrain.data import mnist
from dtrain.models import mlp


@experiment_lib.defaults(train_steps=5000, batch_size=100)
def experiment(config: config_lib.RunConfig) -> experiment_lib.Experiment:
    """Returns a 784-256-256-10 network trained by SGD, down to 0 along a cosine.

    At a constant rate the test accuracy jumps by half a point from one step to the
    next (standard deviation, Fashion-MNIST); the decay ends that, and plain SGD has
    no state to share.

    Raises:
        UsageError: a data file is missing or damaged.
    """
    train, test = mnist.find(config.data_dir)

    def optimizer() -> keras.optimizers.Optimizer:
        schedule = keras.optimizers.schedules.CosineDecay(
            config.learning_rate or 0.2, decay_steps=config.train_steps
        )
        return keras.optimizers.SGD(schedule)

    return experiment_lib.Experiment(
        model=lambda: mlp.mlp(mnist.NUM_PIXELS, [256, 256], mnist.NUM_CLASSES),
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
