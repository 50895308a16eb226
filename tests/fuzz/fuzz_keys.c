// fuzz_keys.c: files of API keys: what is taken is found by its keys alone, and a file that is read again gives the same owners.
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/status.h"
#include "services/gateway/http/keys.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

// Each word of the file as a key: a name or a hash is none, unless a line has it alone.
static void look_up(struct keys *keys, const uint8_t *data, size_t size)
{
    char *text = malloc(size + 1), *rest = NULL;

    assert_always(text);
    memcpy(text, data, size);
    text[size] = '\0';
    for (char *word = strtok_r(text, " \t\r\n", &rest); word; word = strtok_r(NULL, " \t\r\n", &rest)) {
        char header[700];
        if ((size_t)snprintf(header, sizeof header, "Bearer %s", word) >= sizeof header)
            continue;
        struct key *key = keys_find(keys, header);
        assert_always(!key || (key->name[0] == '\0' && strncmp(key->tenant, "key-", 4) == 0));
        assert_always(keys_find(keys, header) == key);
    }
    free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char path[64];
    struct keys *keys;
    struct error error = {0};
    int fd = memfd_create("keys", MFD_CLOEXEC);

    assert_always(fd >= 0 && fchmod(fd, 0600) == 0 && write(fd, data, size) == (ssize_t)size);
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    if (!keys_open(path, &keys, &error)) {
        uint32_t count = keys_count(keys);
        assert_always(count > 0 && count <= KEYS_MAX);
        look_up(keys, data, size);
        assert_always(keys_reload(keys, true) && keys_count(keys) == count);
        look_up(keys, data, size);
        keys_close(keys);
    } else {
        assert_always(error.text[0]);
    }
    close(fd);
    return 0;
}
