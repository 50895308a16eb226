#!/usr/bin/env python3
"""Puts faults into a copy of the code, one at a time, and says which test catches each; the last line is "N of N caught".

  tests/mutants.py [--build DIR] [--venv DIR] [--groups GROUP,GROUP] [--list] [NAME...]

A fault is one that a hand makes and no compiler sees: a release that is dropped, an index that is off by one, a scale that is swapped. Each
is a row of FAULTS: a text that occurs once in a file, and what it becomes. The tests in its row are run first, since they should see it; they
must pass without any fault, which is checked at the start. If they pass with it, the groups follow in order (by default unit, kernels, integration, e2e) until a test fails. A fault that no test sees SURVIVED: a
test is missing, or the fault changes nothing that anybody could observe and the row wants another one.

The files of this working tree and what is built of them are copied to a temporary directory, so that a fault costs the files that it changes.
Nothing is changed here. MAKEFLAGS is passed on ("NVCC=" leaves out the CUDA backend, which no fault touches).
"""
import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import namedtuple

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
GROUPS = ("unit", "kernels", "integration", "sim", "e2e")

Fault = namedtuple("Fault", "name file old new hints")

FAULTS = [
    # Kernels: the second half of a Q6_K group with the scale of the first.
    Fault("gemm-scale", "kernels/gemm/gemm_lanes.h", "load_scale(w, form, b->tile, g, (size_t)g * 2 + 1)", "load_scale(w, form, b->tile, g, (size_t)g * 2)",
          "kernels/test_gemm"),
    # MXFP4 of a directory: the two values of a byte change places.
    Fault("stored-nibbles", "kernels/quant/stored_rows.c", "nibbles[i / 2] >> (i % 2 * 4) & 15u", "nibbles[i / 2] >> (4 - i % 2 * 4) & 15u",
          "kernels/test_stored_rows unit/test_hf_experts"),
    # Frequencies of a model with factors (Llama 3) multiplied where they are divided.
    Fault("rope-factors", "kernels/norm_rope/rope_table.c", "frequency /= (double)params->freq_factors[i];",
          "frequency *= (double)params->freq_factors[i];", "kernels/test_norm_rope"),
    # Attention: query heads are dealt to the KV heads in turn, not in groups.
    Fault("attention-heads", "kernels/kv/kv_attend.c", "batch->q[block->first_row + row] + (size_t)(kv_head * heads + head) * head_dim,",
          "batch->q[block->first_row + row] + (size_t)(head * batch->store->shape.kv_heads + kv_head) * head_dim,",
          "kernels/test_attention"),
    # Sparse rows: the largest K of a tile is rounded down; the tiles are chosen when the first share of the candidates is scored, not the last.
    Fault("sparse-bounds", "kernels/attention/attention_sparse.c", "*high = f16_down(-largest) ^ 0x8000;", "*high = f16_down(largest);",
          "kernels/test_attention_sparse"),
    Fault("sparse-last-share", "kernels/kv/kv_attend.c", "shares_left[index], 1, memory_order_acq_rel) == 1)",
          "shares_left[index], 1, memory_order_acq_rel) == share_count(batch, block))",
          "kernels/test_attention_sparse"),
    # KV pages: a sequence that begins with those of another one goes without the page of which it has half.
    Fault("page-index", "common/kv/kv_ledger.c", "sequence->page_count = pages_for(ledger, sequence->begin, positions);",
          "sequence->page_count = (positions - sequence->begin) / ledger->shape.page_tokens;", "unit/test_kv_ledger unit/test_kv_share"),
    # A shared page that is replaced by a copy keeps the reference of who copied.
    Fault("page-reference", "common/kv/kv_ledger.c", "    ledger->references[copy.from]--;\n", "", "unit/test_kv_ledger unit/test_kv_share"),
    # The copy of a shared page is empty.
    Fault("page-copy", "kernels/kv/kv_store.c",
          "kv_ledger_reserve(&store->ledger, sequence, positions, &copy, error);\n\n    if (copy.needed)",
          "kv_ledger_reserve(&store->ledger, sequence, positions, &copy, error);\n\n    if (copy.needed && status)", "unit/test_kv_share"),
    # Grammars of JSON Schemas: a number that is its exclusive bound is taken; a declared key comes again as another one; alternatives of a oneOf
    # that overlap do not exclude each other.
    Fault("schema-bound", "common/schema/number.c", "!is_zero_from(&range->low, place) || range->low_is_exclusive",
          "!is_zero_from(&range->low, place)", "unit/test_grammar_schema"),
    Fault("schema-keys", "common/schema/string.c", "keys->declared_count ? undeclared(schema, keys) : jschema_any_content(schema)",
          "keys->declared_count > 99 ? undeclared(schema, keys) : jschema_any_content(schema)", "unit/test_grammar_schema"),
    Fault("schema-one-of", "common/schema/sets.c",
          'json_array_append_new(all, json_pack("{s:O}", "not", json_array_get(alternatives, k)));', "", "unit/test_grammar_schema"),
    # The scheduling core: chunks are not aligned with the rows that decode.
    Fault("grammar-tail-call", "common/grammar/step.c", "if (tracker->grammar->flags[pair.state] & GRAMMAR_STATE_EXITS)", "if (false)",
          "unit/test_grammar_cursor"),
    Fault("grammar-chain", "common/grammar/cursor.c", "mask_allow_plain(vocab, loops ? vocab->most_chars : last, words);",
          "mask_allow_plain(vocab, vocab->most_chars, words);", "unit/test_grammar_cursor"),
    Fault("grammar-anchors", "common/grammar/look.c", "NOTHING_READ, END_AT_ONCE, NO_PHASE, NO_PHASE",
          "NOTHING_READ, END_AT_ONCE, BYTES_READ, NO_PHASE", "unit/test_grammar_text"),

    Fault("chunk-align", "common/sched/chunk.c", "uint32_t first = tile - decode_rows % tile;", "uint32_t first = tile;",
          "unit/test_sched"),
    # Newcomers take the pages of sequences that are coming back.
    Fault("admit-order", "common/sched/admit.c", "if (sched_class_sum(s->coming_back, class) > 0 && !s->cold[head].rebuild)",
          "if (sched_class_sum(s->coming_back, class) > s->config.max_running && !s->cold[head].rebuild)", "unit/test_sched_failures"),
    # Sequences of class batch are in the order of arrival among interactive ones; their rows may lengthen a step by a half.
    Fault("class-order", "common/sched/sequence.c", "s->queue.arrivals++ | (uint64_t)a->class << 63;", "s->queue.arrivals++;",
          "unit/test_sched_class"),
    Fault("class-time", "common/sched/tuning.h", "(1.0 / 12)", "(1.0 / 2)", "unit/test_sched_class"),
    # Rows of class batch do not get the time in which weights are read.
    Fault("class-free", "common/sched/chunk.c", "*free_us = MAX(sched_time_free_us(s, rows) - added_us, 0);", "", "unit/test_sched_class"),
    # A sequence that ends while it is being moved away is never released where it is.
    Fault("sched-release", "common/sched/sequence.c",
          "        seq->state = SCHED_SEQ_DRAINING;\n        cold->out.release = true;\n        sched_outbox_add(s, slot);\n",
          "        seq->state = SCHED_SEQ_DRAINING;\n        cold->out.release = true;\n", "unit/test_sched_property"),
    # The local pool's reading counts twice when a place is chosen.
    Fault("placement", "common/sched/choice.c", "    if (sched_place_is_here(place))\n        round.here_us -= now_us;\n",
          "    (void)now_us;\n", "unit/test_sched_placement unit/test_sched_rule"),
    # S-part: the random number of each token is that of the one before.
    Fault("sample-index", "services/s-part/step/step_plan.c", "output->index = position + 1 - sequence->prompt_tokens;",
          "output->index = position - sequence->prompt_tokens;", "unit/test_step_plan"),
    # Drafts behind a token count though penalties make their samples depend on it.
    Fault("draft-penalty", "services/s-part/step/step_plan.c", "plan->rows[row + at].token && sampler_is_pure(sampler));", "plan->rows[row + at].token);",
          "unit/test_step_plan"),
    # A sample that no mask was written for counts.
    Fault("mask-missing", "services/s-part/step/step_plan.c", "        if (run->sequence->masked && at >= run->mask_count)\n            break;\n", "",
          "unit/test_step_plan"),
    # The grammar does not hear of what was drawn.
    Fault("mask-deaf", "services/s-part/step/masker.c", "take(sequence, sequence->taken, sequence->taken_count);", "take(sequence, sequence->taken, 0);",
          "unit/test_masker"),
    # A sampler whose sequence is in a step when it is released stays for ever.
    Fault("sampler-release", "services/s-part/engine/pool.c", "    engine->pool.deferred[slot].sampler |= what.sampler;\n", "",
          "integration/test_engine"),
    # Pipeline: x of a run that a later stage has dropped stays, and those behind it get another run's.
    Fault("stage-rows", "services/s-part/engine/begin.c", "memmove(batch->step.x_kept + first, batch->step.x_kept + end,", "memmove(batch->step.x_kept + end, batch->step.x_kept + end,",
          "integration/test_engine_stages"),
    # The first stage does not learn the token that the last one has sampled.
    Fault("stage-token", "services/s-part/engine/reply.c", "run->sequence->last_token = result->n_more ?", "run->sequence->last_token += result->n_more ?",
          "integration/test_engine_stages"),
    # A new term begins while a stage still computes for the one before.
    Fault("stage-term", "services/s-part/engine/stage.c", "        if (engine->batches.of[b].state != BATCH_IDLE)\n            return;\n", "",
          "integration/test_engine_stages"),
    # A step that was planned behind one that has failed is computed without its tokens.
    Fault("stage-behind", "services/s-part/engine/begin.c", "    while (batch->queue.count)\n        refuse_first",
          "    while (batch->queue.count > ENGINE_QUEUE_MAX)\n        refuse_first", "integration/test_engine_stages"),
    # Stages with the same layers are put together.
    Fault("stage-overlap", "services/scheduler/stages.c", "if (first < end_of(other) && other->first_layer < first + count)",
          "if (first + 1 == end_of(other) && other->first_layer == first + count)", "e2e/test_pipeline.py"),
    # Spans beyond the first are not folded apart: ranges in order, all the way.
    Fault("span-fold", "kernels/kv/kv_attend.c", "        opened = opens(block, range) ? range : opened;\n", "", "kernels/test_attention_spans"),
    # An extent that begins with a span gives its first ranges one by one.
    Fault("partial-count", "common/kv/kv_shape.h", "(KV_SPAN_RANGES - first_range % KV_SPAN_RANGES) % KV_SPAN_RANGES",
          "KV_SPAN_RANGES - first_range % KV_SPAN_RANGES", "kernels/test_attention_spans unit/test_step_extents"),
    # Pages of an extent are counted from the sequence's start.
    Fault("extent-page", "common/kv/kv_ledger.c", "(uint32_t)((position - ledger->sequences[slot].first) / ledger->shape.page_tokens);",
          "(uint32_t)((position - 0 * ledger->sequences[slot].first) / ledger->shape.page_tokens);", "unit/test_kv_extent"),
    # Frozen extents are asked with no q.
    Fault("read-q", "services/s-part/engine/extents.c", "memcpy(to, q, width * sizeof *to);", "memset(to, 0, width * sizeof *to);",
          "integration/test_extents"),
    # When several extents are lost the last one is named, and what was lost before it is taken to be there.
    Fault("lost-extent", "services/s-part/step/step_plan.c", "MIN(run->lost_extent, extent + 1)", "extent + 1", "unit/test_step_extents"),
    # KV worker: no page for a position that begins one.
    Fault("worker-reserve", "services/kv-worker/attend.c", "!kv_store_reserve(worker->attend.store, last->sequence, last->position + 1, &error)",
          "!kv_store_reserve(worker->attend.store, last->sequence, last->position, &error)", "integration/test_worker_shape"),
    # Handover: positions that nobody asked for count as taken over.
    Fault("handover-positions", "common/mesh/handover.c", ".positions = MIN(positions, fetch->positions - fetch->received),",
          ".positions = positions,", "integration/test_handover integration/test_handover_copies"),
    # Sampler: tokens of the prompt are penalized as if they had been generated.
    Fault("min-tokens", "common/sampler/sampler.c", "return index < p->min_tokens &&", "return index + 1 < p->min_tokens &&",
          "unit/test_sampler_fields"),
    Fault("presence-penalty", "common/sampler/sampler.c", "        if (seen->generated)\n            *logit -= p->presence_penalty",
          "        *logit -= p->presence_penalty", "unit/test_sampler"),
    # Tokenizer: of equal pairs in a long word the rightmost is merged first.
    Fault("merge-order", "common/tokenizer/bpe.c", "a->rank < b->rank : a->at < b->at;", "a->rank < b->rank : a->at > b->at;",
          "unit/test_tokenizer unit/test_tokenizer_open"),
    # A user's text becomes a control token.
    Fault("control-anywhere", "common/tokenizer/special.c", "scan->zones->parse_special ? scan->zones->end - i : 0;",
          "1 ? scan->zones->end - i : 0;", "unit/test_tokenizer"),
    # Gateway: text is sent that may be the start of a stop string.
    Fault("stop-hold", "services/gateway/api/schema/stop_match.c", "else if (partial && i < hold_from)", "else if (partial)",
          "unit/test_gateway_text unit/test_gateway_parts"),
    # RPC: a proof that was seen once is good for every connection.
    Fault("proof-challenge", "common/rpc/handshake.c",
          "    crypto_auth_hmacsha512256_update(&state, handshake->challenge, sizeof handshake->challenge);\n", "",
          "integration/test_rpc_secret"),
    # TLS: any service's certificate will do for a peer that is dialed; any service may call any method.
    Fault("tls-role", "common/rpc/tls.c", "if (!(peer->roles & 1u << peer->found.role))", "if (peer->found.role == RPC_ROLE_NONE)",
          "integration/test_tls"),
    Fault("tls-caller", "common/rpc/server.c", "method->callers & 1u << connection->role;", "method->callers;", "integration/test_tls"),
    # TLS: a connection outlives the CA that its peer's certificate is of.
    Fault("tls-rotation", "common/rpc/tls_session.c", "if (tls_generation(session->tls) == session->generation)", "if (session->generation)",
          "integration/test_tls_rotation"),
    # Model loader: a range of layers has the weights of the first ones.
    Fault("layer-range", "kernels/backend/cpu_load.c", "&loader->model->layers[range->first + s];", "&loader->model->layers[s];",
          "unit/test_backend_range"),
    # Traces: a worker is not told that a sequence is over whose pages are kept; a step that samples begins no decoding; a pause that the
    # collector asks for is not kept.
    Fault("trace-ended", "services/scheduler/core.c", "places_end_spans(scheduler, log->spans, log->id, action->release.place);", "(void)log;",
          "e2e/test_otlp.py"),
    Fault("trace-phase", "services/s-part/engine/spans.c", "trace->sampled |= run->run->sample;", "trace->sampled |= trace->phases[0].steps > 1;",
          "e2e/test_otlp.py"),
    Fault("trace-retry", "common/trace/otlp.c", "answer.retry_after_us ? answer.retry_after_us : pause_us(otlp, tries)", "pause_us(otlp, tries)",
          "e2e/test_otlp.py"),
    # The mesh under failures, which the simulation is to find: pages are said to be free while a step uses them.
    Fault("sim-release-early", "services/s-part/engine/pool.c", "if (waiting->gone == request->n_sequence)", "if (waiting->gone <= request->n_sequence)",
          "sim/mesh"),
    # A service obeys a scheduler, or an s-part, that was replaced.
    Fault("sim-stale-scheduler", "common/mesh/member.c", "else if (incarnation < newest)", "else if (incarnation + 1 < 1)", "sim/mesh"),
    # Positions are held as soon as their first layer is.
    Fault("sim-held-early", "kernels/kv/kv_attend.c", "if (batch->layer + 1 == store->shape.layers && batch->layers_done == store->shape.layers)",
          "if (batch->layer == 0)", "sim/mesh"),
    # The answer to a hand-over that was given up is taken for that to the next one.
    Fault("sim-move-twice", "common/sched/event.c", "|| s->cold[slot].move.id != m->id) {", ") {", "sim/mesh"),
    # A resubmitted sequence's tokens are told from their beginning.
    Fault("sim-token-twice", "services/scheduler/generate.c", "event.index = log->token_count - count - log->prompt_count;",
          "event.index = log->token_count - count - log->prompt_count - (uint32_t)(log->request ? log->request->n_generated : 0);", "sim/mesh"),
    # A sequence that is cancelled on its way goes on.
    Fault("sim-cancel-moving", "common/sched/event.c", "    if (over) { // it ended meanwhile", "    if (over && !m->ok) { // it ended meanwhile", "sim/mesh"),
    # After a hand-over the giver keeps its copy; after one that failed the taker does.
    Fault("sim-giver-keeps", "services/scheduler/places.c", "        free_then_end(pending, pending->move.from, pending->from_stay, true);",
          "        end_move(pending, true);", "sim/mesh"),
    Fault("sim-taker-keeps", "common/mesh/handover.c", "    if (fetch->status)\n        free_pages(fetch);\n    else\n        publish(handover);",
          "    publish(handover);", "sim/mesh"),
    # What a place held before it was cut off counts, although the sequence has been placed elsewhere since.
    Fault("sim-old-list", "services/scheduler/claims.c", "if (positions > held.first && sched_awaits_rebuild(scheduler->core.sched, held.sequence) &&",
          "if (positions > held.first &&", "sim/mesh"),
    # Positions whose tokens were guessed are taken for certain.
    Fault("sim-drafts-certain", "services/scheduler/claims.c", "return MIN(held->positions, MAX(held->certain, log->prompt_count));", "return log ? held->positions : 0;",
          "sim/mesh"),
    # A stage takes rows of another term.
    Fault("sim-term", "services/s-part/engine/calls.c", "!stage->term || step.forward.term != stage->term ||", "!stage->term ||", "sim/mesh"),
    # A place that has come back is asked to free what was handed over before it went.
    Fault("sim-stay", "services/scheduler/places.c", "if (place->member->up && place->member->stay == stay)", "if (place->member->up && stay)", "sim/mesh"),
    # Pages that a place was to free when it went down are still to be freed when it is back.
    Fault("sim-frees-left", "services/scheduler/places.c",
          "    for (uint32_t i = place->frees.to_free.head; i; i = scheduler->frees.entries[i].next)\n        scheduler->frees.waiting--;\n    report_free(place, &place->frees.to_free);\n",
          "", "sim/mesh"),
    # What is told late comes back: rows of steps that are over, and of a scheduler that was replaced.
    Fault("sim-late-steps", "services/kv-worker/attend.c", "if (request.layer == 0 && request.step < worker->attend.over_before_step &&", "if (0 &&",
          "sim/mesh"),
    # Nobody is told that a request was accepted, so that it is a new one to the next scheduler.
    Fault("sim-not-accepted", "services/scheduler/generate.c", "(void)!rpc_call_send(log->call, &event.base); // one that is gone is reported by on_cancel\n}\n\nvoid generate_tokens(",
          "(void)event;\n}\n\nvoid generate_tokens(", "sim/mesh"),
    # A member waits for a scheduler whose host has gone without a word.
    Fault("sim-silent-scheduler", "common/mesh/member.c", "if (is_silent(member) && !member->on_drained) {", "if (member->on_drained && !member->on_drained) {",
          "sim/mesh"),
    # Pages of accepted requests are kept from the scheduler's start on, not from the s-part's.
    Fault("sim-claims-early", "services/scheduler/claims.c", "return !claims->from_us || now_us - claims->from_us < CLAIM_US;",
          "return claims->from_us && now_us - claims->from_us < CLAIM_US;", "sim/mesh"),
    # The count of messages to be acknowledged outlives the connection.
    Fault("sim-ack", "common/rpc/channel.c", "    channel->unacked = 0;\n    channel->", "    channel->", "sim/mesh"),
]


def copy_tree(to, build, venv):
    """Copies the files that git knows, as they are here, and what is built; times stay, so nothing is built again."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True).stdout.decode().split("\0")
    for path in filter(None, listed):
        if os.path.exists(os.path.join(ROOT, path)):
            os.makedirs(os.path.dirname(os.path.join(to, path)), exist_ok=True)
            shutil.copy2(os.path.join(ROOT, path), os.path.join(to, path), follow_symlinks=False)
    if os.path.isdir(os.path.join(ROOT, "models")):
        os.symlink(os.path.join(ROOT, "models"), os.path.join(to, "models"))
    source = os.path.join(ROOT, build)
    if os.path.isdir(source):
        skipped = {os.path.realpath(venv), os.path.join(os.path.realpath(source), "fuzz")}
        shutil.copytree(source, os.path.join(to, "build"), symlinks=True,
                        ignore=lambda folder, names: [n for n in names if os.path.realpath(os.path.join(folder, n)) in skipped])


class Scratch:
    """The copy, with at most one fault in it."""

    def __init__(self, folder, venv):
        self.folder, self.venv = folder, venv

    def make(self, *targets):
        """Builds. Returns what the compiler says where that fails, else an empty text."""
        done = subprocess.run(["make", "--no-print-directory", f"-j{os.cpu_count()}", f"VENV={self.venv}", *targets], cwd=self.folder,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
        return (done.stdout or "make failed") if done.returncode else ""

    def test(self, groups, only=()):
        """Runs groups, or items of theirs, until one fails. Returns the name of that test, or an empty text."""
        command = ["tests/run.py", "--build", "build", "--venv", self.venv, "--fail-fast"]
        done = subprocess.run([*command, *(["--only", ",".join(only)] if only else []), *groups], cwd=self.folder,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
        found = re.search(r"^FAILED (.*)$", done.stdout, re.MULTILINE)
        if found:
            return found.group(1)
        if done.returncode:
            raise SystemExit("no test ran:\n" + done.stdout[-2000:])
        return ""

    def hinted(self, hints, groups):
        """Builds and runs the tests that should see the fault. Returns (which did, why nothing could be built)."""
        hints = [hint for hint in hints if hint.split("/")[0] in groups]
        if not hints:
            return "", ""
        e2e = any(hint.startswith("e2e/") for hint in hints)
        problem = self.make(*(["programs"] if e2e else [f"build/tests/{hint}" for hint in hints]))
        return ("", problem) if problem else (self.test(sorted({hint.split("/")[0] for hint in hints}), hints), "")

    def catch(self, fault, groups):
        """Returns (the test that sees the fault, why nothing could be built); two empty texts: it survived."""
        caught, problem = self.hinted(fault.hints.split(), groups)
        if not caught and not problem:
            problem = self.make("programs")
        for group in groups:
            if caught or problem:
                break
            caught = self.test([group])
        return caught, problem


def read_file(folder, fault):
    """The text of the file that a fault is put into. None, with a line that says so: the code is not what the row expects."""
    path, text = os.path.join(folder, fault.file), None
    if os.path.exists(path):
        with open(path, encoding="utf-8") as file:
            text = file.read()
    if text is None or text.count(fault.old) != 1:
        what = "has no such file" if text is None else f"has its old text {text.count(fault.old)} times, not once"
        print(f"{fault.name:20} STALE: the code {what} ({fault.file}); mend its row in tests/mutants.py")
        return None
    return text


def run_fault(scratch, fault, groups):
    """Prints the line of one fault. True: it was caught."""
    path, began = os.path.join(scratch.folder, fault.file), time.monotonic()
    text = read_file(scratch.folder, fault)
    if text is None:
        return False
    try:
        with open(path, "w", encoding="utf-8") as file:
            file.write(text.replace(fault.old, fault.new))
        caught, problem = scratch.catch(fault, groups)
    finally:
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
    if problem:
        print(f"{fault.name:20} NOT BUILT: no fault that a test could see\n{problem[-2000:]}")
    else:
        print(f"{fault.name:20} {'caught by ' + caught if caught else 'SURVIVED'} ({time.monotonic() - began:.0f} s)")
    return bool(caught)


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--build", default="build")
    arguments.add_argument("--venv", default="build/venv")
    arguments.add_argument("--groups", default=",".join(GROUPS), help="where a fault may be seen (%(default)s)")
    arguments.add_argument("--list", action="store_true", help="print the names and end")
    arguments.add_argument("--stale", action="store_true", help="only check that the code has what each row replaces")
    arguments.add_argument("name", nargs="*", help="the faults to try; all by default")
    chosen = arguments.parse_args()
    groups, names = chosen.groups.split(","), [fault.name for fault in FAULTS]
    if chosen.list:
        print(*names, sep="\n")
        return 0
    if chosen.stale:
        return int(None in [read_file(ROOT, fault) for fault in FAULTS])
    unknown = [name for name in chosen.name if name not in names] + [group for group in groups if group not in GROUPS]
    if unknown:
        arguments.error(f"there is no {unknown[0]}")
    faults = [fault for fault in FAULTS if not chosen.name or fault.name in chosen.name]
    venv = os.path.join(ROOT, chosen.venv)
    sys.stdout.reconfigure(line_buffering=True)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # the copy is removed then, too
    with tempfile.TemporaryDirectory(prefix="fd-mutants-") as folder:
        copy_tree(folder, chosen.build, venv)
        scratch = Scratch(folder, venv)
        failed, problem = scratch.hinted(sorted({hint for fault in faults for hint in fault.hints.split()}), groups)
        if failed or problem:
            print(f"without any fault {failed + ' fails' if failed else 'nothing is built: ' + problem[-2000:]}")
            return 1
        caught = sum(run_fault(scratch, fault, groups) for fault in faults)
    print(f"{caught} of {len(faults)} caught")
    return 0 if caught == len(faults) else 1


if __name__ == "__main__":
    sys.exit(main())
