#!/usr/bin/env python3
"""relay.py ADDRESS PORT TO_PORT SECONDS: passes bytes between two ports of an address, each after so many seconds, as a long link does."""
import collections
import select
import socket
import sys
import time


def relay(address, port, to_port, delay_s):
    server = socket.create_server((address, port))
    others, queues = {}, {}
    print("ready", flush=True)
    while True:
        due = min((queue[0][0] for queue in queues.values() if queue), default=None)
        wait = None if due is None else max(0, due - time.monotonic())
        for source in select.select([server, *others], [], [], wait)[0]:
            if source is server:
                near, _ = server.accept()
                far = socket.create_connection((address, to_port))
                for one, other in ((near, far), (far, near)):
                    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    others[one], queues[one] = other, collections.deque()
                continue
            data = source.recv(1 << 20)
            if not data:
                return
            queues[others[source]].append((time.monotonic() + delay_s, data))
        now = time.monotonic()
        for to, queue in queues.items():
            while queue and queue[0][0] <= now:
                to.sendall(queue.popleft()[1])


relay(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]))
