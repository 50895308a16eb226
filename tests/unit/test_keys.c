/* test_keys.c: files of API keys: who is known by them, what is refused, and what a new file leaves as it was. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "common/api/apikey.h"
#include "common/base/checked.h"
#include "common/base/clock.h"
#include "services/gateway/http/keys.h"
#include "tests/cmocka.h"

static char path[] = "/tmp/fd-keys-XXXXXX";

static void write_file(const char *text)
{
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_int_equal(fchmod(fileno(file), 0600), 0);
    fputs(text, file);
    fclose(file);
}

/* "NAME blake2b:... more" of a key. */
static const char *line_of(const char *name, const char *key, const char *more)
{
    static char lines[4][512];
    static unsigned next;
    char hash[APIKEY_HASH_TEXT_BYTES], *out = lines[next++ % 4];
    apikey_hash_text(key, hash);
    snprintf(out, sizeof lines[0], "%s %s %s\n", name, hash, more);
    return out;
}

static struct key *find(struct keys *keys, const char *key)
{
    char header[600];
    snprintf(header, sizeof header, "Bearer %s", key);
    return keys_find(keys, header);
}

static struct keys *open_keys(const char *text)
{
    struct keys *keys;
    struct error error;
    write_file(text);
    assert_int_equal(keys_open(path, &keys, &error), STATUS_OK);
    return keys;
}

static void test_who_is_known(void **state)
{
    char text[2000];
    snprintf(text, sizeof text, "# plain keys\n\n  sk-one \nsk-two\r\nsk-one\n%s%s%s",
             line_of("team-a", "key-a", "requests=3 tokens=70 open=2"), line_of("team-a", "key-b", "requests=3 tokens=70 open=2"),
             line_of("night", "key-c", "class=batch models=m,other"));
    struct keys *keys = open_keys(text);
    assert_int_equal(keys_count(keys), 5);
    assert_non_null(find(keys, "sk-one"));
    assert_ptr_not_equal(find(keys, "sk-one"), find(keys, "sk-two"));
    assert_string_equal(find(keys, "sk-one")->name, "");
    assert_ptr_equal(find(keys, "key-a"), find(keys, "key-b"));
    assert_string_equal(find(keys, "key-a")->name, "team-a");
    assert_int_equal(find(keys, "key-a")->limits.requests, 3);
    assert_int_equal(find(keys, "key-a")->limits.tokens, 70);
    assert_int_equal(find(keys, "key-a")->limits.open, 2);
    assert_true(key_is_batch(find(keys, "key-c")) && !key_is_batch(find(keys, "key-a")));
    static const char *const unknown[] = {"", "sk-on", "sk-one2", "team-a", "key-d", "sk-two\r"};
    for (size_t i = 0; i < ARRAY_COUNT(unknown); i++)
        assert_null(find(keys, unknown[i]));
    assert_null(keys_find(keys, "sk-one"));
    assert_null(keys_find(keys, "Basic sk-one"));
    assert_non_null(keys_find(keys, "bearer   sk-one"));
    char hash[APIKEY_HASH_TEXT_BYTES];
    apikey_hash_text("key-a", hash);
    assert_null(find(keys, hash)); /* what the file says is no key */
    struct api_error error;
    assert_true(key_permits_model(find(keys, "key-c"), "m", &error) && key_permits_model(find(keys, "key-c"), "other", &error));
    assert_true(key_permits_model(find(keys, "key-a"), "anything", &error));
    assert_false(key_permits_model(find(keys, "key-c"), "othe", &error));
    assert_int_equal(error.status, 403);
    keys_close(keys);
}

static void test_refused_files(void **state)
{
    static const char digits[] = "blake2b:00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";
    char long_line[3000], named[4][200];
    memset(long_line, 'k', sizeof long_line - 1);
    long_line[sizeof long_line - 1] = '\0';
    snprintf(named[0], sizeof named[0], "x %s requests=0\n", digits);
    snprintf(named[1], sizeof named[1], "x %s speed=3\n", digits);
    snprintf(named[2], sizeof named[2], "x %s open=5\nx %.71sa open=6\n", digits, digits);
    snprintf(named[3], sizeof named[3], "x %s\ny %s\n", digits, digits);
    const struct {
        const char *text, *why;
    } files[] = {
        {"", "no key"},
        {"# none\n\n", "no key"},
        {long_line, "line 1: the line is too long"},
        {"ok\nname sha256:00\n", "line 2: behind the name comes blake2b:"},
        {"name blake2b:0011\n", "64 hexadecimal digits"},
        {"na/me blake2b:00\n", "an owner's name has letters"},
        {named[0], "whole number from 1 on"},
        {named[1], "an unknown limit"},
        {named[2], "line 2: 'x' has other limits in line 1"},
        {named[3], "line 2: this key has another owner"},
        {"a b c d e f g h i\n", "more fields"},
    };
    for (size_t i = 0; i < ARRAY_COUNT(files); i++) {
        struct keys *keys;
        struct error error;
        write_file(files[i].text);
        assert_int_equal(keys_open(path, &keys, &error), STATUS_INVALID_ARGUMENT);
        if (!strstr(error.text, files[i].why))
            fail_msg("%s: not \"%s\"", error.text, files[i].why);
    }
}

// Its readers could use plain keys, and its writers could add some.
static void test_files_that_others_can_read(void **state)
{
    static const mode_t modes[] = {0644, 0640, 0606, 0620};
    struct keys *keys;
    struct error error;
    char wanted[64];

    write_file("sk-one\n");
    snprintf(wanted, sizeof wanted, "chmod 600 %s", path);
    for (size_t i = 0; i < ARRAY_COUNT(modes); i++) {
        assert_int_equal(chmod(path, modes[i]), 0);
        assert_int_equal(keys_open(path, &keys, &error), STATUS_FAILED_PRECONDITION);
        assert_non_null(strstr(error.text, wanted));
    }
    if (geteuid() == 0) { // another's: as root's file is to a service
        assert_int_equal(chmod(path, 0644) || chown(path, 65534, 65534), 0);
        assert_int_equal(keys_open(path, &keys, &error), STATUS_OK);
        keys_close(keys);
        assert_int_equal(chown(path, 0, 0), 0);
    }
    assert_int_equal(chmod(path, 0600), 0);
}

static void test_reload(void **state)
{
    struct key_grant grant;
    struct api_error error;
    struct keys *keys = open_keys(line_of("team-a", "key-a", "requests=2"));
    struct key *owner = find(keys, "key-a");
    assert_true(key_begin(owner, &grant, &error));
    assert_false(keys_reload(keys, false)); /* it has not changed */
    write_file("team-a nonsense\n");
    assert_false(keys_reload(keys, true));
    assert_ptr_equal(find(keys, "key-a"), owner);
    char text[600]; /* rotated: both keys, then the new one */
    snprintf(text, sizeof text, "%s%s", line_of("team-a", "key-a", "requests=2"), line_of("team-a", "key-b", "requests=2"));
    write_file(text);
    assert_true(keys_reload(keys, true));
    assert_ptr_equal(find(keys, "key-a"), owner);
    assert_ptr_equal(find(keys, "key-b"), owner);
    write_file(line_of("team-a", "key-b", "requests=3 open=1"));
    assert_true(keys_reload(keys, true));
    assert_null(find(keys, "key-a"));
    assert_false(key_begin(owner, &(struct key_grant){0}, &error)); /* one is open */
    assert_int_equal(error.status, 429);
    key_end(&grant, 0);
    key_end(&grant, 0); /* nothing more */
    assert_int_equal(owner->open, 0);
    assert_true(key_begin(owner, &grant, &error)); /* the second of three */
    key_end(&grant, 0);
    assert_true(key_begin(owner, &grant, &error));
    key_end(&grant, 0);
    assert_false(key_begin(owner, &grant, &error));
    assert_in_range(error.retry_after_s, 1, RATE_SECONDS);
    unlink(path);
    assert_false(keys_reload(keys, false));
    assert_ptr_equal(find(keys, "key-b"), owner);
    keys_close(keys);
    write_file("x\n");
}

static void test_tokens(void **state)
{
    struct key_grant grant, other;
    struct api_error error;
    struct key_state seen;
    struct keys *keys = open_keys(line_of("t", "key", "tokens=100"));
    struct key *owner = find(keys, "key");
    assert_true(key_begin(owner, &grant, &error) && key_take_tokens(&grant, 80, &error));
    assert_true(key_begin(owner, &other, &error));
    assert_false(key_take_tokens(&other, 21, &error));
    assert_non_null(strstr(error.message, "of which 20 are left"));
    assert_true(key_take_tokens(&other, 20, &error));
    key_end(&grant, 30); /* 50 come back */
    key_end(&other, 20);
    key_state(owner, &seen);
    assert_int_equal(seen.tokens_limit, 100);
    assert_int_equal(seen.tokens_left, 50);
    assert_int_equal(seen.requests_limit, 0);
    keys_close(keys);
}

/* Wrong keys that begin as a right one take as long as any others: medians of interleaved runs. */
static int by_value(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

static void test_time_tells_nothing(void **state)
{
    enum { ROUNDS = 4001 };
    static uint64_t times[2][ROUNDS];
    const char *wrong[] = {"fd-AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAB", "xd-BBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBB"};
    struct keys *keys = open_keys("fd-AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA\n");
    for (uint32_t i = 0; i < ROUNDS; i++)
        for (uint32_t k = 0; k < 2; k++) {
            uint32_t which = (i + k) % 2;
            uint64_t began = clock_now_ns();
            for (uint32_t n = 0; n < 4; n++)
                assert_null(find(keys, wrong[which]));
            times[which][i] = clock_now_ns() - began;
        }
    qsort(times[0], ROUNDS, sizeof times[0][0], by_value);
    qsort(times[1], ROUNDS, sizeof times[0][0], by_value);
    double ratio = (double)times[0][ROUNDS / 2] / (double)times[1][ROUNDS / 2];
    print_message("ratio of medians %.3f\n", ratio);
    assert_true(ratio > 0.9 && ratio < 1.1);
    keys_close(keys);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_who_is_known),
        cmocka_unit_test(test_refused_files),
        cmocka_unit_test(test_files_that_others_can_read),
        cmocka_unit_test(test_reload),
        cmocka_unit_test(test_tokens),
        cmocka_unit_test(test_time_tells_nothing),
    };
    int fd = mkstemp(path);
    if (fd < 0)
        return 1;
    close(fd);
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    unlink(path);
    return failed;
}
