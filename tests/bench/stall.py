"""No stall: eight streams decode, then a prompt of 3,000 words arrives.

Beside what the streams' tokens took before it came, and what the prompt takes on an idle mesh; each of the rounds measures all of
it, every prompt is a new one. A gap counts as during the prefill where it ends after the request was sent and begins before its
first token is there. The p99 before it came says what the machine itself does to steps meanwhile.

A token that ends within a character has no text to send, and the gap around it is two steps: such streams are not taken, since up
to 3 % of a stream's tokens are of that kind, more than the one in a hundred that is looked at.
"""
import statistics

from clients import completion, measure, percentile, run
from end_to_end import sleeping, warm
from figures import figure, of_rounds
from servers import Ours

STREAMS, STREAM_WORDS, STREAM_TOKENS, PLAIN_TOKENS = 8, 64, 4000, 700
PROMPT_WORDS, BEFORE_S, ROUNDS = 3000, 1.0, 3


def gaps(clients, since, until):
    """Times between tokens of which some part lies there."""
    return [b[0] - a[0] for client in clients for a, b in zip(client.events, client.events[1:]) if b[0] > since and a[0] < until]


def plain_streams(url, seed, limit_s, count=STREAMS):
    """Requests whose first PLAIN_TOKENS tokens each have text of their own."""
    plain = []
    for first in range(seed, seed + 20 * count, 2 * count):
        clients = run(url, [completion(STREAM_WORDS, PLAIN_TOKENS, first + i) for i in range(2 * count)], limit_s)
        events = PLAIN_TOKENS + 2  # the end, and the usage
        plain += [{**client.request, "max_tokens": STREAM_TOKENS} for client in clients if client.event_count == events]
        if len(plain) >= count:
            return plain[:count]
    raise RuntimeError(f"{len(plain)} of {20 * count} streams have text in every event, {count} are needed")


def beside_streams(url, prompt, background, limit_s, before_s=BEFORE_S):
    """Seconds: {"before", "before_p99": median and p99 of the gaps before, "during": all gaps in its prefill, "first": to the prompt's
    first token}."""
    began, streams = [], len(background)

    def arrive(clients):
        if not began and all(client.first for client in clients):
            began.append(max(client.first for client in clients))
        if len(clients) == streams and began and clients[0].last - began[0] >= before_s:
            return [prompt]
        return []

    def is_done(clients):
        return len(clients) > streams and clients[-1].first is not None

    clients = run(url, background, limit_s, enough=is_done, more=arrive)
    if any(client.ended() or client.error for client in clients[:-1]):
        raise RuntimeError(f"the {streams} streams ended before the prompt's first token")
    late = clients[-1]
    before = gaps(clients[:-1], began[0], late.began)
    return {"before": statistics.median(before), "before_p99": percentile(before, 0.99),
            "during": gaps(clients[:-1], late.began, late.first), "first": late.first - late.began}


def alone(url, prompt, limit_s):
    client, = run(url, [prompt], limit_s, enough=lambda clients: clients[0].first is not None)
    if client.first is None:
        raise RuntimeError(client.trouble())
    return client.first - client.began


def stall(run_):
    with Ours() as ours:
        warm(ours, 4)
        usual = measure(ours.url, STREAMS, STREAM_WORDS, 128, 3)["between_p50_s"]
        before, first, medians = [], [], []
        streams = plain_streams(ours.url, 8200, run_.limit_s())
        for turn in range(ROUNDS):
            sleeping(run_, [ours])
            with run_.turn(f"a prompt of {PROMPT_WORDS} words alone, and beside {STREAMS} streams"):
                idle = alone(ours.url, completion(PROMPT_WORDS, 4, 8000 + turn), run_.limit_s())
                sleeping(run_, [ours])
                got = beside_streams(ours.url, completion(PROMPT_WORDS, 4, 8100 + turn), streams, run_.limit_s())
            p50, p99 = (1e3 * percentile(got["during"], share) for share in (0.5, 0.99))
            run_.note(f"between tokens {1e3 * got['before']:.1f} ms before (p99 {1e3 * got['before_p99']:.1f}), {p50:.1f} during "
                      f"(p99 {p99:.1f}, longest {1e3 * max(got['during']):.1f}, {len(got['during'])} of them); first token after "
                      f"{idle:.2f} s alone, {got['first']:.2f} s beside")
            before.append((p99, 1e3 * got["before"]))
            first.append((got["first"], idle))
            medians.append(got["before"])
    name = f"{PROMPT_WORDS} words beside {STREAMS} streams"
    run_.add(of_rounds("stall", f"{name}: p99 between tokens, beside the median before", "ms", before, 3.0, at_most=True))
    run_.add(of_rounds("stall", f"{name}: its first token, beside that on an idle mesh", "s", first, 2.5, at_most=True))
    run_.add(figure("stall", f"{STREAMS} streams: median between tokens, beside that without what comes later",
                    1e3 * statistics.median(medians), "ms", 1e3 * usual, 1.15, at_most=True))
