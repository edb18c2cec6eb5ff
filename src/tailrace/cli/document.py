"""A YAML file as plain values that remember on which line each of them stands.

A small, strict subset: one document, text keys, no key twice, no aliases. An error names file and
line and never quotes the file, because the file may hold a password.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import yaml

from tailrace.errors import ConfigError

Place = tuple[str | int, ...]
"""Where a value stands: keys and list positions, from the top."""

_STANDARD_COLLECTIONS: Final = ("tag:yaml.org,2002:map", "tag:yaml.org,2002:seq")
_HARMLESS = re.compile(r"[\w .*${}-]{1,40}")
_REFERENCE = re.compile(r"\$\$\{|\$\{(?:([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\})?")


@dataclass(frozen=True, slots=True)
class Document:
    """What a file holds: `value` in plain dicts, lists and scalars; the line of every place."""

    name: str
    value: object
    lines: Mapping[Place, int]

    def error(self, place: Place, message: str, *, hint: str = "") -> ConfigError:
        """An error at `place`, or at what encloses it if the file does not spell it out."""
        while place and place not in self.lines:
            place = place[:-1]
        line = self.lines.get(place)
        where = self.name if line is None else f"{self.name}:{line}"
        return ConfigError(f"{where}: {message}", hint=hint)

    def expand(self, environ: Mapping[str, str]) -> Document:
        """Replace `${NAME}` and `${NAME:-default}` in text values; `$${` is a literal `${`."""
        return Document(self.name, self._expanded((), self.value, environ), self.lines)

    def _expanded(self, place: Place, value: object, environ: Mapping[str, str]) -> object:
        match value:
            case dict():
                return {k: self._expanded((*place, k), v, environ) for k, v in value.items()}
            case list():
                return [self._expanded((*place, i), v, environ) for i, v in enumerate(value)]
            case str():
                return _REFERENCE.sub(lambda found: self._variable(place, found, environ), value)
            case _:
                return value

    def _variable(self, place: Place, found: re.Match[str], environ: Mapping[str, str]) -> str:
        name, default = found.groups()
        if found[0] == "$${":
            return "${"
        if name is None:
            raise self.error(
                place,
                f"{dotted(place)} has a ${{ that is not a variable",
                hint="write ${NAME} or ${NAME:-default}, or $${ for the two characters themselves",
            )
        if default is not None:
            return environ.get(name) or default
        if name not in environ:
            raise self.error(
                place,
                f"{dotted(place)} needs the environment variable {name}, which is not set",
                hint=f"set {name}, or give a default: ${{{name}:-…}}",
            )
        return environ[name]


def parse(text: str, *, name: str) -> Document:
    """Read YAML; `name` is how errors call the file."""
    lines: dict[Place, int] = {}
    try:
        node = yaml.compose(text, Loader=_Loader)
        value = None if node is None else _plain(node, (), lines)
    except _Refused as refused:
        raise ConfigError(f"{name}:{refused.line}: {refused}", hint=refused.hint) from None
    except yaml.MarkedYAMLError as error:
        raise _syntax_error(name, text, error) from None
    except yaml.YAMLError:
        raise ConfigError(f"{name}: holds characters that YAML does not allow") from None
    except RecursionError:
        raise ConfigError(f"{name}: nested too deep") from None
    return Document(name, value, lines)


def dotted(place: Place) -> str:
    """A place as people write it: `streams.lake.tables[0]`; a doubtful key becomes `…`."""
    parts = (f"[{part}]" if isinstance(part, int) else f".{shown(part) or '…'}" for part in place)
    return "".join(parts).removeprefix(".")


def shown(text: str) -> str:
    """The text if it is short, on one line and cannot be an address or a password in one."""
    return text if _HARMLESS.fullmatch(text) else ""


class _Refused(Exception):
    """Valid YAML that we do not take."""

    def __init__(self, line: int, message: str, hint: str) -> None:
        super().__init__(message)
        self.line = line
        self.hint = hint


class _Loader(yaml.SafeLoader):
    """Refuses aliases: they can make a few bytes expand without end."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            raise _Refused(self.line + 1, "an alias (*name) is not supported", "write it out")
        return super().compose_node(parent, index)


def _line(node: yaml.Node) -> int:
    assert node.start_mark is not None, "composed from text"
    return node.start_mark.line + 1


def _plain(node: yaml.Node, place: Place, lines: dict[Place, int]) -> object:
    lines.setdefault(place, _line(node))
    if not isinstance(node, yaml.ScalarNode) and node.tag not in _STANDARD_COLLECTIONS:
        raise _Refused(_line(node), "a tag (!name) is not supported", "leave it out")
    if isinstance(node, yaml.MappingNode):
        return _plain_mapping(node, place, lines)
    if isinstance(node, yaml.SequenceNode):
        return [_plain(item, (*place, i), lines) for i, item in enumerate(node.value)]
    return _scalar(node)


def _plain_mapping(
    node: yaml.MappingNode, place: Place, lines: dict[Place, int]
) -> dict[str, object]:
    result: dict[str, object] = {}
    for key_node, value_node in node.value:
        key = _scalar(key_node) if isinstance(key_node, yaml.ScalarNode) else None
        if not isinstance(key, str):
            raise _Refused(_line(key_node), "a key that is not text", "put the key in quotes")
        here = (*place, key)
        if key in result:
            first = lines[here]
            raise _Refused(
                _line(key_node), f"{dotted(here)} is there twice", f"the first: line {first}"
            )
        lines[here] = _line(key_node)
        result[key] = _plain(value_node, here, lines)
    return result


def _scalar(node: yaml.Node) -> object:
    # The safe constructor knows only YAML's own tags, so this cannot run code.
    loader = yaml.SafeLoader("")
    try:
        value: object = loader.construct_object(node, deep=True)
    except (yaml.constructor.ConstructorError, ValueError):
        raise _Refused(_line(node), "a value that YAML cannot read", "put it in quotes") from None
    finally:
        loader.dispose()
    return value


def _syntax_error(name: str, text: str, error: yaml.MarkedYAMLError) -> ConfigError:
    mark = error.problem_mark or error.context_mark
    if mark is None:
        return ConfigError(f"{name}: not valid YAML")
    lines = text.splitlines()
    line = lines[mark.line] if mark.line < len(lines) else ""
    if "\t" in line[: len(line) - len(line.lstrip())]:
        return ConfigError(
            f"{name}:{mark.line + 1}: the line is indented with a tab", hint="YAML wants spaces"
        )
    quotes = "text with a colon, a hash, a brace or a leading * or % needs quotes"
    return ConfigError(
        f"{name}:{mark.line + 1}: not valid YAML at column {mark.column + 1}: {error.problem}",
        hint=quotes if isinstance(error, yaml.scanner.ScannerError) else "",
    )
