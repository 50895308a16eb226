// gateway_rig.h: a gateway over real sockets and RPC, with a scheduler of canned tokens behind it (`fake`) and a model of a few
// kilobytes. set_up() and tear_down() are a group's, reset() is each test's. One a program; include after cmocka.h.
#ifndef FD_TESTS_GATEWAY_RIG_H
#define FD_TESTS_GATEWAY_RIG_H

#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/log.h"
#include "services/gateway/serve/gateway.h"
#include "services/gateway/text/language.h"
#include "tests/integration/await.h"
#include "tests/integration/even_priority.h"
#include "tests/integration/fake_scheduler.h"
#include "tests/integration/http_client.h"
#include "tests/unit/gguf_build.h"

#define CHAT "/v1/chat/completions"
#define COMPLETION "/v1/completions"
#define PROMPT5 "\"prompt\":[5,6,7,8,9]"

static char folder[] = "/tmp/fd-gateway-XXXXXX";
static char model_path[64], template_path[64], address[80];
static struct fake fake;
static struct gateway *gateway;
static uint32_t port;

static inline void write_file(const char *path, const void *bytes, size_t count)
{
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fchmod(fileno(file), 0600), 0); // it may be a key
    assert_int_equal(fwrite(bytes, 1, count, file), count);
    assert_int_equal(fclose(file), 0);
}

static inline void write_model(void)
{
    static const char chat[] = "{% for m in messages %}{{ m.content }}{% endfor %}";
    struct gguf_build build = {0};
    struct tiny_llama tiny = TINY_LLAMA;
    unsigned char *bytes;
    size_t count;

    snprintf(model_path, sizeof model_path, "%s/tiny.gguf", folder);
    snprintf(template_path, sizeof template_path, "%s/chat.jinja", folder);
    tiny.context = FAKE_CONTEXT;
    gguf_build_llama(&build, &tiny);
    bytes = gguf_build_finish(&build, &count);
    write_file(model_path, bytes, count);
    write_file(template_path, chat, sizeof chat - 1);
    free(bytes);
}

// The ids of the letters a to z, one token each.
static inline void learn_letters(void)
{
    struct language_config config = {.model_path = model_path, .chat_template_path = template_path};
    struct language *language;
    struct error error;
    uint32_t i;

    if (language_open(&config, &language, &error) != STATUS_OK)
        fail_msg("%s", error.text);
    for (i = 0; i < FAKE_LETTERS; i++) {
        char letter = (char)('a' + i);
        uint32_t *ids, count;
        assert_int_equal(language_encode(language, &letter, 1, false, false, 10, &ids, &count, &error), STATUS_OK);
        assert_int_equal(count, 1);
        fake.letters[i] = ids[0];
        free(ids);
    }
    for (i = 0; i < language_vocab(language) && !language_is_special(language, i); i++)
        ;
    fake.end_token = i;
    language_close(language);
}

static inline struct gateway_config make_config(void)
{
    struct gateway_config config;

    gateway_defaults(&config);
    config.port = 0;
    config.scheduler = address;
    config.model = model_path;
    config.chat_template = template_path;
    config.served_model_name = "tiny";
    config.ready_grace_s = 0.3;
    config.keep_alive_s = 0.2;
    return config;
}

static inline void wait_ready(uint32_t at) { AWAIT(usleep(2000), http_ask(at, "GET", "/ready", "", "") == 200); }

static enum log_level rig_log_level = LOG_ERROR; // set before set_up()

static inline int set_up(void **state)
{
    struct gateway_config config;
    struct error error;

    log_threshold = getenv("FD_TEST_LOG") ? LOG_DEBUG : rig_log_level;
    assert_non_null(mkdtemp(folder));
    snprintf(address, sizeof address, "ipc://%s/scheduler.sock", folder);
    write_model();
    learn_letters();
    fake_start(&fake, address);
    config = make_config();
    if (gateway_open(&config, &gateway, &error) != STATUS_OK)
        fail_msg("%s", error.text);
    port = gateway_port(gateway);
    wait_ready(port);
    return 0;
}

static inline int tear_down(void **state)
{
    char command[128];

    gateway_close(gateway);
    fake_end(&fake);
    snprintf(command, sizeof command, "rm -r %s", folder);
    return system(command);
}

static inline bool saw_cancelled(const struct fake_settings *settings, uint32_t wanted) { return settings->cancelled >= wanted; }
static inline bool saw_refused(const struct fake_settings *settings, uint32_t wanted) { return settings->refused >= wanted; }
static inline bool saw_open(const struct fake_settings *settings, uint32_t wanted) { return settings->open >= wanted; }
static inline bool saw_expects(const struct fake_settings *settings, uint32_t wanted) { return settings->expects >= wanted; }
static inline bool saw_at_most_open(const struct fake_settings *settings, uint32_t wanted) { return settings->open <= wanted; }

static inline int reset(void **state)
{
    assert_true(fake_wait(&fake, saw_at_most_open, 0)); // tests count from what is open when they begin
    fake_set_tokens(&fake, UINT32_MAX, UINT32_MAX, FASTDECODE__FINISH__FINISH_UNSPECIFIED);
    fake_set(&fake, true, false, 0, 10000);
    wait_ready(port);
    return 0;
}

// Returns the text that the scheduler generates for a prompt of so many tokens.
static inline const char *canned(uint32_t prompt_count, uint32_t choice, uint32_t count)
{
    static char text[1024];
    uint32_t i;

    for (i = 0; i < count; i++)
        text[i] = (char)('a' + (prompt_count + 7 * choice + i) % FAKE_LETTERS);
    text[count] = '\0';
    return text;
}

#endif
