"""Kafka's own broker in KRaft mode, and Spark's connector: jars from Maven, fetched once and kept.

They are kept in the user's cache under a name made of the list, and put there whole: several
workers may fetch them at the same time.
"""

from __future__ import annotations

import base64
import hashlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Final

import pyspark

from tailrace.embedded.address import free_port
from tailrace.spark.java import find_java

PATIENCE_S: Final = 180.0

_LIST: Final = Path(__file__).with_name("kafka.xml")
_SMALL: Final = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx256m")
_PROPERTIES: Final = """
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=CLIENTS://127.0.0.1:{clients},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=CLIENTS://127.0.0.1:{clients}
inter.broker.listener.name=CLIENTS
controller.listener.names=CONTROLLER
listener.security.protocol.map=CLIENTS:PLAINTEXT,CONTROLLER:PLAINTEXT
auto.create.topics.enable=false
offsets.topic.replication.factor=1
log.dirs={data}
"""


def kafka_jars(part: str) -> list[str]:
    """The jars of `broker` or of `connector`."""
    name = hashlib.sha256(_LIST.read_bytes()).hexdigest()[:16]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    place = cache / "tailrace-tests" / f"kafka-{name}"
    if not place.is_dir():
        _fetch(place)
    return sorted(str(jar) for jar in (place / part).glob("*.jar"))


def _fetch(place: Path) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    (ivy,) = Path(pyspark.__file__).parent.glob("jars/ivy-*.jar")
    with tempfile.TemporaryDirectory(dir=place.parent) as directory:
        pattern = f"{directory}/jars/[conf]/[artifact]-[revision].[ext]"
        command = [str(find_java().program), "-jar", str(ivy), "-cache", f"{directory}/ivy"]
        command += ["-warn", "-ivy", str(_LIST), "-retrieve", pattern]
        done = subprocess.run(command, capture_output=True, text=True, timeout=1200)
        assert done.returncode == 0, done.stdout + done.stderr
        with suppress(OSError):  # another worker was quicker
            Path(directory, "jars").rename(place)


class Broker:
    """One broker, which is its own controller."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._config = directory / "server.properties"
        self._java = [str(find_java().program), *_SMALL, "-cp", ":".join(kafka_jars("broker"))]
        self.port = free_port(0)
        directory.mkdir(parents=True)
        ports = {"clients": self.port, "controller": free_port(0)}
        self._config.write_text(_PROPERTIES.format(**ports, data=directory / "data"))
        self._run("kafka.tools.StorageTool", "format", "-t", _cluster_id(), "-c")
        self._process = self._start()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def stop(self) -> None:
        """Hold it: it keeps its connections and answers nothing."""
        self._process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        shutil.rmtree(self._directory, ignore_errors=True)

    def _start(self) -> subprocess.Popen[bytes]:
        log = self._directory / "broker.log"
        command = [*self._java, "kafka.Kafka", str(self._config)]
        with log.open("wb") as output:
            process = subprocess.Popen(command, stdout=output, stderr=output)
        deadline = time.monotonic() + PATIENCE_S
        while not self._listens():
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, "the broker does not start"
            time.sleep(0.05)
        return process

    def _run(self, *command: str) -> None:
        done = subprocess.run(
            [*self._java, *command, str(self._config)],
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
        )
        assert done.returncode == 0, done.stdout + done.stderr

    def _listens(self) -> bool:
        with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=1.0):
            return True
        return False


def _cluster_id() -> str:
    return base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
