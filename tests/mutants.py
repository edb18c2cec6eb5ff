"""Breaks the code on purpose, one known bug at a time, and sees whether the tests notice.

`python -m tests.mutants [NAME …]` copies the sources and the tests, proves that the selected tests
pass on the copy as it is, then plants each bug alone and runs the few tests that must catch it. A
bug that survives, and one whose place in the code has gone, are failures.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.planted import MUTANTS, Mutant
from tests.planted_hybrid import HYBRID_MUTANTS
from tests.planted_reading import READING_MUTANTS
from tests.planted_sinks import SINK_MUTANTS

EVERY: Final = (*MUTANTS, *READING_MUTANTS, *SINK_MUTANTS, *HYBRID_MUTANTS)

ROOT: Final = Path(__file__).parents[1]
COPIED: Final = ("src", "tests", "pyproject.toml")
RUN_TIMEOUT_S: Final = 3600


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one run."""

    status: int
    output: str
    seconds: float


def copy_tree(source: Path, target: Path) -> None:
    """What a test run needs, without compiled files: these could hide a change."""
    ignored = shutil.ignore_patterns("__pycache__", ".hypothesis", "*.pyc")
    for name in COPIED:
        if (source / name).is_dir():
            shutil.copytree(source / name, target / name, ignore=ignored)
        else:
            shutil.copy(source / name, target / name)


def plant(mutant: Mutant, tree: Path) -> bool:
    """Put the bug in; False if its place is not there, or not unique."""
    path = tree / "src/tailrace" / mutant.path
    text = path.read_text() if path.exists() else ""
    if text.count(mutant.before) != 1:
        return False
    path.write_text(text.replace(mutant.before, mutant.after))
    return True


SIDE_BY_SIDE: Final = ("--numprocesses", "4", "--dist", "worksteal")


def run_tests(tree: Path, tests: Iterable[str]) -> Outcome:
    """Run tests on the copy; it is made sure that the copy is what they import."""
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(tree / "src"), str(tree)]),
        "PYTHONDONTWRITEBYTECODE": "1",
        # A test that waits for what a bug prevents need not wait long.
        "PATIENCE_S": "20",
    }
    command = [sys.executable, "-c", _RUN, str(tree), *tests]
    started = time.monotonic()
    done = subprocess.run(
        command,
        cwd=tree,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=RUN_TIMEOUT_S,
        check=False,
    )
    return Outcome(done.returncode, done.stdout, time.monotonic() - started)


_RUN: Final = """
import os, sys, pytest, tailrace, tests
tree, *selected = sys.argv[1:]
assert tailrace.__file__.startswith(tree), tailrace.__file__
assert tests.__file__.startswith(tree), tests.__file__
status = pytest.main(["-x", "-q", "-p", "no:randomly", "-p", "no:cacheprovider", *selected])
sys.stdout.flush()
# Threads that a bug has made wait for each other would be waited for.
os._exit(status)
"""


def judge(mutant: Mutant, sound: Path) -> tuple[bool, str]:
    """Whether the tests caught it in a copy of the sound tree, and a word about that."""
    with tempfile.TemporaryDirectory(prefix="tailrace-mutant-") as directory:
        tree = Path(directory)
        copy_tree(sound, tree)
        if not plant(mutant, tree):
            return False, f"its place in {mutant.path} is gone"
        outcome = run_tests(tree, mutant.tests)
    match outcome.status:
        case 1:
            return True, f"caught in {outcome.seconds:.0f} s"
        case 0:
            return False, "SURVIVED"
        case status:
            return False, f"the tests did not run (status {status})\n{outcome.output[-3000:]}"


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def main(names: Sequence[str]) -> int:
    """Judge all mutants, or those whose name holds one of the words given."""
    chosen = [m for m in EVERY if not names or any(name in m.name for name in names)]
    tests = sorted({test for mutant in chosen for test in mutant.tests})
    caught = 0
    with tempfile.TemporaryDirectory(prefix="tailrace-sound-") as directory:
        sound = Path(directory)
        copy_tree(ROOT, sound)
        say(f"{len(tests)} selections on the code as it is")
        outcome = run_tests(sound, [*SIDE_BY_SIDE, *tests])
        if outcome.status != 0:
            say(f"they fail without a bug\n{outcome.output[-5000:]}")
            return 1
        say(f"they pass, in {outcome.seconds:.0f} s")
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            judgements = pool.map(lambda mutant: judge(mutant, sound), chosen)
            for mutant, (is_caught, word) in zip(chosen, judgements, strict=True):
                caught += is_caught
                say(f"{'ok  ' if is_caught else 'FAIL'} {mutant.name}: {word}")
    say(f"{caught} of {len(chosen)} bugs caught")
    return 0 if caught == len(chosen) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
