// main.c: `fastdecode`: the command line. Each command has --help.
#include <stdio.h>
#include <string.h>

#include "common/base/memory.h"
#include "common/base/options.h"
#include "services/fastdecode/capacity/capacity.h"
#include "services/fastdecode/client/commands.h"
#include "services/fastdecode/keys/commands.h"
#include "services/fastdecode/model/commands.h"
#include "services/fastdecode/plan/commands.h"
#include "services/fastdecode/up/up.h"

static const struct command {
    const char *name, *help;
    int (*run)(int argc, char **argv);
} commands[] = {
    {"up", "serve a model on this machine: fastdecode up --model FILE", up_main},
    {"chat", "talk to a running mesh in this terminal", chat_main},
    {"batch", "answers to a file of requests: fastdecode batch IN.jsonl OUT.jsonl", batch_main},
    {"model", "what a model file holds, and the memory it takes: fastdecode model FILE", model_main},
    {"quantize", "a model file in fewer bits: fastdecode quantize IN OUT --type q4_1", quantize_main},
    {"plan", "what hardware a load needs, and what to expect: fastdecode plan --shape llama-7b --gpu a10", plan_main},
    {"eval", "perplexity, and what a KV type changes, on a text: fastdecode eval --model FILE --text FILE", eval_main},
    {"sim", "what a mesh would do with a workload, on a virtual clock: fastdecode sim --shape NAME --gpu NAME", sim_main},
    {"capacity", "how many requests a second a server takes within its targets: fastdecode capacity --url URL", capacity_main},
    {"key", "make an API key, with limits: fastdecode key NAME --add FILE", key_main},
    {"certs", "certificates for services on several machines: fastdecode certs DIR", certs_main},
    {"health", "probe a service over RPC: fastdecode health ADDRESS", health_main},
};

static void print_usage(FILE *file)
{
    fprintf(file,
            "fastdecode %s: serves large language models from few GPUs and many CPUs\n\nusage: fastdecode COMMAND "
            "[options]\n\ncommands (each has --help):\n",
            FASTDECODE_VERSION);
    for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++)
        fprintf(file, "  %-8s %s\n", commands[i].name, commands[i].help);
    fprintf(file, "\nThe services are programs of their own: fastdecode-gateway, fastdecode-scheduler, fastdecode-s-part and\n"
                  "fastdecode-kv-worker. In the build folder and in images their names lack \"fastdecode-\".\n");
}

int main(int argc, char **argv)
{
    memory_spare_blas_threads(argv);
    if (argc < 2) {
        print_usage(stderr);
        return EXIT_CODE_SETTINGS;
    }
    if (!strcmp(argv[1], "--help") || !strcmp(argv[1], "help")) {
        print_usage(stdout);
        return 0;
    }
    if (!strcmp(argv[1], "--version")) {
        printf("fastdecode %s\n", FASTDECODE_VERSION);
        return 0;
    }
    for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++)
        if (!strcmp(argv[1], commands[i].name))
            return commands[i].run(argc - 1, argv + 1);
    fprintf(stderr, "fastdecode: unknown command '%s' (see fastdecode --help)\n", argv[1]);
    return EXIT_CODE_SETTINGS;
}
