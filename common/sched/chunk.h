// chunk.h: how many prefill rows a step has beside its decode rows: as many as its time allows, or as make all steps equal
// (config.micro_batch). Private to common/sched.
#ifndef FD_SCHED_CHUNK_H
#define FD_SCHED_CHUNK_H

#include <stdbool.h>
#include <stdint.h>

#include "common/sched/batch.h"
#include "common/sched/slots.h"
#include "common/sched/step_time.h"

// A class's steps, as far as they are known.
struct sched_chunk {
    struct sched_chunk_decodes {
        double rows, us, count;
    } decodes[SCHED_CURVE_SIZES];       // steps without prefill, smoothed, in the size classes of step_time.h; count 0: none seen
    double decode, products, attention; // correction factors: of decode rows; of prefill rows' products and attention
    double context, seen_context;       // tokens that decode rows read: lately; at the last step without prefill
    double excess;                      // upper quantile of what steps with prefill take, as a multiple of their prediction
};

void sched_chunk_init(struct sched *s);
void sched_chunk_learn(struct sched *s, const struct sched_flight *flight, double total_us);
uint32_t sched_chunk_max(const struct sched *s); // returns the most prefill rows of any step

// Returns whether prompts of a class have steps of their own, that go aside: only beside decode rows, and not while weights are read.
bool sched_chunk_goes_aside(const struct sched *s, enum sched_class class);
// Returns the rows of such a step; and how long steps that go aside may make the time from that step to the next one.
uint32_t sched_chunk_aside_rows(const struct sched *s, enum sched_class class, const struct sched_group *group);
uint32_t sched_chunk_aside_us(const struct sched *s, const struct sched_flight *step);

// Returns whether a step is to have rows of its own class alone, so that it shows what they take.
bool sched_chunk_probes(const struct sched *s, const struct sched_flight *step);
// Returns by how much rows of a class behind the one whose step it is may lengthen the step; 0: no such rows. *free_us: what they may take
// besides, because it does not lengthen the step: weights are read meanwhile.
double sched_chunk_spare_us(const struct sched *s, const struct sched_flight *step, double *free_us);
// Returns by how much the next rows of that sequence would; how many of them fit, at most `most`.
double sched_chunk_late_us(const struct sched *s, const struct sched_flight *step, const struct sched_seq *seq, uint32_t rows);
uint32_t sched_chunk_late_rows(const struct sched *s, const struct sched_flight *step, const struct sched_seq *seq, uint32_t most,
                               double left_us);

// --- steps of equal rows --------------------------------------------------------------------------------------------
// The rows that all steps of a class are to have.
struct sched_micro_batches {
    uint32_t rows;   // 0: not judged yet
    uint64_t judged; // number of steps emitted when it was judged last
    bool saturated;  // sequences waited then
};

// Returns how many prefill rows a step of the group may have beside its decode rows.
uint32_t sched_micro_batch_prefill(struct sched *s, enum sched_class class, const struct sched_group *group, uint32_t decode_rows);

// Returns whether a prompt's next rows may be added to a step in which `left` rows are left for prefill.
bool sched_micro_batch_takes(const struct sched *s, const struct sched_flight *step, const struct sched_seq *seq, uint32_t left);

// Returns how many rows a step of a class may have in all, once it has its decode rows and prefill: what rows of a class behind it must keep
// to.
uint32_t sched_micro_batch_most(const struct sched *s, const struct sched_flight *step);

#endif
