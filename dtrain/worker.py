"""The work of a task that trains but is not the chief, under `--strategy=sync`."""

from collections.abc import Callable

from dtrain import experiment
from dtrain.config import RunConfig
from dtrain.console import Console
from dtrain.launch.signals import Signals
from dtrain.runtime.meeting import Meeting
from dtrain.strategies.failures import explained
from dtrain.strategies.sync import SyncTrainer


def follow(
    function: Callable[[RunConfig], experiment.Experiment],
    config: RunConfig,
    meeting: Meeting,
    console: Console,
    signals: Signals,
) -> int:
    """Trains as the chief says; returns the exit status that the chief ends with.

    Args:
        function: what to train, the same as the chief's.
        config: the same as the chief's, in all that training depends on.
        meeting: all tasks of the run, met.
        console: for warnings.
        signals: noted ones are passed on to the chief.

    Raises:
        DtrainError: something failed here, or elsewhere.
    """
    what, config = experiment.build(function, config)
    with explained():
        trainer = SyncTrainer(what, config, meeting, console)
        signals.at_once = False
        return trainer.follow()
