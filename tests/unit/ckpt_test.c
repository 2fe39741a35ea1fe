/* Model directories: the index decides, names stay in the directory, failures are named. */
#include <sys/stat.h>

#include "ckpt/ckpt.h"
#include "data.h"

static char dir[DATA_PATH_MAX];

static void set_up(void)
{
    scratch_make(dir);
}

static void tear_down(void)
{
    scratch_remove(dir);
}

static void assert_opens(const char *path, struct eep_ckpt **ckpt_out)
{
    enum eep_status status = eep_ckpt_open(path, ckpt_out);

    ck_assert_msg(status == EEP_OK, "%s", eep_error_text());
}

static void assert_refused(enum eep_status want, const char *fragment)
{
    struct eep_ckpt *ckpt = NULL;

    ck_assert_int_eq(eep_ckpt_open(dir, &ckpt), want);
    ck_assert_ptr_null(ckpt);
    assert_error_has(dir);
    assert_error_has(fragment);
}

/* The index of ok-qwen3 with one entry changed. */
static void write_index(const char *tensor, json_t *file)
{
    json_t *index = load_json(data_path("cases/model/ok-qwen3/model.safetensors.index.json"));

    json_object_set_new(json_object_get(index, "weight_map"), tensor, file);
    scratch_write_json(dir, "model.safetensors.index.json", index);
    json_decref(index);
    scratch_link_all(dir, data_path("cases/model/ok-qwen3"));
}

START_TEST(tensors_are_found_over_the_shards)
{
    struct eep_ckpt *ckpt;
    struct stat first, second;

    assert_opens(data_path("tiny-mixtral"), &ckpt);
    const struct eep_tensor *down =
        eep_ckpt_find(ckpt, "model.layers.0.block_sparse_moe.experts.0.w2.weight");
    const struct eep_tensor *up =
        eep_ckpt_find(ckpt, "model.layers.0.block_sparse_moe.experts.0.w3.weight");

    ck_assert_ptr_nonnull(down);
    ck_assert_ptr_nonnull(up);
    ck_assert_str_ne(down->file, up->file); /* this checkpoint splits an expert */
    ck_assert_ptr_null(eep_ckpt_find(ckpt, "model.layers.0"));
    ck_assert_str_eq(json_string_value(json_object_get(eep_ckpt_config(ckpt), "model_type")),
                     "mixtral");
    ck_assert_ptr_nonnull(eep_ckpt_generation_config(ckpt));
    stat(data_path("tiny-mixtral/model-00001-of-00002.safetensors"), &first);
    stat(data_path("tiny-mixtral/model-00002-of-00002.safetensors"), &second);
    ck_assert_uint_eq(eep_ckpt_bytes(ckpt), (uint64_t)(first.st_size + second.st_size));
    for (size_t i = 0; i < eep_ckpt_count(ckpt); i++) {
        const struct eep_tensor *tensor = eep_ckpt_at(ckpt, i);

        ck_assert_ptr_eq(eep_ckpt_find(ckpt, tensor->name), tensor);
    }
    eep_ckpt_close(ckpt);
}
END_TEST

START_TEST(one_file_needs_no_index)
{
    struct eep_ckpt *ckpt;

    assert_opens(data_path("tiny-qwen3-moe"), &ckpt);
    ck_assert_ptr_nonnull(eep_ckpt_find(ckpt, "model.layers.3.mlp.experts.15.up_proj.weight"));
    ck_assert_ptr_nonnull(strstr(eep_ckpt_source(ckpt), "tiny-qwen3-moe/model.safetensors"));
    eep_ckpt_close(ckpt);
}
END_TEST

START_TEST(files_outside_the_index_are_not_seen)
{
    struct eep_ckpt *good, *stray;

    assert_opens(data_path("cases/model/ok-qwen3"), &good);
    assert_opens(data_path("cases/model/stray-file"), &stray);
    ck_assert_uint_eq(eep_ckpt_count(stray), eep_ckpt_count(good));
    ck_assert_uint_eq(eep_ckpt_bytes(stray), eep_ckpt_bytes(good));
    for (size_t i = 0; i < eep_ckpt_count(good); i++) {
        const struct eep_tensor *want = eep_ckpt_at(good, i);
        const struct eep_tensor *has = eep_ckpt_find(stray, want->name);

        ck_assert_ptr_nonnull(has);
        ck_assert_ptr_null(strstr(has->file, "consolidated"));
        ck_assert_uint_eq(has->bytes, want->bytes);
        ck_assert_mem_eq(has->data, want->data, want->bytes);
    }
    eep_ckpt_close(stray);
    eep_ckpt_close(good);
}
END_TEST

START_TEST(tensors_outside_the_index_are_not_seen)
{
    json_t *index = load_json(data_path("cases/model/ok-qwen3/model.safetensors.index.json"));
    struct eep_ckpt *ckpt;

    json_object_del(json_object_get(index, "weight_map"), "lm_head.weight");
    scratch_write_json(dir, "model.safetensors.index.json", index);
    json_decref(index);
    scratch_link_all(dir, data_path("cases/model/ok-qwen3"));
    assert_opens(dir, &ckpt);
    ck_assert_ptr_null(eep_ckpt_find(ckpt, "lm_head.weight"));
    ck_assert_ptr_nonnull(eep_ckpt_find(ckpt, "model.norm.weight"));
    eep_ckpt_close(ckpt);
}
END_TEST

START_TEST(links_out_of_the_directory_are_followed)
{
    struct eep_ckpt *ckpt;

    scratch_link_all(dir, data_path("cases/model/ok-qwen3")); /* as in a download cache */
    assert_opens(dir, &ckpt);
    eep_ckpt_close(ckpt);
}
END_TEST

START_TEST(names_that_leave_the_directory_are_refused)
{
    static const char *const names[] = {
        "../x.safetensors", "/etc/passwd", "a/b.safetensors", "..", ".", ""};

    write_index("lm_head.weight", json_string(names[_i]));
    assert_refused(EEP_ERR_FORMAT, "plain name");
    assert_error_has("lm_head.weight");
    assert_error_has("model.safetensors.index.json");
}
END_TEST

START_TEST(an_entry_must_be_a_name)
{
    write_index("lm_head.weight", json_integer(1));
    assert_refused(EEP_ERR_FORMAT, "lm_head.weight");
}
END_TEST

START_TEST(a_tensor_must_be_where_the_index_says)
{
    write_index("lm_head.weight", json_string("model-00001-of-00002.safetensors"));
    assert_refused(EEP_ERR_FORMAT, "lm_head.weight");
    assert_error_has("model-00001-of-00002.safetensors");
}
END_TEST

START_TEST(a_tensor_of_no_file_is_refused)
{
    write_index("model.layers.9.x", json_string("model-00001-of-00002.safetensors"));
    assert_refused(EEP_ERR_FORMAT, "model.layers.9.x");
}
END_TEST

START_TEST(a_shard_that_is_not_there_is_named)
{
    write_index("lm_head.weight", json_string("model-00003-of-00003.safetensors"));
    assert_refused(EEP_ERR_IO, "model-00003-of-00003.safetensors");
    assert_error_has("model.safetensors.index.json");
}
END_TEST

START_TEST(the_index_wins_over_a_single_file)
{
    struct eep_ckpt *ckpt;

    scratch_write(dir, "model.safetensors", "junk", 4);
    scratch_link_all(dir, data_path("cases/model/ok-qwen3"));
    assert_opens(dir, &ckpt);
    eep_ckpt_close(ckpt);
}
END_TEST

START_TEST(a_directory_without_a_model_is_refused)
{
    struct eep_ckpt *ckpt;

    assert_refused(EEP_ERR_IO, "config.json");
    scratch_write(dir, "config.json", "{}", 2);
    assert_refused(EEP_ERR_IO, "model.safetensors");
    ck_assert_int_eq(eep_ckpt_open(data_path("tiny-qwen3-moe/config.json"), &ckpt), EEP_ERR_IO);
    assert_error_has("not a directory");
    ck_assert_int_eq(eep_ckpt_open(data_path("none"), &ckpt), EEP_ERR_IO);
    assert_error_has("No such file");
    ck_assert_int_eq(eep_ckpt_open("", &ckpt), EEP_ERR_IO);
}
END_TEST

START_TEST(a_doubled_key_of_config_json_is_refused)
{
    static const char text[] = "{\"hidden_size\": 16, \"num_experts\": 4, \"hidden_size\": 32}";

    scratch_write(dir, "config.json", text, strlen(text));
    assert_refused(EEP_ERR_FORMAT, "duplicate name 'hidden_size'");
}
END_TEST

START_TEST(json_that_python_writes_and_json_has_not_is_refused)
{
    static const char *const texts[] = {"{\"a\": NaN}", "{\"a\": Infinity}", "[1]",           "",
                                        "null",         "{\"a\": 1e999}",    "\xef\xbb\xbf{}"};

    scratch_write(dir, "config.json", texts[_i], strlen(texts[_i]));
    assert_refused(EEP_ERR_FORMAT, "config.json");
}
END_TEST

START_TEST(a_large_json_file_is_refused_unread)
{
    char path[2 * DATA_PATH_MAX];
    json_t *json;

    scratch_write(dir, "config.json", "{}", 2);
    snprintf(path, sizeof(path), "%s/config.json", dir);
    ck_assert_int_eq(truncate(path, (off_t)1 << 40), 0); /* a file with a hole: no disk is used */
    assert_refused(EEP_ERR_FORMAT, "limit");
    ck_assert_int_eq(eep_json_load(path, 1, &json), EEP_ERR_FORMAT);
}
END_TEST

static enum eep_status open_and_close(void *context)
{
    struct eep_ckpt *ckpt;

    EEP_TRY(eep_ckpt_open(context, &ckpt));
    eep_ckpt_close(ckpt);
    return EEP_OK;
}

START_TEST(every_allocation_may_fail)
{
    char sharded[DATA_PATH_MAX], single[DATA_PATH_MAX];

    strcpy(sharded, data_path("cases/model/ok-qwen3"));
    strcpy(single, data_path("cases/model/missing-expert-tensor"));
    ck_assert_uint_ge(fail_each_allocation(open_and_close, sharded), 20);
    ck_assert_uint_ge(fail_each_allocation(open_and_close, single), 10);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("ckpt");
    TCase *tests = tcase_create("ckpt");

    tcase_add_checked_fixture(tests, set_up, tear_down);
    tcase_add_test(tests, tensors_are_found_over_the_shards);
    tcase_add_test(tests, one_file_needs_no_index);
    tcase_add_test(tests, files_outside_the_index_are_not_seen);
    tcase_add_test(tests, tensors_outside_the_index_are_not_seen);
    tcase_add_test(tests, links_out_of_the_directory_are_followed);
    tcase_add_loop_test(tests, names_that_leave_the_directory_are_refused, 0, 6);
    tcase_add_test(tests, an_entry_must_be_a_name);
    tcase_add_test(tests, a_tensor_must_be_where_the_index_says);
    tcase_add_test(tests, a_tensor_of_no_file_is_refused);
    tcase_add_test(tests, a_shard_that_is_not_there_is_named);
    tcase_add_test(tests, the_index_wins_over_a_single_file);
    tcase_add_test(tests, a_directory_without_a_model_is_refused);
    tcase_add_test(tests, a_doubled_key_of_config_json_is_refused);
    tcase_add_loop_test(tests, json_that_python_writes_and_json_has_not_is_refused, 0, 7);
    tcase_add_test(tests, a_large_json_file_is_refused_unread);
    tcase_add_test(tests, every_allocation_may_fail);
    suite_add_tcase(suite, tests);
    SRunner *runner = srunner_create(suite);

    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);

    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
