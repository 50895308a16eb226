"""A server with OpenAI's completions and a capacity that is known: `slots` answers at a time, each of `service` seconds whatever is asked.

  fake_server.py [--slots N] [--service S] [--stall S] [--queue N] [--refuse-fields ignore_eos,stream_options] [--context N] [--key KEY]
                 [--no-usage]

An answer's tokens are spread over its service. Times are of a schedule of its own: an answer begins when it comes, or when the slot that it
gets became free by that schedule, so that a machine that is late does not serve less. An answer whose client has gone gives its slot up. --stall: each answer that begins holds the tokens of all others up by so
much, which is what a prompt without chunks does. --queue: more than that many waiting get 429. Prints its URL, ends with its standard input.
"""
import argparse
import asyncio
import collections
import json
import logging
import os
import sys
import time


class Server:
    def __init__(self, options):
        self.options = options
        self.idle = [0.0] * options.slots  # since when each free slot is free, by the schedule
        self.queue = collections.deque()   # (future of a slot, reader of the client)
        self.stalled = 0.0                 # seconds by which all answers have been put off

    def facts(self):
        model = {"id": "fake", "object": "model"}
        if self.options.context:
            model["max_model_len"] = self.options.context
        return {"object": "list", "data": [model]}

    async def slot(self, reader):
        """When the slot that it gets became free; None: the client has gone."""
        if self.idle:
            return self.idle.pop()
        self.queue.append((asyncio.get_running_loop().create_future(), reader))
        return await self.queue[-1][0]

    def release(self, free):
        while self.queue:
            future, reader = self.queue.popleft()
            if not reader.at_eof():
                future.set_result(free)
                return
            future.set_result(None)
        self.idle.append(free)

    async def answer(self, request, reader, writer):
        came = time.monotonic()
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        free = await self.slot(reader)
        if free is None:
            return
        begin = max(came, free)
        self.stalled += self.options.stall
        await self.tokens(request["max_tokens"], begin - self.stalled, reader, writer)
        self.release(time.monotonic() if reader.at_eof() else begin + self.options.service)
        if request.get("stream_options") and not self.options.no_usage:
            self.event(writer, {"choices": [], "usage": {"prompt_tokens": self.prompt_tokens(request),
                                                         "completion_tokens": request["max_tokens"]}})
        self.chunk(writer, b"data: [DONE]\n\n")
        writer.write(b"0\r\n\r\n")
        await writer.drain()

    async def tokens(self, count, begin, reader, writer):
        for i in range(count):
            while (wait := begin + self.stalled + self.options.service * (i + 1) / count - time.monotonic()) > 0:
                await asyncio.sleep(wait)
            if reader.at_eof():
                return
            self.event(writer, {"choices": [{"index": 0, "text": " a", "finish_reason": "length" if i == count - 1 else None}]})

    @staticmethod
    def prompt_tokens(request):
        return 3 + 2 * len(request["prompt"].split())

    def event(self, writer, value):
        self.chunk(writer, b"data: " + json.dumps(value).encode() + b"\n\n")

    @staticmethod
    def chunk(writer, data):
        writer.write(b"%x\r\n%s\r\n" % (len(data), data))

    @staticmethod
    def whole(writer, status, value):
        body = json.dumps(value).encode()
        writer.write(b"HTTP/1.1 %d X\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (status, len(body), body))

    async def one(self, reader, writer):
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        path = head.split(" ", 2)[1]
        length = next((int(line.split(":")[1]) for line in head.split("\r\n") if line.lower().startswith("content-length:")), 0)
        body = await reader.readexactly(length)
        if self.options.key and f"authorization: bearer {self.options.key}" not in head.lower():
            return self.whole(writer, 401, {"error": {"message": "wrong key"}})
        if path == "/v1/models":
            return self.whole(writer, 200, self.facts())
        if path != "/v1/completions":
            return self.whole(writer, 404, {"error": {"message": "no such path"}})
        request = json.loads(body)
        for field in filter(None, self.options.refuse_fields.split(",")):
            if field in request:
                return self.whole(writer, 400, {"error": {"message": f"unknown field {field}"}})
        if self.options.context and self.prompt_tokens(request) + request["max_tokens"] > self.options.context:
            return self.whole(writer, 400, {"error": {"message": "too long"}})
        if self.options.queue is not None and len(self.queue) >= self.options.queue and not self.idle:
            return self.whole(writer, 429, {"error": {"message": "the queue is full"}})
        return await self.answer(request, reader, writer)

    async def connection(self, reader, writer):
        try:
            while True:
                await self.one(reader, writer)
        except (OSError, asyncio.IncompleteReadError):
            pass
        writer.close()


async def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--slots", type=int, default=8)
    arguments.add_argument("--service", type=float, default=0.05)
    arguments.add_argument("--stall", type=float, default=0.0)
    arguments.add_argument("--queue", type=int)
    arguments.add_argument("--refuse-fields", default="")
    arguments.add_argument("--context", type=int, default=0)
    arguments.add_argument("--key", default="")
    arguments.add_argument("--no-usage", action="store_true")
    server = Server(arguments.parse_args())
    logging.getLogger("asyncio").setLevel(logging.ERROR)  # it would warn of each client that goes
    listening = await asyncio.start_server(server.connection, "127.0.0.1", 0, backlog=1024)
    print(f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}", flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    os._exit(0)  # with whatever is open


if __name__ == "__main__":
    asyncio.run(main())
