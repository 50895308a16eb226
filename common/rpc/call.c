// call.c: see call.h.
#include "common/rpc/call.h"

#include <stdlib.h>

static struct rpc_call **bucket_of(struct call_table *table, uint32_t pipe, uint64_t id)
{
    uint64_t hash = (id ^ (uint64_t)pipe << 40) * 0x9e3779b97f4a7c15u;
    return &table->buckets[hash >> 52 & (CALL_BUCKETS - 1)];
}

struct rpc_call *call_find(struct call_table *table, const struct call_list *client, uint64_t id)
{
    struct rpc_call *call = *bucket_of(table, client->pipe, id);
    while (call && (call->id != id || call->client != client))
        call = call->next;
    return call;
}

static void leave_client(struct rpc_call *call)
{
    if (!call->client)
        return;
    call->client->count--;
    *call->sibling_place = call->sibling;
    if (call->sibling)
        call->sibling->sibling_place = call->sibling_place;
    call->client = NULL;
}

void call_free(struct rpc_call *call)
{
    struct call_table *table = call->table;
    struct rpc_call **at = bucket_of(table, call->pipe, call->id);

    while (*at != call)
        at = &(*at)->next;
    *at = call->next;
    leave_client(call);
    if (!call->message->kept)
        rpc_message_free(call->message);
    call->next = table->free_calls;
    table->free_calls = call;
    table->count--;
}

void call_drop(struct rpc_call *call)
{
    leave_client(call);
    if (call->on_cancel) {
        call->dropping = true;
        call->on_cancel(call->cancel_user);
        call_free(call);
    }
}

struct rpc_call *call_new(struct call_table *table, struct call_list *client, struct rpc_message *message)
{
    struct rpc_call *call = table->free_calls, **bucket = bucket_of(table, client->pipe, message->envelope.call_id);

    if (call)
        table->free_calls = call->next;
    else if (!(call = malloc(sizeof *call)))
        return NULL;
    *call = (struct rpc_call){.server = table->server,
                              .table = table,
                              .client = client,
                              .message = message,
                              .next = *bucket,
                              .id = message->envelope.call_id,
                              .pipe = client->pipe,
                              .sibling = client->first,
                              .sibling_place = &client->first};
    *bucket = call;
    if (call->sibling)
        call->sibling->sibling_place = &call->sibling;
    client->first = call;
    client->count++;
    table->count++;
    return call;
}

void call_table_close(struct call_table *table)
{
    for (uint32_t bucket = 0; bucket < CALL_BUCKETS; bucket++)
        while (table->buckets[bucket])
            call_free(table->buckets[bucket]);
    while (table->free_calls) {
        struct rpc_call *call = table->free_calls;
        table->free_calls = call->next;
        free(call);
    }
}
