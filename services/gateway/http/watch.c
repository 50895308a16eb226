// watch.c: see watch.h.
//
// One mutex over the records; the thread holds it to look and never while it calls out. Deadlines are looked through at
// every tick: 8,192 records are 20 us.
#include "services/gateway/http/watch.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/base/checked.h"
#include "common/base/clock.h"
#include "common/base/id_map.h"
#include "common/base/log.h"

enum { EVENT_COUNT = 64 };

struct record {
    int fd;
    uint64_t deadline_us; // 0: none
    bool answer, shut;
    void *user; // not NULL: guarded
};

struct watch {
    struct watch_config config;
    pthread_mutex_t mutex;
    pthread_t thread;
    int epoll_fd, wake_fd;
    // under mutex
    bool stopping;
    uint64_t last_id;
    struct id_map map;
    struct record *records; // [capacity] by the slots of map
};

static struct record *find(struct watch *watch, uint64_t id)
{
    uint32_t slot = id_map_find(&watch->map, id);

    return slot == ID_MAP_NONE ? NULL : &watch->records[slot];
}

uint64_t watch_open(struct watch *watch, int fd)
{
    uint64_t id = 0;
    uint32_t slot;

    pthread_mutex_lock(&watch->mutex);
    slot = id_map_add(&watch->map, watch->last_id + 1);
    if (slot != ID_MAP_NONE) {
        id = ++watch->last_id;
        watch->records[slot] = (struct record){.fd = fd};
    }
    pthread_mutex_unlock(&watch->mutex);
    return id;
}

void watch_close(struct watch *watch, uint64_t id)
{
    struct record *record;

    pthread_mutex_lock(&watch->mutex);
    record = find(watch, id);
    if (record) {
        if (record->user)
            epoll_ctl(watch->epoll_fd, EPOLL_CTL_DEL, record->fd, NULL);
        id_map_remove(&watch->map, id);
    }
    pthread_mutex_unlock(&watch->mutex);
}

bool watch_deadline(struct watch *watch, uint64_t id, uint64_t deadline_us, bool answer)
{
    struct record *record;
    bool alive = true;

    pthread_mutex_lock(&watch->mutex);
    record = find(watch, id);
    if (record) {
        record->deadline_us = deadline_us;
        record->answer = answer;
        alive = !record->shut;
    }
    pthread_mutex_unlock(&watch->mutex);
    return alive;
}

void watch_guard(struct watch *watch, uint64_t id, void *user)
{
    struct epoll_event event = {.events = EPOLLRDHUP | EPOLLONESHOT, .data.u64 = id};
    struct record *record;

    pthread_mutex_lock(&watch->mutex);
    record = find(watch, id);
    if (record && !record->user && epoll_ctl(watch->epoll_fd, EPOLL_CTL_ADD, record->fd, &event) == 0)
        record->user = user;
    pthread_mutex_unlock(&watch->mutex);
}

void watch_unguard(struct watch *watch, uint64_t id)
{
    struct record *record;

    pthread_mutex_lock(&watch->mutex);
    record = find(watch, id);
    if (record && record->user) {
        epoll_ctl(watch->epoll_fd, EPOLL_CTL_DEL, record->fd, NULL);
        record->user = NULL;
    }
    pthread_mutex_unlock(&watch->mutex);
}

// Its socket is open for as long as the record is, so the descriptor is not another's.
static void shut_late(struct record *record)
{
    static const char answer[] = "HTTP/1.1 408 Request Timeout\r\nContent-Type: application/json\r\nConnection: close\r\n"
                                 "Content-Length: 116\r\n\r\n"
                                 "{\"error\":{\"message\":\"the request took too long to arrive\","
                                 "\"type\":\"invalid_request_error\",\"param\":null,\"code\":null}}\n";
    if (record->answer && send(record->fd, answer, sizeof answer - 1, MSG_NOSIGNAL | MSG_DONTWAIT) < 0)
        log_debug("HTTP-LATE", "errno=%d", errno);
    shutdown(record->fd, SHUT_RDWR);
    record->shut = true;
    record->deadline_us = 0;
}

static void check_deadlines(struct watch *watch)
{
    uint64_t now_us = clock_now_us();
    uint32_t slot, cursor = 0, sending = 0, reading = 0;

    pthread_mutex_lock(&watch->mutex);
    while ((slot = id_map_next(&watch->map, &cursor)) != ID_MAP_NONE) {
        struct record *record = &watch->records[slot];
        if (record->shut)
            continue;
        if (record->deadline_us != 0 && record->deadline_us <= now_us) {
            sending += record->answer;
            shut_late(record);
        } else if (record->user && watch->config.is_late(record->user, now_us)) {
            reading++;
            shut_late(record);
        }
    }
    pthread_mutex_unlock(&watch->mutex);
    if (sending)
        log_info("HTTP-TOO-SLOW", "connections=%u", sending);
    if (reading)
        log_info("HTTP-READS-TOO-SLOWLY", "connections=%u", reading);
}

// With the mutex held. Takes the user of a guarded record and counts a reference to it; NULL: it is not guarded.
static void *take_user(struct watch *watch, struct record *record)
{
    void *user = record->user;

    if (!user)
        return NULL;
    watch->config.hold(user);
    epoll_ctl(watch->epoll_fd, EPOLL_CTL_DEL, record->fd, NULL);
    record->user = NULL;
    return user;
}

static void handle_event(struct watch *watch, uint64_t id)
{
    struct record *record;
    void *user;

    pthread_mutex_lock(&watch->mutex);
    record = find(watch, id);
    user = record ? take_user(watch, record) : NULL;
    pthread_mutex_unlock(&watch->mutex);
    if (user)
        watch->config.gone(watch->config.arg, user);
}

void watch_shut_all(struct watch *watch)
{
    uint32_t slot, cursor = 0;

    do {
        void *user = NULL;
        pthread_mutex_lock(&watch->mutex);
        slot = id_map_next(&watch->map, &cursor);
        if (slot != ID_MAP_NONE)
            user = take_user(watch, &watch->records[slot]);
        pthread_mutex_unlock(&watch->mutex);
        if (user)
            watch->config.gone(watch->config.arg, user);
    } while (slot != ID_MAP_NONE);
}

static void *watch_run(void *arg)
{
    struct watch *watch = arg;
    struct epoll_event events[EVENT_COUNT];
    uint64_t tick_us = watch->config.tick_ms * 1000ull, next_us = clock_now_us() + tick_us;

    for (;;) {
        uint64_t now_us = clock_now_us();
        int i, count, wait_ms = now_us >= next_us ? 0 : (int)((next_us - now_us) / 1000 + 1);
        bool stopping;

        count = epoll_wait(watch->epoll_fd, events, EVENT_COUNT, wait_ms);
        for (i = 0; i < count; i++)
            if (events[i].data.u64 != 0)
                handle_event(watch, events[i].data.u64);
        pthread_mutex_lock(&watch->mutex);
        stopping = watch->stopping;
        pthread_mutex_unlock(&watch->mutex);
        if (stopping)
            return NULL;
        if (clock_now_us() >= next_us) {
            next_us = clock_now_us() + tick_us;
            check_deadlines(watch);
            watch->config.tick(watch->config.arg);
        }
    }
}

enum status watch_start(const struct watch_config *config, struct watch **out, struct error *error)
{
    struct watch *watch = calloc(1, sizeof *watch);
    struct epoll_event wake = {.events = EPOLLIN, .data.u64 = 0};
    bool has_map;

    *out = NULL;
    if (!watch)
        return error_set(error, STATUS_RESOURCE_EXHAUSTED, "out of memory");
    watch->config = *config;
    watch->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    watch->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    watch->records = calloc(config->capacity, sizeof *watch->records);
    pthread_mutex_init(&watch->mutex, NULL);
    has_map = id_map_open(config->capacity, &watch->map) == STATUS_OK;
    if (watch->epoll_fd < 0 || watch->wake_fd < 0 || !watch->records || !has_map ||
        epoll_ctl(watch->epoll_fd, EPOLL_CTL_ADD, watch->wake_fd, &wake) != 0 ||
        pthread_create(&watch->thread, NULL, watch_run, watch) != 0) {
        error_set(error, STATUS_RESOURCE_EXHAUSTED, "cannot start the watcher: %s", strerror(errno));
        if (watch->epoll_fd >= 0)
            close(watch->epoll_fd);
        if (watch->wake_fd >= 0)
            close(watch->wake_fd);
        pthread_mutex_destroy(&watch->mutex);
        id_map_close(&watch->map);
        free(watch->records);
        free(watch);
        return STATUS_RESOURCE_EXHAUSTED;
    }
    *out = watch;
    return STATUS_OK;
}

void watch_stop(struct watch *watch)
{
    uint64_t one = 1;

    if (!watch)
        return;
    pthread_mutex_lock(&watch->mutex);
    watch->stopping = true;
    pthread_mutex_unlock(&watch->mutex);
    if (write(watch->wake_fd, &one, sizeof one) < 0)
        log_debug("HTTP-WAKE", "errno=%d", errno);
    pthread_join(watch->thread, NULL);
    close(watch->epoll_fd);
    close(watch->wake_fd);
    pthread_mutex_destroy(&watch->mutex);
    id_map_close(&watch->map);
    free(watch->records);
    free(watch);
}
