"""A run's history outlives its chief's processes, and nothing else."""

from dtrain.launch import life
from dtrain.launch.history import History

FIRST = life.restart("worker:1", "was killed by SIGKILL", 10.0)
SECOND = life.restart("chief:0", "ended with exit status 3", 20.0)


def test_the_next_life_knows_what_this_one_did(tmp_path):
    before = History(tmp_path, "abc")
    before.begin(200)
    before.save(30)
    assert before.note([SECOND]) == [SECOND]
    after = History(tmp_path, "abc")
    after.begin(900)  # a restored step: not where the run began
    assert after.first_step == 200
    assert after.repeated_steps == 30
    assert after.note([SECOND, FIRST, FIRST]) == [FIRST]
    assert after.restarts == [FIRST, SECOND]
    assert History(tmp_path, "abc").restarts == [FIRST, SECOND]


def test_another_run_begins_anew(tmp_path):
    before = History(tmp_path, "abc")
    before.begin(0)
    before.note([FIRST])
    after = History(tmp_path, "other")
    assert (after.restarts, after.first_step, after.repeated_steps) == ([], None, 0)
