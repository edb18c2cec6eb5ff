"""Which options of a sink are secrets, and how they are written.

A definition leaves the configuration file for places that others may read. There a secret is the
name of a variable of the pipeline's environment.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final, get_args

from pydantic import BaseModel, SecretStr

REFERENCE: Final = re.compile(r"\$\{[A-Za-z_][A-Za-z0-9_]*\}")

_NAMES: Final = r"(?:\$\{[A-Za-z_][A-Za-z0-9_]*\})+"
# By option, what is found only where a secret is anything but names of variables. The same rule, in
# SQL, is in migration 0016.
_LITERAL: Final = {
    "dsn": rf"://[^/@:]*:(?!{_NAMES}@)[^/@]+@|password\s*=\s*(?!{_NAMES}(?:\s|&|\Z))\S",
    "url": rf"://(?!(?:[^/?#@:]*:)?{_NAMES}@)[^/?#]*@"
    rf"|[?&](?!(?:[^=&#]*=)?{_NAMES}(?:[&#]|\Z))[^&#]",
    "headers": rf"\A(?!(?:[A-Za-z]+ )?{_NAMES}\Z)",
}
_LITERAL_WHOLE: Final = rf"\A(?!{_NAMES}\Z)"


def is_hidden(option: str, written: str) -> bool:
    """Whether a secret option names variables wherever it holds a secret: as a whole, not beside
    what spells one out.
    """
    is_literal = re.search(_LITERAL.get(option, _LITERAL_WHOLE), written) is not None
    return not is_literal and REFERENCE.search(written) is not None


def secret_options(
    section: BaseModel, written: Mapping[str, object]
) -> Iterator[tuple[tuple[str, ...], object]]:
    """Where `written`, of which the section was made, has secrets, and what stands there."""
    for name, field in type(section).model_fields.items():
        option, value = field.alias or name, getattr(section, name)
        found = written.get(option)
        if isinstance(value, BaseModel) and isinstance(found, Mapping):
            inner = secret_options(value, found)
            yield from (((option, *place), secret) for place, secret in inner)
        elif found is not None and _is_secret(field.annotation):
            yield (option,), found


def _is_secret(annotation: object) -> bool:
    return annotation is SecretStr or any(map(_is_secret, get_args(annotation)))
