/* An inference engine that never thinks: the upstream of the proxy benchmark.
 *
 *   cc -O2 -o mock_engine mock_engine.c
 *   ./mock_engine COUNT        listens on COUNT free loopback ports and prints them, then serves until killed
 *
 * One thread, one epoll. Chat and text completions get a constant JSON answer, or with "stream":true a stream of
 * "max_tokens" events, "seed" milliseconds apart (0: as fast as they can be written), each in a write of its own. The first
 * word of an event's text is t=<CLOCK_MONOTONIC in ns>, so that a client on the same machine can tell how long it was under
 * way. These knobs are ordinary fields of the API, which any gateway passes on.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { MAX_EVENTS = 256, READ_BYTES = 64 * 1024, KNOB_BYTES = 4096, EVENT_TEXT_BYTES = 100 };

struct bytes {
    char *data;
    size_t length, capacity;
};

struct peer {
    int fd;
    int is_listener;
    struct bytes in, out;
    long events_left; /* of the stream being sent; 0 when none is */
    int wants_usage;
    uint64_t gap_ns, due_ns;
    struct peer *previous, *next; /* in the list of paced streams */
    int paced, dead;
};

static int epoll_fd;
static struct peer paced = {.previous = &paced, .next = &paced};
static struct peer *graveyard; /* freed after the batch of events that may still name them */

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000ull + (uint64_t)t.tv_nsec;
}

static void reserve(struct bytes *b, size_t more) {
    if (b->capacity - b->length >= more) return;
    b->capacity = (b->length + more) * 2;
    b->data = realloc(b->data, b->capacity);
    if (!b->data) abort();
}

static void pace_stop(struct peer *p) {
    if (!p->paced) return;
    p->previous->next = p->next;
    p->next->previous = p->previous;
    p->paced = 0;
}

/* Sorted by due time; new streams nearly always belong at the end, because the benchmarks use one gap at a time. */
static void pace_start(struct peer *p) {
    struct peer *after = paced.previous;
    while (after != &paced && after->due_ns > p->due_ns) after = after->previous;
    p->previous = after;
    p->next = after->next;
    after->next->previous = p;
    after->next = p;
    p->paced = 1;
}

static void bury(struct peer *p) {
    if (p->dead) return;
    p->dead = 1;
    pace_stop(p);
    close(p->fd);
    p->next = graveyard;
    graveyard = p;
}

static void watch(struct peer *p, int writable) {
    struct epoll_event e = {.events = EPOLLIN | (writable ? EPOLLOUT : 0), .data.ptr = p};
    epoll_ctl(epoll_fd, EPOLL_CTL_MOD, p->fd, &e);
}

static void flush_out(struct peer *p) {
    size_t sent = 0;
    while (sent < p->out.length) {
        ssize_t n = send(p->fd, p->out.data + sent, p->out.length - sent, MSG_NOSIGNAL);
        if (n < 0 && errno == EAGAIN) break;
        if (n < 0) {
            bury(p);
            return;
        }
        sent += (size_t)n;
    }
    memmove(p->out.data, p->out.data + sent, p->out.length - sent);
    p->out.length -= sent;
    watch(p, p->out.length > 0);
}

static void put(struct peer *p, const char *data, size_t length) {
    if (p->dead) return;
    if (p->out.length == 0) {
        ssize_t n = send(p->fd, data, length, MSG_NOSIGNAL);
        if (n < 0 && errno != EAGAIN) {
            bury(p);
            return;
        }
        if (n > 0) {
            data += n;
            length -= (size_t)n;
        }
        if (length == 0) return;
        watch(p, 1);
    }
    reserve(&p->out, length);
    memcpy(p->out.data + p->out.length, data, length);
    p->out.length += length;
}

static void put_chunk(struct peer *p, const char *format, ...) {
    char text[1024], framed[1100];
    va_list arguments;
    va_start(arguments, format);
    int n = vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    int m = snprintf(framed, sizeof framed, "%x\r\n%s\r\n", n, text);
    put(p, framed, (size_t)m);
}

static void put_event(struct peer *p) {
    static const char filler[] = "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx";
    char stamp[32];
    int n = snprintf(stamp, sizeof stamp, "t=%llu ", (unsigned long long)now_ns());
    put_chunk(p,
              "data: {\"id\":\"chatcmpl-1\",\"object\":\"chat.completion.chunk\",\"model\":\"mock\",\"choices\":"
              "[{\"index\":0,\"delta\":{\"content\":\"%s%.*s\"},\"finish_reason\":null}]}\n\n",
              stamp, EVENT_TEXT_BYTES - n, filler);
}

static void end_stream(struct peer *p) {
    if (p->wants_usage)
        put_chunk(p, "data: {\"id\":\"chatcmpl-1\",\"object\":\"chat.completion.chunk\",\"model\":\"mock\",\"choices\":[],"
                     "\"usage\":{\"prompt_tokens\":256,\"completion_tokens\":64,\"total_tokens\":320}}\n\n");
    put_chunk(p, "data: [DONE]\n\n");
    put(p, "0\r\n\r\n", 5);
}

static void put_answer(struct peer *p, const char *status, const char *body) {
    char text[2048];
    int n = snprintf(text, sizeof text, "HTTP/1.1 %s\r\ncontent-type: application/json\r\ncontent-length: %zu\r\n\r\n%s", status,
                     strlen(body), body);
    put(p, text, (size_t)n);
}

/* The value of "name": near either end of the body; a prompt of 400 KB in between is not searched. */
static long knob(const char *body, size_t length, const char *name, long otherwise) {
    size_t window = length < KNOB_BYTES ? length : KNOB_BYTES;
    const char *at = memmem(body + length - window, window, name, strlen(name));
    if (!at) at = memmem(body, window, name, strlen(name));
    if (!at) return otherwise;
    at += strlen(name);
    while (at < body + length && (*at == ' ' || *at == ':')) at++;
    if (at == body + length) return otherwise;
    if (*at == 't') return 1;
    if (*at == 'f' || *at == 'n') return 0;
    return strtol(at, NULL, 10);
}

static void serve(struct peer *p, const char *path, size_t path_length, const char *body, size_t length) {
#define PATH_IS(text) (path_length == sizeof(text) - 1 && memcmp(path, text, path_length) == 0)
    if (PATH_IS("/v1/models")) {
        put_answer(p, "200 OK", "{\"object\":\"list\",\"data\":[{\"id\":\"mock\",\"object\":\"model\",\"owned_by\":\"mock\"}]}");
    } else if (PATH_IS("/health")) {
        put_answer(p, "200 OK", "{\"status\":\"ok\"}");
    } else if (!PATH_IS("/v1/chat/completions") && !PATH_IS("/v1/completions")) {
        put_answer(p, "404 Not Found", "{\"error\":{\"message\":\"no such path\"}}");
    } else if (!knob(body, length, "\"stream\"", 0)) {
        put_answer(p, "200 OK",
                   "{\"id\":\"chatcmpl-1\",\"object\":\"chat.completion\",\"created\":1700000000,\"model\":\"mock\",\"choices\":"
                   "[{\"index\":0,\"message\":{\"role\":\"assistant\",\"content\":\"The quick brown fox jumps over the lazy "
                   "dog.\"},\"finish_reason\":\"stop\"}],\"usage\":{\"prompt_tokens\":256,\"completion_tokens\":16,"
                   "\"total_tokens\":272}}");
    } else {
        static const char head[] = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
        p->wants_usage = (int)knob(body, length, "\"include_usage\"", 0);
        p->events_left = knob(body, length, "\"max_tokens\"", 64);
        p->gap_ns = (uint64_t)knob(body, length, "\"seed\"", 0) * 1000000ull;
        put(p, head, sizeof head - 1);
        if (p->gap_ns && p->events_left > 0) {
            p->due_ns = now_ns() + p->gap_ns;
            pace_start(p);
            return;
        }
        while (p->events_left > 0 && !p->dead) {
            p->events_left--;
            put_event(p);
        }
        end_stream(p);
    }
}

static const char *field(const char *head, const char *end, const char *name) {
    size_t length = strlen(name);
    for (const char *line = memchr(head, '\n', (size_t)(end - head)); line && line + 1 < end; line = memchr(line, '\n', (size_t)(end - line))) {
        line++;
        if ((size_t)(end - line) > length && strncasecmp(line, name, length) == 0 && line[length] == ':') return line + length + 1;
    }
    return NULL;
}

/* Length of a whole chunked body at `from`, 0 while it is incomplete; `decoded` receives the payload length, moved to `from`. */
static size_t dechunk(char *from, char *end, size_t *decoded) {
    char *line_end = from, *read = from;
    for (;;) { /* first look whether it is whole */
        line_end = memmem(read, (size_t)(end - read), "\r\n", 2);
        if (!line_end) return 0;
        unsigned long size = strtoul(read, NULL, 16);
        read = line_end + 2 + size + 2;
        if (read > end) return 0;
        if (size == 0) break;
    }
    size_t whole = (size_t)(read - from);
    char *write = from;
    for (read = from;;) {
        unsigned long size = strtoul(read, NULL, 16);
        if (size == 0) break;
        line_end = memmem(read, (size_t)(end - read), "\r\n", 2);
        memmove(write, line_end + 2, size);
        write += size;
        read = line_end + 2 + size + 2;
    }
    *decoded = (size_t)(write - from);
    return whole;
}

/* Serve the requests that are complete in the input, unless a stream is being sent. */
static void take_requests(struct peer *p) {
    while (!p->dead && p->events_left == 0 && p->in.length > 0) {
        char *end = p->in.data + p->in.length;
        char *blank = memmem(p->in.data, p->in.length, "\r\n\r\n", 4);
        if (!blank) return;
        char *body = blank + 4;
        size_t length = 0, taken = (size_t)(body - p->in.data);
        const char *value = field(p->in.data, blank + 2, "content-length");
        if (value) {
            length = strtoul(value, NULL, 10);
            if ((size_t)(end - body) < length) {
                reserve(&p->in, length - (size_t)(end - body) + READ_BYTES);
                return;
            }
            taken += length;
        } else if (field(p->in.data, blank + 2, "transfer-encoding")) {
            size_t whole = dechunk(body, end, &length);
            if (!whole) return;
            taken += whole;
        }
        char *path = memchr(p->in.data, ' ', (size_t)(blank - p->in.data));
        if (!path) {
            bury(p);
            return;
        }
        serve(p, path + 1, strcspn(path + 1, " ?"), body, length);
        memmove(p->in.data, p->in.data + taken, p->in.length - taken);
        p->in.length -= taken;
    }
}

static void read_in(struct peer *p) {
    for (;;) {
        reserve(&p->in, READ_BYTES);
        size_t room = p->in.capacity - p->in.length;
        ssize_t n = recv(p->fd, p->in.data + p->in.length, room, 0);
        if (n < 0 && errno == EAGAIN) break;
        if (n <= 0) {
            bury(p);
            return;
        }
        p->in.length += (size_t)n;
        if ((size_t)n < room) break;
    }
    take_requests(p);
}

static struct peer *add(int fd, int is_listener) {
    struct peer *p = calloc(1, sizeof *p);
    if (!p) abort();
    p->fd = fd;
    p->is_listener = is_listener;
    struct epoll_event e = {.events = EPOLLIN, .data.ptr = p};
    epoll_ctl(epoll_fd, EPOLL_CTL_ADD, fd, &e);
    return p;
}

static void accept_all(struct peer *listener) {
    for (;;) {
        int one = 1, fd = accept4(listener->fd, NULL, NULL, SOCK_NONBLOCK);
        if (fd < 0) return;
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        add(fd, 0);
    }
}

static void listen_on_free_port(void) {
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof address;
    if (bind(fd, (struct sockaddr *)&address, sizeof address) || listen(fd, 4096) ||
        getsockname(fd, (struct sockaddr *)&address, &size)) {
        perror("mock_engine");
        exit(1);
    }
    add(fd, 1);
    printf("%d ", ntohs(address.sin_port));
}

static int send_due_events(void) { /* milliseconds until the next is due, -1 for none */
    while (paced.next != &paced) {
        struct peer *p = paced.next;
        uint64_t now = now_ns();
        if (p->due_ns > now) return (int)((p->due_ns - now) / 1000000ull) + 1;
        pace_stop(p);
        p->events_left--;
        put_event(p);
        if (p->dead) continue;
        if (p->events_left > 0) {
            p->due_ns += p->gap_ns;
            pace_start(p);
        } else {
            end_stream(p);
            take_requests(p);
        }
    }
    return -1;
}

int main(int argc, char **argv) {
    int count = argc > 1 ? atoi(argv[1]) : 1;
    if (count < 1 || count > 512) {
        fprintf(stderr, "usage: mock_engine COUNT (1 to 512)\n");
        return 2;
    }
    signal(SIGPIPE, SIG_IGN);
    epoll_fd = epoll_create1(0);
    for (int i = 0; i < count; i++) listen_on_free_port();
    printf("\n");
    fflush(stdout);
    struct epoll_event events[MAX_EVENTS];
    for (;;) {
        int wait_ms = send_due_events();
        int n = epoll_wait(epoll_fd, events, MAX_EVENTS, wait_ms);
        for (int i = 0; i < n; i++) {
            struct peer *p = events[i].data.ptr;
            if (p->is_listener) {
                accept_all(p);
                continue;
            }
            if (!p->dead && (events[i].events & EPOLLOUT)) flush_out(p);
            if (!p->dead && (events[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR))) read_in(p);
        }
        while (graveyard) {
            struct peer *p = graveyard;
            graveyard = p->next;
            free(p->in.data);
            free(p->out.data);
            free(p);
        }
    }
}
