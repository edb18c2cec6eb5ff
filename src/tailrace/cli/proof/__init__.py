"""The proof that every lake table holds what its source holds, independent of how it got there.

Both sides turn each value into Postgres' own text, each row into one digest, and each table into
256 sums of digests. Nothing of the path that delivers changes is used, so a fault in it shows.
`prove(dsn, lake, tables)` gives a `TableProof` for each table; `show` makes them readable.
"""

from tailrace.cli.proof.compare import Difference, TableProof, prove
from tailrace.cli.proof.show import show

__all__ = ["Difference", "TableProof", "prove", "show"]
