"""kinesalite, another server that talks as Kinesis does: npm installs it once, by a lock file, into
the user's cache.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from tailrace.embedded.address import free_port
from tests.capture.running import wait_until

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment

PATIENCE_S: Final = 180.0

_PACKAGE: Final = Path(__file__).with_name("kinesalite")
_OPTIONS: Final = ("--createStreamMs=0", "--shardLimit=10000")


def installed() -> Path:
    """The program; without npm the test is skipped."""
    npm = shutil.which("npm")
    if npm is None or shutil.which("node") is None:
        pytest.skip(
            "kinesalite needs node and npm; what it proves is proven with moto's server too"
        )
    name = hashlib.sha256((_PACKAGE / "package-lock.json").read_bytes()).hexdigest()[:16]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    place = cache / "tailrace-tests" / f"kinesalite-{name}"
    if not place.is_dir():
        place.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=place.parent) as directory:
            made = shutil.copytree(_PACKAGE, Path(directory, "made"))
            command = [npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
            done = subprocess.run(command, cwd=made, capture_output=True, text=True, timeout=600)
            assert done.returncode == 0, done.stdout + done.stderr
            with suppress(OSError):  # another worker was quicker
                made.rename(place)
    return place / "node_modules" / "kinesalite" / "cli.js"


class Kinesalite:
    """A running server, as the application behind a gate."""

    def __init__(self, log: Path) -> None:
        self._port = free_port(0)
        command = ["node", str(installed()), f"--port={self._port}", *_OPTIONS]
        with log.open("wb") as output:
            self._process = subprocess.Popen(command, stdout=output, stderr=output)
        wait_until(lambda: "Listening" in log.read_text(), patience_s=PATIENCE_S)

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        if environ.get("HTTP_X_AMZ_TARGET", "").endswith("GetShardIterator"):
            body = _from_the_beginning(body)
        headers = {
            name[5:].replace("_", "-").title(): value
            for name, value in environ.items()
            if name.startswith("HTTP_") and name != "HTTP_HOST"
        }
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=PATIENCE_S)
        connection.request("POST", "/", body, {**headers, "Content-Type": environ["CONTENT_TYPE"]})
        answer = connection.getresponse()
        said = answer.read()
        connection.close()
        kept = [("Content-Type", answer.getheader("Content-Type") or "")]
        start_response(f"{answer.status} {answer.reason}", kept)
        return [said]

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


def _from_the_beginning(body: bytes) -> bytes:
    """It never answers who asks for a time since which a shard has nothing."""
    asked = json.loads(body)
    if asked["ShardIteratorType"] == "AT_TIMESTAMP":
        asked["ShardIteratorType"] = "TRIM_HORIZON"
        del asked["Timestamp"]
    return json.dumps(asked).encode()
