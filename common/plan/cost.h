// cost.h: the performance model: what a step costs, in numbers that are measured or taken from a data sheet.
//
// FastDecode (He & Zhai, arXiv 2403.11421, section 4) writes a step of a mini-batch of b rows as
//
//     S-part, one layer:            T(b)                          a curve: flat while weights are read, then a line
//     R-part, one worker, a layer:  r·load + r_p·Σ(rows·context)  load: context tokens of its decode rows; then prefill rows
//     link, one layer:              latency + rows·bytes/bandwidth
//
// and with two mini-batches in flight the S-part works on one while the workers work on the other. Planner and simulator start from
// these three and from nothing else.
//
// Example, b = 64 on a GPU with T(64) = 400 us, 32 layers, one worker with r = 0.08 us: 64 sequences of 256 tokens are a load of
// 16,384, which takes 1,311 us a layer, so the S-part waits more than two thirds of the time. 4 workers take 328 us, and the S-part binds.
//
// Plain values, on any thread; nothing allocates. All times are microseconds.
#ifndef FD_PLAN_COST_H
#define FD_PLAN_COST_H

#include <stdint.h>

enum { COST_POINTS_MAX = 24 };

// A time by number of rows: measured points, by rows. Between points it is a line, below the first its value, beyond the last the
// line of the last two. Without points it is 0.
struct cost_curve {
    uint32_t count;
    double rows[COST_POINTS_MAX], us[COST_POINTS_MAX];
};

// The part with weights. A step runs layers + 1 segments: the first holds first_share of a layer (norm, QKV), the last the rest
// of one (out-projection, MLP), each between them a whole layer. Then the head runs on the rows that are sampled.
struct cost_s_part {
    uint32_t layers;
    double first_share;
    struct cost_curve layer; // T(b)
    struct cost_curve head;  // output matrix and sampling, by rows sampled; 0 of them: 0
    double step_us;          // added to each step, whatever its rows: request, embedding, reply
};

// Attention at one place, for one layer.
struct cost_r_part {
    double token_us;    // r: reading one context token for a decode row
    double prefill_us;  // r_p: one prefill row times one context token
    double call_us;     // added to each layer, whatever its rows
    double row_us;      // storing K and V of a row, and whatever else each row costs
    double link_us;     // a round trip without a payload; 0 for the local pool
    double link_row_us; // the bytes of one row, both ways: q, k, v and o
};

// One place's work for one layer of a step.
struct cost_work {
    uint64_t load;          // sum over decode rows of the context each reads
    uint64_t prefill_pairs; // sum over prefill rows of the context each reads
    uint32_t rows;
};

double cost_curve_at(const struct cost_curve *curve, double rows);

// Adds a point, in any order of rows; a point at the same rows is replaced. Asserts that there is room.
void cost_curve_add(struct cost_curve *curve, double rows, double us);

// Returns the time of one segment (0 to layers), without the head.
double cost_segment_us(const struct cost_s_part *s, uint32_t segment, uint32_t rows);

// Returns the time of all segments, the head and step_us.
double cost_s_part_step_us(const struct cost_s_part *s, uint32_t rows, uint32_t sampled_rows);

// Returns the time of one layer from the first byte sent to the last received. No rows: 0.
double cost_attend_us(const struct cost_r_part *r, const struct cost_work *work);

#endif
