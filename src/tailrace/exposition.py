"""Metrics, where Prometheus finds them: http://127.0.0.1:<port>/metrics."""

from __future__ import annotations

from typing import Final

from prometheus_client import CollectorRegistry, start_http_server

from tailrace.errors import ConfigError

ADDRESS: Final = "127.0.0.1"


def serve(registry: CollectorRegistry, port: int, *, setting: str) -> int:
    """Answer from a thread until the process ends; returns the port, which is any free one if 0 is
    asked for. Raises ConfigError that names the setting.
    """
    try:
        server, _ = start_http_server(port, addr=ADDRESS, registry=registry)
    except OSError as error:
        raise ConfigError(
            f"metrics cannot listen on {ADDRESS}:{port}: {error.strerror}",
            hint=f"choose a free port in {setting}",
        ) from error
    return int(server.server_port)
