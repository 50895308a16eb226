// command.c: `fastdecode capacity`: measures the highest rate of requests at which a server meets its targets.
//
// Open loop: requests arrive at random, whether the server keeps up or not. First what a lone stream takes is measured; the targets are
// multiples of that. Then rates are tried (search.h) until the highest one that meets them is known.
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "common/base/checked.h"
#include "services/fastdecode/capacity/report.h"
#include "services/fastdecode/capacity/server.h"
#include "services/fastdecode/client/commands.h"

enum { FILES_SPARE = 64, STREAMS_MIN = 16, KEY_BYTES_MAX = 900, INTERRUPTED = 130 };

struct capacity {
    struct capacity_settings settings;
    struct capacity_server server;
    struct capacity_progress progress;
    struct capacity_result result;
    struct length_trace trace;
    const char *url, *model, *key_path;
    char key[KEY_BYTES_MAX + 1];
    uint32_t streams_max, undisturbed_streams;
    double timeout_s;
    bool json, quiet;
};

static volatile sig_atomic_t interrupted;

static void on_interrupt(int number)
{
    (void)number;
    interrupted = 1;
}

// The first line of a file.
static enum status read_key(const char *path, char key[KEY_BYTES_MAX + 1], struct error *error)
{
    FILE *file = fopen(path, "re");
    size_t bytes = file ? fread(key, 1, KEY_BYTES_MAX, file) : 0;

    if (!file || ferror(file)) {
        enum status status = error_set(error, status_of_path(errno), "--api-key-file %s: %s", path, strerror(errno));
        if (file)
            fclose(file);
        return status;
    }
    fclose(file);
    key[bytes] = '\0';
    key[strcspn(key, "\r\n")] = '\0';
    return *key ? STATUS_OK : error_set(error, STATUS_INVALID_ARGUMENT, "--api-key-file %s: its first line is empty", path);
}

// Every stream takes a file descriptor.
static enum status take_files(struct capacity *c, struct error *error)
{
    struct rlimit files;

    if (getrlimit(RLIMIT_NOFILE, &files) != 0)
        return STATUS_OK;
    files.rlim_cur = files.rlim_max;
    if (setrlimit(RLIMIT_NOFILE, &files) != 0 && getrlimit(RLIMIT_NOFILE, &files) != 0)
        return STATUS_OK;
    if (files.rlim_cur < FILES_SPARE + STREAMS_MIN)
        return error_set(error, STATUS_RESOURCE_EXHAUSTED, "%llu files may be open at once, which is too few: ulimit -n",
                         (unsigned long long)files.rlim_cur);
    c->streams_max = (uint32_t)MIN(c->streams_max, files.rlim_cur - FILES_SPARE);
    if (c->undisturbed_streams > c->streams_max)
        return error_set(error, STATUS_INVALID_ARGUMENT,
                         "--undisturbed-streams %u: at most %u can be open (--max-streams, ulimit -n)", c->undisturbed_streams,
                         c->streams_max);
    return STATUS_OK;
}

// Lengths fit what the server takes; prompts are made of words, so their lengths are not exact.
static void fit_context(struct capacity *c)
{
    uint32_t most = c->server.context_tokens;

    if (most > 0)
        most -= MIN(most / 2, MAX(most / 50, 16));
    if (most > 0 && (c->trace.context_tokens == 0 || c->trace.context_tokens > most))
        c->trace.context_tokens = most;
}

static enum status measure(struct capacity *c, struct error *error)
{
    enum status status = capacity_server_open(&c->server, error);

    if (status)
        return status;
    fit_context(c);
    status = capacity_server_measure_alone(&c->server, &c->trace, c->undisturbed_streams, &c->result.undisturbed, error);
    return status ? status : capacity_search_run(&c->settings, &c->trace, capacity_probe_server, &c->server, &c->result, error);
}

static int run(struct capacity *c)
{
    struct sigaction on_signal = {.sa_handler = on_interrupt, .sa_flags = SA_RESETHAND}; // a second one ends it at once
    struct error error = {0};
    enum status status = STATUS_OK;

    sigaction(SIGINT, &on_signal, NULL);
    sigaction(SIGTERM, &on_signal, NULL);
    capacity_progress_begin(&c->progress, c->quiet);
    if (!(status = take_files(c, &error))) {
        c->server.config = (struct load_client_config){.url = c->url,
                                                       .api_key = *c->key ? c->key : NULL,
                                                       .model = c->model,
                                                       .streams_max = c->streams_max,
                                                       .timeout_s = c->timeout_s};
        c->server.interrupted = &interrupted;
        c->server.progress = &c->progress;
        status = measure(c, &error);
    }
    capacity_progress_end(&c->progress);
    if (!status || c->result.probe_count > 0) {
        if (c->json)
            capacity_report_json(&c->settings, &c->result,
                                 json_pack("{s:s,s:s,s:i}", "url", c->url, "model",
                                           c->server.config.model ? c->server.config.model : "", "context_tokens",
                                           (int)c->trace.context_tokens));
        else
            capacity_report_text(&c->settings, &c->result);
    }
    capacity_server_close(&c->server);
    length_trace_free(&c->trace);
    if (status)
        fprintf(stderr, "fastdecode capacity: %s\n", error.text);
    return status == STATUS_CANCELLED ? INTERRUPTED : status ? (int)error_exit_code(&error) : 0;
}

int capacity_main(int argc, char **argv)
{
    struct capacity c = {.settings = CAPACITY_DEFAULTS,
                         .url = "http://127.0.0.1:8080",
                         .streams_max = 4096,
                         .undisturbed_streams = 1,
                         .timeout_s = 600};
    const struct option options[] = {
        {"url", OPTION_STRING, &c.url, "URL", "address of the server: any with OpenAI's /v1/completions", 0, 0},
        {"model", OPTION_STRING, &c.model, "NAME", "model to ask; default: the first one that the server lists", 0, 0},
        {"api-key-file", OPTION_STRING, &c.key_path, "FILE", "file whose first line is the API key, if the server needs one", 0, 0},
        CAPACITY_OPTIONS(&c.settings),
        {"undisturbed-streams", OPTION_U32, &c.undisturbed_streams, "N",
         "streams side by side when the undisturbed step is measured (Sarathi-Serve: 32)", 1, 256},
        {"max-streams", OPTION_U32, &c.streams_max, "N", "most open streams; a rate that needs more misses", STREAMS_MIN, 65536},
        {"timeout", OPTION_F64, &c.timeout_s, "S", "a request that takes longer has failed", 1, 1e6},
        {"seed", OPTION_U64, &c.settings.seed, "N", "seed of arrivals and lengths", 0, 0},
        {"json", OPTION_BOOL, &c.json, NULL, "print one JSON object", 0, 0},
        {"quiet", OPTION_BOOL, &c.quiet, NULL, "no progress", 0, 0},
    };
    struct program program = {.name = "fastdecode capacity",
                              .purpose = "measures the highest rate of requests at which a server meets its targets",
                              .options = options,
                              .option_count = ARRAY_COUNT(options)};
    struct error error;
    enum status status = options_parse(&program, argc, argv, &error);

    if (!status && c.key_path)
        status = read_key(c.key_path, c.key, &error);
    if (!status)
        status = capacity_settings_resolve(&c.settings, &c.trace, &error);
    if (status) {
        fprintf(stderr, "fastdecode capacity: %s\n", error.text);
        return error_exit_code(&error);
    }
    if (program.check_only) {
        length_trace_free(&c.trace);
        return 0;
    }
    return run(&c);
}
