"""Joules between readings: wrapping, resets, machines that come and go, and one machine that several nodes share."""

from __future__ import annotations

import pytest

from raynas.energy.counters import Counter, Reading
from raynas.energy.meter import Meter


def cpu(joules: float) -> Counter:
    return Counter("CPU package", joules, wraps_at=1000.0)


def gpu(joules: float) -> Counter:
    return Counter("GPU", joules)


def reading(machine: str, unread: tuple[str, ...] = (), **counters: Counter) -> Reading:
    return Reading(machine, {machine: "a CPU"}, counters, unread)


def test_differences_of_all_counters_are_added() -> None:
    meter = Meter()
    meter.add([reading("one", a=cpu(100.0), b=gpu(5.0)), reading("two", c=gpu(7.0))])
    meter.add([reading("one", a=cpu(130.0), b=gpu(9.0)), reading("two", c=gpu(8.5))])
    meter.add([reading("one", a=cpu(140.0), b=gpu(9.0)), reading("two", c=gpu(9.0))])
    assert meter.totals() == {
        "joules": pytest.approx(40 + 4 + 2),
        "measured": "2 GPUs, 1 CPU package",
        "unmeasured": None,
        "machines": 2,
        "device": "2 x a CPU",
    }


def test_a_counter_that_wraps_twice_between_the_ends() -> None:
    meter = Meter()
    for joules in (900.0, 400.0, 950.0, 50.0):
        meter.add([reading("one", a=cpu(joules))])
    assert meter.totals()["joules"] == pytest.approx(500 + 550 + 100)


def test_a_counter_that_was_reset_hides_what_it_counted_and_no_more() -> None:
    meter = Meter()
    for joules in (900.0, 910.0, 3.0, 8.0):
        meter.add([reading("one", a=gpu(joules))])
    assert meter.totals()["joules"] == pytest.approx(10 + 5)


def test_machines_that_come_and_go_are_known_in_part() -> None:
    meter = Meter()
    meter.add([reading("stays", a=gpu(0.0)), reading("goes", b=gpu(0.0))])
    meter.add([reading("stays", a=gpu(1.0)), reading("goes", b=gpu(10.0)), reading("comes", c=gpu(50.0))])
    meter.add([reading("stays", a=gpu(2.0)), reading("comes", c=gpu(150.0))])
    found = meter.totals()
    assert (found["joules"], found["measured"], found["machines"]) == (pytest.approx(2 + 10 + 100), "3 GPUs", 3)
    assert found["unmeasured"] == "a part of the time of 2 GPUs"


def test_nodes_of_one_machine_are_counted_once() -> None:
    meter = Meter()
    meter.add([reading("one", a=gpu(1.0)), reading("one", a=gpu(1.5))])
    meter.add([reading("one", a=gpu(3.0)), reading("one", a=gpu(3.5))])
    assert (meter.totals()["joules"], meter.totals()["machines"]) == (pytest.approx(2.0), 1)


def test_nodes_of_one_machine_that_answer_out_of_order_make_no_counter_wrap() -> None:
    meter = Meter()
    meter.add([reading("one", a=cpu(1.0)), reading("one", a=cpu(1.5))])
    meter.add([reading("one", a=cpu(3.5)), reading("one", a=cpu(3.0), b=cpu(7.0))])
    meter.add([reading("one", a=cpu(4.5)), reading("one", a=cpu(4.0), b=cpu(9.0))])
    assert meter.totals()["joules"] == pytest.approx(3.5 + 2.0)


def test_reasons_say_on_how_many_machines() -> None:
    meter = Meter()
    for _ in range(2):
        meter.add([reading("one", ("GPUs: lost",), a=cpu(1.0)), reading("two", b=cpu(1.0))])
    assert meter.totals()["unmeasured"] == "GPUs: lost (on 1 of 2 machines)"
    assert meter.totals()["joules"] == 0.0


def test_nothing_measured_is_not_zero() -> None:
    meter = Meter()
    assert meter.totals()["joules"] is None
    meter.add([reading("one", ("CPU: no counters",))])
    meter.add([reading("one", ("CPU: no counters",))])
    assert meter.totals() == {
        "joules": None, "measured": None, "unmeasured": "CPU: no counters", "machines": 1, "device": "a CPU",
    }  # fmt: skip
