// fake_s_part.h: an s-part that computes nothing. It answers each step with token 5 for every row that samples (with 7 at each tenth
// position, if `tens`), and late, wrongly or not at all if a test wants so. It lives on the scheduler's loop; one a program.
#ifndef FD_TESTS_FAKE_S_PART_H
#define FD_TESTS_FAKE_S_PART_H

#include "common/base/checked.h"
#include "common/mesh/member.h"
#include "services/scheduler/scheduler.h"
#include "tests/integration/played_peer.h"

enum { HELD_CALLS_MAX = 16384 };

// The fault of a reply.
enum spoiled {
    NOT_SPOILED,
    TOKEN_OF_NO_WORD,
    TOP_OF_NO_WORD,
    TOKEN_NOT_ASKED,
    SCORE_NOT_ASKED,
    POOLED_NOT_ASKED,
    OTHER_SEQUENCE,
    OTHER_STEP,
    FEWER_RUNS,
    MORE_THAN_DRAFTS,
    MORE_OF_NO_WORD,
    MORE_WITHOUT_FIRST,
    SPOILS
};

static struct {
    struct rpc_server *server;
    struct rpc_channel *channel; // to the scheduler
    enum spoiled spoil;          // the next reply that can be
    uint64_t incarnation;
    bool tens;          // token 7 at each tenth position
    uint32_t end_token; // of requests; 0: none
    bool hold_releases;
    bool times;              // replies say how long steps took, 1 ms or step_us: then tokens are guessed
    uint32_t step_us;        // 0: not said, or 1 ms
    uint32_t timeout_ms;     // of the latest step
    uint32_t expects;        // Expect calls
    uint32_t releases;       // Release calls
    uint64_t released_last;  // an id in the latest
    bool rows_differ;        // its rows depend on those beside them: then none are
    uint32_t drafts;         // guessed tokens that came
    uint32_t places;         // replies have the times of so many
    uint32_t position;       // of the first row of the latest step
    uint32_t first_position; // of the first row of step 0 of `steps`
    uint32_t loses;          // rows at this worker are lost; 0: none
    uint32_t unreachable;    // the worker whose tensors it does not reach; 0: none
    uint32_t reaches;        // Reach calls
    uint32_t pace;           // turns between a step's coming and its answer: gateways must keep up with what many tokens say
    struct rpc_call *waiting[STEPS_MAX];
    uint32_t waiting_count, waited;
    struct rpc_call *held[HELD_CALLS_MAX]; // Release calls that are not answered yet
    uint32_t held_count, steps, rows_most;
    uint64_t released; // ids in Release calls
} s_part;

static inline void spoil(Fastdecode__StepReply *reply, const Fastdecode__StepRequest *request)
{
    static Fastdecode__TopToken top = FASTDECODE__TOP_TOKEN__INIT, *tops = &top;
    static Fastdecode__Token bad = FASTDECODE__TOKEN__INIT, *bads = &bad, *more[SCHED_DRAFT_TOKENS_MAX + 1];
    static float vector[8];
    Fastdecode__RunResult *result = reply->results[0];

    top.token = UINT32_MAX;
    bad.token = s_part.spoil == TOKEN_OF_NO_WORD ? 100 : 6;
    bad.n_top = s_part.spoil == TOP_OF_NO_WORD;
    bad.top = &tops;
    switch (s_part.spoil) {
    case TOKEN_OF_NO_WORD:
    case TOP_OF_NO_WORD:
        if (!request->runs[0]->sample)
            return;
        result->sampled = &bad;
        break;
    case TOKEN_NOT_ASKED:
        if (request->runs[0]->sample)
            return;
        result->sampled = &bad;
        break;
    case SCORE_NOT_ASKED:
        result->n_scores = 1;
        result->scores = &bads;
        break;
    case POOLED_NOT_ASKED: result->pooled = (ProtobufCBinaryData){.len = sizeof vector, .data = (uint8_t *)vector}; break;
    case OTHER_SEQUENCE: result->sequence++; break;
    case OTHER_STEP: reply->step++; break;
    case FEWER_RUNS: reply->n_results--; break;
    case MORE_THAN_DRAFTS:
    case MORE_OF_NO_WORD:
    case MORE_WITHOUT_FIRST:
        if (!request->runs[0]->drafts)
            return;
        bad.token = s_part.spoil == MORE_OF_NO_WORD ? 100 : 5;
        result->n_more = s_part.spoil == MORE_THAN_DRAFTS ? request->runs[0]->drafts + 1 : 1;
        for (size_t i = 0; i < result->n_more; i++)
            more[i] = &bad;
        result->more = more;
        result->sampled = s_part.spoil == MORE_WITHOUT_FIRST ? NULL : result->sampled;
        break;
    default: return;
    }
    s_part.spoil = NOT_SPOILED;
}

// Checks, with `tens`, that the tokens of a run before its guesses are the right ones.
static inline void check_known(const Fastdecode__Run *run)
{
    for (uint32_t i = 0; s_part.tens && i + run->drafts < run->n_tokens; i++)
        assert_int_equal(run->tokens[i], (run->position + i) % 10 == 0 ? 7 : 5);
}

// Samples a token after the last known one, and one after each right guess.
static inline void answer_run(const Fastdecode__Run *run, Fastdecode__RunResult *result)
{
    static Fastdecode__Token fives = FASTDECODE__TOKEN__INIT, sevens = FASTDECODE__TOKEN__INIT;
    static Fastdecode__Token *pointers[8192];
    static uint32_t used;
    uint32_t known = (uint32_t)run->n_tokens - run->drafts, position = run->position + (known ? known : 1);

    fives.token = 5;
    sevens.token = 7;
    used = used + 1 + run->drafts > ARRAY_COUNT(pointers) ? 0 : used; // what a reply has is not used again before it is sent
    result->more = &pointers[used];
    result->sampled = s_part.tens && position % 10 == 0 ? &sevens : &fives;
    for (uint32_t i = 0; i < run->drafts; i++) {
        uint32_t before = s_part.tens && (position + i) % 10 == 0 ? 7 : 5;
        if (run->tokens[known + i] != before)
            break;
        result->more[result->n_more++] = s_part.tens && (position + i + 1) % 10 == 0 ? &sevens : &fives;
    }
    used += (uint32_t)result->n_more;
    s_part.drafts += run->drafts;
}

static inline void answer_step(struct rpc_call *call)
{
    static Fastdecode__RunResult results[8192], *pointers[8192];
    Fastdecode__StepReply reply = FASTDECODE__STEP_REPLY__INIT;
    const Fastdecode__StepRequest *request = rpc_call_unpack(call, &fastdecode__step_request__descriptor);
    uint32_t rows = 0;

    assert_non_null(request);
    for (size_t i = 0; i < request->n_runs; i++) {
        fastdecode__run_result__init(pointers[i] = &results[i]);
        results[i].sequence = request->runs[i]->sequence;
        const bool lost = s_part.loses && request->places[request->runs[i]->place]->worker == s_part.loses;
        results[i].outcome = lost ? FASTDECODE__RUN_OUTCOME__RUN_OUTCOME_LOST : FASTDECODE__RUN_OUTCOME__RUN_OUTCOME_DONE;
        check_known(request->runs[i]);
        if (request->runs[i]->sample && !lost)
            answer_run(request->runs[i], &results[i]);
        rows += request->runs[i]->n_tokens ? (uint32_t)request->runs[i]->n_tokens : 1;
    }
    for (size_t i = 0; i < request->n_places; i++)
        assert_int_equal(request->places[i]->kind, request->places[i]->worker == 0 ? FASTDECODE__PLACE_KIND__PLACE_KIND_LOCAL_POOL
                                                                                   : FASTDECODE__PLACE_KIND__PLACE_KIND_KV_WORKER);
    s_part.position = request->n_runs ? request->runs[0]->position : 0;
    s_part.first_position = s_part.steps++ ? s_part.first_position : s_part.position;
    s_part.rows_most = MAX(s_part.rows_most, rows);
    reply.total_us = reply.s_part_us = s_part.step_us ? s_part.step_us : s_part.times ? 1000 : 0;
    Fastdecode__PlaceTime times[SCHED_PLACES_MAX], *time_pointers[SCHED_PLACES_MAX];
    for (uint32_t i = 0; i < s_part.places; i++) {
        fastdecode__place_time__init(time_pointers[i] = &times[i]);
        times[i].worker = i;
    }
    reply.n_places = s_part.places;
    reply.places = time_pointers;
    reply.step = request->step;
    reply.n_results = request->n_runs;
    reply.results = pointers;
    if (request->n_runs)
        spoil(&reply, request);
    rpc_call_reply(call, &reply.base);
}

static inline void answer_steps(void)
{
    for (uint32_t i = 0; i < s_part.waiting_count; i++)
        answer_step(s_part.waiting[i]);
    s_part.waiting_count = s_part.waited = 0;
}

static inline void step(struct rpc_call *call, void *user)
{
    assert_true(s_part.waiting_count < STEPS_MAX);
    s_part.waiting[s_part.waiting_count++] = call;
    s_part.timeout_ms = rpc_call_timeout_ms(call);
    if (!s_part.pace)
        answer_steps();
}

static inline void answer_releases(void)
{
    const Fastdecode__ReleaseReply reply = FASTDECODE__RELEASE_REPLY__INIT;
    s_part.hold_releases = false;
    for (uint32_t i = 0; i < s_part.held_count; i++)
        rpc_call_reply(s_part.held[i], &reply.base);
    s_part.held_count = 0;
}

static inline void expect(struct rpc_call *call, void *user)
{
    const Fastdecode__ExpectReply reply = FASTDECODE__EXPECT_REPLY__INIT;

    s_part.expects++;
    rpc_call_reply(call, &reply.base);
}

static inline void release(struct rpc_call *call, void *user)
{
    const Fastdecode__ReleaseRequest *request = rpc_call_unpack(call, &fastdecode__release_request__descriptor);

    assert_non_null(request);
    s_part.releases++;
    s_part.released += request->n_sequence;
    s_part.released_last = request->n_sequence ? request->sequence[0] : 0;
    assert_true(s_part.held_count < HELD_CALLS_MAX);
    s_part.held[s_part.held_count++] = call;
    if (!s_part.hold_releases)
        answer_releases();
}

static inline void reach(struct rpc_call *call, void *user)
{
    const Fastdecode__ReachRequest *request = rpc_call_unpack(call, &fastdecode__reach_request__descriptor);
    const Fastdecode__ReachReply reply = FASTDECODE__REACH_REPLY__INIT;

    assert_true(request && request->place && request->place->tensor_address[0]);
    s_part.reaches++;
    if (s_part.unreachable && request->place->worker == s_part.unreachable)
        rpc_call_fail(call, STATUS_NOT_FOUND, "no connection");
    else
        rpc_call_reply(call, &reply.base);
}

// Opens its server and its channel to the scheduler. It is not registered yet.
static inline void s_part_open(struct rpc_loop *loop)
{
    const struct rpc_method methods[] = {{&fastdecode__spart__descriptor, "Step", step, NULL},
                                         {&fastdecode__spart__descriptor, "Expect", expect, NULL},
                                         {&fastdecode__spart__descriptor, "Release", release, NULL},
                                         {&fastdecode__spart__descriptor, "Reach", reach, NULL}};

    s_part.incarnation = MAX(member_incarnation(), s_part.incarnation + 1);
    s_part.server = peer_serve(loop, "inproc://test-s-part", methods, ARRAY_COUNT(methods), "s-part", s_part.incarnation);
    s_part.channel = peer_dial(loop, "inproc://test-scheduler", "s-part", s_part.incarnation);
    s_part.held_count = s_part.steps = s_part.rows_most = 0;
    s_part.released = s_part.releases = 0;
    s_part.pace = s_part.waiting_count = s_part.waited = s_part.loses = 0;
    s_part.unreachable = s_part.reaches = 0;
    s_part.hold_releases = false;
}

static inline void s_part_close(void)
{
    s_part.waiting_count = s_part.held_count = 0; // who waits for an answer gets none: the calls end with the server
    rpc_channel_close(s_part.channel);
    rpc_server_close(s_part.server);
}

#endif
