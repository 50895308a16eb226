// hardware.h: what a machine, a device and a link can do: small files of `name = value` lines, in deploy/hardware.
//
// One kind of file serves all three, since a host may be an S-part, a KV worker or both: what is not in it is 0. Rates are a
// vendor's or measured; a share says how much of the rate the kernels of this project (or those of the source) reach. Both are
// in the file, each with its source in a comment; nothing in the program knows a machine by name.
//
//     memory = 24G                 memory_gb_per_second = 600        f16_tflops = 125
//     measured_model = tiny.gguf   layer_us_at = 1:66.5 8:132 64:1004
//
// Plain values; any thread; only reading and writing a file block. Texts live as long as the process.
#ifndef FD_PLAN_HARDWARE_H
#define FD_PLAN_HARDWARE_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "common/base/status.h"
#include "common/kv/kv_measure.h"
#include "common/plan/cost.h"

// What was measured on one model (fastdecode plan --measure --model, or a mesh at its start), in place of rates and shares:
struct hardware_model {
    const char *name;          // its file; NULL: nothing was
    struct cost_curve layer;   // T(b)
    struct cost_curve head;    // head and greedy sampling
    struct cost_curve rest;    // what else a step takes by its rows: gateway, scheduler, clients, round trips; no point: step_us
    struct kv_costs attention; // of a layer with f16 KV; token_us 0: not measured
};

struct hardware {
    const char *name;                         // "NVIDIA A10"
    uint64_t memory_bytes;                    // that weights and KV may take
    double memory_gb_per_second;              // reading, 1e9 bytes
    double f16_tflops, f32_tflops, int8_tops; // products, a multiply-add being two; 0: not done in that type
    double weights_share;                     // of memory_gb_per_second, by a product of few rows
    double products_share;                    // of the above operations, by a product of many rows
    double attention_share;                   // of memory_gb_per_second, by decode attention
    double layer_us, step_us;                 // of each layer and each step, whatever its rows
    double link_gb_per_second;                // one way, 1e9 bytes
    double link_round_trip_us;                // of one layer of a mini-batch, besides its bytes and operations
    double price_per_hour;                    // in any one currency; 0: not known
    bool shares_cores;                        // as workers: they run on the S-part's cores, so their times add up
    struct hardware_model model;              // for the S-part, and as a worker
};

// Where shipped files lie when no folder is named: beside the program's build, installed, or in the current directory.
#define HARDWARE_FOLDERS "../../deploy/hardware, ../share/fastdecode/hardware (from the program), deploy/hardware"

// `name` is a file's path (with a '/' or ".conf"), or a name that is looked for as NAME.conf in `folder`, or if that is NULL in
// HARDWARE_FOLDERS. option_name: the option that said so, for errors. NOT_FOUND lists what names there are; INVALID_ARGUMENT says
// which line or which missing setting.
enum status hardware_read(const char *name, const char *folder, const char *option_name, struct hardware *out,
                          struct error *error) MUST_CHECK;

// Whether it says what an S-part, a worker's host, or a link needs; INVALID_ARGUMENT names what is missing.
enum status hardware_check_s_part(const struct hardware *hardware, const char *name, struct error *error) MUST_CHECK;
enum status hardware_check_worker(const struct hardware *hardware, const char *name, struct error *error) MUST_CHECK;
enum status hardware_check_link(const struct hardware *hardware, const char *name, struct error *error) MUST_CHECK;

// In the form that hardware_read() takes. comment: lines without '#', or NULL.
void hardware_write(FILE *file, const struct hardware *hardware, const char *comment);

#endif
