"""Kafka's own broker, in KRaft mode."""

from __future__ import annotations

import base64
import shutil
import signal
import socket
import subprocess
import time
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Final

from tailrace.embedded.address import free_port
from tailrace.spark.java import find_java
from tests.jars import jars

PATIENCE_S: Final = 180.0

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


class Broker:
    """One broker, which is its own controller."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._config = directory / "server.properties"
        self._java = [str(find_java().program), *_SMALL, "-cp", ":".join(jars("broker"))]
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
    """Not one in 64 that begins with a dash: the tool takes it for an option."""
    return "A" + base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")[1:]
