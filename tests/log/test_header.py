"""Headers: everything they say survives the text they are stored as."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.errors import SegmentCorrupt
from tailrace.log import Header, Kind, Part, RelationUse, SourceIdentity
from tailrace.model import NamedType, Offset, PgType, Relation
from tests.decode import wire
from tests.model.values import NAMES, OIDS, lsns, offsets, relations

COUNTS = st.integers(0, 1 << 40)


def _use(
    relation: Relation, key: tuple[str, ...], since: Offset, count: int, initial: bool
) -> RelationUse:
    described = Relation(
        relation.oid,
        relation.schema,
        relation.name,
        relation.identity,
        relation.columns,
        key,
        (NamedType(70_000, "mood"), NamedType(70_001, "price", PgType.NUMERIC, 786_438)),
    )
    return RelationUse(wire.relation(relation), described, since, count, initial)


USES = st.builds(
    _use, relations(), st.lists(NAMES, max_size=3).map(tuple), offsets(), COUNTS, st.booleans()
)
HEADERS = st.builds(
    Header,
    kind=st.sampled_from(Kind),
    source=st.builds(SourceIdentity, st.text("0123456789"), COUNTS, st.integers(0, 127)),
    writer=st.text("0123456789abcdef", min_size=1),
    start=lsns(),
    end=lsns(),
    frame_count=COUNTS,
    transaction_count=COUNTS,
    change_count=COUNTS,
    data_bytes=COUNTS,
    first=st.none() | offsets(),
    last=st.none() | offsets(),
    commit_ts_us_min=st.integers(),
    commit_ts_us_max=st.integers(),
    relations=st.lists(USES, max_size=3).map(tuple),
    parts=st.lists(st.builds(Part, NAMES, COUNTS, COUNTS, COUNTS), max_size=3).map(tuple),
    xid=OIDS,
    note=st.none() | st.dictionaries(NAMES, NAMES | st.integers()),
)


@settings(max_examples=30)
@given(HEADERS)
def test_a_header_reads_back_from_its_text(header: Header) -> None:
    text = header.to_json()
    assert text.isascii() and "\n" not in text
    assert Header.from_json(text) == header
    assert Header.from_json(text.encode()).to_json() == text


@settings(max_examples=30)
@given(HEADERS, st.data())
def test_a_text_without_one_of_its_fields_is_corrupt(header: Header, data: st.DataObject) -> None:
    value = json.loads(header.to_json())
    del value[data.draw(st.sampled_from(sorted(value)))]
    with pytest.raises(SegmentCorrupt):
        Header.from_json(json.dumps(value))


@given(st.text() | st.sampled_from(["[]", "{}", "null", "3", '{"format":1}', '"x"']))
def test_any_other_text_is_corrupt(text: str) -> None:
    with pytest.raises(SegmentCorrupt):
        Header.from_json(text)
