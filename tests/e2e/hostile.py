"""Hostile peers at TLS ports, as another process: they stand for other hosts, so they run at SCHED_IDLE.

Each of so many peers does one thing without end: opens connections and says nothing; sends a ClientHello byte by byte; connects and leaves; shakes hands
with a certificate of another CA; begins records that are too long."""
import multiprocessing
import os
import socket
import ssl
import struct
import threading
import time

import pace

HELLO = bytes.fromhex("160301020001" + "0001fc0303") + bytes(501)
HELD = 100  # connections of a peer that says nothing


def _connect(address):
    return socket.create_connection(address, timeout=5)


def _silent(address, _):
    held = [_connect(address) for _ in range(HELD)]
    while len(held) == HELD:
        time.sleep(0.05)
        held = [peer for peer in held if not _is_closed(peer)]
    for peer in held:
        peer.close()
    return HELD


def _is_closed(peer):
    try:
        return not peer.recv(1, socket.MSG_DONTWAIT)
    except BlockingIOError:
        return False
    except OSError:
        return True


def _trickle(address, _):
    with _connect(address) as peer:
        for byte in HELLO:
            peer.send(bytes((byte,)))
            time.sleep(0.02)
    return 1


def _leave(address, _):
    for _ in range(50):
        with _connect(address) as peer:
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    return 50


def _shake_hands(address, context):
    with _connect(address) as peer, context.wrap_socket(peer) as secured:
        secured.recv(1)
    return 1


def _too_long(address, _):
    with _connect(address) as peer:
        peer.sendall(b"\x16\x03\x03\xff\xff" + bytes(65535))
        peer.sendall(b"\x16\x03\x03\x40\x00\x01\xff\xff\xff" + bytes(16379))
        peer.recv(64)
    return 1


KINDS = (_silent, _trickle, _leave, _shake_hands, _too_long)


def _go_on(kind, address, context, done, stop):
    while not stop.is_set():
        count = 1
        try:
            count = kind(address, context)
        except (OSError, ValueError):  # refused, as it should be
            pass
        with done.get_lock():
            done.value += count


def _attack(addresses, folder, peers, done, stop):
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))  # inherited by the threads
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.load_cert_chain(f"{folder}/gateway/cert.pem", f"{folder}/gateway/key.pem")
    for at in range(peers):
        threading.Thread(target=_go_on, args=(KINDS[at % len(KINDS)], addresses[at // len(KINDS) % len(addresses)], context, done, stop),
                         daemon=True).start()
    stop.wait()
    os._exit(0)


class Hostile:
    """So many peers, from the begin to the end of the block; folder: certificates that are refused. done: what they have tried."""

    def __init__(self, addresses, folder, peers=30):
        of = multiprocessing.get_context("spawn")
        self.attempts, self.stop = of.Value("l", 0), of.Event()
        self.process = of.Process(target=_attack, args=(addresses, folder, peers, self.attempts, self.stop), daemon=True)

    def done(self):
        return self.attempts.value

    def __enter__(self):
        self.process.start()
        return self

    def __exit__(self, *_):
        self.stop.set()
        self.process.join(pace.seconds(10))
        self.process.kill()
