// test_batch_job.c: a batch's job, from its input to its results; it is taken up again after being killed at any byte of them.
#include <fcntl.h>
#include <sys/stat.h>

#include "services/gateway/batch/job.h"
#include "tests/unit/batch_store_rig.h"

#define LINE(id, url) "{\"custom_id\":\"" id "\",\"method\":\"POST\",\"url\":\"" url "\",\"body\":{\"prompt\":\"" id "\"}}\n"
#define C "/v1/completions"

static const char input[] = LINE("a", C) "\n" LINE("b", C) "not json\n" LINE("a", C) LINE("c", "/v1/chat/completions")
    LINE("d", C) "{\"custom_id\":\"e\"}";
enum { REQUESTS = 7 };

static void validate(struct batch_job *job)
{
    enum batch_validation validation;

    while ((validation = batch_job_validate(job, 2)) == BATCH_VALID_MORE)
        ;
    assert_int_equal(validation, BATCH_VALID);
    assert_int_equal(job->record.counts.total, REQUESTS);
}

// Answers up to `most` lines. Returns how many there were.
static uint32_t answer_lines(struct batch_job *job, uint32_t most)
{
    uint32_t count = 0;

    while (count < most) {
        char id[BATCH_ID_BYTES + 24];
        struct batch_line line;
        struct batch_error error = {0};
        uint64_t number;
        enum batch_next next = batch_job_next(job, &number, &line, &error);
        struct batch_result result = {.id = id, .custom_id = line.custom_id, .request_id = "r", .body = "{}", .body_bytes = 2};

        if (next == BATCH_NEXT_NONE)
            break;
        batch_job_result_id(job, number, id);
        if (next == BATCH_NEXT_ERROR)
            result.error = &error;
        else
            result.status = 200;
        assert_true(batch_job_write(job, store, number, &result));
        batch_line_free(&line);
        count++;
    }
    return count;
}

static void reopen(struct batch_record *record, struct batch_job *job)
{
    struct error error;

    if (batch_job_open(store, record, 1000, 4096, job, &error) != STATUS_OK)
        fail_msg("%s", error.text);
    validate(job);
}

static char *read_file(const char *id)
{
    char path[BATCH_PATH_BYTES], *text = calloc(1, 65536);
    int fd;

    batch_store_path(store, id, false, path);
    fd = open(path, O_RDONLY);
    assert_true(fd >= 0 && read(fd, text, 65535) >= 0);
    close(fd);
    return text;
}

static void check_results(const struct batch_record *record)
{
    static const char *const wanted[] = {"\"a\"",
                                         "\"b\"",
                                         "\"c\"",
                                         "\"d\"",
                                         "\"e\"",
                                         "invalid_json_line",
                                         "duplicate_custom_id",
                                         "mismatched_url",
                                         "missing_required_parameter"};
    char *output = read_file(record->output), *errors = read_file(record->errors), both[65536 * 2];
    size_t i, lines = 0;

    snprintf(both, sizeof both, "%s%s", output, errors);
    for (i = 0; both[i]; i++)
        lines += both[i] == '\n';
    assert_int_equal(lines, REQUESTS);
    for (i = 0; i < sizeof wanted / sizeof wanted[0]; i++) {
        char *first;
        char key[64];
        snprintf(key, sizeof key, i < 5 ? "\"custom_id\":%s" : "\"code\":\"%s\"", wanted[i]);
        first = strstr(both, key);
        if (!first)
            fail_msg("no %s in %s", key, both);
        assert_null(strstr(first + 1, key));
    }
    free(output);
    free(errors);
}

static void test_job(void **state)
{
    struct batch_file file = put_file("key-j", input, 0);
    struct batch_record record = put_batch(&file), seen;
    struct batch_job job;
    struct error error;
    char path[BATCH_PATH_BYTES];

    reopen(&record, &job);
    assert_int_equal(answer_lines(&job, 100), REQUESTS);
    assert_true(job.at_end);
    assert_int_equal(job.record.counts.completed, 3);
    assert_int_equal(job.record.counts.failed, 4);
    assert_int_equal(batch_job_end(&job, store, &error), STATUS_OK);
    check_results(&job.record);
    batch_job_close(&job);
    assert_int_equal(batch_store_get_batch(store, "key-j", record.id, &seen, &error), STATUS_OK);
    assert_int_equal(seen.status, BATCH_COMPLETED);
    assert_true(seen.has_output && seen.has_errors && seen.at_s[BATCH_FINALIZING] && seen.at_s[BATCH_COMPLETED]);
    batch_record_free(&seen);
    assert_int_equal(batch_store_get_file(store, "key-j", record.output, &file, &error), STATUS_OK);
    assert_string_equal(file.purpose, "batch_output");
    assert_int_equal(batch_store_delete_file(store, "key-j", record.output, &error), STATUS_OK);
    batch_store_path(store, record.output, false, path);
    assert_int_equal(access(path, F_OK), -1);
}

// Killed after any number of answers, with the last line torn at any byte: each request has one result in the end.
static void test_job_again(void **state)
{
    struct batch_file file = put_file("key-k", input, 0);
    struct batch_record record = put_batch(&file);
    uint32_t answers, torn;

    for (answers = 0; answers <= REQUESTS; answers++) {
        for (torn = 0; torn < 3; torn++) {
            struct batch_record copy = record;
            struct batch_job job;
            char path[BATCH_PATH_BYTES];
            struct stat about;

            reopen(&copy, &job);
            assert_int_equal(answer_lines(&job, answers), answers);
            batch_job_close(&job);
            batch_store_path(store, torn == 1 ? record.output : record.errors, false, path);
            if (torn && stat(path, &about) == 0 && about.st_size > 1)
                assert_int_equal(truncate(path, about.st_size - 1 - (answers * 13) % 50), 0);
            copy = record;
            reopen(&copy, &job);
            answer_lines(&job, 100);
            assert_int_equal(job.record.counts.completed + job.record.counts.failed, REQUESTS);
            assert_int_equal(job.record.counts.completed, 3);
            batch_job_close(&job);
            check_results(&record);
            batch_store_path(store, record.output, false, path);
            assert_int_equal(unlink(path), 0);
            batch_store_path(store, record.errors, false, path);
            assert_int_equal(unlink(path), 0);
        }
    }
}

static void test_bad_inputs(void **state)
{
    static const struct {
        const char *text, *code;
        uint64_t max_lines;
    } cases[] = {{"\n \n", "empty_file", 10}, {"a\nb\nc\n", "too_many_lines", 2}};
    size_t i;

    for (i = 0; i < 2; i++) {
        struct batch_file file = put_file("key-b", cases[i].text, 0);
        struct batch_record record = put_batch(&file), seen;
        enum batch_validation validation;
        struct batch_job job;
        struct error error;

        assert_int_equal(batch_job_open(store, &record, cases[i].max_lines, 100, &job, &error), STATUS_OK);
        while ((validation = batch_job_validate(&job, 1)) == BATCH_VALID_MORE)
            ;
        assert_int_equal(validation, BATCH_INVALID);
        assert_int_equal(batch_job_end(&job, store, &error), STATUS_OK);
        batch_job_close(&job);
        assert_int_equal(batch_store_get_batch(store, "key-b", record.id, &seen, &error), STATUS_OK);
        assert_int_equal(seen.status, BATCH_FAILED);
        assert_string_equal(seen.error_code, cases[i].code);
        assert_false(seen.has_output || seen.has_errors);
        batch_record_free(&seen);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_job),
        cmocka_unit_test(test_job_again),
        cmocka_unit_test(test_bad_inputs),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
