// test_supervise.c: the folder of a mesh that `fastdecode up` uses.
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/checked.h"
#include "services/fastdecode/up/supervise.h"
#include "tests/cmocka.h"

static char folder[64], run[96];

static int make_folder(void **state)
{
    snprintf(folder, sizeof folder, "/tmp/fd-supervise-XXXXXX");
    assert_non_null(mkdtemp(folder));
    snprintf(run, sizeof run, "%s/run", folder);
    return 0;
}

static int remove_folder(void **state)
{
    char path[128];
    snprintf(path, sizeof path, "%s/lock", run);
    unlink(path);
    if (rmdir(run))
        unlink(run);
    return rmdir(folder);
}

static enum status open_status(struct error *error)
{
    static struct supervisor supervisor;
    sigset_t before;
    sigprocmask(SIG_BLOCK, NULL, &before);
    enum status status = supervise_open(&supervisor, run, error);
    supervise_close(&supervisor);
    sigprocmask(SIG_SETMASK, &before, NULL);
    return status;
}

static void a_folder_of_its_own_is_made_and_used_again(void **state)
{
    struct error error;
    struct stat info;
    assert_int_equal(open_status(&error), STATUS_OK);
    assert_int_equal(stat(run, &info), 0);
    assert_int_equal(info.st_mode & 0777, 0700);
    assert_int_equal(open_status(&error), STATUS_OK);
}

static void a_folder_that_is_open_to_others_is_refused(void **state)
{
    static const mode_t modes[] = {0701, 0710, 0720, 0755, 0777};
    struct error error;
    assert_int_equal(mkdir(run, 0700), 0);
    for (size_t i = 0; i < ARRAY_COUNT(modes); i++) {
        assert_int_equal(chmod(run, modes[i]), 0);
        assert_int_equal(open_status(&error), STATUS_INVALID_ARGUMENT);
        assert_non_null(strstr(error.text, "chmod 700"));
    }
    assert_int_equal(chmod(run, 0700), 0);
    assert_int_equal(open_status(&error), STATUS_OK);
}

static void a_folder_of_another_user_is_refused(void **state)
{
    struct error error;
    if (geteuid() != 0) { // only root can give a folder away; "/" is another's for everybody else
        snprintf(run, sizeof run, "/");
        assert_int_equal(open_status(&error), STATUS_INVALID_ARGUMENT);
        assert_non_null(strstr(error.text, "belongs to user 0"));
        snprintf(run, sizeof run, "%s/run", folder);
        assert_int_equal(mkdir(run, 0700), 0); // for remove_folder()
        return;
    }
    assert_int_equal(mkdir(run, 0700), 0);
    assert_int_equal(chown(run, 65534, 65534), 0);
    assert_int_equal(open_status(&error), STATUS_INVALID_ARGUMENT);
    assert_non_null(strstr(error.text, "belongs to user 65534"));
}

static void a_link_is_refused(void **state)
{
    struct error error;
    assert_int_equal(symlink(folder, run), 0);
    assert_int_equal(open_status(&error), STATUS_INVALID_ARGUMENT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_folder_of_its_own_is_made_and_used_again, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(a_folder_that_is_open_to_others_is_refused, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(a_folder_of_another_user_is_refused, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(a_link_is_refused, make_folder, remove_folder),
    };
    return cmocka_run_group_tests_name("supervise", tests, NULL, NULL);
}
