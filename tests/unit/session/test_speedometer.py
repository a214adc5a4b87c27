"""How fast training goes, as people are told."""

import pytest

from dtrain.session.speedometer import Speedometer


def test_tracing_does_not_count(clock):
    meter = Speedometer(100, clock)
    clock.advance(30)
    meter.note(100)
    clock.advance(30)
    meter.note(110)
    assert meter.read(110) is None
    clock.advance(2)
    assert meter.read(130) == pytest.approx(10)


def test_each_reading_is_of_the_time_since_the_one_before(clock):
    meter = Speedometer(0, clock)
    meter.note(1)
    clock.advance(2)
    assert meter.read(21) == pytest.approx(10)
    clock.advance(4)
    assert meter.read(101) == pytest.approx(20)


def test_calls_that_end_in_a_burst_do_not_show(clock):
    meter = Speedometer(0, clock)
    meter.note(100)
    assert meter.read(200) is None  # ended with the first
    clock.advance(0.5)
    assert meter.read(300) == pytest.approx(400)
    clock.advance(0.001)
    assert meter.read(400) == pytest.approx(300 / 0.501)
    clock.advance(1)
    meter.read(600)
    clock.advance(0.001)
    assert meter.read(700) == pytest.approx(500 / 1.501)
