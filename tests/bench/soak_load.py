"""What a soak (soak.py) asks of its mesh, and its clients: a fixed set of requests, each of which has one right answer."""
import collections
import http.client
import io
import json
import os
import random
import sys
import threading
import time

import openai

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "e2e"))

from streams import words  # noqa: E402

LIMIT_S, AGAIN_S = 300, 60  # an answer that has not come by then is lost; one that is refused later was accepted before
BATCH_EVERY_S, BATCH_LIMIT_S, BATCH_LINES = 60, 900, 8

PERSON = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer", "minimum": 0, "maximum": 120},
                                           "likes": {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "maxItems": 3}},
          "required": ["name", "age", "likes"], "additionalProperties": False}
SIZES = (6, 12, 25, 50, 100, 200, 400, 800, 1100)  # words of a prompt: 10 to 1,500 tokens


def request_set():
    """[(path, body)]: the last has no end but its deadline."""
    made = []
    for i in range(60):
        size = SIZES[i * 5 % len(SIZES)]
        own = min(size, 10)
        prompt = f"{words(size - own, 1 + i % 3)} {words(own, 100 + i)}".strip()
        sampled = {"temperature": 0.8, "seed": 1000 + i, **({"presence_penalty": 0.3, "top_p": 0.9} if i % 2 else {})}
        text, chat = {"prompt": prompt}, {"messages": [{"role": "user", "content": prompt}]}
        path, body = ((("/v1/completions", {**text, "temperature": 0, "max_tokens": 48}),
                       ("/v1/completions", {**text, **sampled, "max_tokens": 64}),
                       ("/v1/chat/completions", {**chat, "temperature": 0, "max_tokens": 64}),
                       ("/v1/chat/completions", {**chat, **sampled, "max_tokens": 96}),
                       ("/v1/completions", {**text, **sampled, "n": 2, "max_tokens": 32}),
                       ("/v1/completions", {**text, **sampled, "guided_regex": "(19|20)[0-9]{2}-[01][0-9]-[0-3][0-9]( at [0-9]{1,2}:[0-9]{2})?"}),
                       ("/v1/chat/completions", {**chat, **sampled, "max_tokens": 120, "response_format": {
                           "type": "json_schema", "json_schema": {"name": "person", "strict": True, "schema": PERSON}}}),
                       ("/v1/completions", {**text, "temperature": 0, "logprobs": 2, "max_tokens": 40, "ignore_eos": True}),
                       ("/v1/chat/completions", {**chat, **sampled, "logprobs": True, "top_logprobs": 2, "max_tokens": 40}),
                       ("/v1/completions", {**text, **sampled, "max_tokens": 200, "ignore_eos": True}))[i % 10])
        made.append((path, {"model": "default", **body}))
    made[-1] = ("/v1/completions", {**made[-1][1], "prompt": words(12, 99), "max_tokens": 2400})
    return made


class Answer:
    """The same for whole and streamed answers. choices: {index: [text, log-probabilities, finish reason, stop reason]}"""

    def __init__(self):
        self.choices, self.usage, self.events, self.whole = {}, None, 0, False

    def add(self, said):
        if usage := said.get("usage"):
            self.usage = (usage["prompt_tokens"], usage["completion_tokens"])
        for choice in said["choices"]:
            mine = self.choices.setdefault(choice["index"], ["", [], None, None])
            mine[0] += choice.get("text") or (choice.get("message") or choice.get("delta") or {}).get("content") or ""
            scored = choice.get("logprobs") or {}
            of_completion = zip(scored.get("tokens", ()), scored.get("token_logprobs", ()), scored.get("top_logprobs") or ())
            mine[1] += scored.get("content") or list(of_completion)
            mine[2], mine[3] = choice.get("finish_reason") or mine[2], choice.get("stop_reason") or mine[3]
        return self

    def cut(self):
        return any(choice[3] == "deadline" for choice in self.choices.values())

    def same(self, wanted):
        """Cut by its deadline or by a client that left, one may be the other's beginning; else all must be equal."""
        if self.whole and wanted.whole and not self.cut() and not wanted.cut():
            return (self.choices, self.usage) == (wanted.choices, wanted.usage)
        for index, (text, scored, *_) in self.choices.items():
            text, other = text.rstrip("\ufffd"), wanted.choices[index][0].rstrip("\ufffd")
            known = wanted.choices[index][1]
            least = min(len(scored), len(known))
            if not (other.startswith(text) or wanted.cut() and text.startswith(other)) or scored[:least] != known[:least]:
                return False
        return True

    def told(self):
        return {"choices": self.choices, "usage": self.usage}


class Refused(Exception):
    """Not accepted: to be asked again."""


class Lost(Exception):
    """Accepted, and not answered."""


def ask(port, path, body, leave_after=None):
    """The answer to a request; leave_after: the client leaves after so many events of the stream."""
    began, answer = time.monotonic(), Answer()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=LIMIT_S)
    try:
        try:
            connection.connect()
        except OSError as problem:
            raise Refused(f"no connection: {problem}") from problem
        connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        reply = connection.getresponse()
        if reply.status != 200:
            text = reply.read().decode()
            early = time.monotonic() - began < AGAIN_S and (reply.status == 429 or "not_ready" in text)
            raise (Refused if early else Lost)(f"status {reply.status} after {time.monotonic() - began:.0f} s: {text[:300]}")
        if not body.get("stream"):
            answer.add(json.loads(reply.read()))
            answer.whole = True
            return answer
        for line in reply:
            if line.startswith(b"data: [DONE]"):
                answer.whole = True
                return answer
            if line.startswith(b"data: "):
                said = json.loads(line[6:])
                if "error" in said:
                    raise Lost(f"an event says {line[6:300].decode()}")
                answer.add(said)
                answer.events += 1
                if leave_after and answer.events >= leave_after:
                    return answer
            if time.monotonic() - began > LIMIT_S:
                raise Lost(f"no end of the stream after {LIMIT_S} s, {answer.events} events")
        raise ConnectionResetError(f"the stream broke off after {answer.events} events")
    finally:
        connection.close()


class Load:
    """Clients and the batches, and what came of what they asked."""

    def __init__(self, mesh, requests, seed):
        self.mesh, self.requests, self.seed, self.wanted = mesh, requests, seed, []
        self.counts, self.troubles, self.over = collections.Counter(), [], threading.Event()
        self._lock, self.threads = threading.Lock(), []

    def count(self, *names):
        with self._lock:
            self.counts.update(names)

    def trouble(self, kind, **what):
        with self._lock:
            self.counts[kind] += 1
            self.troubles.append({"kind": kind, "at": time.time(), **what})

    def insist(self, path, body, leave_after=None):
        """ask(), as often as the gateway is killed meanwhile, refuses or is not there."""
        began = time.monotonic()
        while True:
            gateways = self.mesh.gateways
            try:
                return ask(self.mesh.port(), path, body, leave_after)
            except (Refused, ConnectionRefusedError) as problem:
                self.count("no gateway" if "no connection" in str(problem) or "no gateway" in str(problem) else "refused")
                if time.monotonic() - began > LIMIT_S:
                    raise Lost(f"refused for {LIMIT_S} s: {problem}") from problem
                time.sleep(0.5)
            except (OSError, http.client.HTTPException, ValueError) as problem:
                if self.mesh.gateways == gateways:  # no kill explains it
                    raise Lost(f"after {time.monotonic() - began:.0f} s: {problem!r}") from problem
                self.count("asked again")

    def judge(self, at, got, how):
        if not got.same(self.wanted[at]):
            self.trouble("CHANGED", request=at, how=how, got=got.told(), wanted=self.wanted[at].told())
        else:
            self.count("left" if not got.whole else "cut" if got.cut() and not self.wanted[at].cut() else "right")

    def learn(self):
        """The right answers, of an undisturbed mesh; each is asked whole. RuntimeError: one does not come."""
        self.wanted = [None] * len(self.requests)
        left = collections.deque(range(len(self.requests) - 1, -1, -1))

        def some():
            while left and not self.over.is_set():
                at = left.popleft()
                try:
                    self.wanted[at] = ask(self.mesh.port(), *self.requests[at])
                except (Refused, Lost, OSError, http.client.HTTPException) as problem:
                    self.trouble("LOST", request=at, why=f"in the undisturbed mesh: {problem!r}")

        self.run([some] * 4)
        self.mesh.wait(lambda: not any(thread.is_alive() for thread in self.threads), 2 * LIMIT_S)
        if None in self.wanted or any(answer.cut() for answer in self.wanted[:-1]):
            raise RuntimeError(f"the undisturbed mesh does not answer: {self.troubles[:3]}")

    def run(self, functions):
        self.threads = [threading.Thread(target=function, daemon=True) for function in functions]
        for thread in self.threads:
            thread.start()

    def client(self, number):
        """Asks until it is over."""
        chance = random.Random(self.seed * 1000 + number)
        while not self.over.wait(chance.uniform(0, 0.5)):
            at = chance.randrange(len(self.requests))
            path, body = self.requests[at]
            stream, flex, leaves = chance.random() < 0.6, chance.random() < 0.15, chance.random() < 0.12
            how = {"stream": stream, "flex": flex}
            body = {**body, **({"stream": True, "stream_options": {"include_usage": True}} if stream else {}),
                    **({"service_tier": "flex"} if flex else {})}
            self.count("asked")
            try:
                self.judge(at, self.insist(path, body, chance.randint(1, 12) if stream and leaves else None), how)
            except Lost as problem:
                self.trouble("LOST", request=at, how=how, why=str(problem))

    def batches(self):
        """A small batch now and then."""
        chance = random.Random(self.seed * 1000 + 999)
        while not self.over.wait(BATCH_EVERY_S * chance.uniform(0.5, 1.5)):
            lines = chance.sample([at for at, (path, _) in enumerate(self.requests[:-1]) if path == "/v1/completions"], BATCH_LINES)
            self.counts["asked"] += len(lines)
            try:
                self.batch(lines)
            except Lost as problem:
                self.trouble("LOST", batch=lines, why=str(problem))

    def calls(self, function, deadline, what):
        """function(client) until the gateway answers. What another status says is final, unless it is that the mesh is not ready."""
        while True:
            try:
                with openai.OpenAI(base_url=f"http://127.0.0.1:{self.mesh.port()}/v1", api_key="none", max_retries=0, timeout=30) as client:
                    return function(client)
            except (openai.APIConnectionError, ConnectionRefusedError, http.client.HTTPException) as problem:
                last = repr(problem)
                self.count("no gateway")
            except openai.APIStatusError as problem:
                if problem.status_code not in (429, 503):
                    raise Lost(f"batch: {what}: {problem}") from problem
                last = str(problem)
                self.count("refused")
            if time.monotonic() > deadline:
                raise Lost(f"batch: {what}: nothing for {BATCH_LIMIT_S} s: {last}")
            time.sleep(1)

    def batch(self, lines):
        deadline = time.monotonic() + BATCH_LIMIT_S
        text = "".join(json.dumps({"custom_id": str(at), "method": "POST", "url": self.requests[at][0], "body": self.requests[at][1]}) + "\n"
                       for at in lines).encode()
        file = self.calls(lambda client: client.files.create(file=("in.jsonl", io.BytesIO(text)), purpose="batch"), deadline, "upload")
        batch = self.calls(lambda client: client.batches.create(input_file_id=file.id, endpoint="/v1/completions", completion_window="24h"),
                           deadline, "create")
        while batch.status in ("validating", "in_progress", "finalizing"):
            if time.monotonic() > deadline:
                raise Lost(f"batch: not over after {BATCH_LIMIT_S} s: {batch}")
            time.sleep(1)
            batch = self.calls(lambda client: client.batches.retrieve(batch.id), deadline, "retrieve")
        if batch.status != "completed" or batch.error_file_id or not batch.output_file_id:
            raise Lost(f"batch: {batch}")
        said = self.calls(lambda client: client.files.content(batch.output_file_id).read().decode(), deadline, "results")
        results = [json.loads(line) for line in said.splitlines()]
        if sorted(result["custom_id"] for result in results) != sorted(map(str, lines)):
            raise Lost(f"batch: results of {[result['custom_id'] for result in results]}")
        for result in results:
            answer = Answer().add(result["response"]["body"])
            answer.whole = True
            self.judge(int(result["custom_id"]), answer, "batch")
        self.count("batches")
        for name in (file.id, batch.output_file_id):
            self.calls(lambda client, name=name: client.files.delete(name), deadline, "delete")
