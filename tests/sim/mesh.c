// mesh.c: runs schedules, each in a child process so that a crash costs one only. See --help.
//
//     main(): options ─┬─▶ run_seeds(): a child per job ─▶ take(), run_one() ... ─▶ report(): shrink(), each try in a child of its own
//                      └─▶ run_apart(): a schedule that was kept, or a seed with its log
//
// What children find is in memory that they share with the parent. One that dies says why in its seed's name: the parent writes down the failure,
// and the next child in its place reports it and goes on.
#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/checked.h"
#include "common/base/log.h"
#include "tests/sim/shrink.h"

enum { JOBS_MAX = 256, CHUNK = 50, FAILURES_MAX = 10, SEED_S = 60, TRY_S = 10 };
enum { TEXT_BYTES = 4096, ANSWER_BYTES = 1 << 18, TRY_MMAP_BYTES = 1 << 14 };
#define PROGRESS_NS (10 * S_NS)

enum stage { STAGE_IDLE, STAGE_RUNS, STAGE_FAILED, STAGE_REPORTS };

// A child's work, which outlives it. The parent looks at it only when the child has ended.
struct slot {
    pid_t pid;
    int errors;         // a file in memory: what it writes to stderr
    uint64_t next, end; // seeds that it has taken, and will run
    uint64_t seed;      // the latest that it has begun
    uint64_t before;    // that its child ran before that; 0: none
    enum stage stage;   // of that
    bool keeps;         // its schedule is not to be shrunk: that has crashed
    char failure[TEXT_BYTES];
};

// Counts are of seeds, and relaxed: the parent shows them, and needs them exact only after it has waited for all children.
static struct shared {
    _Atomic uint64_t next; // seed that nobody has taken
    _Atomic uint64_t done, failed, hash;
    char failures[JOBS_MAX][TEXT_BYTES]; // of a slot's latest try
    struct slot slots[JOBS_MAX];
    char answers[2 * KINDS][ANSWER_BYTES]; // "": not known
} * shared;

static struct settings {
    uint64_t from, count, time_ns;
    uint32_t jobs;
    bool keeps_going, keeps_schedules, twice, logs;
    char **files; // to be replayed
    int file_count;
} settings = {.count = 1000};

static uint64_t begin_ns;
static int printing = -1;             // locked by who prints
static volatile sig_atomic_t stopped; // by a signal

// --- a run

// Learns what a request of that kind should get.
static bool learn(uint32_t kind, bool real_draw)
{
    static struct schedule alone;

    schedule_alone(kind, real_draw, &alone);
    const char *failure = schedule_run(&alone);
    if (failure || !clients_answer(0)) {
        fprintf(stderr, "a request of kind %u alone fails: %s\n", kind, failure ? failure : "no answer");
        return false;
    }
    clients_learn(kind, real_draw, clients_answer(0));
    clients_end();
    return true;
}

static const char *run_once(const struct schedule *s)
{
    const char *failure = schedule_run(s);
    clients_end();
    return failure;
}

static const char *run_one(const struct schedule *s)
{
    static char text[128];
    const char *failure = run_once(s);
    const uint64_t hash = world.hash;

    if (failure || !settings.twice)
        return failure;
    failure = run_once(s);
    if (failure || world.hash == hash)
        return failure;
    snprintf(text, sizeof text, "another hash the second time: first %016llx, then %016llx", (unsigned long long)hash,
             (unsigned long long)world.hash);
    return text;
}

// --- processes

// A line that nobody sees costs little, as it is not formatted; but its arguments look at the clock, which takes virtual time. So the threshold is the
// same without a log, or a seed would do something else when it is looked at.
static void set_log(bool says)
{
    const char *level = getenv("FD_SIM_LOG");

    world.says = says;
    log_threshold = level && !strcmp(level, "debug") ? LOG_DEBUG : LOG_INFO;
}

static int open_errors(void)
{
    const int fd = memfd_create("errors", MFD_CLOEXEC);
    if (fd < 0 || fcntl(fd, F_SETFL, O_APPEND) < 0) {
        perror("mesh: cannot open a file in memory");
        exit(1);
    }
    return fd;
}

// In a child: it dies with its parent, and stderr is `errors` unless that is -1.
static void begin_child(pid_t parent, int errors)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(1);            // it died before
    signal(SIGINT, SIG_IGN); // of a terminal: the parent ends it
    signal(SIGQUIT, SIG_IGN);
    signal(SIGTERM, SIG_DFL);
    signal(SIGHUP, SIG_DFL);
    signal(SIGALRM, SIG_DFL);
    if (errors < 0)
        return;
    dup2(errors, STDERR_FILENO);
    setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0}); // of each try
}

// A seed begins: what a child says from now on is about that. It ends after so many seconds.
static void begin_seed(bool errors, uint32_t limit_s)
{
    if (errors && ftruncate(STDERR_FILENO, 0) < 0)
        perror("mesh: cannot empty a file in memory");
    alarm(limit_s);
}

// The text that a child wrote to stderr, from what says why it ended: a sanitizer, an assertion, else the last line.
static void last_words(int errors, char *out, size_t out_bytes)
{
    static const char *const marks[] = {"ASSERT-FAILED", "ERROR: ", "runtime error: "};
    static char text[1 << 16];
    char *from = NULL;

    const ssize_t got = errors < 0 ? 0 : pread(errors, text, sizeof text - 1, 0);
    size_t bytes = got > 0 ? (size_t)got : 0;
    while (bytes && text[bytes - 1] == '\n')
        bytes--;
    text[bytes] = '\0';
    for (size_t i = 0; i < ARRAY_COUNT(marks) && !from; i++)
        from = strstr(text, marks[i]);
    if (!from)
        from = text + bytes;
    while (from > text && from[-1] != '\n')
        from--;
    snprintf(out, out_bytes, "%s", from);
}

static void say_why(int status, int errors, char *out, size_t out_bytes)
{
    char words[TEXT_BYTES - 64];

    last_words(errors, words, sizeof words);
    if (WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM)
        snprintf(out, out_bytes, "does not end");
    else if (WIFSIGNALED(status))
        snprintf(out, out_bytes, "crashed by signal %d%s%s", WTERMSIG(status), words[0] ? ": " : "", words);
    else
        snprintf(out, out_bytes, "ended with status %d%s%s", WEXITSTATUS(status), words[0] ? ": " : "", words);
}

static pid_t begin_process(void)
{
    fflush(NULL);
    const pid_t pid = fork();
    if (pid < 0)
        perror("mesh: cannot start a process; try fewer --jobs");
    return pid;
}

// Runs work() in a process of its own. Returns whether that ended well; if not, `out` says why.
static bool run_apart(void (*work)(void *arg), void *arg, int errors, uint32_t limit_s, char *out, size_t out_bytes)
{
    const pid_t parent = getpid(), pid = begin_process();
    int status;

    if (!pid) {
        begin_child(parent, errors);
        begin_seed(errors >= 0, limit_s);
        work(arg);
        fflush(stdout);
        _exit(0);
    }
    if (pid < 0) {
        snprintf(out, out_bytes, "not run");
        return false;
    }
    while (waitpid(pid, &status, 0) < 0)
        if (stopped)
            kill(pid, SIGKILL);
    if (status)
        say_why(status, errors, out, out_bytes);
    return status == 0;
}

// --- what a child reports

struct attempt {
    const struct schedule *schedule;
    char *failure; // shared, of TEXT_BYTES
};

static void work_attempt(void *arg)
{
    const struct attempt *attempt = arg;

    mallopt(M_MMAP_THRESHOLD, TRY_MMAP_BYTES); // a new process gets most pages with zeros in them: calloc() need not touch those
    const char *failure = run_one(attempt->schedule);
    snprintf(attempt->failure, TEXT_BYTES, "%s", failure ? failure : "");
}

static const char *try_apart(const struct schedule *schedule, void *arg)
{
    char *failure = arg;
    struct attempt attempt = {schedule, failure};

    run_apart(work_attempt, &attempt, STDERR_FILENO, TRY_S, failure, TEXT_BYTES);
    return failure[0] ? failure : NULL;
}

static void write_headline(uint64_t seed, const char *failure, FILE *out)
{
    fprintf(out, "# seed %llu: %.*s\n", (unsigned long long)seed, (int)strcspn(failure, "\n"), failure);
}

static void write_shrunk(const struct slot *slot, FILE *out)
{
    struct schedule schedule;
    char *failure = shared->failures[slot - shared->slots];
    const uint64_t since_ns = real_now_ns(CLOCK_MONOTONIC);

    schedule_make(slot->seed, &schedule);
    if (!try_apart(&schedule, failure)) {
        if (!slot->before)
            fprintf(out, "# it does not fail each time\n");
        else
            fprintf(out, "# it does not fail alone, but after seed %llu in the same process: --from %llu --seeds %llu --jobs 1\n",
                    (unsigned long long)slot->before, (unsigned long long)slot->before,
                    (unsigned long long)(slot->seed - slot->before + 1));
        return;
    }
    const uint32_t faults = schedule.fault_count, clients = schedule.client_count,
                   runs = shrink(&schedule, slot->failure, try_apart, failure);
    const char *last = try_apart(&schedule, failure);
    write_headline(slot->seed, last ? last : "does not fail each time", out);
    fprintf(out, "# %u faults of %u, %u requests of %u: found by %u runs in %.1f s\n", schedule.fault_count, faults,
            schedule.client_count, clients, runs, (double)(real_now_ns(CLOCK_MONOTONIC) - since_ns) * 1e-9);
    schedule_write(&schedule, out);
}

// Prints the failure of the slot's seed and a schedule for it.
static void report(struct slot *slot)
{
    char *text = NULL;
    size_t bytes;
    FILE *out = open_memstream(&text, &bytes);

    slot->stage = STAGE_REPORTS;
    alarm(0);
    assert_always(out);
    fprintf(out, "seed %llu failed: %s\n", (unsigned long long)slot->seed, slot->failure);
    if (!slot->keeps)
        write_shrunk(slot, out);
    fprintf(out, "# the whole of it, with its log: FD_SIM_SEED=%llu %s\n\n", (unsigned long long)slot->seed,
            program_invocation_name);
    fclose(out);
    const bool locked = lockf(printing, F_LOCK, 0) == 0;
    fwrite(text, 1, bytes, stdout);
    fflush(stdout);
    if (locked && lockf(printing, F_ULOCK, 0))
        perror("mesh: cannot let others print");
    free(text);
    slot->stage = STAGE_IDLE;
}

// --- seeds

static void finish(struct slot *slot, const char *failure, uint64_t hash)
{
    uint64_t mixed = random_next(&(uint64_t){slot->seed}) ^ hash;

    atomic_fetch_xor_explicit(&shared->hash, random_next(&mixed), memory_order_relaxed);
    if (failure) {
        snprintf(slot->failure, sizeof slot->failure, "%s", failure);
        slot->stage = STAGE_FAILED;
        atomic_fetch_add_explicit(&shared->failed, 1, memory_order_relaxed);
    } else {
        slot->stage = STAGE_IDLE;
    }
    atomic_fetch_add_explicit(&shared->done, 1, memory_order_relaxed);
}

static bool is_over(void)
{
    return (settings.time_ns && real_now_ns(CLOCK_MONOTONIC) - begin_ns > settings.time_ns) ||
           (!settings.keeps_going && atomic_load_explicit(&shared->failed, memory_order_relaxed) >= FAILURES_MAX);
}

// Takes a seed. False: there is no more to do.
static bool take(struct slot *slot)
{
    const uint64_t chunk = MIN((uint64_t)CHUNK, settings.count / settings.jobs / 4 + 1);

    if (is_over())
        return false;
    if (slot->next == slot->end) {
        slot->next = atomic_fetch_add_explicit(&shared->next, chunk, memory_order_relaxed);
        slot->end = slot->next + chunk;
    }
    if (slot->next - settings.from >= settings.count)
        return false;
    slot->seed = slot->next++;
    return true;
}

static void work_slot(struct slot *slot)
{
    static struct schedule schedule;

    if (slot->stage == STAGE_FAILED)
        report(slot);
    slot->before = 0;
    while (take(slot)) {
        slot->keeps = settings.keeps_schedules;
        slot->stage = STAGE_RUNS;
        begin_seed(true, SEED_S);
        schedule_make(slot->seed, &schedule);
        set_log(settings.logs);
        if (settings.logs)
            schedule_write(&schedule, stdout);
        const char *failure = run_one(&schedule);
        set_log(false);
        finish(slot, failure, world.hash);
        if (failure)
            return; // the next child reports it: with little memory of its own, its tries start sooner
        slot->before = slot->seed;
    }
}

static void start_slot(struct slot *slot)
{
    const pid_t parent = getpid(), pid = begin_process();

    if (pid) {
        slot->pid = pid;
        return;
    }
    begin_child(parent, slot->errors);
    work_slot(slot);
    fflush(stdout);
    _exit(0);
}

// Its child has ended.
static void end_slot(struct slot *slot, int status)
{
    char why[TEXT_BYTES];

    slot->pid = 0;
    if (stopped || (!status && slot->stage != STAGE_FAILED))
        return;
    say_why(status, slot->errors, why, sizeof why);
    if (slot->stage == STAGE_RUNS) {
        finish(slot, why, (uint64_t)status);
    } else if (slot->stage == STAGE_REPORTS) {
        fprintf(stderr, "mesh: seed %llu cannot be shrunk: %s\n", (unsigned long long)slot->seed, why);
        slot->keeps = true;
        slot->stage = STAGE_FAILED;
    }
    start_slot(slot);
}

static void show_progress(void)
{
    static uint64_t shown_ns;
    const uint64_t now_ns = real_now_ns(CLOCK_MONOTONIC);
    const uint64_t every_ns = isatty(STDERR_FILENO) ? PROGRESS_NS : 6 * PROGRESS_NS;
    const uint64_t done = atomic_load_explicit(&shared->done, memory_order_relaxed);

    if (now_ns - MAX(shown_ns, begin_ns) < every_ns)
        return;
    shown_ns = now_ns;
    const double seconds = (double)(now_ns - begin_ns) * 1e-9;
    fprintf(stderr, "%llu seeds in %.0f s, %.1f a second, %llu failed\n", (unsigned long long)done, seconds, (double)done / seconds,
            (unsigned long long)atomic_load_explicit(&shared->failed, memory_order_relaxed));
}

static void on_signal(int number)
{
    if (number != SIGALRM) // which only ends a wait
        stopped = number;
}

static void watch_signals(void)
{
    static const int numbers[] = {SIGINT, SIGQUIT, SIGTERM, SIGHUP, SIGALRM};

    for (size_t i = 0; i < ARRAY_COUNT(numbers); i++)
        sigaction(numbers[i], &(struct sigaction){.sa_handler = on_signal}, NULL); // a wait ends
    signal(SIGPIPE, SIG_IGN);
    setitimer(ITIMER_REAL, &(struct itimerval){{1, 0}, {1, 0}}, NULL);
}

static double cpu_hours(void)
{
    struct rusage own, children;

    getrusage(RUSAGE_SELF, &own);
    getrusage(RUSAGE_CHILDREN, &children);
    const time_t seconds = own.ru_utime.tv_sec + own.ru_stime.tv_sec + children.ru_utime.tv_sec + children.ru_stime.tv_sec;
    const suseconds_t us = own.ru_utime.tv_usec + own.ru_stime.tv_usec + children.ru_utime.tv_usec + children.ru_stime.tv_usec;
    return ((double)seconds + (double)us * 1e-6) / 3600;
}

static int run_seeds(void)
{
    int status;

    shared->next = settings.from;
    for (uint32_t i = 0; i < settings.jobs; i++) {
        shared->slots[i].errors = open_errors();
        start_slot(&shared->slots[i]);
    }
    for (;;) {
        const pid_t pid = wait(&status);
        if (pid < 0 && errno != EINTR)
            break;
        for (uint32_t i = 0; i < settings.jobs; i++) {
            struct slot *slot = &shared->slots[i];
            if (pid > 0 && slot->pid == pid)
                end_slot(slot, status);
            else if (stopped && slot->pid > 0)
                kill(slot->pid, SIGKILL);
        }
        show_progress();
    }
    const unsigned long long done = shared->done, failed = shared->failed;
    printf("%s%llu seeds, %llu failed, %.0f a CPU-hour, hash %016llx\n", stopped ? "stopped: " : "", done, failed,
           (double)done / cpu_hours(), (unsigned long long)shared->hash);
    return stopped ? 128 + stopped : failed > 0 || !done;
}

// --- what requests should get

static void work_learn(void *arg)
{
    (void)arg;
    for (uint32_t i = 0; i < 2 * KINDS; i++) {
        if (!learn(i % KINDS, i >= KINDS))
            _exit(1);
        const int bytes = snprintf(shared->answers[i], ANSWER_BYTES, "%s", clients_expected(i % KINDS, i >= KINDS));
        assert_always(bytes < ANSWER_BYTES);
    }
}

static bool learn_all(void)
{
    char why[TEXT_BYTES];

    if (!run_apart(work_learn, NULL, open_errors(), SEED_S, why, sizeof why)) {
        if (!stopped)
            fprintf(stderr, "mesh: what requests should get is not known: %s\n", why);
        return false;
    }
    for (uint32_t i = 0; i < 2 * KINDS; i++)
        clients_learn(i % KINDS, i >= KINDS, shared->answers[i]);
    return true;
}

// --- one schedule

static void work_replay(void *arg)
{
    const struct schedule *schedule = arg;

    if (settings.logs)
        schedule_write(schedule, stdout);
    set_log(settings.logs);
    const char *failure = run_one(schedule);
    snprintf(shared->failures[0], TEXT_BYTES, "%s", failure ? failure : "");
    if (settings.logs)
        printf("hash %016llx, %llu events\n", (unsigned long long)world.hash, (unsigned long long)world.events);
}

static bool replay(const char *name, struct schedule *schedule)
{
    const int errors = settings.logs ? -1 : open_errors(); // with a log, for a debugger too, it is the terminal's
    char *failure = shared->failures[0];

    run_apart(work_replay, schedule, errors, settings.logs ? 0 : SEED_S, failure, TEXT_BYTES);
    if (stopped)
        return false;
    printf("%s: %s\n", name, failure[0] ? failure : "ok");
    fflush(stdout);
    if (errors >= 0)
        close(errors);
    return !failure[0];
}

static bool replay_file(const char *path)
{
    struct schedule schedule;
    FILE *file = fopen(path, "r");
    const bool read = file && schedule_read(file, &schedule);

    if (!file)
        printf("%s: cannot be opened: %s\n", path, strerror(errno));
    else if (!read)
        printf("%s: is no schedule, from \"seed\" to \"end\"\n", path);
    if (file)
        fclose(file);
    return read && replay(path, &schedule);
}

static int replay_files(void)
{
    int failed = 0;

    for (int i = 0; i < settings.file_count && !stopped; i++)
        failed += !replay_file(settings.files[i]);
    return stopped ? 128 + stopped : failed > 0;
}

static int replay_seed(uint64_t seed)
{
    struct schedule schedule;
    char name[32];

    settings.logs = true;
    schedule_make(seed, &schedule);
    snprintf(name, sizeof name, "seed %llu", (unsigned long long)seed);
    const bool well = replay(name, &schedule);
    return stopped ? 128 + stopped : !well;
}

// --- the command line

static void print_usage(void)
{
    printf(
        "usage: mesh [OPTION]...\n"
        "       mesh [--log] --replay FILE...\n"
        "       FD_SIM_SEED=N [FD_SIM_LOG=debug] mesh\n"
        "\n"
        "Runs a whole mesh in one process on a virtual clock: a seed makes a schedule of requests and faults. All requests must get the answers\n"
        "that they get where nothing fails, and the mesh must come to rest. The same seed does the same again. Prints each failure with the\n"
        "smallest schedule that fails alike.\n"
        "\n"
        "  --seeds N      so many seeds; 1000, or without end if there is a time\n"
        "  --seconds S    until so much time has passed\n"
        "  --hours H      likewise\n"
        "  --from SEED    the first seed; that of FD_SEED, or 1\n"
        "  --jobs J       processes; as many as there are processors\n"
        "  --keep-going   does not stop after %d failures\n"
        "  --no-shrink    prints failures alone\n"
        "  --twice        runs each seed twice: it fails if the second run differs\n"
        "  --log          prints what happens, with virtual times, and one job only; FD_SIM_LOG=debug: in detail\n"
        "  --replay FILE  runs schedules that were printed: FILE holds one, from \"seed\" to \"end\"; lines with # before it are left out\n"
        "  --help         prints this\n"
        "\n"
        "Seeds from 10^12 on dwell on one weak spot each: hand-overs, a new scheduler, or workers that come back.\n"
        "\n"
        "FD_SIM_SEED=N runs one seed and prints its schedule and its log. The last line has one hash of all that happened, which is the same\n"
        "for all builds with the same seeds. Ends with 1 if a seed failed.\n",
        FAILURES_MAX);
}

static bool read_number(const char *name, const char *text, double *out)
{
    char *end = NULL;

    if (text)
        *out = strtod(text, &end);
    if (text && end != text && !*end && *out >= 0 && *out < 1e19)
        return true;
    fprintf(stderr, "mesh: %s needs a number%s%s; see --help\n", name, text ? ", not " : "", text ? text : "");
    return false;
}

static bool read_seed(const char *name, const char *text, uint64_t *out)
{
    char *end = NULL;

    if (text && *text >= '0' && *text <= '9')
        *out = strtoull(text, &end, 10);
    if (end && !*end)
        return true;
    fprintf(stderr, "mesh: %s needs a whole number%s%s; see --help\n", name, text ? ", not " : "", text ? text : "");
    return false;
}

static bool *flag_of(const char *option)
{
    return !strcmp(option, "--keep-going")  ? &settings.keeps_going
           : !strcmp(option, "--no-shrink") ? &settings.keeps_schedules
           : !strcmp(option, "--twice")     ? &settings.twice
           : !strcmp(option, "--log")       ? &settings.logs
                                            : NULL;
}

// False: they are wrong, which it has said.
static bool read_options(int argc, char **argv)
{
    bool counted = false;
    uint64_t jobs = (uint64_t)sysconf(_SC_NPROCESSORS_ONLN);
    double number;

    settings.from = 1;
    if (getenv("FD_SEED") && !read_seed("FD_SEED", getenv("FD_SEED"), &settings.from))
        return false;
    for (int i = 1; i < argc; i++) {
        const char *option = argv[i];
        if (flag_of(option)) {
            *flag_of(option) = true;
        } else if (!strcmp(option, "--replay") && i + 1 < argc) {
            settings.files = argv + i + 1;
            settings.file_count = argc - i - 1;
            break;
        } else if (!strcmp(option, "--seconds") || !strcmp(option, "--hours")) {
            if (!read_number(option, argv[++i], &number))
                return false;
            settings.time_ns = (uint64_t)(number * (option[2] == 's' ? 1e9 : 3600e9));
        } else if (!strcmp(option, "--seeds") || !strcmp(option, "--from") || !strcmp(option, "--jobs")) {
            counted |= option[2] == 's';
            if (!read_seed(option, argv[++i], option[2] == 's' ? &settings.count : option[2] == 'f' ? &settings.from : &jobs))
                return false;
        } else {
            fprintf(stderr, "mesh: %s %s; see --help\n", option, strcmp(option, "--replay") ? "is no option" : "needs a file");
            return false;
        }
    }
    if (settings.time_ns && !counted)
        settings.count = UINT64_MAX - settings.from;
    settings.jobs = settings.logs ? 1 : (uint32_t)MAX(MIN(jobs, (uint64_t)JOBS_MAX), (uint64_t)1);
    return true;
}

int main(int argc, char **argv)
{
    const char *seed_text = getenv("FD_SIM_SEED");
    uint64_t seed = 0;
    int exit_status = 1;

    for (int i = 1; i < argc; i++)
        if (!strcmp(argv[i], "--help")) {
            print_usage();
            return 0;
        }
    if (!read_options(argc, argv) || (seed_text && !read_seed("FD_SIM_SEED", seed_text, &seed)))
        return 2;
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    printing = memfd_create("printing", MFD_CLOEXEC);
    if (shared == MAP_FAILED || printing < 0) {
        perror("mesh: cannot get shared memory");
        return 1;
    }
    setvbuf(stdout, NULL, _IOLBF, BUFSIZ); // so that a log is all there after a crash
    set_log(false);
    watch_signals();
    services_prepare();
    begin_ns = real_now_ns(CLOCK_MONOTONIC);
    if (learn_all())
        exit_status = settings.file_count ? replay_files() : seed_text ? replay_seed(seed) : run_seeds();
    services_end();
    return exit_status;
}
