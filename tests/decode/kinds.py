"""Every type that a column can have: what becomes of it, values at its edges, and any others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from hypothesis import strategies as st

from tests.decode.texts import (
    Texts,
    arrays,
    clocks,
    composites,
    days,
    decimals,
    documents,
    finite,
    floats,
    integers,
    intervals,
    moments,
    multiranges,
    ranges,
    signed,
    strings,
)

TYPES_MADE: Final = """
CREATE TYPE mood AS ENUM ('happy', 'so so', 'größe');
CREATE TYPE pair AS (a int, b text);
CREATE TYPE span AS RANGE (subtype = float8);
CREATE DOMAIN positive AS int CHECK (VALUE > 0);
CREATE DOMAIN price AS numeric(12,2);
CREATE DOMAIN discount AS price;
CREATE DOMAIN few AS int[];
CREATE DOMAIN note AS text;
CREATE DOMAIN due AS date;
CREATE DOMAIN feeling AS mood;
CREATE EXTENSION vector;
CREATE CAST (bytea AS xml) WITHOUT FUNCTION;
"""
"""Types of one's own, one of each sort. The servers here are built without XML: the cast brings
values past the parser that they lack."""


@dataclass(frozen=True, slots=True)
class Kind:
    """`held` are values that the Arrow type holds, `unheld` those that it cannot; `random` gives
    any. `made` is how a value is made of its text.
    """

    arrow: pa.DataType
    held: tuple[str, ...] = ()
    unheld: tuple[str, ...] = ()
    random: Texts | None = None
    made: str = "%s::{}"

    @property
    def texts(self) -> st.SearchStrategy[str | None]:
        """Any value, often one at an edge, sometimes none."""
        edges: list[st.SearchStrategy[str | None]] = [st.none()]
        if self.held or self.unheld:
            edges.append(st.sampled_from(self.held + self.unheld))
        return st.one_of(edges if self.random is None else [*edges, self.random, self.random])


def _text(*held: str, random: Texts | None = None, made: str = "%s::{}") -> Kind:
    return Kind(pa.string(), held, (), random, made)


_INFINITE = ("infinity", "-infinity")
_NOT_A_NUMBER = ("NaN", "Infinity", "-Infinity")
_DATES = ("0044-03-15 BC", "4714-11-24 BC", "10000-01-01", "5874897-12-31", *_INFINITE)
_TINY = integers(-20, 20)
_LATER = integers(20, 40)

TYPED: Final = {
    "bool": Kind(pa.bool_(), ("true", "false")),
    "int2": Kind(pa.int16(), ("-32768", "0", "32767"), random=signed(16)),
    "int4": Kind(pa.int32(), ("-2147483648", "-1", "2147483647"), random=signed(32)),
    "int8": Kind(pa.int64(), (str(-(1 << 63)), "7", str((1 << 63) - 1)), random=signed(64)),
    "float4": Kind(
        pa.float32(),
        ("0.1", "-0", "3.4028235e38", "1e-45", "16777217", *_NOT_A_NUMBER),
        random=floats(32),
    ),
    "float8": Kind(
        pa.float64(),
        ("0.1", "-0", "1.7976931348623157e308", "5e-324", "1e15", "1e23", *_NOT_A_NUMBER),
        random=floats(64),
    ),
    "numeric(12,2)": Kind(
        pa.decimal128(12, 2),
        ("9999999999.99", "-9999999999.99", "0", "0.05", "-0.05"),
        ("NaN",),
        decimals(12, 2),
    ),
    "numeric(38,0)": Kind(
        pa.decimal128(38, 0), ("9" * 38, "-" + "9" * 38, "0"), ("NaN",), decimals(38, 0)
    ),
    "numeric(38,38)": Kind(
        pa.decimal128(38, 38), ("0." + "9" * 38, "-1e-38", "0"), ("NaN",), decimals(38, 38)
    ),
    "bytea": Kind(
        pa.binary(),
        ("\\x", "\\x00", "\\xdeadbeefff", "\\x5c78", "\\x09"),
        random=st.binary(max_size=20).map(lambda value: f"\\x{value.hex()}"),
    ),
    "date": Kind(
        pa.date32(), ("0001-01-01", "1970-01-01", "2024-02-29", "9999-12-31"), _DATES, days()
    ),
    "timestamp": Kind(
        pa.timestamp("us"),
        ("0001-01-01 00:00:00", "2026-01-15 10:00:00.5", "9999-12-31 23:59:59.999999"),
        (*_INFINITE, "0044-03-15 10:00 BC", "294276-12-31 23:59:59.999999"),
        moments(zoned=False),
    ),
    "timestamptz": Kind(
        pa.timestamp("us", "UTC"),
        ("0001-01-01 00:00:00+00", "2026-01-15 10:00:00.123456+05:30", "1969-12-31 23:59:59.1+00"),
        (*_INFINITE, "0044-03-15 10:00+00 BC", "10000-01-01 00:00:00+00"),
        moments(zoned=True),
    ),
    "positive": Kind(pa.int32(), ("1", "2147483647"), random=integers(1, 99)),
    "price": Kind(pa.decimal128(12, 2), ("0.05",), ("NaN",), decimals(12, 2)),
    "discount": Kind(pa.decimal128(12, 2), ("-1.50",), ("NaN",), decimals(12, 2)),
    "due": Kind(pa.date32(), ("2026-01-15",), ("infinity",), days()),
    "information_schema.cardinal_number": Kind(pa.int32(), ("0",), random=integers(0, 9)),
}

TEXTUAL: Final = {
    "numeric": _text(
        *("1e100", "0.1", "1.10", "9" * 131_072, "1e-16383", *_NOT_A_NUMBER),
        random=decimals(60, 30) | decimals(400, 0),
    ),
    "numeric(5,-2)": _text("1234500", "NaN", random=decimals(6, 0)),
    "numeric(2,4)": _text("0.0099", "NaN"),
    "numeric(39,2)": _text("9" * 37 + ".99", "NaN", random=decimals(39, 2)),
    "text": _text(
        *("", "größe 🎉 العربية", "a\nb\tc\\d\r\b\f\v", "\\N", "\\.", "NULL", "x" * 20_000),
        random=strings(30),
    ),
    "varchar(5)": _text("", "abcde", random=strings(5)),
    "char(5)": _text("", "ab", "abcde", " a", random=strings(5)),
    "bpchar": _text("", "ab  ", random=strings(9)),
    "name": _text("é" * 31 + "x", "Ab c", random=strings(12)),
    '"char"': _text("a", "", "\\377"),
    "time": _text("00:00", "24:00:00", "23:59:59.999999", random=clocks()),
    "timetz": _text("24:00:00+05", "10:00:00.5-08:30", "00:00+15:59:59"),
    "interval": _text(
        *("1 year -2 mons +3 days 04:05:06.7", "-178000000 years", "0"), random=intervals()
    ),
    "money": _text("-12.34", "-92233720368547758.08", random=decimals(16, 2)),
    "bit(4)": _text("0101"),
    "varbit": _text("", "10", random=st.text("01", max_size=20)),
    "uuid": _text("a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11", random=st.uuids().map(str)),
    "json": _text(
        *('{"b" : 1,  "a": "\\u0000"}', "null", '"\\ud800"', " 1.0e5 "),
        random=documents(strings(5) | st.just("\0")),
    ),
    "jsonb": _text('{"b": 1, "a": [1.0, null]}', "null", random=documents(strings(5))),
    "jsonpath": _text('$."a b"[*] ? (@ > 1)'),
    "xml": _text(
        '<a b="1">é</a>', "", " \n<?x?>", random=strings(9), made="convert_to(%s, 'UTF8')::{}"
    ),
    "inet": _text("::1", "10.0.0.1/8", random=st.ip_addresses().map(str)),
    "cidr": _text("10.0.0.0/8", "::/0"),
    "macaddr": _text("08:00:2b:01:02:03"),
    "macaddr8": _text("08:00:2b:01:02:03:04:05"),
    "point": _text(
        "(1.5,-0)", "(NaN,Infinity)", random=st.builds("({},{})".format, *[finite()] * 2)
    ),
    "line": _text("{1,2,3}", "{0.1,-1,1e-300}"),
    "lseg": _text("[(0,0),(1,1e20)]"),
    "box": _text("(1,1),(0,0)"),
    "path": _text("[(0,0),(1,1)]", "((0,0),(0.1,1))"),
    "polygon": _text("((0,0),(1,1),(2,0))"),
    "circle": _text("<(0,0),1.5>"),
    "tsvector": _text("'a':1 'b'", "'it''s':2A"),
    "tsquery": _text("'a' & !'b c'"),
    "int4range": _text("empty", "[1,3)", "(,)", random=ranges(_TINY, _LATER)),
    "int8range": _text("empty", random=ranges(_TINY, _LATER)),
    "numrange": _text("(1.10,2]", random=ranges(_TINY, _LATER)),
    "daterange": _text("[2020-01-01,infinity]", "(,2020-01-01)", "empty"),
    "tsrange": _text('["2020-01-01 00:00:00","2020-01-02 00:00:00")', "empty"),
    "tstzrange": _text('["2020-01-01 00:00:00+02","2020-01-02 00:00:00+00")', "(-infinity,)"),
    "int4multirange": _text("{}", "{[1,2),[5,9)}", random=multiranges(ranges(_TINY, _LATER))),
    "int8multirange": _text("{[1,2)}"),
    "nummultirange": _text("{(1.1,2],(3,)}"),
    "datemultirange": _text("{[2020-01-01,2020-02-01)}"),
    "tsmultirange": _text('{["2020-01-01 00:00:00","2020-01-02 00:00:00")}'),
    "tstzmultirange": _text('{["2020-01-01 00:00:00+02","2020-01-02 00:00:00+00")}'),
    "int4[]": _text("{}", "{1,NULL,3}", "[2:3]={1,2}", "{{1},{2}}", random=arrays(signed(32))),
    "text[]": _text('{"a,b","NULL",NULL,""}', random=arrays(strings(5))),
    "bool[]": _text("{t,f,NULL}"),
    "bytea[]": _text('{"\\\\x00ff","\\\\x"}'),
    "float8[]": _text("{0.1,NaN,-0,Infinity}", random=arrays(floats(64))),
    "numeric(6,2)[]": _text("{1.10,NaN}", random=arrays(decimals(6, 2))),
    "char(3)[]": _text("{a,'b '}"),
    "date[]": _text('{infinity,"0044-03-15 BC"}', random=arrays(days())),
    "timestamptz[]": _text('{"2020-01-01 00:00:00+05:30"}', random=arrays(moments(zoned=True))),
    "interval[]": _text('{"1 day"}', random=arrays(intervals())),
    "int4range[]": _text('{"[1,3)",empty}'),
    "mood": _text("happy", "so so", "größe"),
    "mood[]": _text('{happy,"so so",NULL}'),
    "pair": _text('(1,"a,b")', "(,)", random=composites(signed(32), strings(5))),
    "pair[]": _text('{"(1,\\"a b\\")"}', random=arrays(composites(signed(32), strings(5)))),
    "span": _text("[0.1,2)", "empty", random=ranges(_TINY, _LATER)),
    "span_multirange": _text("{[0.1,2)}"),
    "few": _text("{1,2}", "[0:1]={1,NULL}", random=arrays(signed(32))),
    "positive[]": _text("{1,2}"),
    "note": _text("", "a\tb", random=strings(9)),
    "feeling": _text("so so"),
    "vector(3)": _text("[1,2.5,-3]", "[0.1,1e-20,0]"),
    "oid": _text("4294967295"),
    "xid": _text("4294967295"),
    "xid8": _text(str((1 << 64) - 1)),
    "cid": _text("7"),
    "tid": _text("(4294967295,65535)"),
    "pg_lsn": _text("16/B374D848", "FFFFFFFF/FFFFFFFF"),
    "pg_snapshot": _text("10:20:10,14,15"),
    "txid_snapshot": _text("10:20:10,14,15"),
    "int2vector": _text("1 2 -3", ""),
    "oidvector": _text("1 4294967295"),
    "regproc": _text("now", "0", "4294967295"),
    "regprocedure": _text("pg_catalog.abs(integer)"),
    "regoper": _text("pg_catalog.||/"),
    "regoperator": _text("+(integer,integer)"),
    "regclass": _text("pg_class", "pair", "4294967295"),
    "regtype": _text("int", "mood", "timestamptz"),
    "regrole": _text("postgres", "pg_monitor"),
    "regnamespace": _text("public"),
    "regconfig": _text("english"),
    "regdictionary": _text("simple"),
    "regcollation": _text('"C"'),
    "aclitem": _text("postgres=r*w/postgres"),
    "refcursor": _text("c", random=strings(5)),
    # No value of these can be made; a column of theirs holds only NULLs.
    "gtsvector": _text(),
    "pg_node_tree": _text(),
    "pg_ndistinct": _text(),
    "pg_dependencies": _text(),
    "pg_mcv_list": _text(),
    "pg_brin_bloom_summary": _text(),
    "pg_brin_minmax_multi_summary": _text(),
}

KINDS: Final = TYPED | TEXTUAL
