"""The TensorFlow side of a role: serving a task, finding the others, parting."""
