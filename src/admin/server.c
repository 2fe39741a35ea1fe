/*
 * Connections. One thread, one event base; a connection has one timer and one state:
 *
 *     READING -> (WAITING ->) WRITING -> READING (kept alive) | CLOSING -> gone
 *
 *     READING   collects a request; what comes too slowly, or not at all, is dropped by the timer,
 *               which does not start anew with each byte
 *     WAITING   for the engine's verdict on an operation; nothing is read
 *     WRITING   an answer; nothing is read, so pipelined requests wait in the socket's buffers
 *     CLOSING   the answer is out and our side is shut; the rest is read and dropped for a moment,
 * for a client that still sends would lose the answer to a reset
 *
 * libevent's evhttp is not used: the version that distributions have cannot bound the number of
 * connections, nor the time that a request takes as a whole.
 */
#include <errno.h>
#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <event2/bufferevent_ssl.h>
#include <event2/event.h>
#include <event2/listener.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/ssl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/queue.h>
#include <unistd.h>

#include "admin/admin_int.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"

#define INPUT_MAX (EEP_HTTP_HEAD_MAX + EEP_HTTP_BODY_MAX)
#define CLOSING_MS 1000
#define CLOSING_BYTES_MAX ((size_t)1 << 20)
#define ACCEPT_PAUSE_MS 100 /* when there are no more descriptors */
#define TOLD_EVERY_NS (10 * EEP_NS_PER_S)

enum state {
    READING,
    WAITING,
    WRITING,
    CLOSING,
};

struct conn {
    struct eep_server *server;
    TAILQ_ENTRY(conn) link; /* in the order of arrival */
    struct bufferevent *bev;
    struct event *timer;
    enum state state;
    bool has_head;
    bool keep_alive;      /* after the answer that is being made */
    bool ended;           /* the client sends no more */
    size_t dropped_bytes; /* CLOSING */
    struct eep_http_head head;
    char waits_for[EEP_ADMIN_ID_MAX + 1]; /* WAITING: the operation */
};

TAILQ_HEAD(conns, conn);

struct eep_server {
    struct eep_server_params params;
    struct event_base *base;
    struct evconnlistener *listener;
    struct event *accept_timer; /* listens again after a pause */
    struct event *stop_event;
    struct event *wake_event; /* the engine has told something */
    int stop_fd;
    struct conns conns;
    uint32_t conn_count;
    uint64_t told_ns; /* when a wrong token was logged */
};

static void process(struct conn *c);

/* ---- a connection's life ---- */

static void set_timer(struct conn *c, uint32_t ms)
{
    const struct timeval time = {.tv_sec = ms / 1000, .tv_usec = (ms % 1000) * 1000};

    if (evtimer_add(c->timer, &time) != 0) {
        eep_log(EEP_LOG_WARN, "admin: a timer could not be set");
    }
}

static void drop(struct conn *c)
{
    TAILQ_REMOVE(&c->server->conns, c, link);
    c->server->conn_count--;
    event_free(c->timer);
    bufferevent_free(c->bev);
    eep_mem_free(c);
}

static void start_reading(struct conn *c)
{
    c->state = READING;
    c->has_head = false;
    set_timer(c, c->server->params.request_timeout_ms);
    (void)bufferevent_enable(c->bev, EV_READ);
}

static void start_closing(struct conn *c)
{
    SSL *ssl = bufferevent_openssl_get_ssl(c->bev);

    c->state = CLOSING;
    if (c->ended) {
        drop(c);
        return;
    }
    if (ssl != NULL) {
        (void)SSL_shutdown(ssl);
    }
    (void)shutdown(bufferevent_getfd(c->bev), SHUT_WR);
    set_timer(c, CLOSING_MS);
    (void)bufferevent_enable(c->bev, EV_READ);
}

/* ---- answers ---- */

static void add_head(struct conn *c, struct evbuffer *out, const struct eep_admin_answer *answer,
                     size_t body_bytes)
{
    evbuffer_add_printf(out, "HTTP/1.1 %d %s\r\n", answer->code, eep_http_reason(answer->code));
    evbuffer_add_printf(out, "Content-Type: application/json\r\nContent-Length: %zu\r\n",
                        body_bytes);
    evbuffer_add_printf(out, "Cache-Control: no-store\r\nConnection: %s\r\n",
                        c->keep_alive ? "keep-alive" : "close");
    if (answer->allow != NULL) {
        evbuffer_add_printf(out, "Allow: %s\r\n", answer->allow);
    }
    if (answer->code == 401) {
        evbuffer_add_printf(out, "WWW-Authenticate: Bearer\r\n");
    }
    if (answer->code == 503) {
        evbuffer_add_printf(out, "Retry-After: 1\r\n");
    }
    evbuffer_add_printf(out, "\r\n");
}

/* Sends an answer and frees what it holds. */
static void send_answer(struct conn *c, struct eep_admin_answer *answer)
{
    static const char no_memory[] =
        "{\"error\":{\"code\":503,\"reason\":\"unavailable\",\"message\":\"out of memory\"}}\n";
    struct evbuffer *out = bufferevent_get_output(c->bev);
    char *text = eep_admin_answer_text(answer);

    if (text == NULL) {
        answer->code = 503;
    }
    (void)bufferevent_disable(c->bev, EV_READ);
    c->state = WRITING;
    set_timer(c, c->server->params.request_timeout_ms);
    add_head(c, out, answer, strlen(text != NULL ? text : no_memory));
    (void)evbuffer_add(out, text != NULL ? text : no_memory,
                       strlen(text != NULL ? text : no_memory));
    free(text);
    eep_admin_answer_free(answer);
}

/* After this nothing more of the connection can be understood, or is wanted. */
static void send_last_error(struct conn *c, int code, const char *message)
{
    struct eep_admin_answer answer;

    c->keep_alive = false;
    eep_admin_route_error(code, message, &answer);
    send_answer(c, &answer);
}

/* ---- requests ---- */

static bool is_allowed(struct conn *c)
{
    struct eep_server *s = c->server;
    const uint64_t now_ns = eep_clock_ns();
    const bool equal =
        s->params.token[0] == '\0' || eep_token_equal(c->head.token, s->params.token);

    if (!equal && (s->told_ns == 0 || now_ns - s->told_ns > TOLD_EVERY_NS)) {
        s->told_ns = now_ns;
        eep_log(EEP_LOG_WARN, "admin: a client was refused: %s token",
                c->head.token[0] == '\0' ? "no" : "a wrong");
    }
    explicit_bzero(c->head.token, sizeof(c->head.token));
    return equal;
}

/* False: the head is not complete, or it was answered with an error. */
static bool read_head(struct conn *c)
{
    struct evbuffer *input = bufferevent_get_input(c->bev);
    const size_t count = EEP_MIN(evbuffer_get_length(input), EEP_HTTP_HEAD_MAX);
    const char *bytes = count > 0 ? (const void *)evbuffer_pullup(input, (ev_ssize_t)count) : "";
    struct eep_http_wrong wrong;

    if (bytes == NULL) {
        send_last_error(c, 503, "out of memory");
        return false;
    }
    switch (eep_http_parse(bytes, count, &c->head, &wrong)) {
    case EEP_HTTP_MORE:
        return false;
    case EEP_HTTP_BAD:
        send_last_error(c, wrong.code, wrong.message);
        return false;
    case EEP_HTTP_READY:
        break;
    }
    (void)evbuffer_drain(input, c->head.head_bytes);
    c->keep_alive = c->head.keep_alive;
    if (!is_allowed(c)) {
        send_last_error(c, 401,
                        "this endpoint needs the right token: 'Authorization: Bearer TOKEN'");
        return false;
    }
    if (c->head.body_bytes > EEP_HTTP_BODY_MAX) {
        send_last_error(c, 413, "the body is longer than 65536 bytes");
        return false;
    }
    if (c->head.expects_continue && c->head.body_bytes > evbuffer_get_length(input)) {
        (void)evbuffer_add_printf(bufferevent_get_output(c->bev), "HTTP/1.1 100 Continue\r\n\r\n");
    }
    c->has_head = true;
    return true;
}

static void answer_request(struct conn *c, const char *body)
{
    const struct eep_server *s = c->server;
    struct eep_admin_answer answer;

    eep_admin_route(&s->params.handlers, &c->head, body, (size_t)c->head.body_bytes, &answer);
    (void)evbuffer_drain(bufferevent_get_input(c->bev), (size_t)c->head.body_bytes);
    if (!answer.waits) {
        send_answer(c, &answer);
        return;
    }
    (void)bufferevent_disable(c->bev, EV_READ);
    c->state = WAITING;
    strcpy(c->waits_for, answer.id);
    set_timer(c, s->params.verdict_timeout_ms);
}

/* One request, if it is complete. The next one is looked at when this one's answer is out. */
static void process(struct conn *c)
{
    struct evbuffer *input = bufferevent_get_input(c->bev);
    const char *body = "";

    if (c->state != READING || (!c->has_head && !read_head(c)) ||
        evbuffer_get_length(input) < c->head.body_bytes) {
        return;
    }
    if (c->head.body_bytes > 0) {
        body = (const void *)evbuffer_pullup(input, (ev_ssize_t)c->head.body_bytes);
        if (body == NULL) {
            send_last_error(c, 503, "out of memory");
            return;
        }
    }
    answer_request(c, body);
}

/* ---- what libevent tells ---- */

static void on_read(struct bufferevent *bev, void *context)
{
    struct conn *c = context;

    if (c->state != CLOSING) {
        process(c);
        return;
    }
    struct evbuffer *input = bufferevent_get_input(bev);
    c->dropped_bytes += evbuffer_get_length(input);
    (void)evbuffer_drain(input, evbuffer_get_length(input));
    if (c->dropped_bytes > CLOSING_BYTES_MAX) {
        drop(c);
    }
}

/* All that there was to send is out; with a 100 Continue it is not the answer. */
static void on_written(struct bufferevent *bev, void *context)
{
    struct conn *c = context;

    (void)bev;
    if (c->state != WRITING) {
        return;
    }
    if (!c->keep_alive || c->ended) {
        start_closing(c);
        return;
    }
    start_reading(c);
    process(c);
}

static void on_event(struct bufferevent *bev, short what, void *context)
{
    struct conn *c = context;

    (void)bev;
    if ((what & BEV_EVENT_CONNECTED) != 0) {
        return;
    }
    if ((what & BEV_EVENT_EOF) == 0 || c->state == READING || c->state == CLOSING) {
        drop(c);
        return;
    }
    c->ended = true; /* it may still read its answer */
}

static void on_time(evutil_socket_t fd, short what, void *context)
{
    struct conn *c = context;
    struct eep_admin_answer answer;

    (void)fd;
    (void)what;
    switch (c->state) {
    case READING:
        if (c->has_head || evbuffer_get_length(bufferevent_get_input(c->bev)) > 0) {
            send_last_error(c, 408, "the request did not arrive whole in time");
            return;
        }
        break;
    case WAITING:
        eep_admin_route_late(&c->server->params.handlers, c->waits_for, &answer);
        send_answer(c, &answer);
        return;
    case WRITING:
    case CLOSING:
        break;
    }
    drop(c);
}

/* ---- accepting ---- */

static struct bufferevent *make_bev(struct eep_server *s, evutil_socket_t fd)
{
    struct bufferevent *bev;
    SSL *ssl;

    if (s->params.tls == NULL) {
        return bufferevent_socket_new(s->base, fd, BEV_OPT_CLOSE_ON_FREE);
    }
    ssl = SSL_new(s->params.tls);
    if (ssl == NULL) {
        return NULL;
    }
    bev = bufferevent_openssl_socket_new(s->base, fd, ssl, BUFFEREVENT_SSL_ACCEPTING,
                                         BEV_OPT_CLOSE_ON_FREE);
    if (bev == NULL) {
        SSL_free(ssl);
        return NULL;
    }
    bufferevent_openssl_set_allow_dirty_shutdown(bev, 1);
    return bev;
}

/* On failure the descriptor is the caller's. */
static enum eep_status make_conn(struct eep_server *s, evutil_socket_t fd)
{
    struct conn *c;

    EEP_TRY(eep_mem_alloc(1, sizeof(*c), "an admin connection", &c));
    c->server = s;
    c->timer = evtimer_new(s->base, on_time, c);
    c->bev = c->timer != NULL ? make_bev(s, fd) : NULL;
    if (c->bev == NULL) {
        if (c->timer != NULL) {
            event_free(c->timer);
        }
        eep_mem_free(c);
        return EEP_FAIL(EEP_ERR_NOMEM, "an admin connection: no memory");
    }
    TAILQ_INSERT_TAIL(&s->conns, c, link);
    s->conn_count++;
    bufferevent_setcb(c->bev, on_read, on_written, on_event, c);
    bufferevent_setwatermark(c->bev, EV_READ, 0, INPUT_MAX);
    (void)bufferevent_enable(c->bev, EV_WRITE);
    start_reading(c);
    return EEP_OK;
}

/* Room for a new client: the one that has been there longest without a request has to go. */
static bool make_room(struct eep_server *s)
{
    struct conn *c;

    if (s->conn_count < s->params.connections_max) {
        return true;
    }
    TAILQ_FOREACH(c, &s->conns, link)
    {
        if (c->state == CLOSING || (c->state == READING && !c->has_head)) {
            drop(c);
            return true;
        }
    }
    return false;
}

static void refuse(struct eep_server *s, evutil_socket_t fd)
{
    static const char text[] = "HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n"
                               "Retry-After: 1\r\nConnection: close\r\n\r\n";

    if (s->params.tls == NULL) {
        (void)send(fd, text, sizeof(text) - 1, MSG_DONTWAIT | MSG_NOSIGNAL);
    }
    evutil_closesocket(fd);
}

static void on_accept(struct evconnlistener *listener, evutil_socket_t fd, struct sockaddr *address,
                      int length, void *context)
{
    struct eep_server *s = context;
    const int one = 1;

    (void)listener;
    (void)length;
    if (address->sa_family == AF_INET || address->sa_family == AF_INET6) {
        (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    }
    if (!make_room(s) || make_conn(s, fd) != EEP_OK) {
        refuse(s, fd);
    }
}

/* Most likely there are no more descriptors. Trying again at once would burn a core. */
static void on_accept_error(struct evconnlistener *listener, void *context)
{
    struct eep_server *s = context;
    const struct timeval pause = {.tv_usec = ACCEPT_PAUSE_MS * 1000};

    (void)evconnlistener_disable(listener);
    (void)evtimer_add(s->accept_timer, &pause);
}

static void on_accept_again(evutil_socket_t fd, short what, void *context)
{
    struct eep_server *s = context;

    (void)fd;
    (void)what;
    (void)evconnlistener_enable(s->listener);
}

/* ---- other threads ---- */

static void on_wake(evutil_socket_t fd, short what, void *context)
{
    struct eep_server *s = context;
    struct conn *c, *next;

    (void)fd;
    (void)what;
    s->params.handlers.catch_up(s->params.handlers.context);
    for (c = TAILQ_FIRST(&s->conns); c != NULL; c = next) {
        struct eep_admin_answer answer;

        next = TAILQ_NEXT(c, link);
        if (c->state == WAITING &&
            eep_admin_route_decided(&s->params.handlers, c->waits_for, &answer)) {
            send_answer(c, &answer);
        }
    }
}

static void on_stop(evutil_socket_t fd, short what, void *context)
{
    struct eep_server *s = context;

    (void)fd;
    (void)what;
    (void)event_base_loopbreak(s->base);
}

void eep_server_stop(struct eep_server *server)
{
    const uint64_t one = 1;

    while (write(server->stop_fd, &one, sizeof(one)) < 0 && errno == EINTR) {
    }
}

/* ---- life ---- */

static struct event_base *make_base(void)
{
    struct event_config *config = event_config_new();
    struct event_base *base = NULL;

    if (config != NULL) {
        (void)event_config_set_flag(config, EVENT_BASE_FLAG_NOLOCK); /* one thread uses it */
        base = event_base_new_with_config(config);
        event_config_free(config);
    }
    return base;
}

static bool make_events(struct eep_server *s)
{
    s->stop_event = event_new(s->base, s->stop_fd, EV_READ | EV_PERSIST, on_stop, s);
    s->accept_timer = evtimer_new(s->base, on_accept_again, s);
    s->wake_event =
        event_new(s->base, s->params.handlers.wake_fd, EV_READ | EV_PERSIST, on_wake, s);
    s->listener = evconnlistener_new(s->base, on_accept, s, LEV_OPT_CLOSE_ON_EXEC, 0,
                                     s->params.listen_fd); /* it listens already */
    if (s->stop_event == NULL || s->accept_timer == NULL || s->listener == NULL ||
        s->wake_event == NULL) {
        return false;
    }
    evconnlistener_set_error_cb(s->listener, on_accept_error);
    return event_add(s->stop_event, NULL) == 0 && event_add(s->wake_event, NULL) == 0;
}

enum eep_status eep_server_create(const struct eep_server_params *params,
                                  struct eep_server **server_out)
{
    struct eep_server *s;

    EEP_TRY(eep_mem_alloc(1, sizeof(*s), "the admin server", &s));
    s->params = *params;
    TAILQ_INIT(&s->conns);
    s->stop_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    s->base = make_base();
    if (s->stop_fd < 0 || s->base == NULL || !make_events(s)) {
        eep_server_destroy(s);
        return EEP_FAIL(EEP_ERR_NOMEM, "admin: no memory or no descriptor for its events");
    }
    *server_out = s;
    return EEP_OK;
}

void eep_server_run(struct eep_server *server)
{
    (void)event_base_dispatch(server->base);
}

static void free_event(struct event *event)
{
    if (event != NULL) {
        event_free(event);
    }
}

void eep_server_destroy(struct eep_server *server)
{
    if (server == NULL) {
        return;
    }
    while (!TAILQ_EMPTY(&server->conns)) {
        drop(TAILQ_FIRST(&server->conns));
    }
    if (server->listener != NULL) {
        evconnlistener_free(server->listener);
    }
    free_event(server->stop_event);
    free_event(server->wake_event);
    free_event(server->accept_timer);
    if (server->base != NULL) {
        event_base_free(server->base);
    }
    if (server->stop_fd >= 0) {
        close(server->stop_fd);
    }
    eep_mem_free(server);
}
