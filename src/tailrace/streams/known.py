"""The streams that a pipeline knows of: those of the control schema, and until that can be reached
those that the file declares and that were kept beside the log.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from tailrace.control.streams import Origin
from tailrace.errors import ConfigError, TailraceError
from tailrace.storage import Store
from tailrace.streams.kept_roster import Kept, keep_roster, read_roster
from tailrace.streams.stream import Stream

logger = logging.getLogger(__name__)


class KnownStreams:
    """One pipeline's. Not thread-safe."""

    def __init__(
        self,
        store: Store,
        declared: Sequence[Kept],
        resolve: Callable[[Kept], Stream],
        only: frozenset[str] | None,
    ) -> None:
        """`declared` are the streams of the configuration file, `resolve` makes a stream from its
        definition or raises ConfigError, `only` are those that this pipeline may deliver.
        """
        self._store = store
        self._declared = {each.name: each for each in declared}
        self._resolve = resolve
        self._only = only
        self._found: dict[str, Kept] | None = None
        self._resolved: dict[str, tuple[Kept, Stream | TailraceError]] = {}
        self.streams: Mapping[str, Kept] = {}

    def begin(self) -> None:
        """Take what the file declares, and what was known when the database was last reached."""
        kept = {each.name: each for each in read_roster(self._store) or ()}
        known = {name: each for name, each in kept.items() if each.origin is Origin.SQL}
        for name, each in self._declared.items():
            known[name] = each
            if name in kept and kept[name].definition == each.definition:
                known[name] = kept[name]
            elif name in kept:
                known[name] = replace(each, paused=kept[name].paused)
        self.streams = self._chosen(known)

    def follow(self, found: dict[str, Kept], is_ended: Callable[[str], bool]) -> None:
        """Take over what the table has. What it had and has no more is asked to end, again and
        again until it `is_ended`; until then nothing of the same name begins.
        """
        if found == self._found:
            return
        before = {each.name: each for each in read_roster(self._store) or ()}
        gone = [name for name, each in before.items() if each.is_gone(found.get(name))]
        left = {name: before[name] for name in gone if not is_ended(name)}
        kept = {**found, **left}
        if kept != before:
            keep_roster(self._store, list(kept.values()))
        self.streams = self._chosen({n: each for n, each in found.items() if n not in left})
        self._found = None if left else found

    def stream(self, kept: Kept) -> Stream | TailraceError:
        """The stream, or why its definition cannot be made out."""
        before = self._resolved.get(kept.name)
        if before is not None and before[0] == kept:
            return before[1]
        found: Stream | TailraceError
        try:
            found = self._resolve(kept)
        except ConfigError as error:
            logger.error("stream cannot be delivered stream=%s error=%s", kept.name, error)
            found = error
        self._resolved[kept.name] = kept, found
        return found

    def _chosen(self, known: Mapping[str, Kept]) -> dict[str, Kept]:
        return {n: each for n, each in known.items() if self._only is None or n in self._only}
