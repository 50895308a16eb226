// health.c: `fastdecode health ADDRESS`: asks a service whether it is ready; the exit code serves container probes.
#include <curl/curl.h>
#include <stdio.h>
#include <string.h>

#include "common/base/checked.h"
#include "common/base/options.h"
#include "common/rpc/rpc.h"
#include "services/fastdecode/client/commands.h"

// --- http probe ------------------------------------------------------------------------------------------------------

static size_t discard(char *data, size_t size, size_t count, void *user)
{
    (void)data, (void)user;
    return size * count;
}

bool http_probe_ready(const char *host, uint16_t port, bool tls)
{
    char url[160];
    long code = 0;
    CURL *curl = curl_easy_init();

    if (!curl)
        return false;
    if (!strcmp(host, "0.0.0.0") || !strcmp(host, "::"))
        host = "127.0.0.1";
    snprintf(url, sizeof url, strchr(host, ':') ? "%s://[%s]:%u/ready" : "%s://%s:%u/ready", tls ? "https" : "http", host, port);
    curl_easy_setopt(curl, CURLOPT_URL, url);
    curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(curl, CURLOPT_NOPROXY, "*");       // it is this machine
    curl_easy_setopt(curl, CURLOPT_SSL_VERIFYPEER, 0L); // nothing is told or believed but that it answers
    curl_easy_setopt(curl, CURLOPT_SSL_VERIFYHOST, 0L);
    curl_easy_setopt(curl, CURLOPT_TIMEOUT_MS, 1000L);
    curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, discard);
    if (curl_easy_perform(curl) == CURLE_OK)
        curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &code);
    curl_easy_cleanup(curl);
    return code == 200;
}

// --- the command -----------------------------------------------------------------------------------------------------
int health_main(int argc, char **argv)
{
    struct rpc_security_settings settings = {0};
    struct rpc_security security = {0};
    uint32_t timeout_ms = 2000;
    const struct option options[] = {
        {"timeout-ms", OPTION_U32, &timeout_ms, "MS", "how long to wait for the answer", 1, 600000},
        RPC_SECURITY_OPTIONS(settings),
    };
    struct program program = {.name = "fastdecode health",
                              .purpose = "asks a service whether it is ready; exit code 0 means yes, 3 not yet or nobody there",
                              .options = options,
                              .option_count = ARRAY_COUNT(options),
                              .operand_name = "ADDRESS"};
    struct error error = {0};

    if (options_parse(&program, argc, argv, &error) || rpc_security_open(&settings, NULL, &security, &error)) {
        fprintf(stderr, "fastdecode health: %s\n", error.text);
        return error_exit_code(&error);
    }
    if (program.operand_count != 1 || !strstr(program.operands[0], "://")) {
        rpc_security_close(&security);
        fprintf(stderr, "fastdecode health: want one ADDRESS such as tcp://127.0.0.1:7400 or ipc:///folder/s-part.sock\n");
        return EXIT_CODE_SETTINGS;
    }
    if (!program.check_only && rpc_probe(program.operands[0], timeout_ms, &security, &error) && error.text[0])
        fprintf(stderr, "fastdecode health: %s\n", error.text);
    rpc_security_close(&security);
    return error_exit_code(&error);
}
