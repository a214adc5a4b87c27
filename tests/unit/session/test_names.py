"""Names of weights as another process would give them."""

import pytest

from dtrain.session import contents


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["dense/kernel", "dense_1/kernel"], ["dense/kernel", "dense_1/kernel"]),
        (["dense_4/w", "dense_4/b", "dense_8/w"], ["dense/w", "dense/b", "dense_1/w"]),
        (["net_2/dense_3/w", "net_2/conv_3/w"], ["net/dense/w", "net/conv/w"]),
        (["layer2/w"], ["layer2/w"]),
    ],
    ids=["as new", "later", "parts", "a digit of its own"],
)
def test_numbers_begin_anew_for_each_kind(names, expected):
    assert list(contents.numbered_anew(names).values()) == expected
