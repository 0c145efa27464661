"""What must be importable by name, for pickling; there is more than one `conftest`."""

from raynas.config import Config


class NoConstants(Config):
    """A family without constants."""
