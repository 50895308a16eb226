// clients.c: requests at the gateways, through their own way from a body to an answer (exchange_open_local()).
//
// A client whose gateway dies asks another one again, as people's programs do. A refusal that says to come again is followed.
#include "tests/sim/clients.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/checked.h"
#include "tests/sim/check.h"
#include "tests/sim/services.h"

enum { AGAIN_NS = 300000000, SOON_NS = 500000000, BODY_BYTES = 8192 };

struct client {
    struct client_plan plan;
    struct node *gateway;      // that has its request; NULL: none has
    struct exchange *exchange; // held, while it has
    uint64_t ask_ns;           // it asks (again) then; NEVER: not
    uint32_t asked;
    bool answered, left;
    uint64_t told_ns; // when it was accepted, as it was asked last; 0: it was not
    bool accepted;    // and its gateway knows
    int status;
    char *answer; // of the simulation's memory
};

static struct {
    struct client of[CLIENTS_MAX];
    uint32_t count;
} clients;

static char *expected[2 * KINDS]; // [real_draw * KINDS + kind]

const char *clients_expected(uint32_t kind, bool real_draw) { return expected[real_draw * KINDS + kind]; }

void clients_learn(uint32_t kind, bool real_draw, const char *answer)
{
    char **slot = &expected[real_draw * KINDS + kind];

    world_free(*slot);
    *slot = world_alloc(strlen(answer) + 1);
    memcpy(*slot, answer, strlen(answer));
}

const char *clients_answer(uint32_t index) { return clients.of[index].answer; }

void clients_begin(const struct client_plan *plans, uint32_t count)
{
    memset(&clients, 0, sizeof clients);
    clients.count = count;
    for (uint32_t i = 0; i < count; i++)
        clients.of[i] = (struct client){.plan = plans[i], .ask_ns = plans[i].at_ns};
}

uint64_t clients_next_ns(void)
{
    uint64_t next_ns = NEVER;

    for (uint32_t i = 0; i < clients.count; i++) {
        const struct client *client = &clients.of[i];
        next_ns = MIN(next_ns, client->ask_ns);
        if (client->plan.leaves_ns && !client->left && !client->answered)
            next_ns = MIN(next_ns, client->plan.leaves_ns);
    }
    return next_ns;
}

// --- what a kind asks for

static uint64_t kind_number(uint32_t kind, uint64_t salt)
{
    uint64_t state = (uint64_t)kind << 32 | salt;
    return random_next(&state);
}

// Some begin as others, so that pages can be shared; a few are long enough for extents.
static void write_body(uint32_t kind, char *out, size_t out_bytes)
{
    static const uint32_t lengths[] = {5, 17, 33, 48, 70, 100, 40, 600}, answers[] = {1, 8, 24, 48, 80, 120};
    static const char *const forms[] = {",\"guided_regex\":\"(abc|bca|cab)*x\"",
                                        ",\"guided_choice\":[\"abcabc\",\"bcabca\",\"cab\"]"};
    const uint32_t family = kind / 4, prompt = lengths[kind_number(kind, 1) % ARRAY_COUNT(lengths)],
                   shared = MIN(prompt, 32 + (uint32_t)kind_number(family, 2) % 32);

    int at = 0;

    at += snprintf(out + at, out_bytes - (size_t)at, "{\"model\":\"tiny\",\"prompt\":[");
    for (uint32_t i = 0; i < prompt; i++)
        at += snprintf(out + at, out_bytes - (size_t)at, i ? ",%u" : "%u",
                       100 + (uint32_t)(kind_number(i < shared ? 1000 + family : 2000 + kind, 100 + i) % 3));
    at += snprintf(out + at, out_bytes - (size_t)at, "],\"max_tokens\":%u,\"temperature\":0",
                   answers[kind_number(kind, 3) % ARRAY_COUNT(answers)]);
    if (kind % 8 == 3)
        at += snprintf(out + at, out_bytes - (size_t)at, "%s", forms[kind / 8 % 2]);
    if (kind % 8 == 5)
        at += snprintf(out + at, out_bytes - (size_t)at, ",\"n\":2");
    if (kind % 16 == 14)
        at += snprintf(out + at, out_bytes - (size_t)at, ",\"logprobs\":2,\"echo\":true");
    at += snprintf(out + at, out_bytes - (size_t)at, "}");
}

// --- asking

// In the gateway's node.
static void on_ended(void *arg, int status, const char *body, size_t bytes)
{
    struct client *client = arg;
    const char *from = body && bytes ? memmem(body, bytes, "\"choices\":", 10) : NULL;
    const char *to = from ? memmem(from, bytes - (size_t)(from - body), ",\"usage\"", 8) : NULL;

    client->status = status;
    client->exchange = NULL;
    client->gateway = NULL;
    if (client->left)
        return;
    world_say("answer %u: %d %.*s", (uint32_t)(client - clients.of), status, (int)MIN(bytes, (size_t)200), body ? body : "");
    // also where a process had no memory, or too few places were up for it: the message says that it may be tried again
    if (status == 503 || status == 429 || status == 0 || (status == 500 && (bytes == 0 || memmem(body, bytes, "memory", 6)))) {
        if (client->accepted && status != 500)
            check_note("client %u was accepted, and refused with %d", (uint32_t)(client - clients.of), status);
        client->ask_ns = world.current->now_ns + AGAIN_NS;
        return;
    }
    if (!to) {
        from = body;
        to = body + bytes;
    }
    client->answered = true;
    client->answer = world_alloc((size_t)(to - from) + 1);
    memcpy(client->answer, from, (size_t)(to - from));
    world_note("answer", (uint64_t)(client - clients.of), (uint64_t)(to - from));
}

static struct node *gateway_for(const struct client *client)
{
    struct node *up[NODES_MAX];
    uint32_t count = 0;

    for (uint32_t i = 0; i < world.node_count; i++)
        if (world.nodes[i].kind == NODE_GATEWAY && world.nodes[i].up && !world.nodes[i].stopped)
            up[count++] = &world.nodes[i];
    return count ? up[(client->plan.gateway + client->asked) % count] : NULL;
}

static void ask(struct client *client)
{
    struct node *node = gateway_for(client);
    static char body[BODY_BYTES];
    char id[32];

    if (!node) {
        client->ask_ns = world.now_ns + AGAIN_NS;
        return;
    }
    client->ask_ns = NEVER;
    client->accepted = false;
    client->told_ns = 0;
    client->asked++;
    snprintf(id, sizeof id, "%c%u-%u", client->plan.batch ? 'b' : 'i', (uint32_t)(client - clients.of), client->asked);
    world_say("client %u asks %s: kind %u", (uint32_t)(client - clients.of), node->name, client->plan.kind);
    write_body(client->plan.kind, body, sizeof body);
    client->gateway = node;
    struct node *before = node_enter(node);
    client->exchange = gateway_ask(node, id, body, on_ended, client);
    if (!client->exchange) {
        client->gateway = NULL;
        client->ask_ns = world.now_ns + AGAIN_NS;
    } else
        gateway_asked(client->exchange);
    node_leave(before);
    node_wake(node);
}

static void leave(struct client *client)
{
    client->left = true;
    client->ask_ns = NEVER;
    world_say("client %u leaves", (uint32_t)(client - clients.of));
    if (!client->gateway ||
        client->gateway->stopped) // the kernel of a stopped one closes the connection later: as if it never left
        return;
    struct node *before = node_enter(client->gateway);
    gateway_leave(client->gateway, client->exchange);
    node_leave(before);
    if (client->gateway)
        node_wake(client->gateway);
}

void clients_step(void)
{
    for (uint32_t i = 0; i < clients.count; i++) {
        struct client *client = &clients.of[i];
        if (client->plan.leaves_ns && !client->left && !client->answered && client->plan.leaves_ns <= world.now_ns)
            leave(client);
        else if (client->ask_ns <= world.now_ns)
            ask(client);
    }
}

void clients_accepted(const char *request_id)
{
    uint32_t number, asked;

    if (sscanf(request_id, "%*c%u-%u", &number, &asked) == 2 && number < clients.count && clients.of[number].asked == asked)
        clients.of[number].told_ns = world.current->now_ns;
}

void clients_scheduler_goes(const struct node *scheduler)
{
    for (uint32_t i = 0; i < clients.count; i++) {
        struct client *client = &clients.of[i];
        const struct node *gateway = client->gateway;
        if (client->told_ns && gateway && !gateway->stopped && gateway->turn_ns < SOON_NS / 50 &&
            scheduler->turn_ns < SOON_NS / 50 && client->told_ns + SOON_NS < world.now_ns &&
            network.latency_ns[scheduler->index][gateway->index] < SOON_NS / 50 &&
            network.blocked_ns[scheduler->index][gateway->index] < client->told_ns)
            client->accepted = true;
    }
}

void clients_lost(const struct node *gateway)
{
    for (uint32_t i = 0; i < clients.count; i++) {
        struct client *client = &clients.of[i];
        if (client->gateway != gateway)
            continue;
        client->gateway = NULL;
        client->exchange = NULL;
        if (!client->left)
            client->ask_ns = world.now_ns + AGAIN_NS;
    }
}

bool clients_are_done(void)
{
    for (uint32_t i = 0; i < clients.count; i++)
        if (!clients.of[i].left && !clients.of[i].answered)
            return false;
    return true;
}

uint32_t clients_answered(void)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < clients.count; i++)
        count += clients.of[i].answered;
    return count;
}

bool clients_failed(char *out, size_t out_bytes)
{
    for (uint32_t i = 0; i < clients.count; i++) {
        const struct client *client = &clients.of[i];
        const char *wanted = clients_expected(client->plan.kind, mesh_settings.real_draw);
        if (client->left)
            continue;
        if (!client->answered)
            snprintf(out, out_bytes, "client %u (kind %u) waits for ever%s%s", i, client->plan.kind,
                     client->gateway ? " at " : ": it was refused last", client->gateway ? client->gateway->name : "");
        else if (wanted && strcmp(wanted, client->answer))
            snprintf(out, out_bytes, "client %u (kind %u) got another answer:\n  got    %d %s\n  wanted %s", i, client->plan.kind,
                     client->status, client->answer, wanted);
        else
            continue;
        return true;
    }
    return false;
}

void clients_end(void)
{
    for (uint32_t i = 0; i < clients.count; i++)
        world_free(clients.of[i].answer);
    memset(&clients, 0, sizeof clients);
}
