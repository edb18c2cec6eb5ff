"""The other ends of queues, in a process of their own: a webhook's receiver, moto's Kinesis."""

from __future__ import annotations

from moto.server import ThreadedMotoServer

from bench.programs.talk import say, stop_with_parent
from bench.receiver import receiver


def main() -> None:
    """Until told to stop."""
    stop = stop_with_parent()
    kinesis = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    kinesis.start()
    host, port = kinesis.get_host_and_port()
    with receiver(lambda _: None) as url:
        say("ready", webhook=url, kinesis=f"http://{host}:{port}")
        stop.wait()
    kinesis.stop()


if __name__ == "__main__":
    main()
