// batch_store_rig.h: a store of files and batches in a folder of its own, and files and batches that are put into it.
#ifndef FD_TESTS_UNIT_BATCH_STORE_RIG_H
#define FD_TESTS_UNIT_BATCH_STORE_RIG_H

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "services/gateway/batch/store.h"
#include "tests/cmocka.h"

enum { MAX_FILES = 20 };

static char folder[64];
static struct batch_store *store;

static inline struct batch_store *open_store(void)
{
    struct batch_store_config config = {.dir = folder, .max_bytes = 1 << 20, .share = 0.5, .max_files = MAX_FILES};
    struct batch_store *opened;
    struct error error;

    if (batch_store_open(&config, &opened, &error) != STATUS_OK)
        fail_msg("%s", error.text);
    return opened;
}

static inline int set_up(void **state)
{
    log_threshold = LOG_ERROR;
    snprintf(folder, sizeof folder, "/tmp/fd-batch-XXXXXX");
    assert_non_null(mkdtemp(folder));
    store = open_store();
    return 0;
}

static inline int tear_down(void **state)
{
    char command[96];

    batch_store_close(store);
    snprintf(command, sizeof command, "rm -r %s", folder);
    return system(command);
}

static inline enum status try_file(const char *tenant, const char *text, uint64_t expires_s, struct batch_file *out,
                                   struct error *error)
{
    struct batch_file file = {.purpose = "batch", .filename = "in.jsonl", .bytes = strlen(text), .expires_s = expires_s};
    char path[BATCH_PATH_BYTES];
    enum status status;
    int fd;

    batch_store_make_id("file-", file.id);
    snprintf(file.tenant, sizeof file.tenant, "%s", tenant);
    file.created_s = clock_wall_us() / 1000000;
    batch_store_path(store, file.id, true, path);
    fd = open(path, O_WRONLY | O_CREAT, 0600);
    assert_int_equal(write(fd, text, strlen(text)), strlen(text));
    assert_true(batch_store_reserve(store, tenant, strlen(text)));
    status = batch_store_add_file(store, &file, fd, error);
    close(fd);
    if (status != STATUS_OK)
        batch_store_release(store, tenant, strlen(text));
    *out = file;
    return status;
}

static inline struct batch_file put_file(const char *tenant, const char *text, uint64_t expires_s)
{
    struct batch_file file;
    struct error error;

    if (try_file(tenant, text, expires_s, &file, &error) != STATUS_OK)
        fail_msg("%s", error.text);
    return file;
}

static inline struct batch_record put_batch(const struct batch_file *input)
{
    struct batch_record record = {.status = BATCH_VALIDATING, .endpoint = BATCH_ENDPOINT_COMPLETIONS, .window = "24h"};
    struct error error;

    batch_store_make_id("batch_", record.id);
    batch_store_make_id("file-", record.output);
    batch_store_make_id("file-", record.errors);
    memcpy(record.input, input->id, sizeof record.input);
    memcpy(record.tenant, input->tenant, sizeof record.tenant);
    record.at_s[BATCH_VALIDATING] = clock_wall_us() / 1000000;
    record.expires_s = record.at_s[BATCH_VALIDATING] + 24 * 3600;
    record.output_kept_s = BATCH_KEPT_S;
    assert_int_equal(batch_store_add_batch(store, &record, &error), STATUS_OK);
    return record;
}

#endif
