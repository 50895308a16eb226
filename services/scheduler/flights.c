// flights.c: the steps that the s-part has, and the memory that their messages are put together in.
#include <stdlib.h>
#include <string.h>

#include "common/base/checked.h"
#include "services/scheduler/flights.h"

enum status flights_open(struct flights *flights, uint32_t rows)
{
    struct step_scratch *scratch = &flights->scratch;

    scratch->runs = calloc(rows, sizeof *scratch->runs);
    scratch->run_pointers = calloc(rows, sizeof *scratch->run_pointers);
    scratch->opens = calloc(rows, sizeof *scratch->opens);
    scratch->open_pointers = calloc(rows, sizeof *scratch->open_pointers);
    scratch->extents = calloc(2 * EXTENTS_MAX, sizeof *scratch->extents);
    scratch->extent_pointers = calloc(2 * EXTENTS_MAX, sizeof *scratch->extent_pointers);
    for (uint32_t i = 0; i < STEPS_MAX; i++) {
        struct flight *flight = &flights->of[i];
        flight->results = calloc(rows, sizeof *flight->results);
        flight->sequences = calloc(rows, sizeof *flight->sequences);
        flight->positions = calloc(rows, sizeof *flight->positions);
        if (!flight->results || !flight->sequences || !flight->positions)
            return STATUS_RESOURCE_EXHAUSTED;
    }
    if (!scratch->runs || !scratch->run_pointers || !scratch->opens || !scratch->open_pointers || !scratch->extents ||
        !scratch->extent_pointers)
        return STATUS_RESOURCE_EXHAUSTED;
    for (uint32_t i = 0; i < 2 * EXTENTS_MAX; i++)
        scratch->extent_pointers[i] = &scratch->extents[i];
    for (uint32_t i = 0; i < rows; i++) {
        scratch->run_pointers[i] = &scratch->runs[i];
        scratch->open_pointers[i] = &scratch->opens[i];
    }
    for (uint32_t i = 0; i < SCHED_PLACES_MAX; i++)
        scratch->place_pointers[i] = &scratch->places[i];
    flights->rows_max = rows;
    return STATUS_OK;
}

void flights_close(struct flights *flights)
{
    struct step_scratch *scratch = &flights->scratch;

    free(scratch->runs);
    free(scratch->run_pointers);
    free(scratch->opens);
    free(scratch->open_pointers);
    free(scratch->extents);
    free(scratch->extent_pointers);
    memset(scratch, 0, sizeof *scratch);
    for (uint32_t i = 0; i < STEPS_MAX; i++) {
        struct flight *flight = &flights->of[i];
        free(flight->results);
        free(flight->sequences);
        free(flight->positions);
        *flight = (struct flight){0};
    }
}

// Whether the run's rows, or positions before them, are at the place.
static bool run_uses(const struct sched_run *run, uint32_t place)
{
    bool uses = run->place == place;
    for (uint32_t i = 0; i < run->extent_count; i++)
        uses |= run->extents[i].place == place;
    return uses;
}

bool flights_use_place(const struct flights *flights, uint32_t place)
{
    for (uint32_t i = 0; i < STEPS_MAX; i++) {
        const struct flight *flight = &flights->of[i];
        for (uint32_t r = 0; flight->used && r < flight->run_count; r++)
            if (run_uses(&flight->runs[r], place))
                return true;
    }
    return false;
}

void flights_void(struct flights *flights, struct rpc_channel *channel)
{
    for (uint32_t i = 0; i < STEPS_MAX; i++) {
        struct flight *flight = &flights->of[i];
        if (!flight->used || flight->reply)
            continue;
        flight->used = false; // first: the call's end is none of the step's
        if (channel)
            rpc_cancel(channel, flight->call);
    }
}

struct flight *flights_unused(struct flights *flights)
{
    for (uint32_t i = 0; i < STEPS_MAX; i++)
        if (!flights->of[i].used)
            return &flights->of[i];
    return NULL;
}

// Answers are taken in the order of their steps: two may come in one tick, and a sequence's tokens may be in both.
struct flight *flights_oldest_answered(struct flights *flights)
{
    struct flight *oldest = NULL;
    for (uint32_t i = 0; i < STEPS_MAX; i++) {
        struct flight *flight = &flights->of[i];
        if (flight->used && flight->reply && (!oldest || flight->step < oldest->step))
            oldest = flight;
    }
    return oldest;
}

uint64_t flights_oldest_step(const struct flights *flights)
{
    uint64_t oldest = flights->last_step + 1;

    for (uint32_t i = 0; i < STEPS_MAX; i++) {
        const struct flight *flight = &flights->of[i];
        if (flight->used && !flight->reply)
            oldest = MIN(oldest, flight->step);
    }
    return oldest;
}

void flights_end(struct flight *flight)
{
    if (flight->message)
        rpc_message_free(flight->message);
    flight->message = NULL;
    flight->reply = NULL;
    flight->used = false;
}
