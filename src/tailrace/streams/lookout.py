"""Looks whether a stream that runs has other tables to deliver than it does: a base has appeared,
or it still has a table that it is not asked for any more.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from tailrace.errors import StoreError
from tailrace.log.bases import newest_bases, newest_positions
from tailrace.model import Relation
from tailrace.storage import Store, is_outage
from tailrace.streams.taken import TakenTables, due_loads, matching

logger = logging.getLogger(__name__)


class Lookout:
    """Remembers the bases that it has seen: while there are no others, a listing tells all."""

    def __init__(
        self, store: Store, patterns: Sequence[str], can_take: Callable[[Relation], bool]
    ) -> None:
        self._store = store
        self._patterns = patterns
        self._can_take = can_take
        self._seen = newest_positions(store)

    def finds_others(self, tables: TakenTables) -> bool:
        """Whether the stream has to begin anew, because these are not its tables; raises
        LogError.
        """
        if matching(tables, self._patterns) != tables:
            return True
        try:
            seen = newest_positions(self._store)
            if seen == self._seen:
                return False
            bases = newest_bases(self._store)
            is_due = bool(due_loads(bases, tables, self._patterns, self._can_take))
        except StoreError as error:
            if not is_outage(error):
                raise
            # The next look may do better.
            logger.debug("bases cannot be looked for error=%s", error)
            return False
        self._seen = seen
        return is_due
