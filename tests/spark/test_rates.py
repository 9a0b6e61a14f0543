"""The tasks of a job share the rate of its sink."""

from __future__ import annotations

from tests.unit.protocol.test_batch_delivery import Carrying, carried_by, done
from wal_sink.spark.delivery import _for_one_of


def test_tasks_side_by_side_share_the_rate() -> None:
    carrying = Carrying(done)
    _, run = carried_by(carrying, rows_per_s=100)
    run.deliver_all()
    given = carrying.given[0]
    assert given.rows_per_s == 100
    assert _for_one_of(4, given).rows_per_s == 25
    carrying = Carrying(done)
    _, run = carried_by(carrying)
    run.deliver_all()
    assert _for_one_of(4, carrying.given[0]) is carrying.given[0]
