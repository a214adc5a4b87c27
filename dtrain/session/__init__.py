"""The chief's session: heir of MonitoredTrainingSession and its hooks."""
