// test_pages.c: If-None-Match, and the scheduler's view of the mesh as JSON whatever is in it.
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "services/gateway/mesh/mesh.h"
#include "services/gateway/serve/pages.h"
#include "tests/cmocka.h"

static void test_etags(void **state)
{
    static const struct {
        const char *given;
        bool matches;
    } cases[] = {
        {"\"ab\"", true}, {"W/\"ab\"", true}, {"*", true},         {" \"x\" , \"ab\"", true}, {"\"x\",W/\"ab\",\"y\"", true},
        {"", false},      {"\"abc\"", false}, {"ab", false},       {"\"a\"", false},          {"\"", false},
        {"W/", false},    {",,,", false},     {"\"x, *\"", false}, {"\"x\" \"ab", false},     {"\"\\\"ab\\\"", false},
    };

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        if (pages_etag_matches(cases[i].given, "\"ab\"") != cases[i].matches)
            fail_msg("%s", cases[i].given);
}

static void test_files_have_names_types_and_tags(void **state)
{
    for (const struct page_file *file = page_files; file->name; file++) {
        assert_true(file->bytes > 0 && strlen(file->etag) == 18);
        for (const struct page_file *other = page_files; other != file; other++)
            assert_true(strcmp(file->name, other->name) != 0 && strcmp(file->etag, other->etag) != 0);
    }
}

// Reads the JSON of a view back.
static json_t *parsed(const Fastdecode__MeshView *view)
{
    char *text = mesh_view_json(view);
    json_error_t error;
    json_t *root;

    assert_non_null(text);
    root = json_loads(text, JSON_REJECT_DUPLICATES, &error);
    if (!root)
        fail_msg("%s in %s", error.text, text);
    free(text);
    return root;
}

static void test_an_empty_view(void **state)
{
    const Fastdecode__MeshView view = FASTDECODE__MESH_VIEW__INIT;
    json_t *root = parsed(&view);

    assert_true(json_is_null(json_object_get(root, "plan")));
    assert_int_equal(json_array_size(json_object_get(root, "places")), 0);
    assert_string_equal(json_string_value(json_object_get(root, "model")), "");
    json_decref(root);
}

// Numbers that JSON does not have, enums of a later version, bytes that are no UTF-8.
static void test_hostile_values(void **state)
{
    Fastdecode__MeshView view = FASTDECODE__MESH_VIEW__INIT;
    Fastdecode__PlanView plan = FASTDECODE__PLAN_VIEW__INIT;
    Fastdecode__PlaceView place = FASTDECODE__PLACE_VIEW__INIT, *places[] = {&place, &place};
    Fastdecode__StepView step = FASTDECODE__STEP_VIEW__INIT, *steps[] = {&step};
    Fastdecode__EventView event = FASTDECODE__EVENT_VIEW__INIT, *events[] = {&event};
    Fastdecode__PlaceTime time = FASTDECODE__PLACE_TIME__INIT, *times[] = {&time};
    Fastdecode__StageView stage = FASTDECODE__STAGE_VIEW__INIT, *stages[] = {&stage};
    uint64_t loads[] = {1, 2, 3};

    view.scheduler_incarnation = UINT64_MAX;
    view.kv_type = (Fastdecode__KvType)99;
    view.prediction_error_ratio = NAN;
    view.model = (char *)"\"\\\n\x01\xff</script>";
    plan.tokens_per_second = INFINITY;
    plan.bound_by = (char *)"\"";
    place.name = (char *)"a\",\"b";
    place.load_tokens = loads;
    place.n_load_tokens = 3;
    event.kind = (Fastdecode__EventKind)-1;
    step.places = times;
    step.n_places = 1;
    view.plan = &plan;
    view.places = places, view.n_places = 2;
    view.recent_steps = steps, view.n_recent_steps = 1;
    view.events = events, view.n_events = 1;
    view.stages = stages, view.n_stages = 1;
    json_t *root = parsed(&view);
    assert_string_equal(json_string_value(json_object_get(root, "scheduler_incarnation")), "ffffffffffffffff");
    assert_string_equal(json_string_value(json_object_get(root, "model")), "\"\\\n\x01\xEF\xBF\xBD</script>");
    assert_string_equal(json_string_value(json_object_get(root, "kv_type")), "");
    assert_true(json_number_value(json_object_get(root, "prediction_error_ratio")) == 0);
    assert_true(json_number_value(json_object_get(json_object_get(root, "plan"), "tokens_per_second")) == 0);
    json_t *first = json_array_get(json_object_get(root, "places"), 1);
    assert_string_equal(json_string_value(json_object_get(first, "name")), "a\",\"b");
    assert_int_equal(json_integer_value(json_array_get(json_object_get(first, "load_tokens"), 2)), 3);
    assert_string_equal(json_string_value(json_object_get(json_array_get(json_object_get(root, "events"), 0), "kind")), "unknown");
    assert_int_equal(json_array_size(json_object_get(json_array_get(json_object_get(root, "recent_steps"), 0), "places")), 1);
    json_decref(root);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_etags),
        cmocka_unit_test(test_files_have_names_types_and_tags),
        cmocka_unit_test(test_an_empty_view),
        cmocka_unit_test(test_hostile_values),
    };

    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
