"""Cluster training in the designs of TensorFlow 1, on current TensorFlow and Keras.

```python
import dtrain

def experiment(config):
    return dtrain.Experiment(model=..., optimizer=..., loss=..., train_data=...)

dtrain.train(experiment, dtrain.RunConfig(strategy="ps", train_steps=2000))
```

Importing the package does not import TensorFlow.
"""

from dtrain.config import RunConfig
from dtrain.errors import (
    DtrainError,
    Interrupted,
    TaskUnavailable,
    TrainingFailed,
    UsageError,
)
from dtrain.experiment import Experiment, defaults
from dtrain.input.context import InputContext
from dtrain.run import train
from dtrain.session import callbacks
from dtrain.session.callbacks.base import Callback
from dtrain.version import __version__

__all__ = [
    "Callback",
    "DtrainError",
    "Experiment",
    "InputContext",
    "Interrupted",
    "RunConfig",
    "TaskUnavailable",
    "TrainingFailed",
    "UsageError",
    "__version__",
    "callbacks",
    "defaults",
    "train",
]
