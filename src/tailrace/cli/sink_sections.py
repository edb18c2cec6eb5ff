"""What the configuration may say about sinks."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Discriminator,
    Field,
    SecretStr,
    Tag,
    model_validator,
)

from tailrace.cli.section import Section
from tailrace.cli.values import (
    Columns,
    Count,
    Duration,
    PathOrUrl,
    SchemaName,
    Size,
    TargetDsn,
    yes_or_no,
)


def _a_day(value: timedelta) -> timedelta:
    if value < timedelta(days=1):
        raise ValueError("is too short: younger files may still be read, so write 1d or more")
    return value


class DeltaSink(Section):
    """Delta tables at `<path>/<schema>/<table>`."""

    type: Literal["delta"] = "delta"
    path: PathOrUrl = "./lake"
    mode: Literal["upsert", "append", "history"] = "upsert"
    engine: Literal["auto", "deltalake", "delta-spark"] = "auto"
    soft_delete: Annotated[bool, BeforeValidator(yes_or_no)] = False
    partition_by: dict[str, Columns] = Field(default_factory=dict)
    cluster_by: dict[str, Columns] = Field(default_factory=dict)
    deletion_vectors: Annotated[bool, BeforeValidator(yes_or_no)] = False
    compact_after: Annotated[Count, Field(ge=0)] = 100
    vacuum_after: Annotated[Duration, AfterValidator(_a_day)] = timedelta(days=7)

    @model_validator(mode="after")
    def _only_upserts_delete(self) -> DeltaSink:
        if self.soft_delete and self.mode != "upsert":
            raise ValueError("cannot have soft_delete: true: only mode: upsert deletes rows")
        return self


class PostgresSink(Section):
    """Tables of another Postgres database."""

    type: Literal["postgres"]
    dsn: TargetDsn
    schema_: SchemaName | None = Field(default=None, alias="schema")
    mode: Literal["upsert", "append"] = "upsert"
    dead_letter_count: Annotated[Count, Field(ge=1)] = 100_000
    dead_letter_bytes: Size = 1 << 30


class ParquetSink(Section):
    """Change files at `<path>/<schema>/<table>`."""

    type: Literal["parquet"]
    path: PathOrUrl = "./changes"
    partition_by: Literal["commit_date", "none"] = "commit_date"


class Webhook(Section):
    """Messages posted to an address; it, the secret and the headers are never shown."""

    type: Literal["webhook"]
    url: SecretStr
    secret: SecretStr | None = None
    headers: dict[str, SecretStr] = Field(default_factory=dict)
    timeout: Duration = timedelta(seconds=10)
    batch_count: Annotated[Count, Field(ge=1)] = 100
    batch_bytes: Size = 1 << 20


class Kinesis(Section):
    """Messages to a stream of Amazon Kinesis, with the credentials of the environment."""

    type: Literal["kinesis"]
    stream: str
    region: str | None = None
    endpoint_url: str | None = None
    timeout: Duration = timedelta(seconds=10)


class Kafka(Section):
    """Messages to a topic of Kafka, by Spark's connector; the properties are never shown."""

    type: Literal["kafka"]
    bootstrap_servers: str
    topic: str
    properties: dict[str, SecretStr] = Field(default_factory=dict)
    timeout: Duration = timedelta(seconds=10)
    message_bytes: Size = 1_000_000


Queue = Annotated[Webhook | Kinesis | Kafka, Field(discriminator="type")]


class QueueSink(Section):
    """What every queue has as a sink; `dead_letter_queue` gets a copy of each dead letter."""

    envelope: Literal["debezium", "plain"] = "debezium"
    request_count: Annotated[Count, Field(ge=1, le=32)] = 4
    window_count: Annotated[Count, Field(ge=1)] = 10_000
    window_bytes: Size = 32 << 20
    retry_max_attempts: Annotated[Count, Field(ge=1)] = 10
    retry_max_elapsed: Duration = timedelta(seconds=15)
    on_exhausted: Literal["stop", "dead_letter"] = "stop"
    dead_letter_count: Annotated[Count, Field(ge=1)] = 100_000
    dead_letter_bytes: Size = 1 << 30
    dead_letter_queue: Queue | None = None


class WebhookSink(Webhook, QueueSink):
    """A stream's changes to a webhook."""


class KinesisSink(Kinesis, QueueSink):
    """A stream's changes to Kinesis."""


class KafkaSink(Kafka, QueueSink):
    """A stream's changes to Kafka."""


class ConsoleSink(Section):
    """Changes printed to the terminal."""

    type: Literal["console"]


class MemorySink(Section):
    """Changes kept in this process."""

    type: Literal["memory"]


def _sink_type(value: object) -> str | None:
    found = value if isinstance(value, dict) else {"type": getattr(value, "type", "delta")}
    kind = found.get("type", "delta")
    return kind if isinstance(kind, str) else None


Sink = Annotated[
    Annotated[DeltaSink, Tag("delta")]
    | Annotated[PostgresSink, Tag("postgres")]
    | Annotated[ParquetSink, Tag("parquet")]
    | Annotated[WebhookSink, Tag("webhook")]
    | Annotated[KinesisSink, Tag("kinesis")]
    | Annotated[KafkaSink, Tag("kafka")]
    | Annotated[ConsoleSink, Tag("console")]
    | Annotated[MemorySink, Tag("memory")],
    Discriminator(_sink_type),
]
