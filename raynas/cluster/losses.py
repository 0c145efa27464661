"""Why Ray lost a process, by Ray's own text about it."""

from __future__ import annotations

NODE_LOST = "its node was lost"
ENDED = "its process has ended: it was killed, for want of memory or from outside, or it crashed"
OUT_OF_MEMORY = "out of memory: its machine had too little left, and Ray ended its process"


def why_lost(text: str) -> str | None:
    """Return in a few words why a worker process was lost; None if Ray's text does not say.

    Every text about a lost actor begins with "The actor died unexpectedly", so the reason is looked for after it.

    Args:
        text: of an exception such as `RayActorError`, or of a file that holds one.
    """
    if any(told in text.lower() for told in ("node has died", "node died", "node it was running on is dead")):
        return NODE_LOST
    if "low on memory" in text:
        return OUT_OF_MEMORY
    if "worker process has died" in text or "worker died unexpectedly" in text:
        return ENDED
    return None
