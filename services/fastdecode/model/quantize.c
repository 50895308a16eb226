// quantize.c: `fastdecode quantize IN OUT`: a model file with its matrices in fewer bits.
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "common/base/checked.h"
#include "common/base/clock.h"
#include "common/base/options.h"
#include "common/model/gguf/gguf.h"
#include "common/model/model.h"
#include "services/fastdecode/model/commands.h"
#include "services/fastdecode/model/quantize.h"

//     IN (mapped)   header ─ keys ─ entries ─ padding ─ tensors
//     OUT.part      header ─ keys, as they are, with file_type ─ entries with new types and offsets ─ padding ─ tensors
// A tensor is one run of blocks, so it is converted in pieces of PIECE values, which threads claim; BUFFER_BYTES of them are written at
// a time and their pages of IN given back. A file of any size takes that much memory.

enum { HEADER_BYTES = 24, PIECE = 65536, BUFFER_BYTES = 8 << 20, PATH_BYTES = 4096, PROGRESS_US = 2000000, SHOWN_NAME_BYTES = 96 };
enum { DEFAULT_ALIGNMENT = 32 };

static const struct kind {
    const char *name;
    enum tensor_type type;
    uint32_t file_type; // general.file_type
} kinds[] = {
    {"q4_0", TENSOR_Q4_0, 2}, {"q4_1", TENSOR_Q4_1, 3}, {"q8_0", TENSOR_Q8_0, 7},  {"q5_0", TENSOR_Q5_0, 8},
    {"q5_1", TENSOR_Q5_1, 9}, {"f16", TENSOR_F16, 1},   {"bf16", TENSOR_BF16, 32},
};

enum status quantize_type_parse(const char *text, enum tensor_type *out, struct error *error)
{
    for (size_t i = 0; i < ARRAY_COUNT(kinds); i++)
        if (!strcasecmp(kinds[i].name, text)) {
            *out = kinds[i].type;
            return STATUS_OK;
        }
    return error_set(error, STATUS_INVALID_ARGUMENT, "--type is '%s', want one of " ENCODE_TYPES, text);
}

struct work {
    const struct quantize_request *request;
    struct gguf *gguf;
    struct quantize_result *result;
    struct error *error;
    FILE *file;
    char path[PATH_BYTES]; // OUT.part
    unsigned char *buffer; // [BUFFER_BYTES]
    uint64_t alignment, written, total, told_us;
};

// --- what becomes of a tensor -----------------------------------------------------------------------------------------

static bool is_float(enum tensor_type type) { return type == TENSOR_F32 || type == TENSOR_F16 || type == TENSOR_BF16; }

static bool has_part(struct gguf_string name, const char *part)
{
    return memmem(name.data, name.length, part, strlen(part)) != NULL;
}

// Whether it is a matrix that --quantize converts, too: not the biases of experts, a router, or a table of positions.
static bool is_matrix(const struct gguf_tensor *t)
{
    return t->dims[1] * t->dims[2] * t->dims[3] > 1 && !has_part(t->name, ".bias") && !has_part(t->name, "ffn_gate_inp.") &&
           !has_part(t->name, "position_embd.");
}

static enum tensor_type type_after(const struct quantize_request *r, const struct gguf_tensor *t)
{
    bool wanted = is_matrix(t) && t->dims[0] % tensor_type_info((uint32_t)r->type)->block_values == 0 &&
                  (is_float(t->type) || r->requantize);
    return wanted ? r->type : t->type;
}

static uint64_t value_count(const struct gguf_tensor *t) { return t->dims[0] * t->dims[1] * t->dims[2] * t->dims[3]; }

static uint64_t bytes_of(enum tensor_type type, uint64_t values)
{
    const struct tensor_type_info *info = tensor_type_info((uint32_t)type);
    return values / info->block_values * info->block_bytes;
}

static uint64_t bytes_after(const struct quantize_request *r, const struct gguf_tensor *t)
{
    enum tensor_type type = type_after(r, t);
    return type == t->type ? t->bytes : bytes_of(type, value_count(t));
}

static uint64_t align(const struct work *w, uint64_t bytes) { return (bytes + w->alignment - 1) / w->alignment * w->alignment; }

// Adds up what will be done. INVALID_ARGUMENT: nothing.
static enum status survey(struct work *w)
{
    struct quantize_result *r = w->result;
    uint32_t quantized = 0;

    w->total = gguf_header_bytes(w->gguf);
    for (uint32_t i = 0; i < gguf_tensor_count(w->gguf); i++) {
        const struct gguf_tensor *t = gguf_tensor_at(w->gguf, i);
        bool converted = type_after(w->request, t) != t->type;
        w->total += align(w, bytes_after(w->request, t));
        r->converted += converted;
        r->kept += !converted;
        quantized += is_matrix(t) && !is_float(t->type);
        if (converted) {
            r->values += value_count(t);
            r->values_before += t->bytes;
            r->values_after += bytes_after(w->request, t);
        }
    }
    r->bytes_before = gguf_file_bytes(w->gguf);
    if (r->converted)
        return STATUS_OK;
    if (quantized && !w->request->requantize)
        return error_set(
            w->error, STATUS_INVALID_ARGUMENT,
            "%s: its matrices are quantized already, and would lose more a second time: take the F16, BF16 or F32 file, "
            "or give --requantize",
            gguf_label(w->gguf));
    return error_set(w->error, STATUS_INVALID_ARGUMENT, "%s: no matrix to convert to %s", gguf_label(w->gguf),
                     tensor_type_info((uint32_t)w->request->type)->name);
}

// --- writing ----------------------------------------------------------------------------------------------------------

static enum status cannot_write(struct work *w)
{
    int why = errno;
    return error_set(w->error, why == ENOSPC || why == EDQUOT || why == EFBIG ? STATUS_RESOURCE_EXHAUSTED : STATUS_UNKNOWN,
                     "%s: %s after %.1f of %.1f MB", w->path, strerror(why), (double)w->written / 1e6, (double)w->total / 1e6);
}

static enum status put(struct work *w, const void *bytes, uint64_t count)
{
    if (w->request->stop && *w->request->stop)
        return error_set(w->error, STATUS_CANCELLED, "interrupted: %s is not written", w->request->out);
    if (count && fwrite(bytes, 1, count, w->file) != count)
        return cannot_write(w);
    w->written += count;
    return STATUS_OK;
}

static enum status put_number(struct work *w, uint64_t value, uint32_t count)
{
    unsigned char bytes[8];
    for (uint32_t i = 0; i < count; i++)
        bytes[i] = (unsigned char)(value >> 8 * i);
    return put(w, bytes, count);
}

static enum status pad(struct work *w)
{
    static const unsigned char zeros[256];
    enum status status = STATUS_OK;

    for (uint64_t left; !status && (left = align(w, w->written) - w->written);)
        status = put(w, zeros, MIN(left, (uint64_t)sizeof zeros));
    return status;
}

static void say_progress(struct work *w)
{
    uint64_t now_us = clock_now_us();
    bool terminal = isatty(STDERR_FILENO), whole = w->written == w->total;

    if (now_us - w->told_us < (terminal ? PROGRESS_US / 10 : PROGRESS_US) && !(whole && terminal))
        return;
    w->told_us = now_us;
    fprintf(stderr, "%sfastdecode quantize: %3.0f %% of %.1f MB%s", terminal ? "\r" : "",
            100 * (double)w->written / (double)MAX(w->total, (uint64_t)1), (double)w->total / 1e6, terminal && !whole ? "" : "\n");
}

// Header and keys as they are, but for the type that general.file_type tells.
static enum status put_keys(struct work *w)
{
    const unsigned char *bytes = gguf_bytes(w->gguf), *told = gguf_find_u32(w->gguf, "general.file_type");
    uint64_t end = gguf_tensor_at(w->gguf, 0)->entry_offset, at = told ? (uint64_t)(told - bytes) : end;
    uint32_t file_type = 0;
    enum status status;

    for (size_t i = 0; i < ARRAY_COUNT(kinds); i++)
        if (kinds[i].type == w->request->type)
            file_type = kinds[i].file_type;
    if ((status = put(w, bytes, at)) || !told)
        return status;
    status = put_number(w, file_type, sizeof file_type);
    return status ? status : put(w, bytes + at + sizeof file_type, end - at - sizeof file_type);
}

static enum status put_entries(struct work *w)
{
    enum status status = STATUS_OK;
    uint64_t offset = 0;

    for (uint32_t i = 0; i < gguf_tensor_count(w->gguf) && !status; i++) {
        const struct gguf_tensor *t = gguf_tensor_at(w->gguf, i);
        uint64_t before_type = 8 + t->name.length + 4 + 8ull * t->dim_count; // name, dimensions: as they are
        if ((status = put(w, gguf_bytes(w->gguf) + t->entry_offset, before_type)) ||
            (status = put_number(w, (uint64_t)type_after(w->request, t), 4)) || (status = put_number(w, offset, 8)))
            return status;
        offset += align(w, bytes_after(w->request, t));
    }
    return status ? status : pad(w);
}

// --- tensors ----------------------------------------------------------------------------------------------------------

struct piece_job {
    struct work *work;
    const struct gguf_tensor *tensor;
    uint64_t first, count; // values of the buffer that is filled
    atomic_bool bad;       // relaxed: read when the threads have ended
};

// Writes one piece into the buffer, as OUT has it. False: a value is not finite, or no memory.
static bool convert_piece(const struct piece_job *job, uint64_t at, uint64_t count)
{
    const struct gguf_tensor *t = job->tensor;
    const enum tensor_type to = type_after(job->work->request, t);
    unsigned char *out = job->work->buffer + bytes_of(to, at);
    unsigned char *room = NULL;
    bool ok;

    if (!t->stored)
        return encode_blocks(t->type, (const unsigned char *)t->data + bytes_of(t->type, job->first + at), count, to, out);
    if (to == t->type)
        return stored_rows_read(t->stored, job->first + at, count, out);
    room = malloc(bytes_of(t->type, count));
    ok = room && stored_rows_read(t->stored, job->first + at, count, room) && encode_blocks(t->type, room, count, to, out);
    free(room);
    return ok;
}

static void convert_pieces(void *arg, uint32_t thread_index, uint32_t thread_count)
{
    struct piece_job *job = arg;

    (void)thread_index, (void)thread_count;
    for (uint64_t at; (at = (uint64_t)thread_pool_claim(job->work->request->pool) * PIECE) < job->count;)
        if (!convert_piece(job, at, MIN((uint64_t)PIECE, job->count - at)))
            atomic_store_explicit(&job->bad, true, memory_order_relaxed);
}

static void release_piece(const struct piece_job *job)
{
    const struct gguf_tensor *t = job->tensor;

    if (t->stored)
        gguf_release_stored(job->work->gguf, t->stored);
    else
        gguf_release_pages(job->work->gguf, (const unsigned char *)t->data + bytes_of(t->type, job->first),
                           bytes_of(t->type, job->count));
}

// Also what only changes its order.
static enum status convert_tensor(struct work *w, const struct gguf_tensor *t)
{
    const enum tensor_type to = type_after(w->request, t);
    const struct tensor_type_info *info = tensor_type_info((uint32_t)to);
    uint64_t at_once = BUFFER_BYTES / info->block_bytes * info->block_values / PIECE * PIECE, values = value_count(t);
    enum status status = STATUS_OK;
    char shown[SHOWN_NAME_BYTES];

    for (uint64_t first = 0; first < values && !status; first += at_once) {
        struct piece_job job = {.work = w, .tensor = t, .first = first, .count = MIN(at_once, values - first)};
        thread_pool_run(w->request->pool, convert_pieces, &job);
        if (atomic_load_explicit(&job.bad, memory_order_relaxed))
            return error_set(w->error, STATUS_DATA_LOSS,
                             t->stored && t->stored->scales ? "%s: tensor '%s' has a scale of 255, which is not a number in %s"
                                                            : "%s: tensor '%s' has a value that is not finite or too large for %s",
                             gguf_label(w->gguf), gguf_printable(shown, sizeof shown, t->name), info->name);
        release_piece(&job);
        status = put(w, w->buffer, bytes_of(to, job.count));
        say_progress(w);
    }
    return status;
}

static enum status copy_tensor(struct work *w, const struct gguf_tensor *t)
{
    enum status status = STATUS_OK;

    for (uint64_t at = 0; at < t->bytes && !status; at += BUFFER_BYTES) {
        uint64_t take = MIN((uint64_t)BUFFER_BYTES, t->bytes - at);
        status = put(w, (const unsigned char *)t->data + at, take);
        gguf_release_pages(w->gguf, (const unsigned char *)t->data + at, take);
        say_progress(w);
    }
    return status;
}

static enum status put_file(struct work *w)
{
    enum status status = put_keys(w);

    if (!status)
        status = put_entries(w);
    for (uint32_t i = 0; i < gguf_tensor_count(w->gguf) && !status; i++) {
        const struct gguf_tensor *t = gguf_tensor_at(w->gguf, i);
        status = type_after(w->request, t) == t->type && !t->stored ? copy_tensor(w, t) : convert_tensor(w, t);
        if (!status)
            status = pad(w);
    }
    say_progress(w);
    w->result->bytes_after = w->written;
    return status;
}

// --- the file as a whole ----------------------------------------------------------------------------------------------

static bool is_same_file(const char *a, const char *b)
{
    struct stat one, other;
    return !stat(a, &one) && !stat(b, &other) && one.st_dev == other.st_dev && one.st_ino == other.st_ino;
}

static enum status check_out(struct work *w)
{
    const struct quantize_request *r = w->request;
    struct stat out;
    struct statvfs disk;
    char folder[PATH_BYTES];
    const char *slash = strrchr(r->out, '/');

    if ((size_t)snprintf(w->path, sizeof w->path, "%s.part", r->out) >= sizeof w->path)
        return error_set(w->error, STATUS_INVALID_ARGUMENT, "OUT: the name is too long");
    if (!stat(r->out, &out) && !S_ISREG(out.st_mode)) // a device, say, that a file would take the place of
        return error_set(w->error, STATUS_INVALID_ARGUMENT, "%s is %s, want the name of a file", r->out,
                         S_ISDIR(out.st_mode) ? "a directory" : "not a regular file");
    if (is_same_file(r->in, r->out) || is_same_file(r->in, w->path))
        return error_set(w->error, STATUS_INVALID_ARGUMENT, "%s is the file that is read: name another",
                         is_same_file(r->in, r->out) ? r->out : w->path);
    snprintf(folder, sizeof folder, "%.*s", slash ? (int)(slash - r->out + 1) : 1, slash ? r->out : ".");
    if (!statvfs(folder, &disk) && (uint64_t)disk.f_bavail * disk.f_frsize < w->total)
        return error_set(w->error, STATUS_RESOURCE_EXHAUSTED, "%s takes %.1f MB, and its disk has %.1f free", r->out,
                         (double)w->total / 1e6, (double)disk.f_bavail * (double)disk.f_frsize / 1e6);
    return STATUS_OK;
}

// Gives OUT.part its name once its bytes are on disk.
static enum status commit(struct work *w)
{
    bool ok = fflush(w->file) == 0 && fsync(fileno(w->file)) == 0;

    ok = fclose(w->file) == 0 && ok;
    w->file = NULL;
    return ok && rename(w->path, w->request->out) == 0 ? STATUS_OK : cannot_write(w);
}

// Opens OUT.part, empty and locked. What a run that was killed left is overwritten; what another run is writing is not.
static enum status open_part(struct work *w)
{
    int fd = open(w->path, O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
    struct stat opened, named;

    if (fd < 0)
        return error_set(w->error, status_of_path(errno), "%s: %s", w->path, strerror(errno));
    if (flock(fd, LOCK_EX | LOCK_NB) != 0 || fstat(fd, &opened) != 0 || stat(w->path, &named) != 0 ||
        opened.st_ino != named.st_ino) { // another name: the run that had it has just ended
        close(fd);
        return error_set(w->error, STATUS_ALREADY_EXISTS, "%s is being written by another run", w->path);
    }
    w->file = ftruncate(fd, 0) == 0 ? fdopen(fd, "wb") : NULL;
    if (w->file)
        return STATUS_OK;
    close(fd);
    return cannot_write(w);
}

static enum status write_out(struct work *w)
{
    enum status status = open_part(w);

    if (status)
        return status;
    status = put_file(w);
    if (!status)
        status = commit(w);
    if (w->file)
        fclose(w->file);
    if (status)
        unlink(w->path);
    return status;
}

enum status quantize_file(const struct quantize_request *request, struct quantize_result *result, struct error *error)
{
    struct work w = {
        .request = request, .result = result, .error = error, .alignment = DEFAULT_ALIGNMENT, .told_us = clock_now_us()};
    enum status status = model_file_open(request->in, &w.gguf, error);
    uint32_t alignment;

    *result = (struct quantize_result){0};
    if (status) {
        error->about_model = status != STATUS_RESOURCE_EXHAUSTED;
        return status;
    }
    if (gguf_has(w.gguf, "general.alignment") && !(status = gguf_get_u32(w.gguf, "general.alignment", &alignment, error)))
        w.alignment = alignment;
    if (!status && gguf_tensor_count(w.gguf) == 0)
        status = error_set(error, STATUS_INVALID_ARGUMENT, "%s: no tensors", gguf_label(w.gguf));
    if (!status)
        status = survey(&w);
    if (!status)
        status = check_out(&w);
    if (!status && !request->check_only && !(w.buffer = malloc(BUFFER_BYTES)))
        status = error_set(error, STATUS_RESOURCE_EXHAUSTED, "cannot allocate %d bytes", BUFFER_BYTES);
    if (!status && !request->check_only)
        status = write_out(&w);
    free(w.buffer);
    gguf_close(w.gguf);
    return status;
}

static volatile sig_atomic_t stop;

static void note_stop(int signal)
{
    (void)signal;
    stop = 1;
}

// An interruption or a file that grows too large is an error, so that what was written is removed.
enum { INTERRUPTED = 130 }; // exit status, as a shell has it

static void take_signals(void)
{
    const struct sigaction noted = {.sa_handler = note_stop}, ignored = {.sa_handler = SIG_IGN};
    sigaction(SIGINT, &noted, NULL);
    sigaction(SIGTERM, &noted, NULL);
    sigaction(SIGXFSZ, &ignored, NULL);
}

static void print_result(const struct quantize_request *r, const struct quantize_result *result, double seconds)
{
    printf("%s: %u matrices in %s, %.2f bits a value (before %.2f), %u tensors as they were; %.1f MB (before %.1f), %.1f s\n",
           r->out, result->converted, tensor_type_info((uint32_t)r->type)->name,
           8 * (double)result->values_after / (double)result->values, 8 * (double)result->values_before / (double)result->values,
           result->kept, (double)result->bytes_after / 1e6, (double)result->bytes_before / 1e6, seconds);
}

int quantize_main(int argc, char **argv)
{
    const char *type = "q4_1";
    uint32_t threads = 0;
    struct quantize_request r = {.stop = &stop};
    struct quantize_result result;
    const struct option options[] = {
        {"type", OPTION_STRING, &type, "TYPE", "type of the matrices: " ENCODE_TYPES, 0, 0},
        {"requantize", OPTION_BOOL, &r.requantize, NULL, "also convert matrices that are already quantized, which loses more", 0,
         0},
        {"threads", OPTION_U32, &threads, "N", "threads to convert with; 0: one per usable CPU", 0, 1024},
    };
    struct program program = {.name = "fastdecode quantize",
                              .purpose = "writes a GGUF file with its matrices in fewer bits; all else stays as it is",
                              .options = options,
                              .option_count = ARRAY_COUNT(options),
                              .operand_name = "IN OUT"};
    struct error error;
    uint64_t began_us = clock_now_us();
    enum status status = options_parse(&program, argc, argv, &error);

    if (!status)
        status = quantize_type_parse(type, &r.type, &error);
    if (!status && program.operand_count != 2)
        status = error_set(&error, STATUS_INVALID_ARGUMENT, "want IN and OUT, two names of files (see --help)");
    r.check_only = program.check_only;
    if (!status && thread_pool_open(threads ? threads : cpu_count_usable(), &r.pool))
        status = error_set(&error, STATUS_RESOURCE_EXHAUSTED, "no threads");
    if (!status) {
        take_signals();
        r.in = program.operands[0];
        r.out = program.operands[1];
        status = quantize_file(&r, &result, &error);
    }
    thread_pool_close(r.pool);
    if (status) {
        fprintf(stderr, "fastdecode quantize: %s\n", error.text);
        return status == STATUS_CANCELLED ? INTERRUPTED : (int)error_exit_code(&error);
    }
    if (!r.check_only)
        print_result(&r, &result, (double)(clock_now_us() - began_us) / 1e6);
    return 0;
}
