/* Safetensors files: the listed odd and malformed ones, more of the kind, writing, failures. */
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "base/clock.h"
#include "ckpt/ckpt.h"
#include "ckpt/ckpt_int.h"
#include "data.h"

static json_t *cases;

static void assert_values(const struct eep_tensor *tensor, const json_t *values)
{
    ck_assert_ptr_nonnull(tensor);
    ck_assert_int_eq(tensor->dtype, EEP_F32);
    ck_assert_uint_eq(tensor->count, json_array_size(values));
    for (size_t i = 0; i < json_array_size(values); i++) {
        float value;

        memcpy(&value, (const char *)tensor->data + 4 * i, sizeof(value)); /* any alignment */
        ck_assert_float_eq(value, (float)json_number_value(json_array_get(values, i)));
    }
}

START_TEST(a_listed_case_has_its_outcome)
{
    const json_t *entry = json_array_get(cases, (size_t)_i);
    const char *path = data_path("cases/%s", text_of(entry, "path"));
    struct eep_safetensors *file = NULL;
    enum eep_status status = eep_safetensors_open(path, &file);
    const char *name;
    json_t *values;

    if (strcmp(text_of(entry, "want"), "reject") == 0) {
        assert_refused_as_listed(entry, status);
        ck_assert_ptr_null(file);
        return;
    }
    ck_assert_msg(status == EEP_OK, "%s", eep_error_text());
    if (strstr(path, "dtype-values") == NULL) { /* dtype_test has that one */
        json_object_foreach(json_object_get(entry, "values"), name, values)
        {
            assert_values(eep_safetensors_find(file, name), values);
        }
    }
    eep_safetensors_close(file);
}
END_TEST

START_TEST(messages_say_what_helps)
{
    static const struct {
        const char *file;
        const char *says;
    } rows[] = {
        {"dup-name", "duplicate"},
        {"trailing-bytes", "3 extra bytes"},
        {"truncated-1", "truncated"},
        {"hlen-100mb-claim", "100000000"},
        {"hlen-100mb-claim", "100000001"},
        {"hlen-max", "18446744073709551615"},
        {"hole", "4 bytes"},
        {"overlap", "overlap by 8 bytes"},
        {"hlen-past-eof", "truncated"},
        {"shape-wrap-0", "2^64"},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct eep_safetensors *file;

        ck_assert_int_eq(
            eep_safetensors_open(data_path("cases/st/%s.safetensors", rows[i].file), &file),
            EEP_ERR_FORMAT);
        assert_error_has(rows[i].says);
    }
}
END_TEST

/* A file of this header and so many bytes of data. */
static enum eep_status open_made(const char *dir, const char *header, size_t header_bytes,
                                 size_t data_bytes, struct eep_safetensors **file_out)
{
    size_t bytes = 8 + header_bytes + data_bytes;
    unsigned char *raw = calloc(bytes, 1);
    char path[2 * DATA_PATH_MAX];

    for (int i = 0; i < 8; i++) {
        raw[i] = (unsigned char)((uint64_t)header_bytes >> 8 * i);
    }
    memcpy(raw + 8, header, header_bytes);
    scratch_write(dir, "made.safetensors", raw, bytes);
    free(raw);
    snprintf(path, sizeof(path), "%s/made.safetensors", dir);
    return eep_safetensors_open(path, file_out);
}

#define T(name, dtype, shape, range)                                                               \
    "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":[" shape "],\"data_offsets\":[" range "]}"
#define LONG_NAME "model.layers.11.mlp.experts.117.gate_proj.weight_of_a_long_name"

static const struct {
    const char *header;
    size_t data_bytes;
    enum eep_status want;
    const char *says; /* NULL where it is accepted */
} made[] = {
    {"{}", 0, EEP_OK, NULL},
    {"{}", 1, EEP_ERR_FORMAT, "1 extra bytes"},
    {"{\"__metadata__\":{\"format\":\"pt\"}}", 0, EEP_OK, NULL},
    {"{\"__metadata__\":7}", 0, EEP_ERR_FORMAT, "__metadata__"},
    {"{\"__metadata__\":{\"a\":7}}", 0, EEP_ERR_FORMAT, "'a'"},
    {"{" T("a", "F32", "", "0,4") "}", 4, EEP_OK, NULL},    /* a scalar */
    {"{" T("a", "F32", "0,5", "0,0") "}", 0, EEP_OK, NULL}, /* an empty one */
    {"{" T("e", "F32", "0", "4,4") "," T("a", "F32", "1", "0,4") "}", 4, EEP_OK, NULL},
    {"{" T("e", "F32", "0", "2,2") "," T("a", "F32", "1", "0,4") "}", 4, EEP_ERR_FORMAT, "'e'"},
    {"{" T("e", "F32", "0", "8,8") "," T("a", "F32", "1", "0,4") "}", 4, EEP_ERR_FORMAT, "'e'"},
    {"{" T("a", "F32", "1", "4,8") "}", 8, EEP_ERR_FORMAT, "hole"},
    {"{" T("a", "F32", "1", "0,4") "," T("b", "F32", "1", "0,4") "}", 4, EEP_ERR_FORMAT, "overlap"},
    {"{" T("a", "F32", "-1", "0,4") "}", 4, EEP_ERR_FORMAT, "'a'"},
    {"{" T("a", "F32", "1.0", "0,4") "}", 4, EEP_ERR_FORMAT, "'a'"},
    {"{" T("a", "F32", "\"1\"", "0,4") "}", 4, EEP_ERR_FORMAT, "'a'"},
    {"{" T("a", "U8", "1,1,1,1,1,1,1,1", "0,1") "}", 1, EEP_OK, NULL},
    {"{" T("a", "U8", "1,1,1,1,1,1,1,1,1", "0,1") "}", 1, EEP_ERR_FORMAT, "9 dimensions"},
    {"{" T("a", "U8", "4294967296,4294967296,0", "0,0") "}", 0, EEP_ERR_FORMAT, "2^64"},
    {"{" T("a", "F32", "4611686018427387904", "0,0") "}", 0, EEP_ERR_FORMAT, "2^64"},
    {"{" T("a", "U8", "9223372036854775808", "0,0") "}", 0, EEP_ERR_FORMAT, "integer"},
    {"{" T("a", "F32", "1", "0") "}", 4, EEP_ERR_FORMAT, "data_offsets"},
    {"{" T("a", "F32", "1", "0,4,8") "}", 4, EEP_ERR_FORMAT, "data_offsets"},
    {"{" T("a", "F32", "1", "-4,0") "}", 4, EEP_ERR_FORMAT, "data_offsets"},
    {"{" T("a", "F32", "1", "0.0,4.0") "}", 4, EEP_ERR_FORMAT, "data_offsets"},
    {"{" T("a", "F32", "1", "9223372036854775803,9223372036854775807") "}", 4, EEP_ERR_FORMAT,
     "'a'"},
    {"{" T("a", "F32", "2", "0,8") "}", 4, EEP_ERR_FORMAT, "truncated"},
    {"{" T("a", "f32", "1", "0,4") "}", 4, EEP_ERR_UNSUPPORTED, "f32"},
    {"{" T("a", "F8_E8M0", "1", "0,1") "}", 1, EEP_ERR_UNSUPPORTED, "F8_E8M0"},
    {"{\"a\":7}", 4, EEP_ERR_FORMAT, "'a'"},
    {"{\"a\":{\"dtype\":4,\"shape\":[1],\"data_offsets\":[0,4]}}", 4, EEP_ERR_FORMAT, "dtype"},
    {"{\"a\":{\"dtype\":\"F32\",\"data_offsets\":[0,4]}}", 4, EEP_ERR_FORMAT, "shape"},
    {"{\"a\":{\"dtype\":\"F32\",\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4,
     EEP_ERR_FORMAT, "duplicate name 'dtype'"},
    {"{" T(LONG_NAME, "U8", "1", "0,1") "," T(LONG_NAME, "U8", "1", "1,2") "}", 2, EEP_ERR_FORMAT,
     "duplicate name '" LONG_NAME "'"},
    {"{" T("x\\\"y", "U8", "1", "0,1") "," T("x\\\"y", "U8", "1", "1,2") "}", 2, EEP_ERR_FORMAT,
     "duplicate name 'x\\\"y'"},
    {"{\"__metadata__\":{\"k\":\"1\",\"k\":\"2\"}}", 0, EEP_ERR_FORMAT, "duplicate name 'k'"},
    {" {}", 0, EEP_ERR_FORMAT, "'{'"},
    {"[]", 0, EEP_ERR_FORMAT, "'{'"},
    {"{} x", 0, EEP_ERR_FORMAT, "JSON"},
    {"{}{}", 0, EEP_ERR_FORMAT, "JSON"},
    {"{\"a\\u0000b\":{}}", 0, EEP_ERR_FORMAT, "JSON"},
    {"{\"\xff\":{}}", 0, EEP_ERR_FORMAT, "JSON"},
    {"{\"a\":[[[[[[[[[[[[[[[[", 0, EEP_ERR_FORMAT, "JSON"},
    {"{" T("\\u00e9\\ud83d\\ude00", "U8", "1", "0,1") "}", 1, EEP_OK, NULL},
    {"{" T("", "U8", "1", "0,1") "}", 1, EEP_OK, NULL},
};

START_TEST(a_made_file_has_its_outcome)
{
    char dir[DATA_PATH_MAX];
    struct eep_safetensors *file = NULL;

    scratch_make(dir);
    enum eep_status status =
        open_made(dir, made[_i].header, strlen(made[_i].header), made[_i].data_bytes, &file);

    ck_assert_msg(status == made[_i].want, "%s: %s", made[_i].header, eep_error_text());
    if (status != EEP_OK) {
        assert_error_has("made.safetensors");
        assert_error_has(made[_i].says);
    }
    eep_safetensors_close(file);
    scratch_remove(dir);
}
END_TEST

START_TEST(every_cut_of_a_file_is_refused)
{
    char dir[DATA_PATH_MAX], path[2 * DATA_PATH_MAX];
    unsigned char raw[512];
    FILE *whole = fopen(data_path("cases/st/order-mixed.safetensors"), "rb");
    size_t bytes = fread(raw, 1, sizeof(raw), whole);

    fclose(whole);
    scratch_make(dir);
    snprintf(path, sizeof(path), "%s/cut.safetensors", dir);
    for (size_t cut = 0; cut < bytes; cut++) {
        struct eep_safetensors *file;

        scratch_write(dir, "cut.safetensors", raw, cut);
        ck_assert_int_eq(eep_safetensors_open(path, &file), EEP_ERR_FORMAT);
    }
    scratch_remove(dir);
}
END_TEST

START_TEST(what_is_no_file_is_refused)
{
    char dir[DATA_PATH_MAX], path[2 * DATA_PATH_MAX];
    struct eep_safetensors *file;

    scratch_make(dir);
    ck_assert_int_eq(eep_safetensors_open(dir, &file), EEP_ERR_IO);
    assert_error_has(dir);
    snprintf(path, sizeof(path), "%s/fifo", dir);
    ck_assert_int_eq(eep_safetensors_open(path, &file), EEP_ERR_IO);
    assert_error_has("No such file");
    ck_assert_int_eq(mkfifo(path, 0600), 0);
    ck_assert_int_eq(eep_safetensors_open(path, &file), EEP_ERR_IO); /* and does not wait */
    scratch_remove(dir);
}
END_TEST

START_TEST(written_is_read_again)
{
    static const float floats[6] = {0.0f, -1.5f, 3e38f, 1e-45f, 2.0f, 7.0f};
    static const uint8_t bytes[3] = {1, 2, 255};
    static const int64_t scalar = INT64_MIN;
    const struct eep_tensor_out tensors[] = {
        {"m", EEP_F32, 2, {2, 3}, floats},
        {"odd \"name\"\n\xc3\xa9", EEP_U8, 1, {3}, bytes},
        {"scalar", EEP_I64, 0, {0}, &scalar},
        {"empty", EEP_BF16, 3, {4, 0, 2}, NULL},
    };
    char dir[DATA_PATH_MAX], path[2 * DATA_PATH_MAX];
    struct eep_safetensors *file;

    scratch_make(dir);
    snprintf(path, sizeof(path), "%s/w.safetensors", dir);
    ck_assert_int_eq(eep_safetensors_write(path, tensors, 4), EEP_OK);
    ck_assert_int_eq(eep_safetensors_open(path, &file), EEP_OK);
    ck_assert_uint_eq(eep_safetensors_count(file), 4);
    for (size_t i = 0; i < 4; i++) {
        const struct eep_tensor *tensor = eep_safetensors_find(file, tensors[i].name);

        ck_assert_ptr_eq(tensor, eep_safetensors_at(file, i));
        ck_assert_int_eq(tensor->dtype, tensors[i].dtype);
        ck_assert_uint_eq(tensor->dims, tensors[i].dims);
        ck_assert_mem_eq(tensor->shape, tensors[i].shape, tensor->dims * sizeof(uint64_t));
        ck_assert_str_eq(tensor->file, path);
        if (tensor->bytes > 0) {
            ck_assert_mem_eq(tensor->data, tensors[i].data, tensor->bytes);
        }
    }
    ck_assert_ptr_null(eep_safetensors_find(file, "none"));
    ck_assert_ptr_null(eep_safetensors_find(file, ""));
    eep_safetensors_close(file);
    scratch_remove(dir); /* fails if a temporary file were left under another name */
}
END_TEST

START_TEST(what_cannot_be_written_is_refused)
{
    static const float one = 1.0f;
    const struct eep_tensor_out twice[] = {{"a", EEP_F32, 1, {1}, &one},
                                           {"a", EEP_F32, 1, {1}, &one}};
    const struct eep_tensor_out reserved = {"__metadata__", EEP_F32, 1, {1}, &one};
    const struct eep_tensor_out dims = {"a", EEP_F32, EEP_TENSOR_MAX_DIMS + 1, {1}, &one};
    const struct eep_tensor_out huge = {
        "a", EEP_F32, 2, {UINT64_C(1) << 40, UINT64_C(1) << 40}, &one};
    const struct eep_tensor_out utf8 = {"\xff", EEP_F32, 1, {1}, &one};
    char dir[DATA_PATH_MAX], path[2 * DATA_PATH_MAX];

    scratch_make(dir);
    snprintf(path, sizeof(path), "%s/w", dir);
    ck_assert_int_eq(eep_safetensors_write(path, twice, 2), EEP_ERR_INVALID);
    assert_error_has("'a'");
    ck_assert_int_eq(eep_safetensors_write(path, &reserved, 1), EEP_ERR_INVALID);
    ck_assert_int_eq(eep_safetensors_write(path, &dims, 1), EEP_ERR_INVALID);
    ck_assert_int_eq(eep_safetensors_write(path, &huge, 1), EEP_ERR_INVALID);
    ck_assert_int_eq(eep_safetensors_write(path, &utf8, 1), EEP_ERR_INVALID);
    ck_assert_int_ne(access(path, F_OK), 0);
    snprintf(path, sizeof(path), "%s/none/w", dir);
    ck_assert_int_eq(eep_safetensors_write(path, twice, 1), EEP_ERR_IO);
    assert_error_has(path);
    scratch_remove(dir);
}
END_TEST

START_TEST(a_full_disk_is_an_error)
{
    static float values[1 << 18];
    const struct eep_tensor_out tensor = {"a", EEP_F32, 1, {1 << 18}, values};
    const struct rlimit limit = {4096, 4096};
    char dir[DATA_PATH_MAX], path[2 * DATA_PATH_MAX];

    scratch_make(dir);
    snprintf(path, sizeof(path), "%s/w", dir);
    signal(SIGXFSZ, SIG_IGN);
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &limit), 0); /* this test is a process of its own */
    ck_assert_int_eq(eep_safetensors_write(path, &tensor, 1), EEP_ERR_IO);
    assert_error_has("cannot be written");
    scratch_remove(dir);
}
END_TEST

START_TEST(a_hundred_thousand_tensors_open_at_once)
{
    enum { COUNT = 100000 };
    static struct eep_tensor_out tensors[COUNT];
    static char names[COUNT][64];
    static uint16_t value;
    char dir[DATA_PATH_MAX], path[2 * DATA_PATH_MAX];
    struct eep_safetensors *file;

    for (int i = 0; i < COUNT; i++) {
        snprintf(names[i], sizeof(names[i]), "model.layers.%d.mlp.experts.%d.up_proj.weight",
                 i / 1000, i % 1000);
        tensors[i] = (struct eep_tensor_out){names[i], EEP_BF16, 2, {1, 1}, &value};
    }
    scratch_make(dir);
    snprintf(path, sizeof(path), "%s/many.safetensors", dir);
    ck_assert_int_eq(eep_safetensors_write(path, tensors, COUNT), EEP_OK);
    uint64_t start_ns = eep_clock_ns();

    ck_assert_int_eq(eep_safetensors_open(path, &file), EEP_OK);
    for (int i = 0; i < COUNT; i++) {
        ck_assert_ptr_nonnull(eep_safetensors_find(file, names[i]));
    }
    /* about 0.3 s; a linear search would take minutes */
    ck_assert_uint_lt(eep_clock_ns() - start_ns, 10 * EEP_NS_PER_S);
    eep_safetensors_close(file);
    scratch_remove(dir);
}
END_TEST

static enum eep_status open_and_close(void *context)
{
    struct eep_safetensors *file;

    EEP_TRY(eep_safetensors_open(context, &file));
    eep_safetensors_close(file);
    return EEP_OK;
}

static enum eep_status write_one(void *context)
{
    static const float one = 1.0f;
    const struct eep_tensor_out tensor = {"a", EEP_F32, 1, {1}, &one};

    return eep_safetensors_write(context, &tensor, 1);
}

START_TEST(every_allocation_may_fail)
{
    char dir[DATA_PATH_MAX], path[2 * DATA_PATH_MAX];

    scratch_make(dir);
    snprintf(path, sizeof(path), "%s/w", dir);
    ck_assert_uint_ge(fail_each_allocation(write_one, path), 1);
    ck_assert_uint_ge(fail_each_allocation(open_and_close, path), 6);
    scratch_remove(dir);
}
END_TEST

/* Opens a file, cuts it short, reads it: must end with a message, not by the signal. */
static void read_cut_file(const char *path, int messages)
{
    struct eep_safetensors *file;

    dup2(messages, STDERR_FILENO);
    eep_ckpt_guard_sigbus();
    if (eep_safetensors_open(path, &file) != EEP_OK || truncate(path, 4096) != 0) {
        _exit(3);
    }
    const struct eep_tensor *tensor = eep_safetensors_at(file, 0);
    volatile const char *last = (const char *)tensor->data + tensor->bytes - 1;

    _exit(*last == 0 ? 4 : 5);
}

START_TEST(a_file_cut_while_in_use_ends_the_process_with_a_message)
{
    static float values[1 << 16];
    const struct eep_tensor_out tensor = {"a", EEP_F32, 1, {1 << 16}, values};
    char dir[DATA_PATH_MAX], path[2 * DATA_PATH_MAX], message[4096];
    int ends[2], how;

    scratch_make(dir);
    snprintf(path, sizeof(path), "%s/cut.safetensors", dir);
    ck_assert_int_eq(eep_safetensors_write(path, &tensor, 1), EEP_OK);
    ck_assert_int_eq(pipe(ends), 0);
    pid_t child = fork();

    if (child == 0) {
        read_cut_file(path, ends[1]);
    }
    close(ends[1]);
    ck_assert_int_eq(waitpid(child, &how, 0), child);
    ssize_t got = read(ends[0], message, sizeof(message) - 1); /* it is written in one piece */

    message[got > 0 ? got : 0] = '\0';
    ck_assert_msg(WIFEXITED(how) && WEXITSTATUS(how) == 1, "ended by %d: %s", how, message);
    ck_assert_ptr_nonnull(strstr(message, path));
    close(ends[0]);
    scratch_remove(dir);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("safetensors");
    TCase *tests = tcase_create("safetensors");

    cases = listed_cases("st/");
    tcase_set_timeout(tests, 60);
    tcase_add_loop_test(tests, a_listed_case_has_its_outcome, 0, (int)json_array_size(cases));
    tcase_add_test(tests, messages_say_what_helps);
    tcase_add_loop_test(tests, a_made_file_has_its_outcome, 0, sizeof(made) / sizeof(made[0]));
    tcase_add_test(tests, every_cut_of_a_file_is_refused);
    tcase_add_test(tests, what_is_no_file_is_refused);
    tcase_add_test(tests, written_is_read_again);
    tcase_add_test(tests, what_cannot_be_written_is_refused);
    tcase_add_test(tests, a_full_disk_is_an_error);
    tcase_add_test(tests, a_hundred_thousand_tensors_open_at_once);
    tcase_add_test(tests, every_allocation_may_fail);
    tcase_add_test(tests, a_file_cut_while_in_use_ends_the_process_with_a_message);
    suite_add_tcase(suite, tests);
    SRunner *runner = srunner_create(suite);

    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);

    srunner_free(runner);
    json_decref(cases);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
