// sched_chunk.h: how many prefill rows a step may have beside its decode rows. Private to common/sched.
#ifndef FD_SCHED_SCHED_CHUNK_H
#define FD_SCHED_SCHED_CHUNK_H

#include "common/sched/sched_batch.h"
#include "common/sched/sched_curve.h"
#include "common/sched/sched_seq.h"

// What is known of a class's steps.
struct sched_chunk {
    struct sched_chunk_decodes {
        double rows, us, count;
    } decodes[SCHED_CURVE_SIZES];       // steps without prefill, smoothed, in the size classes of sched_curve.h; count 0: none seen
    double decode, products, attention; // correction factors: of decode rows; of prefill rows' products and attention
    double context, seen_context;       // tokens that decode rows read: lately; at the last step without prefill
    double excess;                      // upper quantile of what steps with prefill take, as a multiple of their prediction
};

void sched_chunk_init(struct sched *s);
void sched_chunk_learn(struct sched *s, const struct sched_flight *flight, double total_us);
uint32_t sched_chunk_rows(const struct sched *s, enum sched_class class, const struct sched_group *group, uint32_t decode_rows);
uint32_t sched_chunk_least(const struct sched *s); // returns the fewest that are worth reading a prompt's context
// Returns the longest that a step may be predicted to take; decoding: sequences of that class; alone_us: what their rows take without prefill.
double sched_chunk_target_us(const struct sched *s, enum sched_class class, uint32_t decoding, double alone_us);
uint32_t sched_chunk_max(const struct sched *s); // returns the most prefill rows of any step

// Whether prompts of a class have steps of their own, that go aside: only beside decode rows, and not while weights are read.
bool sched_chunk_goes_aside(const struct sched *s, enum sched_class class);
// Returns the rows of such a step; and how long steps that go aside may make the time from that step to the next one.
uint32_t sched_chunk_aside_rows(const struct sched *s, enum sched_class class, const struct sched_group *group);
uint32_t sched_chunk_aside_us(const struct sched *s, const struct sched_flight *step);

// Whether a step is to have rows of its own class alone, so that it shows what they take.
bool sched_chunk_probes(const struct sched *s, const struct sched_flight *step);
// Returns by how much rows of a class behind the one whose step it is may lengthen the step; 0: no such rows. *free_us: what they may take
// besides, because it does not lengthen the step: weights are read meanwhile.
double sched_chunk_spare_us(const struct sched *s, const struct sched_flight *step, double *free_us);
// Returns by how much the next rows of that sequence would; how many of them fit, at most `most`.
double sched_chunk_late_us(const struct sched *s, const struct sched_flight *step, const struct sched_seq *seq, uint32_t rows);
uint32_t sched_chunk_late_rows(const struct sched *s, const struct sched_flight *step, const struct sched_seq *seq, uint32_t most,
                               double left_us);

#endif
