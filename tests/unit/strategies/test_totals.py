"""Loss, metrics and waiting of a run, seen through windows."""

import numpy as np
import pytest

from dtrain.strategies.totals import Totals


class LossOnly:
    """An objective without metrics."""

    @staticmethod
    def results(totals, count):
        return {"loss": totals[0] / count}


def make(num_pipelines=1):
    return Totals(LossOnly(), num_pipelines)


def add(totals, loss_sum, num_steps, *waits):
    totals.add(np.array([loss_sum], float), num_steps, waits)


def test_a_window_has_means_since_it_was_last_read():
    totals = make()
    add(totals, 100, 1)
    window = totals.window()
    assert window.take() == {}
    add(totals, 6, 3)
    add(totals, 6, 1)
    assert totals.last_loss == 6
    assert window.take() == {"loss": 3}
    assert window.take() == {}
    assert totals.window().take() == {}


def test_windows_do_not_disturb_each_other():
    totals = make()
    first, second = totals.window(), totals.window()
    add(totals, 2, 1, (0, 1.0, 1.0))
    first.take()
    add(totals, 4, 1, (0, 0.5, 1.0))
    assert first.take() == {"loss": 4}
    assert second.take() == {"loss": 3}
    assert first.waits == second.waits == {0: 0.5}


def test_waiting_is_a_share_of_the_time_without_the_first_call():
    totals = make()
    window = totals.window()
    add(totals, 1, 1, (0, 9.0, 9.0))  # files open, buffers fill
    window.take()
    assert window.waits == {}
    add(totals, 1, 1, (0, 1.0, 2.0))
    add(totals, 1, 1, (0, 0.0, 2.0))
    window.take()
    assert window.waits == {0: 0.25}
    add(totals, 1, 1, (0, 2.0, 2.0))
    window.take()
    assert window.waits == {0: 1}


def test_each_pipeline_has_a_share_of_its_own_and_a_first_call_of_its_own():
    totals = make(3)
    window = totals.window()
    add(totals, 1, 1, (0, 5.0, 5.0), (2, 5.0, 5.0))
    add(totals, 1, 1, (0, 1.0, 4.0))
    add(totals, 1, 1, (1, 5.0, 5.0), (2, 3.0, 4.0))
    window.take()
    assert window.waits == {0: 0.25, 2: 0.75}


def test_a_call_without_a_step_waits_and_that_is_all():
    totals = make()
    add(totals, 4, 2, (0, 0.0, 1.0))
    window = totals.window()
    add(totals, 0, 0, (0, 1.0, 1.0))
    assert window.take() == {}
    assert totals.last_loss == 2
    add(totals, 5, 1, (0, 0.0, 1.0))
    assert window.take() == {"loss": 5}
    assert window.waits == {0: pytest.approx(0.5)}
