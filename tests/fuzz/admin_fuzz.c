/*
 * What a client of the admin endpoint sends: a head, and behind it a body. It goes through the
 * reader of heads, the paths, the reader of bodies and the mailbox, to an engine that can do
 * everything.
 */
#include "admin/admin_int.h"
#include "admin/mailbox.h"
#include "fuzz.h"

#define EVERYTHING                                                                                 \
    (EEP_ADMIN_CAN_SCALE | EEP_ADMIN_CAN_DRAIN | EEP_ADMIN_CAN_REBALANCE | EEP_ADMIN_CAN_ABORT)

static void check_request(const struct eep_admin_request *r)
{
    FUZZ_CHECK(eep_admin_id_ok(r->id));
    FUZZ_CHECK(r->deadline_s >= 1 && r->deadline_s <= EEP_ADMIN_DEADLINE_S_MAX);
    FUZZ_CHECK(r->to <= EEP_ADMIN_SIZE_MAX && (r->to >= 1) == (r->kind == EEP_ADMIN_SCALE));
    FUZZ_CHECK(r->host_count <= EEP_ADMIN_HOSTS_MAX);
    FUZZ_CHECK((r->member_count > 0) == (r->kind == EEP_ADMIN_DRAIN));
    for (size_t i = 0; i < r->host_count; i++) {
        FUZZ_CHECK(r->hosts[i].slots >= 1 && r->hosts[i].slots <= EEP_ADMIN_SIZE_MAX);
        FUZZ_CHECK(r->hosts[i].name[0] != '\0' && strpbrk(r->hosts[i].name, " ;'\"$`/\n") == NULL);
    }
    for (size_t i = 1; i < r->member_count; i++) {
        FUZZ_CHECK(r->members[i - 1] < r->members[i]);
    }
}

/* The engine refuses what it is asked for. */
static void take(struct eep_admin_mailbox *mailbox, const char *id)
{
    struct eep_admin_command command;

    FUZZ_CHECK(eep_admin_mailbox_take(mailbox, &command));
    FUZZ_CHECK(command.type == EEP_ADMIN_DO && strcmp(command.request.id, id) == 0);
    check_request(&command.request);
    FUZZ_CHECK(eep_admin_mailbox_refuse(mailbox, &command.request, EEP_ADMIN_BAD, "no") == EEP_OK);
    eep_admin_request_free(&command.request);
    FUZZ_CHECK(!eep_admin_mailbox_take(mailbox, &command));
}

static void check_answer(struct eep_admin_answer *answer)
{
    char *text = eep_admin_answer_text(answer);
    json_t *json = text != NULL ? json_loads(text, 0, NULL) : NULL;

    FUZZ_CHECK(answer->code >= 200 && answer->code < 600);
    FUZZ_CHECK(json_is_object(json));
    json_decref(json);
    free(text);
    eep_admin_answer_free(answer);
}

static void route(const struct eep_http_head *head, const char *body, size_t bytes)
{
    const struct eep_admin_status status = {.can = EVERYTHING, .scaling.enabled = true};
    struct eep_admin_mailbox *mailbox;
    struct eep_admin_handlers handlers;
    struct eep_admin_answer answer;

    FUZZ_CHECK(eep_admin_mailbox_create(&mailbox) == EEP_OK);
    FUZZ_CHECK(eep_admin_mailbox_post(mailbox, &status) == EEP_OK);
    handlers = eep_admin_mailbox_handlers(mailbox);
    eep_admin_route(&handlers, head, body, bytes, &answer);
    if (answer.waits) {
        char id[EEP_ADMIN_ID_MAX + 1];

        strcpy(id, answer.id);
        take(mailbox, id);
        handlers.catch_up(handlers.context);
        FUZZ_CHECK(eep_admin_route_decided(&handlers, id, &answer));
        FUZZ_CHECK(answer.code == EEP_ADMIN_BAD);
    }
    check_answer(&answer);
    eep_admin_mailbox_destroy(mailbox);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    /* a block of its own, so that a read beyond the end is seen */
    char *copy = malloc(bytes > 0 ? bytes : 1);
    struct eep_http_head head, again;
    struct eep_http_wrong wrong;

    FUZZ_CHECK(copy != NULL);
    if (bytes > 0) {
        memcpy(copy, data, bytes);
    }
    switch (eep_http_parse(copy, bytes, &head, &wrong)) {
    case EEP_HTTP_MORE:
        FUZZ_CHECK(bytes < EEP_HTTP_HEAD_MAX);
        break;
    case EEP_HTTP_BAD:
        FUZZ_CHECK(wrong.code >= 400 && wrong.code < 600 && wrong.message[0] != '\0');
        break;
    case EEP_HTTP_READY:
        FUZZ_CHECK(head.head_bytes <= bytes && head.head_bytes <= EEP_HTTP_HEAD_MAX);
        FUZZ_CHECK(head.path[0] == '/' && strlen(head.token) <= EEP_TOKEN_MAX);
        FUZZ_CHECK(eep_http_parse(copy, head.head_bytes - 1, &again, &wrong) == EEP_HTTP_MORE);
        route(&head, copy + head.head_bytes, bytes - head.head_bytes);
        break;
    }
    free(copy);
    return 0;
}
