"""`tailrace init`: a commented configuration to start from."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import typer

from tailrace.cli.options import Verbose
from tailrace.errors import ConfigError

TEMPLATE: Final = """\
# tailrace.yaml: every key has a default, and this file holds the defaults.
# ${NAME} and ${NAME:-default} take a value from the environment. Paths are relative to this file.

source:
  name: main                      # names the replication slot and the publication: tailrace_main
  # dsn: ${DATABASE_URL}          # postgresql://user:password@host:5432/database
                                  # without it: an embedded Postgres in .tailrace/postgres

log:                              # every committed change, kept for replay
  url: file:.tailrace/log         # or s3://bucket/prefix
  retention: 7d
  # retention_bytes: 100GiB       # whichever comes first; what a stream still needs is kept
  # hard_limit: 500GiB            # beyond it the oldest goes all the same: streams fall off
  compaction_interval: 1d         # how often changes are folded into newer bases

capture:
  mode: auto                      # triggers first, the wal when it can; wal | trigger: only that
  tables: ["public.*"]            # schema.table, or schema.*
  inserts_only: []                # of these, if they have no key, take inserts alone: append only
  heartbeat_interval: 10s         # keeps the slot moving while nothing happens
  receive_timeout: 30s            # silence after which the connection is made again
  poll_interval: 500ms            # how often triggers' changes are fetched while there is no slot
  wal_transition_timeout: 5m      # a hand-over to the wal that takes longer is tried again later
  auto_replica_identity: false    # true: alter tables that need another replica identity
  lock_timeout: 200ms             # how long a try for a lock may hold up writers
  max_handover_lag: 16MiB         # hand over when the stream is no further behind
  # shadow: 60s                   # compare triggers and wal for so long before the hand-over
  table_settings: {}              # public.orders: {mode: trigger}: for some tables differently
  # metrics_port: 9108            # Prometheus, on this port

pipeline:
  # metrics_port: 9109            # the same for streams

base:                             # tables as a whole, read by Spark when they are taken up
  max_wait: 10m                   # for transactions that are open when one begins
  max_snapshot_age: 12h           # so long vacuum may be held back
  max_xmin_age: 200000000         # and for so many transactions
  # bytes_per_second: 50MiB       # read no faster than this, all tasks together

spark:
  master: local[*]                # any Spark master; none: the session that spark-submit made
  packages: []                    # Maven coordinates to load
  settings: {}                    # any Spark configuration

streams:                          # each one delivers some tables to one sink
  lake:
    tables: ["public.*"]
    # where: status = 'paid'      # only these rows; columns compared with literals
    # columns: [id, status]       # only these columns, the key among them
    # key: [id]                   # what identifies a row, if not the table's own key
    sink:                         # or postgres, parquet, webhook, kafka, kinesis, console, memory
      type: delta                 # one Delta table per source table: <path>/<schema>/<table>
      path: ./lake
      mode: upsert                # rows as they are; append: every change; history: every version
      engine: auto                # delta-spark where it is set up, else deltalake
      soft_delete: false          # true: mark deleted rows (_deleted_at) instead of deleting them
      # partition_by: {public.orders: [region]}
      # cluster_by: {public.orders: [customer_id]}
      compact_after: 100          # merge small files after so many commits to a table; 0: never
      vacuum_after: 7d            # how long files of older versions are kept
    trigger_interval: 200ms       # how often to look for new changes
    # max_changes_per_batch: 100000
    # max_bytes_per_batch: 64MiB
    # verify: {every: 1d}         # compare the lake with its source, and tell in the status
"""


def init(
    file: Annotated[Path, typer.Argument(help="Where to write it.")] = Path("tailrace.yaml"),
    force: Annotated[bool, typer.Option("--force", help="Replace a file that is there.")] = False,
    verbose: Verbose = False,
) -> None:
    """Write a commented configuration that holds the defaults.

    Example: tailrace init && tailrace check
    """
    try:
        with file.open("w" if force else "x", encoding="utf-8") as target:
            target.write(TEMPLATE)
    except FileExistsError:
        raise ConfigError(f"{file} is there already", hint="--force replaces it") from None
    except OSError as error:
        raise ConfigError(f"cannot write {file}: {(error.strerror or '').lower()}") from error
    typer.echo(f"wrote {file}")
