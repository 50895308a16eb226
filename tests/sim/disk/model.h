// model.h: what the gateway's clients were told, and so what must be there: uploaded files, batches, results of lines.
#ifndef FD_TESTS_SIM_DISK_MODEL_H
#define FD_TESTS_SIM_DISK_MODEL_H

#include "services/gateway/batch/api.h"
#include "services/gateway/batch/job.h"
#include "tests/sim/disk/disk.h"

enum { TENANTS = 2, FILES_MAX = 40, BATCHES_MAX = 12, LINES_MAX = 12, ANSWER_BYTES_MAX = 16 << 10 };

// MAYBE: what was asked for has failed, or nobody was told how it ended.
enum presence { GONE, THERE, MAYBE };

struct file_model {
    enum presence is;
    bool refused; // MAYBE, because an error was answered
    bool seen;    // in the latest list
    uint32_t tenant, lines;
    char id[BATCH_ID_BYTES]; // "": not known
    char *content;           // owned
    size_t bytes;
    bool is_request[LINES_MAX + 1]; // by number of line
};

struct batch_model {
    enum presence is, cancel;
    bool refused, seen;
    uint32_t tenant, file;
    char id[BATCH_ID_BYTES];         // "": not known
    char over[16];                   // the status once it is over; "": not yet
    char results[2][BATCH_ID_BYTES]; // output and errors, once it is over; "": none
    char *content[2];                // owned
    size_t bytes[2];
    bool stored[LINES_MAX + 1]; // by number of line: its result was written, and the machine has run since
};

struct model {
    struct file_model files[FILES_MAX];
    struct batch_model batches[BATCHES_MAX];
    uint32_t file_count, batch_count;
};
extern struct model model;

void model_begin(void);
void model_end(void);
// Makes up a file.
struct file_model *model_add_file(void);
// A batch of the model by its id; NULL: none.
struct batch_model *model_batch(const char *id);
// Whether a batch that may be at work reads the file.
bool model_is_needed(const struct file_model *file);
// The power was cut: results of batches that are not over may be gone.
void model_cut(void);
// Makes up what the mesh answers to the line of a file: the body. Returns the HTTP status.
int model_answer(uint32_t file, uint32_t line, char *out, size_t out_bytes);

// --- batches.c: calls of the API

struct reply {
    bool done;
    int status;
    char *body; // owned, terminated
    size_t bytes;
};
struct reply gateway_call(enum batch_call_kind kind, uint32_t tenant, const char *id, const char *body);
void reply_free(struct reply *reply);
struct batch_store *gateway_store(void);
enum { STORE_BYTES_MAX = 4 << 20 };
#define STORE_DIR SIM_ROOT "/batch"

// --- check.c

// Compares all that the gateway has with the model, which learns from it what was open. Nothing may fail now. at_start: nothing was asked for yet.
void check_all(bool at_start);
// The content of a file as it is given out. May fail while the disk does.
void check_content(const struct file_model *file);

#endif
