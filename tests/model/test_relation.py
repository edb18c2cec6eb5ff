"""Relations survive the frame they came in, and tell tables apart."""

from __future__ import annotations

from hypothesis import given

from tailrace.model import Relation
from tailrace.postgres.pgoutput import parse_relation
from tests.decode import wire
from tests.model.values import relations


@given(relations())
def test_a_relation_reads_back_from_its_frame(relation: Relation) -> None:
    assert parse_relation(wire.relation(relation)) == relation


@given(relations(), relations())
def test_equal_frames_are_equal_shapes(one: Relation, other: Relation) -> None:
    assert (wire.relation(one) == wire.relation(other)) == (one == other)


@given(relations())
def test_names_are_those_of_the_frame(relation: Relation) -> None:
    assert relation.qualified == f"{relation.schema}.{relation.name}"
    assert relation.column_names == tuple(column.name for column in relation.columns)
