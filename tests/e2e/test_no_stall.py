"""No stall: a long prompt that arrives beside running streams neither stops them nor waits for ever. Counted in steps; what it costs in time
is `make bench ONLY=stall`'s."""
from conftest import PACED
from streams import Stream, body, start_all, words
from test_leaving import numbers

STREAMS, CHUNK, WORDS = 4, 64, 1000


def test_a_long_prompt(start_mesh):
    mesh = start_mesh("--chunk", CHUNK, "--draft-tokens", 0, **PACED)
    streams = start_all(mesh.url, [body(words(20, i), 400, i) for i in range(STREAMS)])
    for stream in streams:
        stream.wait_tokens(2)
    before = numbers(mesh)
    late = Stream(mesh.url, body(words(WORDS, 9), 8))
    late.wait_tokens(1)
    after = numbers(mesh)
    ended = [stream.done for stream in streams]
    for stream in [*streams, late]:
        stream.leave()
    steps, decoded, prefilled = (after[name] - before[name] for name in (
        "fastdecode_steps_total", "fastdecode_decode_tokens_total", "fastdecode_prefill_tokens_total"))
    print(f"{steps:.0f} steps, {decoded:.0f} tokens of streams, {prefilled:.0f} rows of the prompt")
    assert not any(ended), "the prompt waited until streams had ended"
    assert prefilled >= WORDS and steps >= WORDS / CHUNK
    assert decoded >= STREAMS * (steps - 2), "a step of the prompt left out the streams"
