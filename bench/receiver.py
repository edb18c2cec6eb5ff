"""A webhook's other end: takes every request at once, and hands its body on."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: object) -> None:
        """A client that is killed hangs up, which is nothing to speak of."""


@contextmanager
def receiver(take: Callable[[bytes], None]) -> Iterator[str]:
    """Its address; `take` is called for each request, before it is answered."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        # Small answers must not wait for more.
        disable_nagle_algorithm = True
        wbufsize = -1

        def do_POST(self) -> None:
            take(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Nothing."""

    server = _Server(("127.0.0.1", 0), Handler)
    serving = threading.Thread(target=server.serve_forever, args=[0.05], daemon=True)
    serving.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/"
    finally:
        server.shutdown()
        server.server_close()
        serving.join()
