"""The heirs of the session's hooks, one class a file.

Those that experiments add by themselves are named here (`dtrain.callbacks`); the chief
has the others on its own, as the flags say. Importing this does not import TensorFlow.
"""

from dtrain.session.callbacks.base import Callback
from dtrain.session.callbacks.final import FinalValues
from dtrain.session.callbacks.stop import StopAtStep
from dtrain.session.callbacks.values import ValueLogger

__all__ = ["Callback", "FinalValues", "StopAtStep", "ValueLogger"]
