"""TensorFlow's parameter server tutorial: python -m benchmarks.peers.coordinator

A Keras model and optimizer under `ParameterServerStrategy` and `ClusterCoordinator`, a
data set a worker, one step a closure:
https://www.tensorflow.org/tutorials/distribute/parameter_server_training.
Tells steps per second, of all workers.
"""

import os
import time

from benchmarks.peers import cluster, command, data


def main() -> None:
    args = command.parser(__doc__, ps=1, workers=2).parse_args()
    jobs = {"ps": args.ps, "worker": args.workers, "chief": 1}
    task = cluster.tasks("benchmarks.peers.coordinator", jobs, teller="chief")
    if task is not None:
        serve_or_train(args, *task)


def serve_or_train(args, job: str, index: int) -> None:
    import tensorflow as tf

    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    if job != "chief":
        tf.distribute.Server(
            resolver.cluster_spec(), job_name=job, task_index=index, protocol="grpc"
        ).join()
    train(tf, args, resolver)


def train(tf, args, resolver) -> None:
    import keras

    from benchmarks.peers import keras_model

    # Keras 3 does not know partitioned variables.
    strategy = tf.distribute.ParameterServerStrategy(
        resolver, variable_partitioner=None
    )
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    images, labels = data.load()
    with strategy.scope():
        model = keras_model.model(args.model)
        optimizer = keras_model.optimizer(args.optimizer)
        optimizer.build(model.trainable_variables)
        loss_function = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    @tf.function
    def step(iterator):
        def replica(batch):
            x, y = batch
            with tf.GradientTape() as tape:
                loss = loss_function(y, model(x, training=True))
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(
                zip(gradients, model.trainable_variables, strict=True)
            )
            return loss

        return strategy.run(replica, args=(next(iterator),))

    @tf.function
    def batches():
        return data.batches(images, labels, len(images))

    iterator = iter(coordinator.create_per_worker_dataset(batches))

    def run(num_steps: int) -> None:
        for _ in range(num_steps):
            coordinator.schedule(step, args=(iterator,))
        coordinator.join()

    run(max(args.steps // 10, 2 * args.workers))
    since = time.perf_counter()
    run(args.steps)
    command.tell(args.steps / (time.perf_counter() - since))


if __name__ == "__main__":
    main()
    # The coordinator's threads keep a process that ends in the usual way waiting.
    os._exit(0)
