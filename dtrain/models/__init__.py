"""Plain Keras models: functions that build one, knowing nothing of clusters."""
