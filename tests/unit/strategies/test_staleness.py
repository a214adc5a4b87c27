"""How stale updates are: what lands between a step's read and its write."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from dtrain.strategies import tally
from dtrain.strategies.base import Step
from dtrain.strategies.objective import Objective
from dtrain.strategies.staleness import Staleness


@pytest.fixture
def weights():
    shapes = (2,), (3, 4), (5,)
    return [keras.Variable(np.zeros(shape), dtype="float32") for shape in shapes]


def test_updates_are_counted_beside_the_largest_weight(weights):
    assert Staleness(weights, 4, 1).index == 1


def steps(weights, order, num_bins=4, every=1):
    """Makes steps that read and write in an order; returns the bins.

    Args:
        order: of letters: a step's first one reads, its second one writes.
    """
    staleness = Staleness(weights, num_bins, every)
    weight = weights[staleness.index].value

    @tf.function(autograph=False)
    def run():
        begun = {}
        for letter in order:
            if letter not in begun:
                begun[letter] = staleness.before_read()
                continue
            graph = tf.compat.v1.get_default_graph()
            first_op = len(graph.get_operations())
            weight.assign_add(tf.ones(weight.shape))
            staleness.after_write(begun[letter], first_op)

    run()
    return list(staleness.read())


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        ("aabbcc", [3, 0, 0, 0]),
        ("abab", [1, 1, 0, 0]),
        ("abba", [1, 1, 0, 0]),
        ("abcabc", [1, 1, 1, 0]),
        ("abbccddeea", [4, 0, 0, 1]),  # in the last bin
    ],
    ids=["in turn", "together", "within", "three together", "many"],
)
def test_the_updates_of_others_in_between_are_counted(order, expected, weights):
    assert steps(weights, order) == expected


def test_every_update_counts_though_few_ask(weights):
    assert steps(weights, "abbccdda", every=4) == [0, 0, 0, 1]


@pytest.mark.parametrize("accumulate_steps", [1, 2])
def test_an_update_of_one_process_is_never_stale(accumulate_steps, problem, as_element):
    model, optimizer = problem.model(), keras.optimizers.Adam(0.05)
    optimizer.build(model.trainable_variables)
    x, y = problem.batches(1)[0]
    objective = Objective(problem.experiment(), [], y, model(x))
    counter = tf.Variable(0, dtype=tf.int64)
    step = Step(
        model,
        optimizer,
        objective,
        counter,
        accumulate_steps,
        staleness=(staleness := Staleness(model.trainable_variables, 3, 1)),
    )
    batches = [as_element(batch) for batch in problem.batches(4 * accumulate_steps)]

    @tf.function(autograph=False)
    def run():
        following, state = iter(batches), tally.start([])
        for _ in range(4):
            _, state = step.run(following, state)
        return state

    run()
    assert list(staleness.read()) == [4, 0, 0]
    run()
    assert list(staleness.read()) == [8, 0, 0]
    assert int(counter) == 8
