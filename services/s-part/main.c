// main.c: s-part: weights, the forward pass, sampling, the local KV pool.
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

#include "services/s-part/s_part.h"

// A signal handler reaches nothing but what is file-scope.
static volatile int asked_to_stop;
static struct rpc_loop *_Atomic loop_to_wake;

static void on_signal(int number)
{
    struct rpc_loop *loop = atomic_load(&loop_to_wake);

    (void)number;
    asked_to_stop = 1;
    if (loop)
        rpc_loop_wake(loop);
}

static int fail(const struct error *error)
{
    fprintf(stderr, "s-part: %s\n", error->text);
    return 2;
}

int main(int argc, char **argv)
{
    struct s_part *s_part = calloc(1, sizeof *s_part);
    struct sigaction action = {.sa_handler = on_signal};
    struct error error;
    bool check_only;

    assert_always(s_part);
    if (settings_parse(&s_part->settings, argc, argv, &check_only, &error))
        return fail(&error);
    if (check_only)
        return 0;
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGINT, &action, NULL);
    if (serve_open(s_part, &error))
        return fail(&error);
    atomic_store(&loop_to_wake, s_part->control_loop);
    serve_run(s_part, &asked_to_stop);
    atomic_store(&loop_to_wake, NULL); // a second signal comes to no loop
    serve_close(s_part);
    free(s_part);
    return 0;
}
