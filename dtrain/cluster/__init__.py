"""Describing a cluster: pure data, checked as soon as it is made. No TensorFlow."""
