"""Drafts beside none: the same requests, one after the other and together, on two meshes that take turns.

What drafts bring depends on the text. Here: prompts of 64 words drawn from 32, which a small model goes on repeating (the prompts of
all other parts; those run without drafts); a text to be quoted; and answers that are drawn at temperature 1.5, where next to nothing
comes twice, and drafts must cost nothing; and one that is drawn beside three that repeat themselves: it must not wait for their
drafts (its own tokens a second).
"""
import statistics

from clients import check, completion, greedy, run
from end_to_end import sleeping, warm
from figures import of_rounds
from servers import Ours

ROUNDS, TOKENS, LEAST, SLOWEST = 8, 128, 0.97, 0.85
TEXT = ("A tide is the rise and fall of the sea. The moon pulls the water that is nearest to it more than the earth, and the earth more "
        "than the water behind it, so that there are two bulges, and a shore that turns through both has two high tides a day. The sun "
        "does the same with less than half the force. When both pull along one line, at new moon and at full moon, the tides are highest; "
        "when they pull at right angles they are lowest. ")


def of_words(seed):
    return completion(64, TOKENS, seed)


def quoted(seed):
    return greedy(f"{TEXT}\n\nThe text above, copied word for word ({seed}):\n\nA tide is the rise", TOKENS)


def drawn(seed):
    return {**completion(64, TOKENS, seed), "temperature": 1.5, "seed": seed}


CASES = [("words, a small model's repetitions", of_words), ("a text that is quoted", quoted), ("drawn at temperature 1.5", drawn)]


def tokens_per_s(run_, mesh, make, streams, seed):
    clients = run(mesh.url, [make(1000 * seed + i) for i in range(streams)], run_.limit_s())
    check(clients)
    return streams * TOKENS / (max(client.last for client in clients) - min(client.began for client in clients))


def victim_tokens_per_s(run_, mesh, seed):
    """Of the one, while the others run: they have tokens for longer than it."""
    others = [greedy("1 " * 60 + str(seed), 8 * TOKENS) for _ in range(3)]
    clients = run(mesh.url, [drawn(seed), *others], run_.limit_s(), enough=lambda clients: clients[0].ended())
    if clients[0].trouble():
        raise RuntimeError(f"the stream went wrong: {clients[0].trouble()}")
    return (TOKENS - 1) / (clients[0].last - clients[0].first)


def in_turns(run_, meshes, value):
    """[(with drafts, without)] of each round."""
    pairs = []
    for round_ in range(1, ROUNDS + 1):
        got = {}
        for mesh in meshes if round_ % 2 else meshes[::-1]:
            sleeping(run_, [other for other in meshes if other is not mesh])
            got[mesh] = value(mesh, round_)
        pairs.append(tuple(got[mesh] for mesh in meshes))
    run_.note(f"{statistics.median(p[0] for p in pairs):.1f} tokens/s, {statistics.median(p[1] for p in pairs):.1f} without")
    return pairs


def drafts(run_):
    with Ours("--kv-workers", 0, drafts=True) as with_, Ours("--kv-workers", 0) as without:
        meshes = (with_, without)
        for mesh in meshes:
            warm(mesh, 4)
        for what, make in CASES:
            for streams in (1, 4, 16):
                with run_.turn(f"{streams} streams, {what}"):
                    pairs = in_turns(run_, meshes, lambda mesh, round_: tokens_per_s(run_, mesh, make, streams, round_))
                run_.add(of_rounds(run_.part, f"{what}, {streams} stream{'s' if streams > 1 else ''}: drafts beside none", "tokens/s",
                                   pairs, LEAST))
        with run_.turn("one that is drawn beside three that repeat themselves"):
            pairs = in_turns(run_, meshes, lambda mesh, round_: victim_tokens_per_s(run_, mesh, round_))
        run_.add(of_rounds(run_.part, "one that is drawn beside three that repeat themselves: its own", "tokens/s", pairs, SLOWEST))
