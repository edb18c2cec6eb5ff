"""The tables of one lake: made, opened and brought to the shape of their source."""

from __future__ import annotations

from tailrace.errors import SchemaError
from tailrace.model import Relation
from tailrace.sinks.delta.form import Form
from tailrace.sinks.delta.options import DeltaOptions
from tailrace.sinks.delta.target import Target
from tailrace.sinks.evolution import evolved, reordered
from tailrace.sinks.place import table_uri
from tailrace.sinks.shape import require_same_mode


class Lake:
    """Everything below one path: a directory, or the URL of a bucket's folder."""

    def __init__(self, path: str, form: Form, options: DeltaOptions) -> None:
        self._path = path
        self._form = form
        self._options = options

    def uri(self, relation: Relation) -> str:
        """Where the table is, or will be."""
        return table_uri(self._path, relation)

    def open(self, relation: Relation) -> Target | None:
        """The table as it is, if there is one."""
        return Target.open(self.uri(relation))

    def open_or_make(self, relation: Relation) -> Target:
        """The table as it is; an empty one if there is none."""
        return self.open(relation) or Target.create(
            self.uri(relation),
            self._form.schema(relation),
            partition_by=self._options.partitions(relation),
            deletion_vectors=self._options.deletion_vectors,
        )

    def check(self, target: Target, relation: Relation) -> None:
        """Raise SchemaError if the table cannot take changes of this relation."""
        evolved(target.shape, self._form.schema(relation), relation)
        self._require_partitions(target, relation)

    def fit_for_changes(self, target: Target, relation: Relation) -> Target:
        """The table, able to take changes of this relation. Raises SchemaError."""
        self._require_partitions(target, relation)
        return target.evolve(evolved(target.shape, self._form.schema(relation), relation))

    def fit_for_load(self, target: Target, relation: Relation) -> Target:
        """The table, able to take the relation as a whole. Raises SchemaError."""
        schema = self._form.schema(relation)
        if self._form.replaces_shape:
            require_same_mode(target.shape, schema, relation)
            return target
        self._require_partitions(target, relation)
        try:
            shape = reordered(target.shape, schema, relation)
        except SchemaError as error:
            # Here is the new base; another one would not help.
            raise SchemaError(str(error), hint=error.hint, retry=False) from None
        return target.evolve(shape)

    def _require_partitions(self, target: Target, relation: Relation) -> None:
        wanted = self._options.partitions(relation)
        if target.partitions != wanted:
            held, asked = (", ".join(names) or "nothing" for names in (target.partitions, wanted))
            raise SchemaError(
                f"the lake table of {relation.qualified} is partitioned by {held}, not by {asked}",
                hint=f"`tailrace snapshot {relation.qualified}` delivers an upsert table anew; any"
                " other has to be moved away first",
            )
