"""Lines that a person can follow."""

from __future__ import annotations

import io

from tailrace.model import ReplicaIdentity
from tailrace.sinks.console import ConsoleSink
from tests.sinks.source import NAN, Source, batch_of, load_of, relation


def lines(*sources: Source) -> list[str]:
    out = io.StringIO()
    sink = ConsoleSink(out)
    for source in sources:
        sink.prepare(source.relation)
    sink.write(batch_of(1, *[source.take() for source in sources]))
    assert sink.committed("lake", [source.relation for source in sources]) == {}
    sink.close()
    return out.getvalue().splitlines()


def test_change_is_one_line_with_its_key_first() -> None:
    source = Source(relation(key=("part", "id")))
    source.insert(id=1, part="a", doc="x\ny", amount=NAN)
    source.update("a", 1, n=2, unchanged=["doc"])
    source.delete("a", 1)
    source.truncate()
    assert lines(source) == [
        '0/1008:0 insert public.orders part="a" id=1 doc="x\\ny" amount="NaN" n=null',
        '0/1010:0 update public.orders part="a" id=1 amount="NaN" n=2',
        '0/1018:0 delete public.orders part="a" id=1',
        "0/1020:0 truncate public.orders",
    ]


def test_only_changed_columns_are_shown_if_the_old_row_is_known() -> None:
    source = Source(relation(identity=ReplicaIdentity.FULL))
    source.insert(id=1, part="a")
    source.take()
    source.update(1, n=2)
    assert lines(source) == ["0/1010:0 update public.orders id=1 n=2"]


def test_tables_come_in_the_order_of_the_log() -> None:
    one, two = Source(relation("one")), Source(relation("two"))
    two.insert(id=1)
    one.lsn += 64
    one.insert(id=1)
    assert [line.split()[2] for line in lines(one, two)] == ["public.two", "public.one"]


def test_long_values_are_cut() -> None:
    source = Source()
    source.insert(id=1, doc="x" * 1000)
    (line,) = lines(source)
    assert "x" * 50 in line and len(line) < 200 and "…" in line


def test_load_is_announced_and_its_rows_follow() -> None:
    source = Source()
    source.insert(id=1, n=1)
    source.insert(id=2, n=2)
    out = io.StringIO()
    ConsoleSink(out).load(load_of(1, source), source.base(rows_per_part=1))
    assert out.getvalue().splitlines() == [
        "0/1010 load public.orders",
        "0/1010:0 insert public.orders id=1 part=null doc=null amount=null n=1",
        "0/1010:1 insert public.orders id=2 part=null doc=null amount=null n=2",
    ]
