"""Measurements of raynas itself on the machine at hand.

Every function takes what its command takes: `rounds` measurements of each kind, in turns, after a round that warms up;
`batch_size` images of a pass; a torch `device`, and torch's `threads` meanwhile; a `space`, or a shipped one's name. A
space or a device that is not there is a `UserError`.
"""

PARTS = ("step", "sandwich", "channels_last", "precision", "pool", "archs")
"""Names of the parts of `raynas bench all`, in the order of its table; here, where a command reads it without torch."""
