"""What a checkpoint holds: keys and names, and how two models differ."""

import io
import json

import keras
import pytest
import tensorflow as tf

from dtrain import errors
from dtrain.config import RunConfig
from dtrain.console import Console
from dtrain.session import contents
from dtrain.session.checkpoints import Checkpoints
from dtrain.strategies import parts

VALUE = "/.ATTRIBUTES/VARIABLE_VALUE"
layers = keras.layers
optimizers = keras.optimizers


# Models of every make.


def sequential():
    return keras.Sequential([keras.Input((4,)), layers.Dense(3), layers.Dense(2)])


def late():
    model = keras.Sequential([layers.Dense(3), layers.Dense(2)])
    model(tf.zeros([1, 4]))
    return model


def functional():
    x = keras.Input((4,))
    shared = layers.Dense(4)
    y = layers.BatchNormalization()(shared(shared(x)))
    y = layers.Dropout(0.5)(y)
    return keras.Model(x, [layers.Dense(2)(y), layers.Dense(1)(x)])


def nested():
    x = keras.Input((4,))
    return keras.Model(x, layers.Dense(1)(functional()(x)[0]))


def embedding():
    return keras.Sequential(
        [keras.Input((3,)), layers.Embedding(5, 2), layers.LSTM(2), layers.Dense(1)]
    )


def convolution():
    return keras.Sequential(
        [
            keras.Input((4, 4, 1)),
            layers.Conv2D(2, 3),
            layers.GroupNormalization(1),
            layers.Flatten(),
            layers.Dense(1),
        ]
    )


class Own(keras.Model):
    """One with parts in all the places that Python offers."""

    def __init__(self):
        super().__init__()
        self.many = [layers.Dense(4), [layers.Dense(4)]]
        self.named = {"b.c/d": layers.Dense(4), "a": {"x": layers.Dense(4)}}
        self.pair = (layers.Dense(4), layers.Dropout(0.5))
        self.same = self.many[0]
        self.tracker = keras.metrics.Mean()
        self.scale = self.add_weight(shape=(), name="scale")
        self.raw = tf.Variable(1.0)
        self.head = layers.Dense(4)

    def call(self, x):
        parts = [self.many[0], self.many[1][0], *self.pair, self.head]
        for part in [*parts, self.named["b.c/d"], self.named["a"]["x"]]:
            x = part(x)
        return x * self.scale * self.raw


def own():
    model = Own()
    model(tf.zeros([1, 4]))
    return model


MODELS = [sequential, late, functional, nested, embedding, convolution, own]


def checkpoint_of(model, optimizer=None, scale=None):
    optimizer = optimizer or optimizers.SGD(momentum=0.9)
    optimizer.build(model.trainable_variables)
    counter, place = tf.Variable(0, dtype=tf.int64), tf.Variable([0, 0], dtype=tf.int64)
    return parts.make_checkpoint(model, optimizer, counter, place, scale)


def keeper(folder, checkpoint):
    console = Console(io.StringIO())
    return Checkpoints(str(folder), checkpoint, None, 5, 0, console)


def check_keys(folder, checkpoint):
    path = keeper(folder, checkpoint).save(1)
    reader = tf.train.load_checkpoint(path)
    dtypes = reader.get_variable_to_dtype_map()
    found = dict(contents.find(checkpoint))
    assert len(found) >= 4
    others = {"_CHECKPOINTABLE_OBJECT_GRAPH", "names/.ATTRIBUTES/py_state"}
    expected = {
        key.removesuffix(VALUE): form(shape, dtypes[key].name)
        for key, shape in reader.get_variable_to_shape_map().items()
        if key not in others
    }
    assert {key: form for key, (_, form) in found.items()} == expected
    names = json.loads(reader.get_tensor("names/.ATTRIBUTES/py_state"))
    kind = getattr(getattr(checkpoint, "optimizer", None), "kind", "")
    assert names.pop("the optimizer's class") == kind
    assert names == {key: name for key, (name, _) in found.items()}
    assert contents.differences(checkpoint, path) == []
    return set(names.values())


def form(shape, dtype):
    numbers = ", ".join(map(str, shape))
    return f"({numbers})" if dtype == "float32" else f"({numbers}) {dtype}"


class Named(tf.Module):
    """Variables under names that are no part of a path, and one under two."""

    def __init__(self):
        super().__init__()
        self.named = {"b.c/d": tf.Variable(1.0), "a": {"x/y": tf.Variable([2.0])}}
        self.twice = [[self.named["b.c/d"]], tf.Variable([3.0, 4.0])]


@pytest.mark.parametrize("make", MODELS)
def test_a_model_s_keys_are_those_that_tensorflow_writes(make, tmp_path):
    """Without an optimizer, which is often the shorter way to a weight."""
    check_keys(tmp_path, tf.train.Checkpoint(model=make(), more=Named()))


@pytest.mark.parametrize("make", MODELS)
def test_keys_are_those_that_tensorflow_writes(make, tmp_path):
    model = make()
    names = check_keys(tmp_path, checkpoint_of(model))
    seeds = "seed_generator_state"  # which TensorFlow does not save
    assert {v.path for v in model.variables if v.name != seeds} <= names
    assert {"global_step", "data"} <= names


@pytest.mark.parametrize(
    "make",
    [
        lambda: optimizers.SGD(),
        lambda: optimizers.Adam(amsgrad=True),
        lambda: optimizers.Adam(optimizers.schedules.CosineDecay(0.1, 10)),
        lambda: optimizers.AdamW(use_ema=True),
        lambda: optimizers.Adafactor(),
        lambda: optimizers.Ftrl(),
        lambda: optimizers.RMSprop(centered=True, momentum=0.5),
        lambda: optimizers.Nadam(),
        lambda: optimizers.Lion(),
    ],
    ids=[
        "sgd",
        "amsgrad",
        "schedule",
        "ema",
        "adafactor",
        "ftrl",
        "rmsprop",
        "nadam",
        "lion",
    ],
)
def test_an_optimizer_s_keys_are_those_that_tensorflow_writes(make, tmp_path):
    check_keys(tmp_path, checkpoint_of(sequential(), make()))


def test_a_loss_scale_s_keys_are_those_that_tensorflow_writes(tmp_path):
    scale = parts.make_loss_scale(
        RunConfig(strategy="local", mixed_precision="float16")
    )
    names = check_keys(tmp_path, checkpoint_of(sequential(), scale=scale))
    assert any(name.startswith("loss_scale/") for name in names)


# What differs.


def dense(first=3, last=2, more=(), first_name="first"):
    """A model of which each layer has a name of its own."""
    return keras.Sequential(
        [
            keras.Input((4,)),
            layers.Dense(first, name=first_name),
            *(layers.Dense(2, name=name) for name in more),
            layers.Dense(last, name="last"),
        ],
        name="net",
    )


def save_and_compare(folder, saved, wanted):
    path = keeper(folder, saved).save(1)
    return contents.differences(wanted, path)


@pytest.mark.parametrize(
    ("before", "now", "expected"),
    [
        ({}, {}, []),
        ({}, {"first_name": "renamed"}, []),
        (
            {},
            {"first": 5},
            [
                "net/first/kernel is (4, 5) here, and (4, 3) in the checkpoint",
                "net/first/bias is (5) here, and (3) in the checkpoint",
                "net/last/kernel is (5, 2) here, and (3, 2) in the checkpoint",
            ],
        ),
        (
            {"first_name": "old", "last": 3},
            {"first": 5, "last": 3},
            [
                "net/first/kernel is (4, 5) here, and net/old/kernel (4, 3) in the "
                "checkpoint",
                "net/first/bias is (5) here, and net/old/bias (3) in the checkpoint",
                "net/last/kernel is (5, 3) here, and (3, 3) in the checkpoint",
            ],
        ),
        # The same numbers of layers count as the same ones.
        (
            {},
            {"more": ["new"]},
            [
                "net/last/kernel (2, 2) is not in the checkpoint",
                "net/last/bias (2) is not in the checkpoint",
            ],
        ),
        (
            {"more": ["new"]},
            {},
            [
                "net/last/kernel (2, 2) is in the checkpoint alone",
                "net/last/bias (2) is in the checkpoint alone",
            ],
        ),
    ],
    ids=["nothing", "a name", "a width", "both", "one more", "one less"],
)
def test_differences_between_models_are_told(before, now, expected, tmp_path):
    saved, wanted = (
        checkpoint_of(dense(**options), optimizers.SGD()) for options in (before, now)
    )
    assert sorted(save_and_compare(tmp_path, saved, wanted)) == sorted(expected)


def test_differences_between_optimizers_are_told_both_ways(tmp_path):
    with_adam, with_sgd = (
        checkpoint_of(dense(), make(name="rule"))
        for make in (optimizers.Adam, optimizers.SGD)
    )
    slots = [
        f"rule/net_{layer}_{part}_{slot}"
        for layer in ("first", "last")
        for part in ("kernel", "bias")
        for slot in ("momentum", "velocity")
    ]
    first, *lines = save_and_compare(tmp_path, with_sgd, with_adam)
    assert first == "the optimizer is Adam here, and SGD in the checkpoint"
    assert sorted(line.split()[0] for line in lines) == sorted(slots)
    assert all(line.endswith(" is not in the checkpoint") for line in lines)
    first, *lines = save_and_compare(tmp_path, with_adam, with_sgd)
    assert first == "the optimizer is SGD here, and Adam in the checkpoint"
    assert sorted(line.split()[0] for line in lines) == sorted(slots)
    assert all(line.endswith(" is in the checkpoint alone") for line in lines)


def test_another_optimizer_with_the_same_slots_is_another_one(tmp_path):
    saved, wanted = (
        checkpoint_of(dense(), optimizer)
        for optimizer in (optimizers.SGD(momentum=0.5), optimizers.Lion())
    )
    assert save_and_compare(tmp_path, saved, wanted) == [
        "the optimizer is Lion here, and SGD in the checkpoint"
    ]


def test_where_no_optimizer_was_noted_its_slots_tell(tmp_path, monkeypatch):
    serialize = contents.Names.serialize

    def serialize_less(self):
        names = json.loads(serialize(self))
        del names["the optimizer's class"]
        return json.dumps(names)

    monkeypatch.setattr(contents.Names, "serialize", serialize_less)
    saved = checkpoint_of(dense(), optimizers.SGD(momentum=0.5))
    wanted = checkpoint_of(dense(), optimizers.Lion())
    assert save_and_compare(tmp_path, saved, wanted) == []


def test_dtypes_that_differ_are_told(tmp_path):
    first, second = (
        tf.train.Checkpoint(a=tf.Variable([1, 2], dtype=dtype), b=tf.Variable(0.0))
        for dtype in (tf.int32, tf.int64)
    )
    assert save_and_compare(tmp_path, first, second) == [
        "a is (2) int64 here, and (2) int32 in the checkpoint"
    ]


@pytest.mark.parametrize("is_saved", [True, False])
def test_what_belongs_to_a_run_alone_may_come_and_go(is_saved, tmp_path):
    config = RunConfig(strategy="local", mixed_precision="float16")
    schedule = optimizers.schedules.CosineDecay(0.1, 10)
    more = checkpoint_of(dense(), optimizers.SGD(0.1), parts.make_loss_scale(config))
    less = checkpoint_of(dense(), optimizers.SGD(schedule))
    saved, wanted = (more, less) if is_saved else (less, more)
    assert save_and_compare(tmp_path, saved, wanted) == []
    assert keeper(tmp_path, wanted).restore() is not None


# A checkpoint of a different model.


@pytest.mark.parametrize(
    "other",
    [
        lambda: checkpoint_of(dense(last=1)),
        lambda: checkpoint_of(dense(more=["extra"])),
        lambda: checkpoint_of(dense(), optimizers.Adam()),
        lambda: checkpoint_of(dense(), optimizers.SGD()),
    ],
    ids=["a width", "a layer", "more slots", "fewer slots"],
)
def test_a_different_model_is_refused_and_nothing_is_taken(other, tmp_path):
    saved = checkpoint_of(dense())
    saved.global_step.assign(7)
    path = keeper(tmp_path, saved).save(7)
    wanted = other()
    before = [v.numpy() for v in (*wanted.model.variables, wanted.global_step)]
    lines = contents.differences(wanted, path)
    assert lines
    with pytest.raises(errors.UsageError) as caught:
        keeper(tmp_path, wanted).restore()
    first, *listed, advice = str(caught.value).splitlines()
    assert first == f"{path} does not fit this model and optimizer:"
    assert listed == [f"  {line}" for line in lines[:10]]
    for part in ("--experiment", "--optimizer", "--model_dir", "--init_checkpoint"):
        assert part in advice
    after = [v.numpy() for v in (*wanted.model.variables, wanted.global_step)]
    assert all((old == new).all() for old, new in zip(before, after, strict=True))


def test_a_different_model_is_not_passed_over_for_an_older_one(tmp_path):
    first = checkpoint_of(dense())
    keeper(tmp_path, first).save(1)
    keeper(tmp_path, checkpoint_of(dense(last=1))).save(2)
    with pytest.raises(errors.UsageError, match="ckpt-2 does not fit"):
        keeper(tmp_path, first).restore()


def test_weights_of_another_type_are_refused(tmp_path):
    model = keras.Sequential([keras.Input((4,)), layers.Dense(2, name="only")])
    keeper(tmp_path, checkpoint_of(model)).save(1)
    model = keras.Sequential(
        [keras.Input((4,)), layers.Dense(2, name="only", dtype="float64")]
    )
    expected = r"only/kernel is \(4, 2\) float64 here, and .*\(4, 2\) in the"
    with pytest.raises(errors.UsageError, match=expected):
        keeper(tmp_path, checkpoint_of(model)).restore()


def test_a_long_list_ends_with_how_many_more_there_are():
    lines = [f"line {i}" for i in range(14)]
    shown = contents.show(lines).splitlines()
    assert shown == ["", *(f"  line {i}" for i in range(10)), "  and 4 more"]
    assert contents.show(lines[:10]) == "".join(f"\n  line {i}" for i in range(10))
    assert contents.show([]) == ""


def test_a_layer_with_a_table_resumes(tmp_path):
    lookup = layers.StringLookup()
    lookup.adapt(["a", "b", "a"])
    x = keras.Input((3,), dtype="string")
    y = layers.Flatten()(layers.Embedding(4, 2)(lookup(x)))
    checkpoint = checkpoint_of(keras.Model(x, layers.Dense(2)(y)))
    path = keeper(tmp_path, checkpoint).save(1)
    assert keeper(tmp_path, checkpoint).restore() == path
