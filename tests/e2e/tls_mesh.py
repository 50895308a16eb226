"""Meshes whose services talk over TLS, and what is needed beside them: certificates, the same over plain tcp, a sniffer."""
import os
import re
import socket
import threading

from conftest import Mesh, fastdecode, free_port

ETH_P_ALL = 3
ROLES = ("gateway", "scheduler", "s-part", "kv-worker")


def certs(folder, *options):
    """`fastdecode certs`, which must not fail; returns the folder."""
    done = fastdecode("certs", str(folder), *options)
    assert done.returncode == 0, done
    return str(folder)


def over_tcp():
    """scripts= of a mesh whose services talk over plain tcp, each of them, as with --tls but for that."""
    scheduler = f"tcp://127.0.0.1:{free_port()}"
    start = 'exec "$program" "$@"'
    return {"scheduler": f"{start} --listen={scheduler}", "gateway": f"{start} --scheduler={scheduler}",
            "s-part": f"{start} --scheduler={scheduler} --listen=tcp://127.0.0.1:0",
            "kv-worker": f"{start} --scheduler={scheduler} --listen=tcp://127.0.0.1:0 --listen-tensors=tcp://127.0.0.1:0"}


class ReadsGateway:
    """Of a mesh whose scheduler has no socket in the run folder: its metrics are those that the gateway hands on."""

    def metrics(self):
        return self.get("/metrics")

    def log(self, service):
        with open(os.path.join(self.run_dir, f"{service}.log"), encoding="utf-8", errors="replace") as file:
            return file.read()

    def address(self, service, what="listen"):
        """Where it listens, as its log says it: (host, port). what: listen, control or tensors."""
        found = re.search(rf' {what}=\S+://([\d.]+):(\d+)', self.log(service))
        return found[1], int(found[2])


class TlsMesh(ReadsGateway, Mesh):
    """`up --tls`; certs: the folder."""

    def __init__(self, certs, *options, **settings):
        self.certs = certs
        super().__init__("--tls", certs, *options, **settings)


class Sniffer:
    """All that passes a device of this host, from its start to its end."""

    def __init__(self, device):
        self.socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16 << 20)
        self.socket.bind((device, 0))
        self.socket.settimeout(0.1)
        self.packets, self.ended = [], False
        self.thread = threading.Thread(target=self._read, daemon=True)

    def _read(self):
        while True:
            try:
                self.packets.append(self.socket.recv(1 << 17))
            except TimeoutError:
                if self.ended:
                    return

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.ended = True
        self.thread.join()
        self.socket.close()

    def has(self, data):
        return any(data in packet for packet in self.packets)

    def bytes(self):
        return sum(map(len, self.packets))
