"""What Ray's text about a lost process says."""

from __future__ import annotations

import pytest

from raynas.cluster.losses import NODE_LOST, why_lost

SYSTEM = """The actor died unexpectedly before finishing this task.
\tclass_name: Replica
\tpid: 7696
\tip: 192.0.2.2
"""
"""What Ray 2.60 puts before every reason."""


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (
            "The actor died because its node has died. Node Id: 9271b1\n"
            "\tthe actor's node was terminated unexpectedly: health check failed due to missing too many heartbeats",
            NODE_LOST,
        ),
        (
            "The actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR Worker exit detail: "
            "Worker unexpectedly exits with a connection error code 2. End of file.",
            "its process has ended: it was killed, for want of memory or from outside, or it crashed",
        ),
        (
            "The actor is dead because its worker process has died. Worker exit type: NODE_OUT_OF_MEMORY Worker exit "
            "detail: Task was killed due to the node running low on memory.",
            "out of memory: its machine had too little left, and Ray ended its process",
        ),
        ("The actor is dead because it was killed by `ray.kill`.", None),
    ],
)
def test_a_lost_node_a_killed_process_and_want_of_memory_are_told_apart(text: str, why: str | None) -> None:
    assert why_lost(SYSTEM + text) == why


def test_what_ray_says_of_lost_tasks() -> None:
    died = "The worker died unexpectedly while executing this task. Check python-core-worker-*.log files."
    assert why_lost(died) == "its process has ended: it was killed, for want of memory or from outside, or it crashed"
    node = "Task failed because the node it was running on is dead or unavailable. Node IP: 192.0.2.2"
    assert why_lost(node) == NODE_LOST
