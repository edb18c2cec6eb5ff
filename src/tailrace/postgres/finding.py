"""What a check has to say: how bad it is, about what, why, and what to type to be rid of it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Severity(StrEnum):
    """A blocker keeps its subject, and only that, from being captured."""

    BLOCKER = "blocker"
    WARNING = "warning"
    INFO = "info"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of `tailrace check`; `fix` is SQL or a command, empty if there is nothing to do."""

    severity: Severity
    subject: str
    message: str
    fix: str = ""


def blocker(subject: str, message: str, fix: str = "") -> Finding:
    """It cannot work like this."""
    return Finding(Severity.BLOCKER, subject, message, fix)


def warning(subject: str, message: str, fix: str = "") -> Finding:
    """It works, and may fail later."""
    return Finding(Severity.WARNING, subject, message, fix)


def info(subject: str, message: str, fix: str = "") -> Finding:
    """Good to know."""
    return Finding(Severity.INFO, subject, message, fix)
