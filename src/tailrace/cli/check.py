"""`tailrace check`: everything that would keep capture from working, before it does."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from tailrace.cli.options import AsJson, ConfigFile, Verbose

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.table import Table

    from tailrace.postgres.finding import Finding


def check(config: ConfigFile = None, as_json: AsJson = False, verbose: Verbose = False) -> None:
    """Look for what would keep capture from working; each finding comes with its cure.

    Changes nothing. A blocker keeps its table, or all, from being captured;
    with one, the exit status is 1. One bad table never keeps out the others.

    Example: tailrace check --config tailrace.yaml
    """
    from rich.console import Console

    from tailrace.capture.modes import CaptureMode
    from tailrace.cli.check_sinks import sink_findings
    from tailrace.cli.check_streams import stream_findings
    from tailrace.cli.config import load
    from tailrace.cli.json_text import json_text
    from tailrace.cli.source import source_dsn
    from tailrace.cli.wiring import hybrid_settings, selection, source_names
    from tailrace.postgres.admission import check as find
    from tailrace.postgres.admission import is_blocked
    from tailrace.postgres.session import connect

    settings = load(config)
    with source_dsn(settings) as dsn, connect(dsn) as conn:
        hybrid = hybrid_settings(settings.capture)
        findings = find(
            conn,
            names=source_names(settings),
            selection=selection(settings),
            may_use_triggers=lambda table: hybrid.of(table).mode is CaptureMode.TRIGGER,
            is_wal_optional=hybrid.may_use_triggers,
        )
        findings += stream_findings(conn, settings)
        findings += sink_findings(conn, settings)
    if as_json:
        typer.echo(json_text(findings, indent=2))
    else:
        if findings:
            Console().print(_table(findings))
        typer.echo(_verdict(findings))
    if is_blocked(findings):
        raise typer.Exit(1)


def _verdict(findings: Sequence[Finding]) -> str:
    count = sum(finding.severity == "blocker" for finding in findings)
    return f"blockers: {count}" if count else "nothing blocks capture"


def _table(findings: Sequence[Finding]) -> Table:
    from rich.table import Table
    from rich.text import Text

    styles = {"blocker": "bold red", "warning": "yellow", "info": "dim"}
    table = Table("", "about", "finding", "cure", show_lines=True)
    for each in findings:
        # As text: a name or a cure may hold what looks like markup.
        cells = (each.subject, each.message, each.fix)
        severity = Text(each.severity, styles[each.severity])
        table.add_row(severity, *(Text(cell, overflow="fold") for cell in cells))
    return table
