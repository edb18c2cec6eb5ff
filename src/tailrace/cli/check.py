"""`tailrace check`: everything that would keep capture from working, before it does."""

from __future__ import annotations

import dataclasses
import json

import typer

from tailrace.cli.options import AsJson, ConfigFile, Verbose


def check(config: ConfigFile = None, as_json: AsJson = False, verbose: Verbose = False) -> None:
    """Look for what would keep capture from working; each finding comes with its cure.

    Changes nothing. Exit status 1 if a finding is a blocker.

    Example: tailrace check --config tailrace.yaml
    """
    from rich.console import Console
    from rich.table import Table

    from tailrace.cli.config import load
    from tailrace.cli.source import source_dsn
    from tailrace.cli.wiring import source_names
    from tailrace.postgres.admission import check as find
    from tailrace.postgres.admission import is_blocked
    from tailrace.postgres.session import connect

    settings = load(config)
    with source_dsn(settings) as dsn, connect(dsn) as conn:
        findings = find(conn, names=source_names(settings), patterns=settings.capture.tables)
    if as_json:
        typer.echo(json.dumps([dataclasses.asdict(finding) for finding in findings], indent=2))
    elif not findings:
        typer.echo("nothing found: capture can start")
    else:
        table = Table("", "about", "finding", "cure")
        for finding in findings:
            table.add_row(finding.severity, finding.subject, finding.message, finding.fix)
        Console().print(table)
    if is_blocked(findings):
        raise typer.Exit(1)
