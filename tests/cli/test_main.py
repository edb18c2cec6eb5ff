"""How the command line starts and ends: help at once, one line for a failure, the right status."""

from __future__ import annotations

import inspect
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer

from tailrace import __version__
from tailrace.cli.main import app, main
from tailrace.cli.options import Verbose
from tailrace.errors import ConfigError, SourceError, TailraceError

Output = tuple[int, str, str]


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> Output:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    out, err = capsys.readouterr()
    code = ended.value.code
    assert isinstance(code, int)
    return code, out, err


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> list[BaseException]:
    """A command `fail` that raises what the test puts into the list."""
    errors: list[BaseException] = []

    def fail(verbose: Verbose = False) -> None:
        raise errors[0]

    monkeypatch.setattr(app, "registered_commands", list(app.registered_commands))
    app.command()(fail)
    return errors


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "--version") == (0, f"tailrace {__version__}\n", "")


@pytest.mark.parametrize("option", ["--help", "-h"])
def test_help_names_the_commands(capsys: pytest.CaptureFixture[str], option: str) -> None:
    code, out, err = run(capsys, option)
    assert (code, err) == (0, "")
    assert "init" in out and "Exit status" in out


def test_every_command_has_help_with_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    for words, command in commands(app):
        code, out, _ = run(capsys, *words, "--help")
        assert code == 0
        assert "Example: tailrace " in out and f"tailrace {' '.join(words)}" in out
        # Longer lines of a later paragraph are broken twice.
        lines = inspect.getdoc(command) or ""
        assert all(len(line) <= 78 for line in lines.partition("\n\n")[2].splitlines()), words


def commands(typer_app: typer.Typer) -> Iterator[tuple[list[str], object]]:
    for command in typer_app.registered_commands:
        assert command.callback is not None
        yield [command.name or command.callback.__name__], command.callback
    for group in typer_app.registered_groups:
        assert group.typer_instance is not None and group.name is not None
        for words, callback in commands(group.typer_instance):
            yield [group.name, *words], callback


@pytest.mark.parametrize("arguments", [["inti"], ["init", "--nope"], ["init", "a", "b"]])
def test_wrong_use_is_status_2(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    code, out, err = run(capsys, *arguments)
    assert (code, out) == (2, "")
    assert "Usage" in err


def test_a_failure_is_one_error_line_and_one_hint_line(
    capsys: pytest.CaptureFixture[str], failing: list[BaseException]
) -> None:
    message = "the slot [tailrace_main] is lost " + "x" * 200
    failing.append(SourceError(message, hint="run\nthis"))
    code, out, err = run(capsys, "fail")
    assert (code, out) == (1, "")
    assert err == f"error: {message}\nhint: run this\n"


def test_no_hint_no_hint_line(
    capsys: pytest.CaptureFixture[str], failing: list[BaseException]
) -> None:
    failing.append(TailraceError("it broke"))
    assert run(capsys, "fail") == (1, "", "error: it broke\n")


def test_a_wrong_configuration_is_wrong_use(
    capsys: pytest.CaptureFixture[str], failing: list[BaseException]
) -> None:
    failing.append(ConfigError("unknown key sorce"))
    assert run(capsys, "fail") == (2, "", "error: unknown key sorce\n")


def test_a_bug_is_named_as_one_and_leaves_a_traceback_in_a_file(
    capsys: pytest.CaptureFixture[str], failing: list[BaseException], tmp_path: Path
) -> None:
    failing.append(ZeroDivisionError("division by zero"))
    code, out, err = run(capsys, "fail")
    assert (code, out) == (1, "")
    first, second = err.splitlines()
    assert first == "error: ZeroDivisionError: division by zero"
    assert second.startswith("hint: this is a bug in tailrace; the traceback is in ")
    file = Path(second.rpartition(" ")[2])
    assert "ZeroDivisionError" in file.read_text()
    file.unlink()


@pytest.mark.parametrize("arguments", [["fail", "-v"], ["--verbose", "fail"]])
def test_verbose_shows_the_traceback(
    capsys: pytest.CaptureFixture[str], failing: list[BaseException], arguments: list[str]
) -> None:
    failing.append(SourceError("it is gone"))
    code, _, err = run(capsys, *arguments)
    assert code == 1
    assert "Traceback" in err
    assert err.endswith("error: it is gone\n")


def test_ctrl_c_is_quiet(capsys: pytest.CaptureFixture[str], failing: list[BaseException]) -> None:
    failing.append(KeyboardInterrupt())
    assert run(capsys, "fail") == (130, "", "")


def test_ctrl_c_is_quiet_while_the_program_is_loading() -> None:
    script = (
        "import os, signal, sys\n"
        "class Interrupted:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name == 'tailrace.cli.main': os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Interrupted())\n"
        "from tailrace.cli.__main__ import main\n"
        "main()\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", "")


def test_a_command_chooses_its_status(
    capsys: pytest.CaptureFixture[str], failing: list[BaseException]
) -> None:
    failing.append(typer.Exit(1))
    assert run(capsys, "fail") == (1, "", "")


def test_help_loads_nothing_heavy() -> None:
    heavy = ("pyspark", "pyarrow", "numpy", "psycopg", "deltalake", "pydantic", "boto3", "obstore")
    script = (
        "import sys; from tailrace.cli.main import main\n"
        "try: main(['--help'])\n"
        f"finally: print([n for n in {heavy!r} if n in sys.modules], file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0
    assert done.stderr == "[]\n"
