"""The program. Until all of it is loaded, Ctrl-C ends it at once and without a traceback."""

from __future__ import annotations

import signal


def main() -> None:
    """Run one command; always ends with SystemExit."""
    before = signal.signal(signal.SIGINT, signal.SIG_DFL)
    from tailrace.cli.main import main as run

    signal.signal(signal.SIGINT, before)
    run()


if __name__ == "__main__":
    main()
