"""The mesh's wire protocol spoken from outside, with nothing of the mesh's own code: what a stranger can send.

A message is "FDR1", its length as u32 little-endian, and an Envelope (proto/envelope.proto). Fields are written one by one
(`varint(3, 7)`), so that anything can be said, well-formed or not. `decode()` gives {number: [values]}.
"""
import hashlib
import hmac
import os
import socket
import struct
import time

from pace import seconds

HELLO, REQUEST, CANCEL, STREAM, REPLY, ACK, REFUSED, CHALLENGE, PROOF = range(1, 10)
STATUS = ("OK CANCELLED UNKNOWN INVALID_ARGUMENT DEADLINE_EXCEEDED NOT_FOUND ALREADY_EXISTS PERMISSION_DENIED "
          "RESOURCE_EXHAUSTED FAILED_PRECONDITION ABORTED OUT_OF_RANGE UNIMPLEMENTED INTERNAL UNAVAILABLE DATA_LOSS "
          "UNAUTHENTICATED").split()


def raw_varint(value):
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7f | 0x80)
        value >>= 7
    return bytes(out) + bytes([value])


def varint(number, value):
    return raw_varint(number << 3) + raw_varint(value)


def fixed64(number, value):
    return raw_varint(number << 3 | 1) + struct.pack("<Q", value)


def fixed32(number, value):
    return raw_varint(number << 3 | 5) + struct.pack("<I", value)


def real(number, value):
    return raw_varint(number << 3 | 5) + struct.pack("<f", value)


def blob(number, *parts):
    """A string, bytes, a message or a packed array."""
    data = b"".join(part.encode() if isinstance(part, str) else part for part in parts)
    return raw_varint(number << 3 | 2) + raw_varint(len(data)) + data


def packed(number, values):
    return blob(number, *map(raw_varint, values))


def packed64(number, values):
    return blob(number, struct.pack(f"<{len(values)}Q", *values))


def packed32(number, values):
    return blob(number, struct.pack(f"<{len(values)}I", *values))


def read_varint(data, at):
    value = shift = 0
    while True:
        byte = data[at]
        value, shift, at = value | (byte & 0x7f) << shift, shift + 7, at + 1
        if byte < 0x80:
            return value, at


def decode(data):
    fields, at = {}, 0
    while at < len(data):
        key, at = read_varint(data, at)
        kind = key & 7
        if kind == 0:
            value, at = read_varint(data, at)
        elif kind == 1:
            value, at = struct.unpack_from("<Q", data, at)[0], at + 8
        elif kind == 5:
            value, at = struct.unpack_from("<I", data, at)[0], at + 4
        else:
            length, at = read_varint(data, at)
            value, at = data[at:at + length], at + length
        fields.setdefault(key >> 3, []).append(value)
    return fields


def one(fields, number, default=0):
    return fields.get(number, [default])[-1]


def method_id(name):
    """FNV-1a of "Service/Method"."""
    value = 2166136261
    for byte in name.encode():
        value = (value ^ byte) * 16777619 % 2**32
    return value


class Answer:
    """What came of a call: the status's name ("CLOSED": the connection ended), its text, the messages."""

    def __init__(self, status, error="", messages=()):
        self.status, self.error, self.messages = status, error, list(messages)

    def __repr__(self):
        return f"{self.status} {self.error!r}" + (f" and {len(self.messages)} messages" if self.messages else "")


class Refused(Exception):
    """The server's reason for ending the handshake."""


def secret_of_run_dir(address):
    """What `up` made for the mesh whose run directory the socket is in."""
    try:
        with open(os.path.join(os.path.dirname(address[6:]), "mesh-secret"), "rb") as file:
            return file.read().rstrip()
    except FileNotFoundError:
        return None


class Framed:
    """Messages on a connection, `socket`."""

    def send(self, body):
        self.socket.sendall(b"FDR1" + struct.pack("<I", len(body)) + body)

    def send_payload(self, head, payload):
        """A message with a payload, at a multiple of 4: the padding field puts it there."""
        after = 1 + len(raw_varint(len(payload)))
        self.send(head + blob(14, b"\0" * (-(len(head) + 2 + after) % 4)) + blob(15, payload))

    def _take(self, count):
        data = b""
        while len(data) < count:
            part = self.socket.recv(count - len(data))
            if not part:
                raise ConnectionError("closed")
            data += part
        return data

    def receive(self):
        head = self._take(8)
        assert head[:4] == b"FDR1"
        return decode(self._take(struct.unpack("<I", head[4:])[0]))


class Connection(Framed):
    """A client that has said hello as whoever it likes. address: "ipc://path". secret: the mesh's; None: it knows none."""

    def __init__(self, address, service="tester", incarnation=0, timeout=20, secret=secret_of_run_dir):
        assert address.startswith("ipc://")
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(seconds(timeout))
        self.socket.connect(address[6:])
        self.calls = self.unacknowledged = 0
        self.key = None
        secret = secret(address) if callable(secret) else secret
        if secret:
            self.key = hashlib.blake2b(secret, digest_size=32).digest()
        told = self._shake_hands(service, incarnation)
        if one(told, 1) == REFUSED:
            raise Refused(one(told, 5, b"").decode())
        assert one(told, 1) == HELLO, told
        peer = decode(one(told, 15, b""))
        self.service, self.incarnation = one(peer, 2, b"").decode(), one(peer, 4)

    def _shake_hands(self, service, incarnation):
        hello = varint(1, 2) + blob(2, service) + fixed64(4, incarnation) + varint(6, 1 << 26)
        if self.key:
            hello += blob(10, os.urandom(32))
        self.send(varint(1, HELLO) + blob(15, hello))
        told = self.receive()
        if not self.key or one(told, 1) != CHALLENGE:
            return told
        covered = hashlib.blake2b(hello, digest_size=32).digest() + one(decode(one(told, 15)), 1)
        self.send(varint(1, PROOF) + blob(15, blob(1, self._prove(b"fastdecode mesh 1 client" + covered))))
        told = self.receive()
        if one(told, 1) == HELLO:
            payload = one(told, 15)
            assert payload[-34:-32] == bytes([11 << 3 | 2, 32])
            assert payload[-32:] == self._prove(b"fastdecode mesh 1 server" + covered + payload[:-34]), "no proof of the server"
        return told

    def _prove(self, covered):
        return hmac.new(self.key, covered, hashlib.sha512).digest()[:32]

    def start(self, method, payload, request_id="hostile"):
        """method: a name, or the number itself. Returns the call's id."""
        self.calls += 1
        number = method if isinstance(method, int) else method_id(method)
        self.send_payload(varint(1, REQUEST) + fixed64(2, self.calls) + fixed32(3, number) + blob(7, request_id), payload)
        return self.calls

    def cancel(self, call):
        self.send(varint(1, CANCEL) + fixed64(2, call))

    def _next(self):
        told = self.receive()
        self.unacknowledged += 1
        if self.unacknowledged == 16:
            self.unacknowledged = 0
            self.send(varint(1, ACK) + varint(4, 16))
        return told

    def call(self, method, payload, messages=None):
        """Until the call ends; of a stream that goes on, until so many messages have come, and cancels it."""
        taken = []
        try:
            call = self.start(method, payload)
            while True:
                told = self._next()
                if one(told, 2) != call:
                    continue
                if one(told, 1) == REPLY:
                    status = one(told, 4)
                    if status == 0 and 15 in told:
                        taken.append(one(told, 15))
                    return Answer(STATUS[status], one(told, 5, b"").decode(), taken)
                taken.append(one(told, 15, b""))
                if messages and len(taken) >= messages:
                    self.cancel(call)
                    return Answer("OK", "", taken)
        except (ConnectionError, BrokenPipeError):
            return Answer("CLOSED", "the connection was closed", taken)

    def close(self):
        self.socket.close()


def wait_closed(connection, limit_s=10):
    connection.socket.settimeout(seconds(limit_s))
    began = time.monotonic()
    try:
        while connection.socket.recv(65536):
            pass
    except ConnectionError:
        pass
    return time.monotonic() - began
