/*
 * The admin endpoint without a socket: request heads and bodies, both ways to name things, limits,
 * tokens, endpoints, paths and codes, and the mailbox between the two threads.
 */
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include "admin/admin_int.h"
#include "admin/mailbox.h"
#include "base/mem.h"
#include "testutil.h"

/* ---- request heads ---- */

static struct eep_http_head head;
static struct eep_http_wrong bad;

static enum eep_http_result parse(const char *text)
{
    return eep_http_parse(text, strlen(text), &head, &bad);
}

START_TEST(a_head_is_read)
{
    ck_assert_int_eq(
        parse("POST /eep/scale?id=x HTTP/1.1\r\nHost: a\r\ncontent-LENGTH: 12\r\n"
              "Authorization: bearer  0123456789abcdef \r\nExpect: 100-continue\r\n\r\n"
              "rest"),
        EEP_HTTP_READY);
    ck_assert_int_eq(head.method, EEP_HTTP_POST);
    ck_assert_str_eq(head.path, "/eep/scale");
    ck_assert_str_eq(head.query, "id=x");
    ck_assert_str_eq(head.token, "0123456789abcdef");
    ck_assert_uint_eq(head.body_bytes, 12);
    ck_assert(head.keep_alive && head.expects_continue);
    ck_assert_int_eq(parse("GET / HTTP/1.0\r\n\r\n"), EEP_HTTP_READY);
    ck_assert(!head.keep_alive);
    ck_assert_int_eq(parse("GET / HTTP/1.1\r\nHost: a\r\nConnection: x, Close\r\n\r\n"),
                     EEP_HTTP_READY);
    ck_assert(!head.keep_alive);
}
END_TEST

START_TEST(a_head_may_come_byte_by_byte)
{
    const char *text = "GET /eep/status HTTP/1.1\r\nHost: a\r\n\r\n";

    for (size_t count = 0; count < strlen(text); count++) {
        ck_assert_int_eq(eep_http_parse(text, count, &head, &bad), EEP_HTTP_MORE);
    }
    ck_assert_int_eq(parse(text), EEP_HTTP_READY);
    ck_assert_uint_eq(head.head_bytes, strlen(text));
}
END_TEST

START_TEST(what_is_ambiguous_is_refused)
{
    static const struct {
        int code;
        const char *text;
    } cases[] = {
        {400, "GET / HTTP/1.1\nHost: a\n\n"},
        {400, "GET / HTTP/1.1\r\n\r\n"},
        {400, "GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n"},
        {400, "GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\n"},
        {400, "GET / HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n"},
        {400, "GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 1234567890123456789\r\n\r\n"},
        {400, "GET / HTTP/1.1\r\nHost: a\r\n folded\r\n\r\n"},
        {400, "GET / HTTP/1.1\r\nHost : a\r\n\r\n"},
        {400, "GET / HTTP/1.1\r\nHost: a\x01\r\n\r\n"},
        {400, "GET  / HTTP/1.1\r\nHost: a\r\n\r\n"},
        {400, "GET http://x/ HTTP/1.1\r\nHost: a\r\n\r\n"},
        {400, "hello\r\n\r\n"},
        {417, "GET / HTTP/1.1\r\nHost: a\r\nExpect: rain\r\n\r\n"},
        {501, "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"},
        {505, "GET / HTTP/2.0\r\nHost: a\r\n\r\n"},
    };

    for (size_t i = 0; i < COUNT(cases); i++) {
        ck_assert_msg(parse(cases[i].text) == EEP_HTTP_BAD, "taken: %s", cases[i].text);
        ck_assert_int_eq(bad.code, cases[i].code);
    }
}
END_TEST

START_TEST(a_head_is_bounded)
{
    static char text[2 * EEP_HTTP_HEAD_MAX];
    int used = sprintf(text, "GET / HTTP/1.1\r\nHost: a\r\nX: ");

    memset(text + used, 'x', sizeof(text) - 1 - (size_t)used);
    ck_assert_int_eq(eep_http_parse(text, EEP_HTTP_HEAD_MAX - 1, &head, &bad), EEP_HTTP_MORE);
    ck_assert_int_eq(eep_http_parse(text, EEP_HTTP_HEAD_MAX, &head, &bad), EEP_HTTP_BAD);
    ck_assert_int_eq(bad.code, 431);
    for (int i = 0; i <= EEP_HTTP_LINES_MAX; i++) {
        used += sprintf(text + used, "\r\nA: b");
    }
    sprintf(text + used, "\r\n\r\n");
    ck_assert_int_eq(parse(text), EEP_HTTP_BAD);
    ck_assert_int_eq(bad.code, 431);
    used = sprintf(text, "GET /");
    memset(text + used, 'p', EEP_HTTP_PATH_MAX);
    sprintf(text + used + EEP_HTTP_PATH_MAX, " HTTP/1.1\r\nHost: a\r\n\r\n");
    ck_assert_int_eq(parse(text), EEP_HTTP_BAD);
    ck_assert_int_eq(bad.code, 414);
}
END_TEST

START_TEST(a_token_that_is_too_long_is_none)
{
    static char text[EEP_TOKEN_MAX + 128];
    int used = sprintf(text, "GET / HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer ");

    memset(text + used, 't', EEP_TOKEN_MAX + 1);
    strcpy(text + used + EEP_TOKEN_MAX + 1, "\r\n\r\n");
    ck_assert_int_eq(parse(text), EEP_HTTP_READY);
    ck_assert_str_eq(head.token, "");
}
END_TEST

/* ---- bodies ---- */

static struct eep_admin_request request;
static struct eep_admin_wrong wrong;

static bool reads(enum eep_admin_body body, const char *text)
{
    return eep_admin_request_parse(body, text, strlen(text), &request, &wrong);
}

START_TEST(both_ways_to_name_a_scale_ask_for_the_same)
{
    static const char *const texts[] = {
        "{\"new_ep_size\": 8, \"id\": \"a\", \"drain_timeout\": 30}",
        "{\"ep_size\": 8, \"id\": \"a\", \"drain_timeout\": 30}",
        "{\"new_data_parallel_size\": 8, \"id\": \"a\", \"drain_timeout\": 30}",
        "{\"to\": 8, \"id\": \"a\", \"drain_timeout\": 30}",
    };
    struct eep_admin_request first;

    ck_assert(reads(EEP_ADMIN_BODY_SCALE, "{\"to\": 8, \"id\": \"a\", \"deadline_s\": 30}"));
    first = request;
    for (size_t i = 0; i < COUNT(texts); i++) {
        ck_assert_msg(reads(EEP_ADMIN_BODY_SCALE_COMPATIBLE, texts[i]), "%s", wrong.message);
        ck_assert(eep_admin_request_equal(&first, &request));
        ck_assert_str_eq(request.id, "a");
    }
    ck_assert(!reads(EEP_ADMIN_BODY_SCALE_COMPATIBLE, "{\"to\": 8, \"ep_size\": 8}"));
    ck_assert(!reads(EEP_ADMIN_BODY_SCALE, "{\"new_ep_size\": 8}"));
}
END_TEST

START_TEST(hosts_and_members_are_read)
{
    ck_assert(reads(EEP_ADMIN_BODY_SCALE, "{\"to\": 9, \"hosts\": [\"a:4\", \"b.example\"]}"));
    ck_assert_uint_eq(request.host_count, 2);
    ck_assert_str_eq(request.hosts[1].name, "b.example");
    ck_assert_uint_eq(request.hosts[0].slots, 4);
    ck_assert_uint_eq(request.hosts[1].slots, 1);
    ck_assert_uint_eq(strlen(request.id), 16); /* made */
    eep_admin_request_free(&request);
    ck_assert(reads(EEP_ADMIN_BODY_DRAIN, "{\"members\": [7, 3], \"exit\": true}"));
    ck_assert_uint_eq(request.members[0], 3);
    ck_assert(request.exit);
    eep_admin_request_free(&request);
}
END_TEST

START_TEST(a_wrong_field_is_named)
{
    static const struct {
        enum eep_admin_body body;
        const char *text;
        const char *field;
    } cases[] = {
        {EEP_ADMIN_BODY_SCALE, "{}", "to"},
        {EEP_ADMIN_BODY_SCALE, "{\"to\": 0}", "to"},
        {EEP_ADMIN_BODY_SCALE, "{\"to\": 65536}", "to"},
        {EEP_ADMIN_BODY_SCALE, "{\"to\": 4.0}", "to"},
        {EEP_ADMIN_BODY_SCALE, "{\"to\": \"4\"}", "to"},
        {EEP_ADMIN_BODY_SCALE, "{\"to\": 4, \"hosts\": []}", "hosts"},
        {EEP_ADMIN_BODY_SCALE, "{\"to\": 4, \"hosts\": [\"-a\"]}", "hosts[0]"},
        {EEP_ADMIN_BODY_SCALE, "{\"to\": 4, \"hosts\": [\"a;b\"]}", "hosts[0]"},
        {EEP_ADMIN_BODY_SCALE, "{\"to\": 4, \"hosts\": [\"a\", \"b:0\"]}", "hosts[1]"},
        {EEP_ADMIN_BODY_SCALE, "{\"to\": 4, \"hosts\": [\"a\\u0000b\"]}", ""},
        {EEP_ADMIN_BODY_SCALE, "{\"to\": 4, \"id\": \"a b\"}", "id"},
        {EEP_ADMIN_BODY_SCALE, "{\"to\": 4, \"id\": \"\"}", "id"},
        {EEP_ADMIN_BODY_SCALE, "{\"to\": 4, \"dry_run\": 1}", "dry_run"},
        {EEP_ADMIN_BODY_SCALE, "{\"to\": 4, \"deadline_s\": 86401}", "deadline_s"},
        {EEP_ADMIN_BODY_DRAIN, "{}", "members"},
        {EEP_ADMIN_BODY_DRAIN, "{\"members\": [-1]}", "members[0]"},
        {EEP_ADMIN_BODY_DRAIN, "{\"members\": [1, 2, 1]}", "members"},
        {EEP_ADMIN_BODY_REBALANCE, "{\"to\": 4}", ""},
        {EEP_ADMIN_BODY_REBALANCE, "[]", ""},
        {EEP_ADMIN_BODY_REBALANCE, "{\"dry_run\": true, \"dry_run\": true}", ""},
        {EEP_ADMIN_BODY_REBALANCE, "{\"id\": ", ""},
    };

    for (size_t i = 0; i < COUNT(cases); i++) {
        ck_assert_msg(!reads(cases[i].body, cases[i].text), "taken: %s", cases[i].text);
        ck_assert_str_eq(wrong.field, cases[i].field);
        ck_assert_uint_gt(strlen(wrong.message), 0);
    }
}
END_TEST

/* ---- endpoints, tokens ---- */

START_TEST(endpoints_are_read)
{
    struct eep_endpoint e;
    char text[EEP_ENDPOINT_TEXT_MAX], too_long[200] = "unix:/";
    static const char *const good[] = {"unix:/a/b", "localhost:80", "[::1]:0", "10.0.0.1:65535"};
    static const char *const wrong_ones[] = {"",        "unix:",  "host",    ":80",    "h:x",
                                             "h:65536", "::1:80", "[::1:80", "h:80/x", "h:-1",
                                             "/a/b",    "h:",     "[]:80",   "a/b:80"};

    for (size_t i = 0; i < COUNT(good); i++) {
        CK_OK(eep_endpoint_parse(good[i], &e));
        eep_endpoint_text(&e, text);
        ck_assert_str_eq(text, good[i]);
    }
    for (size_t i = 0; i < COUNT(wrong_ones); i++) {
        ck_assert_int_eq(eep_endpoint_parse(wrong_ones[i], &e), EEP_ERR_INVALID);
    }
    memset(too_long + 6, 'x', 150);
    ck_assert_int_eq(eep_endpoint_parse(too_long, &e), EEP_ERR_INVALID);
}
END_TEST

static enum eep_status load_token(const char *content, char token[EEP_TOKEN_MAX + 1])
{
    char path[] = "/tmp/eep-token-XXXXXX";
    const int fd = mkstemp(path);

    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(write(fd, content, strlen(content)), (ssize_t)strlen(content));
    close(fd);
    const enum eep_status status = eep_token_load(path, token);
    unlink(path);
    return status;
}

START_TEST(tokens_are_read_and_never_told)
{
    char token[EEP_TOKEN_MAX + 1];
    char longest[EEP_TOKEN_MAX + 3];

    CK_OK(load_token("secret-0123456789\r\nsecond line", token));
    ck_assert_str_eq(token, "secret-0123456789");
    ck_assert_int_eq(load_token("secret\n", token), EEP_ERR_INVALID);
    ck_assert_ptr_null(strstr(eep_error_text(), "secret"));
    ck_assert_int_eq(load_token("secret 0123456789\n", token), EEP_ERR_INVALID);
    ck_assert_ptr_null(strstr(eep_error_text(), "secret"));
    memset(longest, 'x', sizeof(longest));
    longest[EEP_TOKEN_MAX] = '\n';
    longest[EEP_TOKEN_MAX + 1] = '\0';
    CK_OK(load_token(longest, token));
    longest[EEP_TOKEN_MAX] = 'x';
    longest[EEP_TOKEN_MAX + 1] = '\n';
    longest[EEP_TOKEN_MAX + 2] = '\0';
    ck_assert_int_eq(load_token(longest, token), EEP_ERR_INVALID);
    ck_assert_int_eq(eep_token_load("/nonexistent", token), EEP_ERR_IO);
}
END_TEST

START_TEST(tokens_are_compared)
{
    ck_assert(eep_token_equal("0123456789abcdef", "0123456789abcdef"));
    ck_assert(!eep_token_equal("0123456789abcdeX", "0123456789abcdef"));
    ck_assert(!eep_token_equal("0123456789abcde", "0123456789abcdef"));
    ck_assert(!eep_token_equal("", "0123456789abcdef"));
}
END_TEST

START_TEST(a_directory_that_is_open_to_others_is_refused)
{
    char dir[] = "/tmp/eep-dir-XXXXXX";
    struct eep_endpoint e = {.is_unix = true};
    struct stat st;

    ck_assert_ptr_nonnull(mkdtemp(dir));
    snprintf(e.path, sizeof(e.path), "%s/made/a.sock", dir);
    CK_OK(eep_endpoint_dir(&e, true));
    snprintf(e.path, sizeof(e.path), "%s/made", dir);
    ck_assert_int_eq(stat(e.path, &st), 0);
    ck_assert_uint_eq(st.st_mode & 07777, 0700);
    ck_assert_int_eq(rmdir(e.path), 0);
    ck_assert_int_eq(chmod(dir, 0750), 0);
    ck_assert_int_eq(eep_endpoint_dir(&e, true), EEP_ERR_INVALID);
    ck_assert_int_eq(rmdir(dir), 0);
}
END_TEST

/* ---- the mailbox, by paths and codes ---- */

static struct eep_admin_mailbox *mailbox;
static struct eep_admin_handlers handlers;
static struct eep_admin_answer answer;

static void start(uint32_t can, bool elastic)
{
    struct eep_admin_status status = {.can = can, .state = "serving"};

    CK_OK(eep_admin_mailbox_create(&mailbox));
    handlers = eep_admin_mailbox_handlers(mailbox);
    status.scaling = (struct eep_admin_scaling){
        .enabled = elastic, .effective_ep_size = 4, .pending_ep_size = 4, .scale_phase = "idle"};
    CK_OK(eep_admin_mailbox_post(mailbox, &status));
}

/* The code of the answer; 0 if it waits for the engine. */
static int ask(const char *line, const char *body)
{
    char text[512];

    eep_admin_answer_free(&answer);
    snprintf(text, sizeof(text), "%s HTTP/1.1\r\nHost: a\r\n\r\n", line);
    ck_assert_int_eq(parse(text), EEP_HTTP_READY);
    eep_admin_route(&handlers, &head, body, strlen(body), &answer);
    return answer.waits ? 0 : answer.code;
}

static int decided(const char *id)
{
    eep_admin_answer_free(&answer);
    handlers.catch_up(handlers.context);
    return eep_admin_route_decided(&handlers, id, &answer) ? answer.code : 0;
}

static const char *text_of(const char *name)
{
    const json_t *error = json_object_get(answer.json, "error");
    const char *text =
        json_string_value(json_object_get(error != NULL ? error : answer.json, name));

    return text != NULL ? text : "";
}

static void stop(void)
{
    eep_admin_answer_free(&answer);
    eep_admin_mailbox_destroy(mailbox);
}

static struct eep_admin_request take_one(void)
{
    struct eep_admin_command command;

    ck_assert(eep_admin_mailbox_take(mailbox, &command));
    ck_assert_int_eq(command.type, EEP_ADMIN_DO);
    return command.request;
}

static void tell(const char *id, enum eep_admin_state state, const char *phase)
{
    struct eep_admin_operation op = {
        .kind = EEP_ADMIN_REBALANCE, .state = state, .plan = "{\"a\":1}"};

    snprintf(op.id, sizeof(op.id), "%s", id);
    snprintf(op.phase, sizeof(op.phase), "%s", phase);
    CK_OK(eep_admin_mailbox_post_operation(mailbox, &op));
}

START_TEST(an_operation_goes_its_way)
{
    start(EEP_ADMIN_CAN_REBALANCE, false);
    ck_assert_int_eq(ask("POST /eep/rebalance", "{\"id\": \"r1\", \"dry_run\": true}"), 0);
    ck_assert_int_eq(decided("r1"), 0);
    request = take_one();
    ck_assert(request.kind == EEP_ADMIN_REBALANCE && request.dry_run);
    ck_assert_int_eq(decided("r1"), 0); /* taken, but not answered */
    tell("r1", EEP_ADMIN_RUNNING, "planning");
    ck_assert_int_eq(decided("r1"), 202);
    ck_assert_str_eq(text_of("phase"), "planning");
    ck_assert_int_eq(ask("POST /eep/rebalance", "{\"id\": \"r1\", \"dry_run\": true}"), 202);
    ck_assert_int_eq(ask("POST /eep/rebalance", "{\"id\": \"r1\"}"), 409);
    ck_assert_int_eq(ask("POST /eep/rebalance", "{\"id\": \"r2\"}"), 409);
    ck_assert_str_eq(text_of("reason"), "conflict");
    tell("r1", EEP_ADMIN_DONE, "");
    ck_assert_int_eq(ask("POST /eep/rebalance", "{\"id\": \"r1\", \"dry_run\": true}"), 200);
    ck_assert_int_eq(ask("GET /eep/operations?id=r1", ""), 200);
    ck_assert_str_eq(text_of("state"), "done");
    ck_assert_int_eq(json_integer_value(json_object_get(json_object_get(answer.json, "plan"), "a")),
                     1);
    ck_assert_int_eq(ask("GET /eep/operations?id=none", ""), 404);
    tell("r1", EEP_ADMIN_FAILED, ""); /* what has ended stays as it ended */
    ck_assert_int_eq(ask("GET /eep/operations?id=r1", ""), 200);
    ck_assert_str_eq(text_of("state"), "done");
    stop();
}
END_TEST

START_TEST(what_the_engine_cannot_do_is_501_and_off_is_404)
{
    start(0, false);
    ck_assert_int_eq(ask("POST /eep/scale", "{\"to\": 8}"), 501);
    ck_assert_int_eq(ask("POST /scale_elastic_ep", "{\"new_ep_size\": 8}"), 501);
    ck_assert_int_eq(ask("POST /eep/drain", "{\"members\": [1]}"), 501);
    ck_assert_int_eq(ask("POST /eep/rebalance", ""), 501);
    ck_assert_str_eq(text_of("reason"), "not_supported");
    ck_assert_int_eq(ask("POST /eep/abort", ""), 409);
    ck_assert_int_eq(ask("GET /is_scaling_elastic_ep", ""), 404);
    stop();
    start(EEP_ADMIN_CAN_SCALE, false);
    ck_assert_int_eq(ask("POST /scale_elastic_ep", "{\"new_ep_size\": 8}"), 404);
    stop();
    start(EEP_ADMIN_CAN_SCALE, true);
    ck_assert_int_eq(ask("POST /scale_elastic_ep", "{\"new_ep_size\": 8, \"id\": \"s\"}"), 0);
    request = take_one();
    ck_assert_uint_eq(request.to, 8);
    CK_OK(eep_admin_mailbox_refuse(mailbox, &request, EEP_ADMIN_BAD, "8 is above %d", 4));
    ck_assert_int_eq(decided("s"), 400);
    ck_assert_str_eq(text_of("message"), "8 is above 4");
    ck_assert_int_eq(ask("POST /scale_elastic_ep", "{\"new_ep_size\": 4, \"id\": \"s\"}"), 0);
    ck_assert_int_eq(ask("GET /is_scaling_elastic_ep", ""), 200);
    ck_assert(json_is_false(json_object_get(answer.json, "is_scaling")));
    ck_assert_int_eq(json_integer_value(json_object_get(answer.json, "effective_ep_size")), 4);
    ck_assert_str_eq(text_of("scale_phase"), "idle");
    ck_assert(json_is_null(json_object_get(answer.json, "last_error")));
    stop();
}
END_TEST

START_TEST(paths_and_methods)
{
    start(0, false);
    ck_assert_int_eq(ask("GET /eep/status", ""), 200);
    ck_assert_str_eq(text_of("state"), "serving");
    ck_assert_int_eq(ask("GET /eep/status", "x"), 400);
    ck_assert_int_eq(ask("GET /eep/status?x=1", ""), 400);
    ck_assert_int_eq(ask("GET /eep/layout", ""), 503);
    ck_assert_int_eq(ask("GET /eep/scale?id=%20", ""), 400);
    ck_assert_int_eq(ask("GET /eep/events?since=-1", ""), 400);
    ck_assert_int_eq(ask("POST /eep/status", ""), 405);
    ck_assert_str_eq(answer.allow, "GET");
    ck_assert_int_eq(ask("DELETE /eep/scale", ""), 405);
    ck_assert_int_eq(ask("GET /", ""), 404);
    stop();
    CK_OK(eep_admin_mailbox_create(&mailbox));
    handlers = eep_admin_mailbox_handlers(mailbox);
    ck_assert_int_eq(ask("GET /eep/status", ""), 503); /* before the engine has said anything */
    ck_assert_int_eq(ask("POST /eep/rebalance", ""), 503);
    stop();
}
END_TEST

START_TEST(an_operation_that_nobody_takes_is_withdrawn)
{
    struct eep_admin_command command;

    start(EEP_ADMIN_CAN_REBALANCE, false);
    ck_assert_int_eq(ask("POST /eep/rebalance", "{\"id\": \"late\"}"), 0);
    eep_admin_answer_free(&answer);
    eep_admin_route_late(&handlers, "late", &answer);
    ck_assert_int_eq(answer.code, 503);
    ck_assert(!eep_admin_mailbox_take(mailbox, &command));
    ck_assert_int_eq(ask("POST /eep/rebalance", "{\"id\": \"late\"}"), 0); /* it may try again */
    request = take_one();
    eep_admin_answer_free(&answer);
    eep_admin_route_late(&handlers, "late", &answer);
    ck_assert_int_eq(answer.code, 202); /* too late to withdraw */
    stop();
}
END_TEST

START_TEST(abort_before_and_after_it_was_taken)
{
    struct eep_admin_command command;

    start(EEP_ADMIN_CAN_REBALANCE | EEP_ADMIN_CAN_ABORT, false);
    ck_assert_int_eq(ask("POST /eep/rebalance", "{\"id\": \"a\"}"), 0);
    ck_assert_int_eq(ask("POST /eep/abort", ""), 200);
    ck_assert_str_eq(text_of("state"), "aborted");
    ck_assert(!eep_admin_mailbox_take(mailbox, &command));
    ck_assert_int_eq(ask("POST /eep/rebalance", "{\"id\": \"b\"}"), 0);
    request = take_one();
    tell("b", EEP_ADMIN_RUNNING, "moving");
    for (int again = 0; again < 3; again++) { /* one command, however often it is asked for */
        ck_assert_int_eq(ask("POST /eep/abort", "{\"id\": \"b\"}"), 202);
    }
    ck_assert(eep_admin_mailbox_take(mailbox, &command));
    ck_assert(command.type == EEP_ADMIN_STOP && strcmp(command.request.id, "b") == 0);
    ck_assert(!eep_admin_mailbox_take(mailbox, &command));
    tell("b", EEP_ADMIN_ABORTED, "");
    ck_assert_int_eq(ask("POST /eep/abort", "{\"id\": \"b\"}"), 200);
    ck_assert_int_eq(ask("POST /eep/abort", "{\"id\": \"c\"}"), 404);
    stop();
}
END_TEST

START_TEST(what_is_remembered_is_bounded)
{
    start(EEP_ADMIN_CAN_REBALANCE, false);
    for (int i = 0; i < 3 * EEP_ADMIN_KEPT_OPERATIONS; i++) {
        char id[16];

        snprintf(id, sizeof(id), "op%d", i);
        tell(id, EEP_ADMIN_DONE, "");
    }
    ck_assert_int_eq(ask("GET /eep/operations", ""), 200);
    ck_assert_uint_eq(json_array_size(json_object_get(answer.json, "operations")),
                      EEP_ADMIN_KEPT_OPERATIONS);
    ck_assert_int_eq(ask("GET /eep/operations?id=op0", ""), 404);
    for (int i = 0; i < 10000; i++) {
        eep_admin_mailbox_event(mailbox, "layout", 1, 2, "event %d", i);
    }
    ck_assert_int_eq(ask("GET /eep/events", ""), 200);
    ck_assert_uint_eq(json_array_size(json_object_get(answer.json, "events")), 256);
    const json_int_t last = json_integer_value(json_object_get(answer.json, "last"));
    ck_assert_int_eq(last - json_integer_value(json_object_get(answer.json, "first_kept")) + 1,
                     EEP_ADMIN_KEPT_EVENTS);
    ck_assert_int_lt(last, 10000); /* what the admin thread had no room for was dropped */
    eep_admin_mailbox_event(mailbox, "layout", 1, 2, "one more");
    ck_assert_int_eq(ask("GET /eep/events", ""), 200);
    ck_assert_int_eq(json_integer_value(json_object_get(answer.json, "last")), last + 1);
    stop();
}
END_TEST

START_TEST(a_snapshot_is_a_copy)
{
    struct eep_admin_member member = {.id = 7, .rank = EEP_ADMIN_NO_RANK, .state = "parked"};
    struct eep_admin_seat seats[2] = {{EEP_ADMIN_SEAT_ACTIVE, 7}, {EEP_ADMIN_SEAT_LOST, 7}};
    struct eep_admin_metric metric = {"eep_steps_total", 3.0};
    int32_t map[4] = {0, 1, 1, -1};
    const struct eep_admin_status status = {.members = &member,
                                            .member_count = 1,
                                            .seats = seats,
                                            .seat_count = 2,
                                            .metrics = &metric,
                                            .metric_count = 1};
    const struct eep_admin_layout layout = {5, 1, 2, 2, 2, map};
    json_t *one;

    start(0, false);
    CK_OK(eep_admin_mailbox_post(mailbox, &status));
    CK_OK(eep_admin_mailbox_post_layout(mailbox, &layout));
    memset(&member, 0, sizeof(member));
    memset(map, 0, sizeof(map));
    ck_assert_int_eq(ask("GET /eep/status", ""), 200);
    one = json_array_get(json_object_get(answer.json, "members"), 0);
    ck_assert_int_eq(json_integer_value(json_object_get(one, "id")), 7);
    ck_assert(json_is_null(json_object_get(one, "rank")));
    ck_assert_uint_eq(json_array_size(json_object_get(one, "seats")), 2);
    ck_assert_int_eq(
        json_integer_value(json_object_get(json_object_get(answer.json, "seats"), "lost")), 1);
    ck_assert_int_eq(ask("GET /eep/layout", ""), 200);
    one = json_array_get(json_object_get(answer.json, "phys2log"), 0);
    ck_assert_int_eq(json_integer_value(json_array_get(one, 3)), -1);
    ck_assert_int_eq(json_integer_value(json_array_get(one, 1)), 1);
    stop();
}
END_TEST

/* ---- two threads ---- */

static atomic_bool over;
static unsigned taken, begun;

/* An engine that ends each operation one step after it took it. */
static void *engine(void *context)
{
    struct eep_admin_status status = {.can = EEP_ADMIN_CAN_REBALANCE, .state = "serving"};
    char running[EEP_ADMIN_ID_MAX + 1] = "";

    (void)context;
    while (!atomic_load(&over)) {
        struct eep_admin_command command;

        status.epoch++;
        CK_OK(eep_admin_mailbox_post(mailbox, &status));
        if (running[0] != '\0') {
            tell(running, EEP_ADMIN_DONE, "");
            running[0] = '\0';
        }
        while (eep_admin_mailbox_take(mailbox, &command)) {
            taken++;
            strcpy(running, command.request.id);
            tell(running, EEP_ADMIN_RUNNING, "moving");
            eep_admin_request_free(&command.request);
        }
    }
    return NULL;
}

START_TEST(two_threads_lose_nothing)
{
    pthread_t thread;
    char body[64];

    start(EEP_ADMIN_CAN_REBALANCE, false);
    ck_assert_int_eq(pthread_create(&thread, NULL, engine, NULL), 0);
    for (int i = 0; i < 2000; i++) {
        int code;

        snprintf(body, sizeof(body), "{\"id\": \"op%d\"}", i);
        while ((code = ask("POST /eep/rebalance", body)) == 409) {
        }
        if (code == 0 && i % 7 == 0) { /* some are withdrawn, if they still can be */
            snprintf(body, sizeof(body), "op%d", i);
            eep_admin_answer_free(&answer);
            eep_admin_route_late(&handlers, body, &answer);
            begun += answer.code != 503;
            ck_assert_int_eq(ask("GET /eep/status", ""), 200);
        } else {
            begun++;
        }
    }
    for (;;) { /* until the last one has ended */
        ck_assert_int_eq(ask("GET /eep/status", ""), 200);
        const char *state =
            json_string_value(json_object_get(json_object_get(answer.json, "operation"), "state"));
        if (strcmp(state, "done") == 0 || strcmp(state, "refused") == 0) {
            break;
        }
    }
    atomic_store(&over, true);
    ck_assert_int_eq(pthread_join(thread, NULL), 0);
    ck_assert_uint_eq(taken, begun);
    stop();
}
END_TEST

START_TEST(without_memory_nothing_is_begun)
{
    struct eep_admin_command command;

    for (uint64_t nth = 1;; nth++) {
        start(EEP_ADMIN_CAN_REBALANCE, false);
        ck_assert_int_eq(ask("GET /eep/status", ""), 200);
        eep_mem_fail_nth(nth);
        const int code = ask("POST /eep/rebalance", "{\"id\": \"x\"}");
        eep_mem_fail_nth(0);
        ck_assert(code == 503 || code == 0);
        ck_assert_int_eq(eep_admin_mailbox_take(mailbox, &command), code == 0);
        stop();
        if (code == 0) {
            ck_assert_uint_gt(nth, 1); /* some did fail */
            break;
        }
    }
}
END_TEST

/* ---- over a socket ---- */

static char dir[] = "/tmp/eep-admin-XXXXXX";
static char endpoint[64];

static enum eep_status open_socket(struct eep_admin **admin_out)
{
    const struct eep_admin_params params = {.endpoint = endpoint,
                                            .connections_max = 2,
                                            .request_timeout_ms = 300,
                                            .verdict_timeout_ms = 100};

    return eep_admin_open(&params, &handlers, admin_out);
}

static int dial(const char *bytes)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    const struct timeval limit = {.tv_sec = 20};
    const int fd = socket(AF_UNIX, SOCK_STREAM, 0);

    ck_assert_int_ge(fd, 0);
    snprintf(address.sun_path, sizeof(address.sun_path), "%s", endpoint + strlen("unix:"));
    ck_assert_int_eq(connect(fd, (const void *)&address, sizeof(address)), 0);
    ck_assert_int_eq(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit)), 0);
    ck_assert_int_eq(write(fd, bytes, strlen(bytes)), (ssize_t)strlen(bytes));
    return fd;
}

/* The code of the answer, 0 for none, once the connection is closed; -1 if it stays open. */
static int hang_on(int fd)
{
    char text[4096];
    size_t used = 0;
    ssize_t got;
    int code = 0;

    while ((got = read(fd, text + used, sizeof(text) - 1 - used)) > 0) {
        used += (size_t)got;
    }
    close(fd);
    text[used] = '\0';
    if (got < 0 && errno != ECONNRESET) {
        return -1;
    }
    return sscanf(text, "HTTP/1.1 %d", &code) == 1 ? code : 0;
}

START_TEST(a_socket_with_slow_clients_and_an_engine_that_hangs)
{
    struct eep_admin *admin, *second;
    int silent, half, third;

    ck_assert_ptr_nonnull(mkdtemp(dir));
    snprintf(endpoint, sizeof(endpoint), "unix:%s/a.sock", dir);
    start(EEP_ADMIN_CAN_REBALANCE, false);
    CK_OK(open_socket(&admin));
    ck_assert_str_eq(eep_admin_address(admin), endpoint);
    ck_assert_int_eq(open_socket(&second), EEP_ERR_AGAIN);

    /* nobody takes the command: it is withdrawn */
    ck_assert_int_eq(hang_on(dial("POST /eep/rebalance HTTP/1.0\r\n\r\n")), 503);
    ck_assert_int_eq(hang_on(dial("GET /eep/status HTTP/1.0\r\n\r\n")), 200);

    silent = dial("");
    half = dial("GET /eep/status HT");
    ck_assert_int_eq(hang_on(half), 408);
    ck_assert_int_eq(hang_on(silent), 0);

    /* there is room for two: a third takes the place of the first */
    silent = dial("");
    half = dial("GET /eep/status HT");
    third = dial("GET /eep/status HTTP/1.0\r\n\r\n");
    ck_assert_int_eq(hang_on(third), 200);
    ck_assert_int_eq(hang_on(silent), 0);
    ck_assert_int_eq(hang_on(half), 408);

    half = dial("GET /eep/status HT"); /* closing drops it */
    eep_admin_close(admin);
    ck_assert_int_eq(hang_on(half), 0);
    ck_assert_int_eq(rmdir(dir), 0); /* neither socket nor lock is left */
    stop();
}
END_TEST

/* A socket at the endpoint, as a program that knows nothing of our lock makes it. */
static int foreign_socket(bool listens)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    const int fd = socket(AF_UNIX, SOCK_STREAM, 0);

    snprintf(address.sun_path, sizeof(address.sun_path), "%s", endpoint + strlen("unix:"));
    ck_assert_int_eq(bind(fd, (const void *)&address, sizeof(address)), 0);
    ck_assert_int_eq(listens ? listen(fd, 1) : 0, 0);
    return fd;
}

START_TEST(only_a_socket_that_nobody_serves_is_replaced)
{
    char lock[80];
    struct eep_admin *admin;
    int foreign, locked;

    ck_assert_ptr_nonnull(mkdtemp(dir));
    snprintf(endpoint, sizeof(endpoint), "unix:%s/a.sock", dir);
    snprintf(lock, sizeof(lock), "%s/a.sock.lock", dir);
    start(0, false);
    foreign = foreign_socket(true);
    ck_assert_int_eq(open_socket(&admin), EEP_ERR_AGAIN);
    ck_assert_int_eq(access(endpoint + strlen("unix:"), F_OK), 0);
    close(foreign); /* now it is stale, but another process is about to replace it */
    locked = open(lock, O_RDWR | O_CREAT, 0600);
    ck_assert_int_eq(flock(locked, LOCK_EX), 0);
    ck_assert_int_eq(open_socket(&admin), EEP_ERR_AGAIN);
    close(locked);
    CK_OK(open_socket(&admin));
    ck_assert_int_eq(hang_on(dial("GET /eep/status HTTP/1.0\r\n\r\n")), 200);

    /* what others put in its place stays */
    ck_assert_int_eq(unlink(endpoint + strlen("unix:")), 0);
    foreign = foreign_socket(false);
    eep_admin_close(admin);
    ck_assert_int_eq(unlink(endpoint + strlen("unix:")), 0);
    close(foreign);
    ck_assert_int_eq(rmdir(dir), 0);
    stop();
}
END_TEST

int main(void)
{
    const TTest *const tests[] = {
        a_head_is_read,
        a_head_may_come_byte_by_byte,
        what_is_ambiguous_is_refused,
        a_head_is_bounded,
        a_token_that_is_too_long_is_none,
        both_ways_to_name_a_scale_ask_for_the_same,
        hosts_and_members_are_read,
        a_wrong_field_is_named,
        endpoints_are_read,
        tokens_are_read_and_never_told,
        tokens_are_compared,
        a_directory_that_is_open_to_others_is_refused,
        an_operation_goes_its_way,
        what_the_engine_cannot_do_is_501_and_off_is_404,
        paths_and_methods,
        an_operation_that_nobody_takes_is_withdrawn,
        abort_before_and_after_it_was_taken,
        what_is_remembered_is_bounded,
        a_snapshot_is_a_copy,
        two_threads_lose_nothing,
        without_memory_nothing_is_begun,
        a_socket_with_slow_clients_and_an_engine_that_hangs,
        only_a_socket_that_nobody_serves_is_replaced,
    };

    return run_tests("admin", tests, COUNT(tests));
}
