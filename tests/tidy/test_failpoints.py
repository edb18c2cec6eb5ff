"""Every failpoint has a test that kills a process there: a step at which nobody dies is not known
to be safe.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.capture import test_processes

ROOT = Path(__file__).resolve().parents[2]


def _failpoints(source: str) -> set[str]:
    """The names of the failpoints in a module's text; each must be written down."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "failpoint":
            names = set(_texts(node))
            assert names, f"line {node.lineno}: the name of a failpoint is a text"
            found |= names
    return found


def _killed_at(test: str) -> set[str]:
    """What a test's text names where a process is killed, without how many times it is passed. That
    is where it is started, in what calls this, and in the constants that these have their steps
    from. Who raises an exception at a failpoint still cleans up behind it.
    """
    parts = list(_parts(ast.parse(test)))
    killing = [part for part in parts if any(map(_arms, ast.walk(part)))]
    while more := [part for part in parts if part not in killing and _belongs(part, killing)]:
        killing += more
    return {text.partition(":")[0] for part in killing for text in _texts(part)}


def _parts(tree: ast.Module) -> Iterator[ast.stmt]:
    """The statements of a module; of its classes, each function by itself."""
    for node in tree.body:
        yield from node.body if isinstance(node, ast.ClassDef) else [node]


def _belongs(part: ast.stmt, killing: Sequence[ast.stmt]) -> bool:
    """Whether it calls one of those that kill, or is a constant that one of them uses."""
    match part:
        case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
            return any(name in _names(each) for each in killing)
    return any(each.name in _names(part) for each in killing if isinstance(each, ast.FunctionDef))


def _names(tree: ast.AST) -> set[str]:
    """Everything that is named in it."""
    nodes = list(ast.walk(tree))
    plain = {node.id for node in nodes if isinstance(node, ast.Name)}
    return plain | {node.attr for node in nodes if isinstance(node, ast.Attribute)}


def _arms(node: ast.AST) -> bool:
    """Whether a process is started here that dies at a failpoint."""
    match node:
        case ast.keyword(arg="failpoint", value=ast.Constant(value="")):
            return False
        case ast.keyword(arg="failpoint") | ast.Constant(value="TAILRACE_FAILPOINT"):
            return True
        case ast.Attribute(attr="die" | "die_at"):
            return True
    return False


def _texts(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


DIES = "def kill(step: str) -> None:\n    die(main, failpoint=step, output=output)"
MANY = 'STEPS = ["a.b"]\n@parametrize("step", STEPS)\ndef test_many(step: str) -> None:\n    '


@pytest.mark.parametrize(
    ("test", "expected"),
    [
        ('die(main, failpoint="a.b", output=output)', True),
        ('STEPS = ["a.b:3"]\ndie(main, failpoint=STEPS[0], output=output)', True),
        ('STEPS = ["a.b:3"]\ndie(main, failpoint=step, output=output)', False),
        ('stage.die_at("auto", "a.b")', True),
        ('run(env={"TAILRACE_FAILPOINT": f"a.b:{time}"})', True),
        ('die(main, failpoint="a.bc", output=output)', False),
        ('with met_at("a.b", act, monkeypatch): pass', False),
        ('start(main, failpoint="", output=output)\nmet_at("a.b", act, monkeypatch)', False),
        ('die(main, failpoint="c.d", output=output)\nmet_at("a.b", act, monkeypatch)', False),
        (f'{DIES}\ndef test_this() -> None:\n    kill("a.b")', True),
        (f"{DIES}\n{MANY}kill(step)", True),
        (f"{DIES}\n{MANY}met_at(step, act, monkeypatch)", False),
    ],
)
def test_gate_tells_a_test_that_kills_from_one_that_does_not(test: str, expected: bool) -> None:
    assert ("a.b" in _killed_at(test)) == expected


def _sources() -> dict[Path, set[str]]:
    paths = sorted((ROOT / "src/tailrace").rglob("*.py"))
    return {path.relative_to(ROOT): _failpoints(path.read_text()) for path in paths}


def test_a_process_is_killed_at_every_failpoint() -> None:
    # That matrix is made of the names in the sources themselves.
    killed_at = set(test_processes.failpoints())
    for path in (ROOT / "tests").rglob("test_*.py"):
        if path != Path(__file__).resolve():
            killed_at |= _killed_at(path.read_text())
    faults = [
        f"{path}: no test kills a process at {name}"
        for path, names in _sources().items()
        for name in sorted(names - killed_at)
    ]
    assert not faults, "\n".join(faults)


def test_a_failpoint_is_of_one_module() -> None:
    """Else who dies in the one of them is taken for both."""
    counts = Counter(name for names in _sources().values() for name in names)
    assert not [name for name, count in counts.items() if count > 1]
