"""A part of the configuration: a mapping whose keys are all known.

A setting that is silently ignored is worse than none, so a key that is not known is an error.
"""

from __future__ import annotations

from difflib import get_close_matches

from pydantic import BaseModel, ConfigDict, model_validator
from pydantic_core import PydanticCustomError


class Section(BaseModel):
    """A mapping with known keys; an empty one takes every default."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    @model_validator(mode="before")
    @classmethod
    def _only_known_keys(cls, value: object) -> object:
        if value is None:
            return {}
        if not isinstance(value, dict):
            raise PydanticCustomError("dict_type", "must be a mapping")
        known = [field.alias or name for name, field in cls.model_fields.items()]
        for key in value:
            if key not in known:
                nearest = get_close_matches(key, known, n=1)
                facts = {"key": key, "nearest": nearest, "known": known}
                raise PydanticCustomError("unknown_key", "unknown key", facts)
        return value
