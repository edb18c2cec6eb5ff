"""`tailrace init`: the file it writes is the defaults, spelt out."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pydantic import BaseModel

from tailrace.cli.config import Config, Stream, load, parse
from tailrace.cli.init import TEMPLATE
from tailrace.cli.main import main


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert isinstance(ended.value.code, int)
    return ended.value.code


def test_the_template_is_the_defaults() -> None:
    root = Path("/srv")
    written, empty = (parse(text, root=root, environ={}) for text in (TEMPLATE, ""))
    assert written.model_dump() == empty.model_dump()


def test_the_template_with_its_comments_in_force_is_a_configuration() -> None:
    text = re.sub(r"^( *)# (\w+:)", r"\1\2", TEMPLATE, flags=re.MULTILINE)
    environ = {"DATABASE_URL": "postgresql://ann@db/shop"}
    config = parse(text.partition("\n")[2], root=Path("/srv"), environ=environ)
    assert config.source.dsn is not None
    assert (config.capture.metrics_port, config.pipeline.metrics_port) == (9108, 9109)


def test_the_template_names_every_key() -> None:
    def keys(model: type[BaseModel]) -> set[str]:
        return set(model.model_fields).union(
            *(
                keys(field.annotation)
                for field in model.model_fields.values()
                if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)
            )
        )

    named = set(re.findall(r"^[ #]*(\w+):", TEMPLATE, flags=re.MULTILINE))
    assert keys(Config) | keys(Stream) <= named


def test_init_writes_a_file_that_loads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run("init") == 0
    assert capsys.readouterr().out == "wrote tailrace.yaml\n"
    assert load() == load(Path("tailrace.yaml"))


def test_init_does_not_replace_a_file_unless_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("# mine\n")
    assert run("init", str(file)) == 2
    assert file.read_text() == "# mine\n"
    assert "hint: --force replaces it" in capsys.readouterr().err
    assert run("init", str(file), "--force") == 0
    assert file.read_text() == TEMPLATE


def test_init_says_why_it_cannot_write(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("init", str(tmp_path / "none" / "tailrace.yaml")) == 2
    assert "no such file or directory" in capsys.readouterr().err
