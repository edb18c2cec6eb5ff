"""Style is a test: what reviewers would otherwise look for by eye, in every file."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src"

LAYERS = [
    *("errors", "failpoint", "backoff", "exposition", "model"),
    *("postgres", "control", "storage", "log", "capture", "decode", "where"),
    *("spark", "bases", "sinks", "compaction", "streams", "verify", "status", "cli"),
]
"""A module imports from its own layer and earlier ones."""

VALUE_LAYERS = set(LAYERS[: LAYERS.index("postgres")])
LAYERS_WITHOUT_SPARK = set(LAYERS[: LAYERS.index("spark")]) | {"embedded"}
FUNCTION_LINES_MAX = 70
MODULE_LINES_MAX = 500

# Written as patterns, so that this file does not match them.
REGISTRIES = (
    r"pypi\.org|pythonhosted\.org|npmjs\.|repo1\.maven|crates\.io|ghcr\.io|docker\.io|quay\.io"
)
REMINDERS = r"\bTO[D]O\b|\bFIX[M]E\b|\bXX[X]\b"


def _modules(*roots: str) -> Iterator[Path]:
    for root in roots:
        yield from sorted((ROOT / root).rglob("*.py"))


def _texts() -> Iterator[Path]:
    """Every file that people read, in the directories that are part of the repository."""
    places = [ROOT / name for name in ("src", "tests", "bench", "docs", ".ci")]
    for path in [*ROOT.iterdir(), *(path for place in places for path in place.rglob("*"))]:
        if path.is_file() and path.suffix not in {".pyc", ".arrow", ".parquet", ".bin", ".png"}:
            yield path


@cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), str(path))


def _name(path: Path) -> str:
    """`tailrace.log.segment` for its file, `tailrace.log` for that of a package."""
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _imports(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Line and full name of everything that a module imports, wherever it does so."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: imports are absolute"
            yield node.lineno, node.module or ""
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)


def _at(path: Path, line: int, fault: str) -> str:
    return f"{path.relative_to(ROOT)}:{line}: {fault}"


def _may_import(layer: str, other: str) -> bool:
    if layer == "embedded":
        return other in VALUE_LAYERS | {"embedded"}
    if other == "embedded":
        return layer == "cli"
    return LAYERS.index(other) <= LAYERS.index(layer)


def test_imports_point_to_earlier_layers() -> None:
    faults = []
    for path in _modules("src"):
        layer, *_ = [*_name(path).split(".")[1:], ""]
        if not layer:
            continue  # the package itself has a version and no more
        for line, imported in _imports(_tree(path)):
            first, *rest = imported.split(".")
            if first == "tailrace" and rest and rest[0] != "__version__":
                if not _may_import(layer, rest[0]):
                    faults.append(_at(path, line, f"{layer} imports {rest[0]}"))
            elif first == "pyspark" and layer in LAYERS_WITHOUT_SPARK:
                faults.append(_at(path, line, f"{layer} imports pyspark"))
    assert not faults, "\n".join(faults)


def test_every_module_is_imported_or_run_by_another() -> None:
    imported = {"tailrace"}
    for path in _modules("src"):
        imported |= {name for _, name in _imports(_tree(path))} - {_name(path)}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    imported |= {entry.partition(":")[0] for entry in project["scripts"].values()}
    plain = {_name(path) for path in _modules("src") if not path.stem.startswith("__")}
    assert not plain - imported, "\n".join(sorted(plain - imported))


def test_every_module_says_what_it_is() -> None:
    faults = [
        _at(path, 1, "no docstring")
        for path in _modules("src", "tests", "bench")
        if not ast.get_docstring(_tree(path))
    ]
    assert not faults, "\n".join(faults)


def test_functions_and_modules_are_short() -> None:
    faults = []
    for path in _modules("src", "tests", "bench"):
        line_count = len(path.read_text().splitlines())
        if line_count > MODULE_LINES_MAX:
            faults.append(_at(path, line_count, f"more than {MODULE_LINES_MAX} lines"))
        for node in ast.walk(_tree(path)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                length = (node.end_lineno or node.lineno) - node.lineno + 1
                if length > FUNCTION_LINES_MAX:
                    faults.append(_at(path, node.lineno, f"{node.name} has {length} lines"))
    assert not faults, "\n".join(faults)


def test_only_the_command_line_prints() -> None:
    faults = [
        _at(path, node.lineno, "print")
        for path in _modules("src")
        if "cli" not in path.relative_to(SOURCE).parts
        for node in ast.walk(_tree(path))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "print"
    ]
    assert not faults, "\n".join(faults)


def _is_built_from_text(node: ast.expr) -> bool:
    """Whether a string is put together from parts, rather than written down or composed."""
    match node:
        case ast.JoinedStr(values=parts):
            return any(isinstance(part, ast.FormattedValue) for part in parts)
        case ast.BinOp(op=ast.Add() | ast.Mod()):
            return True
        case ast.Call(func=ast.Attribute(value=value, attr="format" | "join")):
            return isinstance(value, ast.Constant)
        case ast.Call(func=ast.Attribute(value=value, attr="encode")):
            return _is_built_from_text(value)
    return False


@pytest.mark.parametrize(
    ("argument", "expected"),
    [
        ('f"SELECT {name}"', True),
        ('"SELECT " + name', True),
        ('"SELECT %s" % name', True),
        ('"SELECT {}".format(name)', True),
        ('f"SELECT {name}".encode()', True),
        ('"SELECT 1"', False),
        ('"SELECT " "1"', False),
        ('sql.SQL("SELECT {}").format(name)', False),
    ],
)
def test_sql_gate_tells_composed_from_put_together(argument: str, expected: bool) -> None:
    assert _is_built_from_text(ast.parse(argument, mode="eval").body) == expected


def test_sql_is_never_put_together_as_text() -> None:
    takes_sql = {"execute", "executemany", "copy", "stream", "SQL", "exec_", "send_query"}
    faults = []
    for path in _modules("src", "tests", "bench"):
        for node in ast.walk(_tree(path)):
            if isinstance(node, ast.Call) and node.args:
                called = getattr(node.func, "attr", getattr(node.func, "id", ""))
                if called in takes_sql and _is_built_from_text(node.args[0]):
                    faults.append(_at(path, node.lineno, f"{called} of text put together"))
    assert not faults, "\n".join(faults)


def test_no_file_names_a_registry_or_leaves_a_reminder() -> None:
    unwanted = re.compile(f"{REGISTRIES}|{REMINDERS}")
    faults = []
    for path in _texts():
        for number, line in enumerate(path.read_text().splitlines(), start=1):
            if found := unwanted.search(line):
                faults.append(_at(path, number, found[0]))
    assert not faults, "\n".join(faults)


def _anchors(markdown: str) -> set[str]:
    """The names by which a page's headings can be linked to."""
    headings = re.findall(r"^#+ +(.+?)\s*$", _without_code(markdown), flags=re.MULTILINE)
    plain = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings)
    return {heading.replace(" ", "-") for heading in plain}


def _without_code(markdown: str) -> str:
    return re.sub(r"^```.*?^```", "", markdown, flags=re.MULTILINE | re.DOTALL)


def test_links_in_the_documents_lead_somewhere() -> None:
    faults = []
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\(([^)\s]+)\)", _without_code(page.read_text())):
            if re.match(r"[a-z]+:", target):
                continue
            place, _, anchor = target.partition("#")
            linked = (page.parent / place).resolve() if place else page
            if not linked.exists():
                faults.append(_at(page, 0, f"no file {target}"))
            elif anchor and anchor not in _anchors(linked.read_text()):
                faults.append(_at(page, 0, f"no heading {target}"))
    assert not faults, "\n".join(faults)
