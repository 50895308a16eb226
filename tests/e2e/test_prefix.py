"""Prompts that begin alike share pages: what is computed, what is held, who may share, and that no byte of an answer changes."""
import time

from conftest import PACED, SANITIZED
from streams import Stream, assert_same, body, join_all, of_place, run_all, start_all, words

PAGE = 16  # tokens
SYSTEM = words(200 if SANITIZED else 400, 77)  # a word is a token
TOGETHER = 8 if SANITIZED else 12


def cached(stream):
    return stream.usage["prompt_tokens_details"]["cached_tokens"]


def prompts():
    """The same system prompt, and a question of its own."""
    return [body(f"{SYSTEM} Question {i}: {words(3 + i % 9, i)}?", 12, i, i % 3 == 1) for i in range(TOGETHER)]


def sum_of(mesh, *names):
    return [mesh.metric(f"fastdecode_{name}") for name in names]


def test_a_system_prompt_is_computed_once(start_mesh):
    requests = prompts()
    with start_mesh("--prefix-cache", "off", "--kv-workers", 0) as plain:
        wanted = run_all(plain.url, requests)
        assert [cached(stream) for stream in wanted] == [0] * TOGETHER
        assert plain.metric("fastdecode_prefix_kept_sequences") == 0
    with start_mesh("--kv-workers", 0, **PACED) as mesh:  # so that somebody sees what is shared
        streams, most_shared = start_all(mesh.url, requests), 0
        while not all(stream.done for stream in streams):
            most_shared = max(most_shared, mesh.metric("fastdecode_prefix_shared_pages"))
            time.sleep(0.02)
        assert_same(join_all(streams), wanted)
        tokens = [stream.usage["prompt_tokens"] for stream in streams]
        system = min(tokens) // PAGE * PAGE - 2 * PAGE  # every prompt has these, in whole pages
        prefill, saved = sum_of(mesh, "prefill_tokens_total", "prefix_cached_tokens_total")
        print(f"{sum(tokens)} tokens of prompts: {prefill:.0f} rows computed, {saved:.0f} not, at most {most_shared:.0f} pages shared")
        assert prefill + saved == sum(tokens)
        assert prefill <= system + sum(n - system for n in tokens)  # one, and the tails
        assert sorted(cached(stream) for stream in streams)[1] >= system
        assert most_shared >= 0.5 * (TOGETHER - 1) * system / PAGE
        # again, one after the other: all of it is there
        again = [run_all(mesh.url, [request])[0] for request in requests[:3]]
        assert_same(again, wanted[:3])
        assert all(cached(stream) >= stream.usage["prompt_tokens"] - PAGE - 1 for stream in again)
        mesh.wait_metric("fastdecode_kv_pages_used", lambda pages: pages == 0)
        assert mesh.metric("fastdecode_prefix_kept_sequences") >= 1


def test_a_conversation_goes_on_where_it_was(start_mesh):
    with start_mesh("--local-pool", "0", "--kv-workers", "2", "--kv-memory", "128MiB") as mesh:
        first = run_all(mesh.url, [body(words(100, 5), 40)])[0]
        then = run_all(mesh.url, [body(words(100, 5) + first.text + " And then", 10)])[0]
        held = (first.usage["prompt_tokens"] + 40) // PAGE * PAGE
        assert held - 2 * PAGE <= cached(then) <= held
        alone = run_all(mesh.url, [body(words(100, 5) + first.text + " And then", 10, cache_salt="mine")])[0]
        assert cached(alone) == 0
        assert_same([alone], [then])
        assert cached(run_all(mesh.url, [body(words(100, 5), 4, cache_salt="mine")])[0]) >= 6 * PAGE
        assert cached(run_all(mesh.url, [body(words(100, 5), 4, cache_salt="yours")])[0]) == 0


def test_what_is_kept_makes_way(start_mesh):
    """More prompts than the memory holds, again and again: whoever comes gets pages, and old ones go first."""
    with start_mesh("--local-pool", "2MiB", "--kv-workers", "0") as mesh:
        total = mesh.metric("fastdecode_kv_pages")
        requests = [body(words(220, 300 + i), 8, i) for i in range(12)]
        wanted = [run_all(mesh.url, [request])[0] for request in requests]
        assert mesh.metric("fastdecode_prefix_evicted_total") > 0
        assert mesh.metric("fastdecode_kv_pages_cached") > 0.5 * total
        assert_same(run_all(mesh.url, requests), wanted)  # all at once
        assert mesh.metric("fastdecode_sequences_finished_total") == 2 * len(requests)
        mesh.wait_metric("fastdecode_kv_pages_used", lambda pages: pages == 0)


def test_a_worker_dies_with_shared_pages(start_mesh):
    """Those that shared them are rebuilt on the other worker, and share there."""
    requests = [body(f"{words(300, 9)} {i}", 40, i) for i in range(6)]
    with start_mesh("--local-pool", "0", "--kv-workers", "2", "--kv-memory", "256MiB", **PACED) as mesh:
        wanted = run_all(mesh.url, requests)
        streams = [Stream(mesh.url, request) for request in requests]
        for stream in streams:
            stream.wait_tokens(3)
        mesh.kill(max(("kv-worker-0", "kv-worker-1"), key=lambda name: of_place(mesh, "fastdecode_place_sequences", name)))
        assert_same(join_all(streams), wanted)
        assert mesh.metric("fastdecode_sequences_rebuilt_total") > 0

