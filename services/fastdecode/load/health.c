// health.c: `fastdecode health ADDRESS`: asks a service whether it is ready; the exit status serves container probes.
#include <stdio.h>
#include <string.h>

#include "common/base/checked.h"
#include "common/base/options.h"
#include "common/rpc/probe.h"
#include "services/fastdecode/load/commands.h"

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
                              .purpose = "asks a service whether it is ready (exit status 0: it is)",
                              .options = options,
                              .option_count = ARRAY_COUNT(options),
                              .operand_name = "ADDRESS"};
    struct error error;

    if (options_parse(&program, argc, argv, &error) || rpc_security_open(&settings, NULL, &security, &error)) {
        fprintf(stderr, "fastdecode health: %s\n", error.text);
        return 2;
    }
    if (program.operand_count != 1 || !strstr(program.operands[0], "://")) {
        rpc_security_close(&security);
        fprintf(stderr, "fastdecode health: want one ADDRESS such as tcp://127.0.0.1:7400 or ipc:///folder/s-part.sock\n");
        return 2;
    }
    int code = program.check_only ? 0 : rpc_probe("fastdecode health", program.operands[0], timeout_ms, &security);
    rpc_security_close(&security);
    return code;
}
