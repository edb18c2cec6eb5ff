"""Named places at which a test can kill the process, as `kill -9` would.

`TAILRACE_FAILPOINT=seal.before_put` ends the process with status 137 when it reaches that name;
`seal.before_put:3` lets it pass twice and ends it at the third time. Unset, a failpoint costs one
comparison.
"""

from __future__ import annotations

import os

_name, _, _count = os.environ.get("TAILRACE_FAILPOINT", "").partition(":")
_left = int(_count or 1)


def failpoint(name: str) -> None:
    """End the process here if `name` is the armed failpoint."""
    if name == _name:
        global _left
        _left -= 1
        if _left == 0:
            os._exit(137)
