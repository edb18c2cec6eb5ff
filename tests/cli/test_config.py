"""The configuration: what it takes, what it refuses, and that it keeps the password to itself."""

from __future__ import annotations

import pickle
import textwrap
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from types import MappingProxyType

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from tailrace.cli.config import Config, load, parse
from tailrace.cli.sink_sections import ConsoleSink, DeltaSink
from tailrace.errors import ConfigError

ROOT = Path("/srv/shop")
PASSWORD = "hunter2-very-secret"
NOTHING: Mapping[str, str] = MappingProxyType({})


def read(text: str, environ: Mapping[str, str] = NOTHING) -> Config:
    return parse(textwrap.dedent(text), root=ROOT, environ=environ)


def refusal(text: str, environ: Mapping[str, str] = NOTHING) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        read(text, environ)
    error = caught.value
    assert "\n" not in str(error) and "\n" not in error.hint
    assert "pydantic" not in str(error)
    return error


def test_an_empty_file_means_the_defaults() -> None:
    config = read("")
    assert config.source.name == "main"
    assert config.source.dsn is None
    assert config.log.url == "file:/srv/shop/.tailrace/log"
    assert config.log.retention == timedelta(days=7)
    assert config.capture.tables == ("public.*",)
    assert config.spark.master == "local[*]"
    assert config.streams["lake"].sink == DeltaSink(path="/srv/shop/lake")
    assert config.directory == ROOT / ".tailrace"


@pytest.mark.parametrize("text", ["---\n", "# nothing\n", "source:\nlog:\n", "{}"])
def test_a_file_without_values_means_the_defaults(text: str) -> None:
    assert read(text) == read("")


def test_every_key_can_be_written() -> None:
    config = read(
        """
        source: {name: shop_1, dsn: "postgresql://ann@db/shop"}
        log: {url: "s3://bucket/log", retention: 36h, retention_bytes: 10GiB, hard_limit: 1TiB}
        capture:
          mode: wal
          tables: [public.orders, "sales.*"]
          heartbeat_interval: 500ms
          receive_timeout: 1m
          poll_interval: 1s
          wal_transition_timeout: 10m
          auto_replica_identity: true
          lock_timeout: 100ms
          max_handover_lag: 1MiB
          shadow: 60s
          table_settings:
            public.orders: {mode: trigger, lock_timeout: 50ms}
            sales.*: {auto_replica_identity: false, shadow: 5s}
          metrics_port: 9108
        spark: {master: "spark://host:7077", packages: [a:b:1], settings: {spark.ui.enabled: false}}
        streams:
          everything: {sink: {type: console}}
          orders:
            tables: [public.orders]
            sink: {type: delta, path: "s3://bucket/lake", mode: append, engine: deltalake}
            trigger_interval: 5s
            max_changes_per_batch: 1000
            max_bytes_per_batch: 8MiB
        """
    )
    assert config.source.dsn is not None
    assert config.source.dsn.get_secret_value() == "postgresql://ann@db/shop"
    assert config.log.url == "s3://bucket/log"
    assert (config.log.retention_bytes, config.log.hard_limit) == (10 * 2**30, 2**40)
    assert config.capture.heartbeat_interval == timedelta(milliseconds=500)
    assert config.capture.metrics_port == 9108
    assert config.spark.settings == {"spark.ui.enabled": "false"}
    assert config.streams["everything"].sink == ConsoleSink(type="console")
    assert config.streams["orders"].max_bytes_per_batch == 8 * 2**20


def test_no_streams_can_be_asked_for() -> None:
    assert read("streams: {}").streams == {}
    assert read("streams:").streams == {}


def test_spark_master_none_means_the_session_that_is_there() -> None:
    assert read("spark: {master: none}").spark.master is None
    assert read("spark: {master: null}").spark.master is None


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("file:log", "file:/srv/shop/log"),
        ("file:../log", "file:/srv/log"),
        ("file:/var/log", "file:/var/log"),
        ("file:///var/log", "file:///var/log"),
        ("file:~/log", "file:~/log"),
        ("s3://bucket/prefix", "s3://bucket/prefix"),
        ("memory:trial", "memory:trial"),
    ],
)
def test_log_paths_are_relative_to_the_file(written: str, meant: str) -> None:
    assert read(f"log: {{url: '{written}'}}").log.url == meant


def test_a_root_with_special_characters_stays_the_same_directory_in_the_url() -> None:
    config = parse("", root=Path("/srv/50% off"), environ={})
    assert config.log.url == "file:/srv/50%25%20off/.tailrace/log"


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("lake", "/srv/shop/lake"),
        ("./lake", "/srv/shop/lake"),
        ("file:lake", "/srv/shop/lake"),
        ("/lake", "/lake"),
        ("s3://bucket/lake", "s3://bucket/lake"),
        ("file:///lake", "file:///lake"),
    ],
)
def test_lake_paths_are_relative_to_the_file(written: str, meant: str) -> None:
    config = read(f"streams: {{a: {{sink: {{path: '{written}'}}}}}}")
    assert config.streams["a"].sink == DeltaSink(path=meant)


MISTAKES = {
    "unknown key": (
        "capture:\n  tabels: [public.orders]\n",
        "tailrace.yaml:2: unknown key capture.tabels",
        'did you mean "tables"?',
    ),
    "unknown section": (
        "log: {}\n\nsorce: {}\n",
        "tailrace.yaml:3: unknown key sorce",
        '"source"',
    ),
    "key of a later version": (
        "streams: {a: {replay: x}}",
        "unknown key streams.a.replay",
        "known here: tables, where",
    ),
    "where that is none": (
        "streams: {a: {where: x = y}}",
        "streams.a.where cannot be understood at character 5",
        "columns compared with literals",
    ),
    "where with null": (
        "streams: {a: {where: x = NULL}}",
        "streams.a.where compares with NULL at character 5",
        "IS NULL",
    ),
    "no columns": ("streams: {a: {columns: []}}", "streams.a.columns must name a column", ""),
    "key of another sink": (
        "streams: {a: {sink: {type: console, path: x}}}",
        "unknown key streams.a.sink.path",
        "known here: type",
    ),
    "soft delete of a history": (
        "streams: {a: {sink: {mode: history, soft_delete: true}}}",
        "streams.a.sink cannot have soft_delete",
        "only mode: upsert deletes rows",
    ),
    "soft delete that is no flag": (
        "streams: {a: {sink: {soft_delete: maybe}}}",
        'streams.a.sink.soft_delete "maybe" must be true or false',
        "",
    ),
    "partitions without a table": (
        "streams: {a: {sink: {partition_by: [region]}}}",
        "streams.a.sink.partition_by must be a mapping",
        "partition_by: {public.orders: [region]}",
    ),
    "clusters of no column": (
        "streams: {a: {sink: {cluster_by: {public.orders: []}}}}",
        "streams.a.sink.cluster_by.public.orders must name a column",
        "",
    ),
    "vacuum of young files": (
        "streams: {a: {sink: {vacuum_after: 1h}}}",
        'streams.a.sink.vacuum_after "1h" is too short',
        "write 1d or more",
    ),
    "misspelt key of a postgres sink": (
        "streams: {a: {sink: {type: postgres, dsn: host=x, shcema: copy}}}",
        "unknown key streams.a.sink.shcema",
        'did you mean "schema"?',
    ),
    "postgres sink without a dsn": (
        "streams: {a: {sink: {type: postgres}}}",
        "streams.a.sink.dsn must be given",
        "TARGET_URL",
    ),
    "partition of a parquet sink": (
        "streams: {a: {sink: {type: parquet, partition_by: hour}}}",
        'streams.a.sink.partition_by "hour" must be',
        "",
    ),
    "sink of a later version": (
        "streams: {a: {sink: {type: pigeon}}}",
        'streams.a.sink.type "pigeon" must be one of delta, postgres, parquet, webhook',
        "",
    ),
    "misspelt key of a dead letter queue": (
        "streams: {a: {sink: {type: webhook, url: u, dead_letter_queue: {type: kafka, topik: s}}}}",
        "unknown key streams.a.sink.dead_letter_queue.topik",
        'did you mean "topic"?',
    ),
    "dead letter queue that is none": (
        "streams: {a: {sink: {type: webhook, url: u, dead_letter_queue: {type: delta}}}}",
        'streams.a.sink.dead_letter_queue.type "delta" must be one of webhook, kafka, kinesis',
        "",
    ),
    "unknown mode": (
        "capture: {mode: fast}",
        "capture.mode \"fast\" must be 'auto', 'wal' or 'trigger'",
        "",
    ),
    "unknown mode of a table": (
        "capture: {table_settings: {public.a: {mode: fast}}}",
        "capture.table_settings.public.a.mode \"fast\" must be 'auto', 'wal' or 'trigger'",
        "",
    ),
    "settings of what is no table": (
        "capture: {table_settings: {orders: {mode: wal}}}",
        "is not a table pattern",
        "schema.table",
    ),
    "lock timeout past deadlock detection": (
        "capture: {lock_timeout: 2s}",
        'capture.lock_timeout "2s" must be from 1ms to below 1s',
        "deadlocks",
    ),
    "no pause between drains": (
        "capture: {poll_interval: 0s}",
        'capture.poll_interval "0s" must be longer than nothing',
        "",
    ),
    "syntax": ("source:\n  name: a: b\n", "tailrace.yaml:2: not valid YAML at column 10", "quotes"),
    "unclosed list": ("capture: {tables: [a.b\n", "tailrace.yaml:2: not valid YAML", ""),
    "tab": ("source:\n\tname: a\n", "tailrace.yaml:2: the line is indented with a tab", "spaces"),
    "key twice": (
        "log: {}\nsource: {}\nlog: {}\n",
        "tailrace.yaml:3: log is there twice",
        "line 1",
    ),
    "alias": ("source: &a {}\nlog: *a\n", "tailrace.yaml:2: an alias", "write it out"),
    "tag": ("source: !!python/object:os.system {}", "a tag (!name) is not supported", ""),
    "tagged scalar": ("source: {name: !secret x}", "a value that YAML cannot read", "quotes"),
    "number as key": ("5: x", "tailrace.yaml:1: a key that is not text", "quotes"),
    "list as key": ("? [a]\n: b\n", "a key that is not text", "quotes"),
    "two documents": ("log: {}\n---\nlog: {}\n", "tailrace.yaml:2: not valid YAML", ""),
    "control character": ("log: \x01", "holds characters that YAML does not allow", ""),
    "nested without end": ("[" * 500, "nested too deep", ""),
    "list for the file": ("- source\n", "tailrace.yaml:1: the file must be a mapping", ""),
    "text for the file": ("tailrace", "tailrace.yaml:1: the file must be a mapping", ""),
    "list for a mapping": ("streams:\n  - lake\n", "streams must be a mapping", "streams: {lake:"),
    "text for a mapping": ("streams: {a: {sink: delta}}", "streams.a.sink", "sink: {type: delta"),
    "text for a list": ("capture: {tables: public.*}", "must be a list", 'tables: ["public.*"]'),
    "no tables": ("capture: {tables: []}", "capture.tables must name a table", "public.*"),
    "table without schema": (
        "capture: {tables: [a.b, orders]}",
        'capture.tables[1] "orders" is not a table pattern',
        "public.orders",
    ),
    "yes for text": ("source: {name: no}", "source.name must be text", "quotes"),
    "number for text": ("source: {name: 1}", "source.name must be text", "quotes"),
    "no value": (
        "source:\n  name:\n",
        "tailrace.yaml:2: source.name has no value",
        "leave the key",
    ),
    "source name": ("source: {name: Main DB}", '"Main DB" is not a source\'s name', "lower-case"),
    "long source name": (f"source: {{name: {'a' * 47}}}", "is not a source's name", "46"),
    "reserved name": ("source: {name: a_buffers}", '"a_buffers" is not a source', "not end in"),
    "a stream called sink": (
        "streams: {sink: {tables: [orders]}}",
        'streams.sink.tables[0] "orders" is not a table pattern',
        "public.orders",
    ),
    "stream name": ("streams: {My Lake: {}}", "streams.My Lake is not a stream's name", "a-z"),
    "duration without unit": ("log: {retention: 7}", 'log.retention "7" needs a unit', "30s"),
    "duration": ("log: {retention: 7 parsecs}", '"7 parsecs" is not a duration', "30s"),
    "no duration": ("log: {retention: 0s}", "must be longer than nothing", ""),
    "endless duration": ("log: {retention: 99999999d}", "is longer than 36500d", ""),
    "duration as list": ("log: {retention: [7d]}", "must be a duration", ""),
    "size without unit": ("log: {retention_bytes: 5}", '"5" needs a unit', "64MiB"),
    "size": ("log: {retention_bytes: 5 apples}", "is not a size", "MiB"),
    "bare path as log": ("log: {url: ./log}", "log.url is not a URL", "file:path"),
    "empty path": ("streams: {a: {sink: {path: ''}}}", "streams.a.sink.path is empty", "path"),
    "port as text": ("capture: {metrics_port: abc}", "must be a whole number", ""),
    "port as yes": ("capture: {metrics_port: true}", "must be a whole number", ""),
    "port for two": (
        "capture: {metrics_port: 9108}\npipeline: {metrics_port: 9108}",
        "the file has one metrics_port for both capture and pipeline",
        "choose two",
    ),
    "port": ("capture: {metrics_port: 99999}", '"99999" must be at most 65535', ""),
    "no changes per batch": (
        "streams: {a: {max_changes_per_batch: 0}}",
        "must be at least 1",
        "",
    ),
    "setting": ("spark: {settings: {a: [1]}}", "spark.settings.a must be text", ""),
    "two mistakes": (
        "log: {retention: x}\nsource: {nam: a}\n",
        'tailrace.yaml:1: log.retention "x" is not a duration (and 1 more)',
        "",
    ),
    "empty dsn": ("source: {dsn: ''}", "source.dsn is empty", "leave the key out"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_line_that_names_key_and_cure(mistake: str) -> None:
    text, message, hint = MISTAKES[mistake]
    error = refusal(text)
    assert message in str(error)
    assert hint in error.hint


def test_variables_are_expanded_in_values_only() -> None:
    config = read(
        """
        source: {name: "${NAME}", dsn: "${DSN}"}
        log: {url: "file:${DIR:-logs}/${NAME}"}
        capture: {metrics_port: "${PORT}", tables: ["${SCHEMA:-public}.*"]}
        spark: {settings: {a: "$${NAME} $NAME"}}
        """,
        {"NAME": "shop", "DSN": "host=db dbname=shop", "PORT": "9108", "SCHEMA": ""},
    )
    assert config.source.name == "shop"
    assert config.log.url == "file:/srv/shop/logs/shop"
    assert config.capture.metrics_port == 9108
    assert config.capture.tables == ("public.*",)
    assert config.spark.settings == {"a": "${NAME} $NAME"}


def test_a_value_from_the_environment_is_not_expanded_again() -> None:
    config = read("spark: {settings: {a: '${OUTER}'}}", {"OUTER": "${INNER}"})
    assert config.spark.settings == {"a": "${INNER}"}


def test_an_unset_variable_is_named() -> None:
    error = refusal("log: {}\nsource:\n  dsn: ${DATABASE_URL}\n")
    assert str(error) == (
        "tailrace.yaml:3: source.dsn needs the environment variable DATABASE_URL, which is not set"
    )
    assert "DATABASE_URL" in error.hint


@pytest.mark.parametrize("value", ["${", "${}", "${1X}", "${A-b}", "${A"])
def test_a_broken_reference_is_refused(value: str) -> None:
    error = refusal(f"log: {{url: 'file:{value}'}}", {"A": "x"})
    assert "log.url has a ${ that is not a variable" in str(error)


def test_the_password_is_in_no_text_of_the_configuration() -> None:
    config = read("source: {dsn: '${DSN}'}", {"DSN": f"postgresql://ann:{PASSWORD}@db/shop"})
    for text in (repr(config), str(config), str(config.model_dump()), config.model_dump_json()):
        assert PASSWORD not in text


@pytest.mark.parametrize(
    "dsn",
    [
        f"host=db password={PASSWORD} oops",
        f"postgresql://ann:{PASSWORD}@more@db/shop",
        f"postgresql://ann:x@{PASSWORD}@db/shop",
        f"mysql://ann:{PASSWORD}@db/shop",
        f"postgresql://ann:{PASSWORD}@db:shop/5432",
    ],
)
def test_f112_a_wrong_dsn_is_refused_without_quoting_it(dsn: str) -> None:
    error = refusal("source: {dsn: '${DSN}'}", {"DSN": dsn})
    assert "source.dsn is not a connection string" in str(error)
    assert "postgresql://" in error.hint
    assert PASSWORD not in str(error) + error.hint
    assert error.__cause__ is None and error.__suppress_context__


SECRET_PLACES = [
    "source: {}",
    "source: {name: {}}",
    "source: {dns: {}}",
    "dsn: {}",
    "log: {url: {}}",
    "log: {retention: {}}",
    "capture: {mode: {}}",
    "capture: {tables: {}}",
    "capture: {tables: [{}]}",
    "capture: {metrics_port: {}}",
    "streams: {}",
    "streams: {a: {sink: {}}}",
    "streams: {a: {sink: {type: {}}}}",
    "streams: {a: {trigger_interval: {}}}",
    "spark: {packages: {}}",
    "spark: {settings: {}}",
    "{}",
    "{{}}",
    "source: {{}}",
    "streams: {{}: {}}",
]


@pytest.mark.parametrize("place", SECRET_PLACES)
@pytest.mark.parametrize("literal", [True, False], ids=["in the file", "in a variable"])
def test_f112_a_dsn_in_the_wrong_place_is_not_quoted(place: str, literal: bool) -> None:
    dsn = f"postgresql://ann:{PASSWORD}@db/shop"
    text = place.replace("{}", f'"{dsn}"' if literal else '"${DSN}"')
    try:
        config = read(text, {"DSN": dsn})
    except ConfigError as error:
        assert PASSWORD not in str(error) + error.hint + repr(error)
    else:
        assert config.log.url == dsn  # a URL like any other; the store refuses it


_YAML = "as:{}[]-?#$*&!|>'\"%@`\\\n\t ,.~07é€\x00"


@given(st.text(alphabet=_YAML, max_size=100))
def test_any_text_is_a_configuration_or_a_config_error(text: str) -> None:
    try:
        parse(text, root=ROOT, environ={})
    except ConfigError as error:
        assert "\n" not in str(error)


_yaml_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(_YAML, max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(_YAML, max_size=8), inner, max_size=3)
    ),
    max_leaves=5,
)
_keys = st.sampled_from(["source", "log", "capture", "spark", "streams"])
_inner_keys = st.sampled_from(
    ["name", "dsn", "url", "retention", "mode", "tables", "metrics_port", "settings", "sink", "x"]
)


@given(st.dictionaries(_keys, st.dictionaries(_inner_keys, _yaml_values) | _yaml_values))
def test_any_shape_of_values_is_a_configuration_or_a_config_error(value: object) -> None:
    try:
        parse(yaml.safe_dump(value), root=ROOT, environ={})
    except ConfigError as error:
        assert "\n" not in str(error)


def test_a_missing_file_is_the_defaults_unless_it_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert load().directory == tmp_path / ".tailrace"
    with pytest.raises(ConfigError, match=r"there is no tailrace\.yaml") as caught:
        load(required=True)
    assert "tailrace init" in caught.value.hint
    with pytest.raises(ConfigError, match=r"there is no other\.yaml"):
        load(Path("other.yaml"))


def test_errors_name_the_file_as_it_was_given(tmp_path: Path) -> None:
    file = tmp_path / "shop.yaml"
    file.write_text("log:\n  retention: x\n")
    with pytest.raises(ConfigError, match=rf"{file}:2: log\.retention"):
        load(file)


def test_a_file_that_cannot_be_read_is_a_config_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read .*: is a directory"):
        load(tmp_path)
    latin = tmp_path / "latin.yaml"
    latin.write_bytes("source: {name: größe}".encode("latin-1"))
    with pytest.raises(ConfigError, match="is not UTF-8 text"):
        load(latin)


def test_config_errors_pickle() -> None:
    error = refusal("sorce: {}")
    copy = pickle.loads(pickle.dumps(error))
    assert (str(copy), copy.hint) == (str(error), error.hint)
