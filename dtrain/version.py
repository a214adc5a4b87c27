"""The version, on its own so that anything can import it."""

__version__ = "0.1.0"
