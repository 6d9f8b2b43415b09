/* `ats top --metrics`: a small web server on the loopback address.
 *
 * GNU libmicrohttpd speaks HTTP; it runs in this thread, when there is something to do. What is
 * served is read when it is asked for. Nobody but processes of this machine can connect. */
#include "cli/cli.h"
#include "cli/top.h"

#include <errno.h>
#include <microhttpd.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
    CONNECTIONS = 16, /* at once; Prometheus needs one */
    TIMEOUT_S = 10,   /* of a connection on which nothing happens */
    BACKLOG = 16,
    WAIT_MS = 200, /* until a signal is looked for */
};

static const char content_type[] = "text/plain; version=0.0.4; charset=utf-8";

static char *make_text(const struct top_options *o, size_t *n)
{
    char *text = NULL;
    FILE *out = open_memstream(&text, n);
    if (out == NULL) {
        return NULL;
    }
    struct ats_live_list list;
    uint64_t at_ns;
    top_look(o, &list, &at_ns);
    ats_top_prometheus(out, list.processes, list.n, at_ns);
    ats_live_list_free(&list);
    if (fclose(out) != 0) {
        free(text);
        return NULL;
    }
    return text;
}

static enum MHD_Result reply(struct MHD_Connection *connection, unsigned status, const char *type,
                             struct MHD_Response *response)
{
    if (response == NULL) {
        return MHD_NO; /* out of memory: the connection is closed */
    }
    enum MHD_Result result = MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, type);
    if (status == MHD_HTTP_METHOD_NOT_ALLOWED) {
        result = MHD_add_response_header(response, MHD_HTTP_HEADER_ALLOW, "GET, HEAD");
    }
    result = result == MHD_YES ? MHD_queue_response(connection, status, response) : MHD_NO;
    MHD_destroy_response(response);
    return result;
}

static enum MHD_Result reply_text(struct MHD_Connection *connection, unsigned status,
                                  const char *text)
{
    /* the library copies nothing and changes nothing of it */
    union {
        const char *given;
        void *taken;
    } body = {.given = text};
    return reply(connection, status, "text/plain; charset=utf-8",
                 MHD_create_response_from_buffer(strlen(text), body.taken, MHD_RESPMEM_PERSISTENT));
}

static enum MHD_Result answer(void *data, struct MHD_Connection *connection, const char *url,
                              const char *method, const char *version, const char *upload,
                              size_t *upload_bytes, void **state)
{
    (void)version;
    (void)upload;
    static int seen;
    if (*state == NULL) { /* the headers alone; the rest of the request follows */
        *state = &seen;
        return MHD_YES;
    }
    if (*upload_bytes > 0) {
        *upload_bytes = 0; /* whatever was sent along */
        return MHD_YES;
    }
    if (strcmp(method, MHD_HTTP_METHOD_GET) != 0 && strcmp(method, MHD_HTTP_METHOD_HEAD) != 0) {
        return reply_text(connection, MHD_HTTP_METHOD_NOT_ALLOWED, "only GET and HEAD\n");
    }
    if (strcmp(url, "/metrics") != 0) {
        return reply_text(connection, MHD_HTTP_NOT_FOUND, "the figures are at /metrics\n");
    }
    size_t n = 0;
    char *text = make_text(data, &n);
    if (text == NULL) {
        return MHD_NO;
    }
    struct MHD_Response *response = MHD_create_response_from_buffer(n, text, MHD_RESPMEM_MUST_FREE);
    if (response == NULL) {
        free(text);
    }
    return reply(connection, MHD_HTTP_OK, content_type, response);
}

/* A socket that listens, or -1. *port: 0 becomes the one that was given. */
static int listen_on(uint32_t *port, struct ats_error *err)
{
    const int on = 1;
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_port = htons((uint16_t)*port),
                                  .sin_addr = {.s_addr = htonl(INADDR_LOOPBACK)}};
    socklen_t size = sizeof(address);
    const int file = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (file >= 0 && setsockopt(file, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) == 0 &&
        bind(file, (struct sockaddr *)&address, size) == 0 && listen(file, BACKLOG) == 0 &&
        getsockname(file, (struct sockaddr *)&address, &size) == 0) {
        *port = ntohs(address.sin_port);
        return file;
    }
    if (errno == EADDRINUSE) {
        ats_fail(err, "port %u of 127.0.0.1 is in use; give another one, or 0 for any", *port);
    } else {
        ats_fail(err, "cannot listen on 127.0.0.1:%u: %s", *port, strerror(errno));
    }
    if (file >= 0) {
        close(file);
    }
    return -1;
}

int top_serve(const char *who, const struct top_options *o)
{
    struct ats_error err;
    struct top_options chosen = *o;
    const int file = listen_on(&chosen.metrics, &err);
    if (file < 0) {
        return cli_error(who, &err);
    }
    struct MHD_Daemon *daemon =
        MHD_start_daemon(MHD_NO_FLAG, 0, NULL, NULL, answer, &chosen, MHD_OPTION_LISTEN_SOCKET,
                         file, MHD_OPTION_CONNECTION_LIMIT, (unsigned)CONNECTIONS,
                         MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)TIMEOUT_S, MHD_OPTION_END);
    if (daemon == NULL) {
        close(file);
        ats_fail(&err, "cannot start the server");
        return cli_error(who, &err);
    }
    const sigset_t *signals = top_catch_signals();
    sigprocmask(SIG_SETMASK, signals, NULL);
    printf("Serving http://127.0.0.1:%u/metrics (Ctrl-C ends)\n", chosen.metrics);
    fflush(stdout);
    while (top_stopped_by() == 0 && !ferror(stdout) && MHD_run_wait(daemon, WAIT_MS) == MHD_YES) {
    }
    const int number = top_stopped_by();
    MHD_stop_daemon(daemon); /* closes the socket, too */
    if (number == 0 && !ferror(stdout)) {
        ats_fail(&err, "the server failed");
        return cli_error(who, &err);
    }
    return top_end(number);
}
