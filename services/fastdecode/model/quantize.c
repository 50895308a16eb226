// quantize.c: `fastdecode quantize IN OUT`: a model file with its matrices in fewer bits.
#include <signal.h>
#include <stdio.h>

#include "common/base/checked.h"
#include "common/base/clock.h"
#include "common/base/options.h"
#include "common/service/service.h"
#include "services/fastdecode/model/commands.h"
#include "services/fastdecode/model/quantize_file.h"

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
        {"requantize", OPTION_BOOL, &r.requantize, NULL, "convert matrices that are quantized already, too: they lose more", 0, 0},
        {"threads", OPTION_U32, &threads, "N", "threads to convert with; 0: one per usable CPU", 0, 1024},
    };
    struct program program = {.name = "fastdecode quantize",
                              .purpose = "a GGUF file with its matrices in fewer bits; all else stays as it is",
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
    if (!status && program.check_only)
        return 0;
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
        return status == STATUS_CANCELLED ? INTERRUPTED : (int)service_exit_of(&error);
    }
    print_result(&r, &result, (double)(clock_now_us() - began_us) / 1e6);
    return 0;
}
