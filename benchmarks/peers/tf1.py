"""TensorFlow 1's between-graph replication: python -m benchmarks.peers.tf1

Its own code, by `tf.compat.v1` of the same wheel: a server a task, variables on the ps
tasks, each worker with a graph and a `MonitoredTrainingSession` of its own. With
--sync, `SyncReplicasOptimizer`. Tells global steps per second (with --sync, updates),
from when all workers train.

There is no checkpoint directory, so it saves and summarises nothing.
"""

import os
import time

from benchmarks.peers import cluster, command, data


def main() -> None:
    parser = command.parser(__doc__, ps=1, workers=2)
    parser.add_argument("--sync", action="store_true")
    args = parser.parse_args()
    jobs = {"ps": args.ps, "worker": args.workers}
    task = cluster.tasks("benchmarks.peers.tf1", jobs, teller="worker")
    if task is not None:
        serve_or_train(args, *task)


def serve_or_train(args, job: str, index: int) -> None:
    import tensorflow.compat.v1 as tf

    tf.disable_v2_behavior()
    spec = tf.train.ClusterSpec(cluster.addresses())
    server = tf.train.Server(spec, job_name=job, task_index=index)
    if job == "ps":
        server.join()
    train(tf, args, spec, server.target, index)


def train(tf, args, spec, master: str, index: int) -> None:
    is_chief = index == 0
    images, labels = data.load(index, args.workers)
    with tf.device(
        tf.train.replica_device_setter(
            worker_device=f"/job:worker/task:{index}",
            cluster=spec,
            ps_strategy=LeastLoaded(args.ps),
        )
    ):
        step = tf.train.get_or_create_global_step()
        # Placeholders, fed once: constants would make the graph as large as the data.
        inputs = tf.placeholder(tf.float32, images.shape)
        classes = tf.placeholder(tf.int64, labels.shape)
        iterator = tf.data.make_initializable_iterator(
            data.batches(inputs, classes, len(images))
        )
        x, y = iterator.get_next()
        for units in data.WIDTHS[args.model]:
            x = tf.nn.relu(dense(tf, x, units))
        logits = dense(tf, x, data.NUM_CLASSES)
        loss = tf.losses.sparse_softmax_cross_entropy(y, logits)
        optimizer = {
            "sgd": tf.train.GradientDescentOptimizer,
            "adam": tf.train.AdamOptimizer,
        }[args.optimizer](data.LEARNING_RATES[args.optimizer])
        hooks = []
        if args.sync:
            optimizer = tf.train.SyncReplicasOptimizer(
                optimizer,
                replicas_to_aggregate=args.workers,
                total_num_replicas=args.workers,
            )
            hooks.append(optimizer.make_session_run_hook(is_chief))
        update = optimizer.minimize(loss, global_step=step)

    feed = {inputs: images, classes: labels}
    hooks.append(starter(tf, iterator, feed, index))
    if is_chief:
        hooks.append(clock(tf, step, args))
    else:
        # A session that finds the variables uninitialized looks again in 30 seconds.
        cluster.wait_for("initialized")
    with tf.train.MonitoredTrainingSession(
        master=master,
        is_chief=is_chief,
        hooks=hooks,
        config=tf.ConfigProto(
            device_filters=["/job:ps", f"/job:worker/task:{index}"],
        ),
    ) as session:
        while not session.should_stop():
            session.run(update)


def dense(tf, x, units: int):
    with tf.variable_scope(None, "dense"):
        inputs = x.shape[-1]
        kernel = tf.get_variable(
            "kernel", [inputs, units], initializer=tf.glorot_uniform_initializer()
        )
        bias = tf.get_variable("bias", [units], initializer=tf.zeros_initializer())
        return tf.matmul(x, kernel) + bias


class LeastLoaded:
    """Puts each variable on the ps that has fewest bytes.

    This is what `tf.contrib.training.GreedyLoadBalancingStrategy` with
    `byte_size_load_fn` did; TensorFlow 2 has no `contrib`.
    """

    def __init__(self, num_ps: int):
        self._bytes = [0] * num_ps

    def __call__(self, op) -> int:
        task = self._bytes.index(min(self._bytes))
        output = op.outputs[0]
        self._bytes[task] += output.shape.num_elements() * output.dtype.size
        return task


def starter(tf, iterator, feed: dict, index: int):
    """Returns a hook that feeds the data in, and tells the other tasks of it."""

    class Starter(tf.train.SessionRunHook):
        def after_create_session(self, session, coord):
            session.run(iterator.initializer, feed)
            if index == 0:
                cluster.mark("initialized")
            self._is_first = True

        def after_run(self, context, values):
            if self._is_first:
                cluster.mark(f"worker{index}")
                self._is_first = False

    return Starter()


def clock(tf, step, args):
    """Returns a hook that times steps, tells, and ends the process."""

    class Clock(tf.train.SessionRunHook):
        def begin(self):
            self._all = [f"worker{i}" for i in range(args.workers)]
            self._warm_at = self._since = None

        def before_run(self, context):
            return tf.train.SessionRunArgs(step)

        def after_run(self, context, values):
            done = values.results
            if self._warm_at is None:
                if all(map(cluster.is_marked, self._all)):
                    self._warm_at = done + args.steps // 10
            elif self._since is None:
                if done >= self._warm_at:
                    self._since, self._first = time.perf_counter(), done
            elif done >= self._first + args.steps:
                seconds = time.perf_counter() - self._since
                command.tell((done - self._first) / seconds)
                # Closing the session of SyncReplicasOptimizer waits for two minutes for
                # a queue runner that waits for gradients, and then changes nothing.
                os._exit(0)

    return Clock()


if __name__ == "__main__":
    main()
