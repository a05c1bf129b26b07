// A server that knows the truth: it answers like vLLM behind uvicorn, at exact times, and keeps a
// record of when it sent what, so that a load generator's figures can be checked request by request.
//
//   cc -O2 -o mock_sse_server mock_sse_server.c
//   ./mock_sse_server --port 0 --ttft-us 50000 --itl-us 10000 --tokens 128
//
// With port 0 the system chooses; the first line of standard output is the port. Linux only, one
// thread: epoll with nanosecond timers (a heap of deadlines). One HTTP chunk is one event is one
// send(): headers at once, at TTFT the role chunk and the first content chunk, then a content chunk
// every ITL, usage, [DONE]. CLOCK_MONOTONIC is stamped right before every send(); a request's
// arrival is the kernel's receive timestamp, so that the server's own lateness is not counted.
//
// Options, also as POST /mock/config?name=value with underscores:
//   ttft-us, itl-us, tokens   times and length of an answer (max_tokens of a request goes first)
//   tpc        tokens per chunk
//   step       1: all streams tick together, as the steps of an engine do
//   split      cut every chunk after this many bytes and send the rest 200 us later
//   role       0 no role chunk, 1 at TTFT, 2 one ITL before the first content
//   jitter     percent by which an ITL varies around its mean
//   usage      0: never send usage
//   style      sum of: 1 the first half of the chunks is reasoning, 2 chunks are tool-call deltas,
//              4 a comment goes before every event, 8 lines end in CRLF, 16 text is not ASCII
//   idle-us    close a connection that has been idle for so long
//   frame      how an AWS event stream cuts an event: 0 one frame, N a frame of N bytes and the rest
// Request headers x-mock-ttft-us, x-mock-itl-us, x-mock-tokens override one request, and
// x-mock-fail makes it fail: http:503, reset:K, stall:K, errchunk:K, close:K (after K chunks).
//
// POST /endpoints/NAME/invocations-response-stream answers in the frames of an AWS event stream.
//
// Built with -DMOCK_TLS -lssl -lcrypto it speaks TLS when started with --tls-cert and --tls-key.
//
// GET /mock/log      the records, binary: struct record, then n times of content sends
// GET /mock/stats    CPU time and lateness of this server, as JSON
// POST /mock/reset   forget the records
#define _GNU_SOURCE
#include <ctype.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#ifdef MOCK_TLS
#include <openssl/err.h>
#include <openssl/ssl.h>
#endif

typedef uint64_t u64;
typedef uint32_t u32;

static u64 now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (u64)t.tv_sec * 1000000000ull + (u64)t.tv_nsec;
}

static struct {
  int port, tokens, tpc, step, split, role, jitter, usage, style, frame;
  u64 ttft_ns, itl_ns, idle_ns;
} config = {8100, 128, 1, 0, 0, 1, 0, 1, 0, 0, 50000000ull, 10000000ull, 0};

enum style { REASONING = 1, TOOL_CALLS = 2, COMMENTS = 4, CRLF = 8, UNICODE = 16 };

static const char MODEL[] = "mock-model";

// ---- the record of what was sent when -----------------------------------------------------------

#define MAGIC 0x4d4f434bull
#define REQUEST_ID_BYTES 64

struct record {
  u64 magic, sequence, arrived_ns, headers_ns, role_ns, usage_ns, done_ns, content_count, status;
  char request_id[REQUEST_ID_BYTES];
};

static char *log_bytes;
static size_t log_length, log_capacity;

static void log_append(const void *data, size_t length) {
  if (log_length + length > log_capacity) {
    log_capacity = log_capacity ? log_capacity * 2 : 1 << 20;
    while (log_capacity < log_length + length) log_capacity *= 2;
    log_bytes = realloc(log_bytes, log_capacity);
  }
  memcpy(log_bytes + log_length, data, length);
  log_length += length;
}

// ---- connections and their deadlines ------------------------------------------------------------

#ifdef MOCK_TLS
static SSL_CTX *tls_settings;
#endif

enum state { READING, WAITING_FIRST, STREAMING, WAITING_WHOLE };
enum failure { NONE, RESET, STALL, ERROR_CHUNK, CLOSE };

struct connection {
  int fd, heap_index; // heap_index -1: no deadline
  enum state state;
  u64 due_ns;
  char *in;
  size_t in_length, in_capacity;
  char *out;
  size_t out_length, out_sent, out_capacity;
  struct record record;
  u64 *content_ns;
  int content_capacity;
  int is_chat, is_framed, send_usage, tokens, chunks_sent, prompt_tokens;
  u64 ttft_ns, itl_ns;
  enum failure failure;
  int fail_after;
  char id[64];
#ifdef MOCK_TLS
  SSL *tls;
  BIO *tls_in, *tls_out;
#endif
};

static int epoll_fd, active;
static u64 sequence, arrived_ns, sends, fired, late_max_ns, late_sum_ns;
static struct connection **heap;
static int heap_size, heap_capacity;

static void heap_swap(int a, int b) {
  struct connection *c = heap[a];
  heap[a] = heap[b];
  heap[b] = c;
  heap[a]->heap_index = a;
  heap[b]->heap_index = b;
}

static void heap_up(int i) {
  for (; i && heap[(i - 1) / 2]->due_ns > heap[i]->due_ns; i = (i - 1) / 2) heap_swap(i, (i - 1) / 2);
}

static void heap_down(int i) {
  for (;;) {
    int left = 2 * i + 1, least = i;
    if (left < heap_size && heap[left]->due_ns < heap[least]->due_ns) least = left;
    if (left + 1 < heap_size && heap[left + 1]->due_ns < heap[least]->due_ns) least = left + 1;
    if (least == i) return;
    heap_swap(i, least);
    i = least;
  }
}

static void set_deadline(struct connection *c, u64 due_ns) {
  c->due_ns = due_ns;
  if (c->heap_index < 0) {
    if (heap_size == heap_capacity) {
      heap_capacity = heap_capacity ? heap_capacity * 2 : 1024;
      heap = realloc(heap, (size_t)heap_capacity * sizeof *heap);
    }
    c->heap_index = heap_size;
    heap[heap_size++] = c;
  }
  heap_up(c->heap_index);
  heap_down(c->heap_index);
}

static void clear_deadline(struct connection *c) {
  if (c->heap_index < 0) return;
  int i = c->heap_index;
  if (i != --heap_size) {
    heap[i] = heap[heap_size];
    heap[i]->heap_index = i;
    heap_up(i);
    heap_down(heap[i]->heap_index);
  }
  c->heap_index = -1;
}

static void log_request(struct connection *c) {
  c->record.content_count = (u64)c->chunks_sent;
  log_append(&c->record, sizeof c->record);
  log_append(c->content_ns, sizeof(u64) * (size_t)c->chunks_sent);
}

static void close_connection(struct connection *c) {
  clear_deadline(c);
  if (c->state != READING) { // the client went away, or we failed on purpose
    active--;
    if (c->record.status == 200) c->record.status = 499;
    log_request(c);
  }
  close(c->fd);
#ifdef MOCK_TLS
  if (c->tls) SSL_free(c->tls);
#endif
  free(c->in);
  free(c->out);
  free(c->content_ns);
  free(c);
}

static void end_request(struct connection *c) {
  c->record.done_ns = now_ns();
  log_request(c);
  c->state = READING;
  active--;
  clear_deadline(c);
  if (config.idle_ns) set_deadline(c, now_ns() + config.idle_ns);
}

// ---- sending ------------------------------------------------------------------------------------

// Send now what the socket takes and keep the rest; -1 when the connection is gone.
static int put_raw(struct connection *c, const char *bytes, size_t length) {
  if (c->out_length == c->out_sent) {
    while (length) {
      ssize_t sent = send(c->fd, bytes, length, MSG_NOSIGNAL);
      sends++;
      if (sent < 0) {
        if (errno == EAGAIN) break;
        return -1;
      }
      bytes += sent;
      length -= (size_t)sent;
    }
    if (!length) return 0;
    c->out_length = c->out_sent = 0;
  }
  if (c->out_length + length > c->out_capacity) {
    c->out_capacity = (c->out_length + length) * 2;
    c->out = realloc(c->out, c->out_capacity);
  }
  memcpy(c->out + c->out_length, bytes, length);
  c->out_length += length;
  struct epoll_event event = {EPOLLIN | EPOLLOUT, {.ptr = c}};
  epoll_ctl(epoll_fd, EPOLL_CTL_MOD, c->fd, &event);
  return 0;
}

#ifdef MOCK_TLS
static int put_encrypted(struct connection *c) {
  char record[20000];
  int length;
  while ((length = BIO_read(c->tls_out, record, sizeof record)) > 0)
    if (put_raw(c, record, (size_t)length)) return -1;
  return 0;
}
#endif

static int put(struct connection *c, const char *bytes, size_t length) {
#ifdef MOCK_TLS
  if (c->tls) {
    if (length && SSL_write(c->tls, bytes, (int)length) <= 0) return -1;
    return put_encrypted(c);
  }
#endif
  return put_raw(c, bytes, length);
}

static void flush(struct connection *c) {
  while (c->out_sent < c->out_length) {
    ssize_t sent = send(c->fd, c->out + c->out_sent, c->out_length - c->out_sent, MSG_NOSIGNAL);
    if (sent < 0) return;
    c->out_sent += (size_t)sent;
  }
  c->out_length = c->out_sent = 0;
  struct epoll_event event = {EPOLLIN, {.ptr = c}};
  epoll_ctl(epoll_fd, EPOLL_CTL_MOD, c->fd, &event);
}

static int put_chunk(struct connection *c, const char *bytes, int length) {
  char chunk[8192];
  int head = sprintf(chunk, "%x\r\n", (unsigned)length), size = head + length + 2;
  memcpy(chunk + head, bytes, (size_t)length);
  memcpy(chunk + head + length, "\r\n", 2);
  if (config.split > 0 && size > config.split) {
    struct timespec pause = {0, 200000};
    if (put(c, chunk, (size_t)config.split)) return -1;
    nanosleep(&pause, 0);
    return put(c, chunk + config.split, (size_t)(size - config.split));
  }
  return put(c, chunk, (size_t)size);
}

static u32 crc32_of(const char *bytes, size_t length) {
  u32 crc = ~0u;
  while (length--) {
    crc ^= (unsigned char)*bytes++;
    for (int bit = 0; bit < 8; bit++) crc = crc >> 1 ^ (crc & 1 ? 0xedb88320u : 0);
  }
  return ~crc;
}

static void big_endian(char *at, u32 value) {
  for (int i = 0; i < 4; i++) at[i] = (char)(value >> (24 - 8 * i));
}

// One frame of an AWS event stream: lengths, their checksum, headers, payload, checksum of it all.
static int put_frame(struct connection *c, const char *payload, int length) {
  static const char HEADERS[] = "\013:event-type\007\000\013PayloadPart"
                                "\015:content-type\007\000\030application/octet-stream"
                                "\015:message-type\007\000\005event";
  char frame[4096];
  u32 headers = sizeof HEADERS - 1, all = 16 + headers + (u32)length;
  big_endian(frame, all);
  big_endian(frame + 4, headers);
  big_endian(frame + 8, crc32_of(frame, 8));
  memcpy(frame + 12, HEADERS, headers);
  memcpy(frame + 12 + headers, payload, (size_t)length);
  big_endian(frame + all - 4, crc32_of(frame, all - 4));
  return put_chunk(c, frame, (int)all);
}

// Send an event in the style asked for. The last send carries its end.
static int put_event(struct connection *c, const char *event, int length) {
  char styled[4096];
  int n = 0;
  if (config.style & COMMENTS) n += sprintf(styled, ": ping\n\n");
  memcpy(styled + n, event, (size_t)length);
  n += length;
  if (config.style & CRLF) {
    char plain[4096];
    int m = n;
    memcpy(plain, styled, (size_t)n);
    n = 0;
    for (int i = 0; i < m; i++) {
      if (plain[i] == '\n') styled[n++] = '\r';
      styled[n++] = plain[i];
    }
  }
  if (!c->is_framed) return put_chunk(c, styled, n);
  int cut = config.frame;
  if (cut <= 0 || cut >= n) return put_frame(c, styled, n);
  struct timespec pause = {0, 200000};
  if (put_frame(c, styled, cut)) return -1;
  nanosleep(&pause, 0);
  return put_frame(c, styled + cut, n - cut);
}

static int put_whole(struct connection *c, int status, const char *type, const char *body, size_t n) {
  char head[256];
  int length = snprintf(head, sizeof head,
                        "HTTP/1.1 %d X\r\nserver: uvicorn\r\ncontent-length: %zu\r\n"
                        "content-type: %s\r\n%s\r\n",
                        status, n, type, status == 429 ? "retry-after: 7\r\n" : "");
  char *answer = malloc((size_t)length + n);
  memcpy(answer, head, (size_t)length);
  memcpy(answer + length, body, n);
  int result = put(c, answer, (size_t)length + n);
  free(answer);
  return result;
}

// ---- one completion -----------------------------------------------------------------------------

#define CREATED "\"created\":1796058738"

static const char FRAMED_HEADERS[] =
    "HTTP/1.1 200 OK\r\nx-amzn-sagemaker-content-type: text/event-stream; charset=utf-8\r\n"
    "content-type: application/vnd.amazon.eventstream\r\ntransfer-encoding: chunked\r\n\r\n";

static const char HEADERS[] =
    "HTTP/1.1 200 OK\r\ndate: Mon, 30 Nov 2026 17:00:00 GMT\r\nserver: uvicorn\r\n"
    "content-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n";

static const char *const WORDS[] = {" the",      " of",      " model",   " is",    " token",
                                    " latency",  " and",     " a",       " load",  " GPU",
                                    " server",   " request", " cache",   " batch", " to",
                                    " in"};
static const char *const FOREIGN[] = {" gr\u00fc\u00df", " \u65e5\u672c", " \u00e9t\u00e9", " \U0001f600"};

static u64 aligned(u64 t, u64 itl_ns) {
  return config.step ? (t + itl_ns - 1) / itl_ns * itl_ns : t;
}

static int send_role(struct connection *c) {
  char event[512];
  int n = snprintf(event, sizeof event,
                   "data: {\"id\":\"%s\",\"object\":\"chat.completion.chunk\"," CREATED
                   ",\"model\":\"%s\",\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\","
                   "\"content\":\"\"},\"logprobs\":null,\"finish_reason\":null}],"
                   "\"prompt_token_ids\":null}\n\n",
                   c->id, MODEL);
  c->record.role_ns = now_ns();
  return put_event(c, event, n);
}

static int send_content(struct connection *c, int tokens, int is_last) {
  char text[1024] = "", event[2048];
  for (int i = 0; i < tokens; i++) {
    u64 word = c->record.sequence * 7 + (u64)(c->chunks_sent * config.tpc + i);
    const char *next = config.style & UNICODE ? FOREIGN[word & 3] : WORDS[word & 15];
    strncat(text, next, sizeof text - strlen(text) - 1);
  }
  const char *reason = is_last ? "\"length\",\"stop_reason\":null" : "null";
  const char *shape =
      c->is_chat ? "data: {\"id\":\"%s\",\"object\":\"chat.completion.chunk\"," CREATED
                   ",\"model\":\"%s\",\"choices\":[{\"index\":0,\"delta\":{%s%s%s},"
                   "\"logprobs\":null,\"finish_reason\":%s,\"token_ids\":null}]}\n\n"
                 : "data: {\"id\":\"%s\",\"object\":\"text_completion\"," CREATED
                   ",\"model\":\"%s\",\"choices\":[{\"index\":0,%s%s%s,"
                   "\"logprobs\":null,\"finish_reason\":%s,\"token_ids\":null}]}\n\n";
  const char *before = c->is_chat ? "\"content\":\"" : "\"text\":\"", *after = "\"";
  if (c->is_chat && config.style & TOOL_CALLS) {
    before = "\"tool_calls\":[{\"index\":0,\"function\":{\"arguments\":\"";
    after = "\"}}]";
  } else if (c->is_chat && config.style & REASONING && 2 * c->chunks_sent * config.tpc < c->tokens) {
    before = "\"reasoning\":\"";
  }
  int n = snprintf(event, sizeof event, shape, c->id, MODEL, before, text, after, reason);
  c->content_ns[c->chunks_sent++] = now_ns();
  return put_event(c, event, n);
}

static int send_end(struct connection *c) {
  char event[512];
  if (c->send_usage) {
    int n = snprintf(event, sizeof event,
                     "data: {\"id\":\"%s\",\"object\":\"%s\"," CREATED
                     ",\"model\":\"%s\",\"choices\":[],\"usage\":{\"prompt_tokens\":%d,"
                     "\"total_tokens\":%d,\"completion_tokens\":%d}}\n\n",
                     c->id, c->is_chat ? "chat.completion.chunk" : "text_completion", MODEL,
                     c->prompt_tokens, c->prompt_tokens + c->tokens, c->tokens);
    c->record.usage_ns = now_ns();
    if (put_event(c, event, n)) return -1;
  }
  if (put_event(c, "data: [DONE]\n\n", 14) || put(c, "0\r\n\r\n", 5)) return -1;
  end_request(c);
  return 0;
}

static int send_whole(struct connection *c) {
  char body[1024];
  int n = snprintf(body, sizeof body,
                   "{\"id\":\"%s\",\"object\":\"%s\"," CREATED
                   ",\"model\":\"%s\",\"choices\":[{\"index\":0,%s,\"finish_reason\":\"length\"}],"
                   "\"usage\":{\"prompt_tokens\":%d,\"total_tokens\":%d,\"completion_tokens\":%d}}",
                   c->id, c->is_chat ? "chat.completion" : "text_completion", MODEL,
                   c->is_chat ? "\"message\":{\"role\":\"assistant\",\"content\":\" the end\"}"
                              : "\"text\":\" the end\"",
                   c->prompt_tokens, c->prompt_tokens + c->tokens, c->tokens);
  if (put_whole(c, 200, "application/json", body, (size_t)n)) return -1;
  end_request(c);
  return 0;
}

// Fail as the request asked; -1 closes the connection.
static int fail(struct connection *c) {
  static const char ERROR[] = "data: {\"error\":{\"message\":\"mock engine failure\","
                              "\"type\":\"InternalServerError\",\"code\":500}}\n\n";
  struct linger at_once = {1, 0};
  switch (c->failure) {
  case RESET:
    setsockopt(c->fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
    return -1;
  case CLOSE:
    return -1;
  case STALL:
    clear_deadline(c);
    return 0;
  default:
    c->record.status = 500;
    if (put_event(c, ERROR, sizeof ERROR - 1) || put_event(c, "data: [DONE]\n\n", 14) ||
        put(c, "0\r\n\r\n", 5))
      return -1;
    end_request(c);
    return 0;
  }
}

static u64 jittered(const struct connection *c) {
  if (!config.jitter) return c->itl_ns;
  u64 x = c->record.sequence * 1000003ull + (u64)c->chunks_sent * 7919ull;
  x ^= x >> 13;
  x *= 0xff51afd7ed558ccdull;
  x ^= x >> 33;
  u64 spread = c->itl_ns * 2 * (u64)config.jitter / 100;
  return c->itl_ns * (u64)(100 - config.jitter) / 100 + spread * (x & 1023) / 1024;
}

// Do what a connection's deadline stands for; -1 closes it.
static int fire(struct connection *c, u64 now) {
  u64 late_ns = now - c->due_ns;
  if (late_ns > late_max_ns) late_max_ns = late_ns;
  late_sum_ns += late_ns;
  fired++;
  if (c->state == READING) return -1; // idle for long enough
  if (c->state == WAITING_WHOLE) return send_whole(c);
  if (c->state == WAITING_FIRST) {
    c->state = STREAMING;
    if (c->is_chat && config.role) {
      if (send_role(c)) return -1;
      if (config.role == 2) {
        set_deadline(c, c->due_ns + c->itl_ns);
        return 0;
      }
    }
  }
  if (c->failure != NONE && c->chunks_sent >= c->fail_after) return fail(c);
  int left = c->tokens - c->chunks_sent * config.tpc;
  int is_last = left <= config.tpc;
  if (send_content(c, is_last ? left : config.tpc, is_last)) return -1;
  if (is_last) return send_end(c);
  set_deadline(c, config.step ? aligned(now + 1, c->itl_ns) : c->due_ns + jittered(c));
  return 0;
}

// ---- requests -----------------------------------------------------------------------------------

static char *header(char *head, const char *name) {
  size_t length = strlen(name);
  for (char *line = strstr(head, "\r\n"); line; line = strstr(line, "\r\n")) {
    line += 2;
    if (!strncasecmp(line, name, length) && line[length] == ':') {
      line += length + 1;
      while (*line == ' ') line++;
      return line;
    }
  }
  return 0;
}

static long json_number(const char *body, const char *key) {
  const char *p = strstr(body, key);
  if (!p) return -1;
  for (p += strlen(key); *p == ' ' || *p == ':';) p++;
  return isdigit((unsigned char)*p) ? atol(p) : -1;
}

static int json_true(const char *body, const char *key) {
  for (const char *p = body; (p = strstr(p, key));) {
    for (p += strlen(key); *p == ' ' || *p == ':';) p++;
    if (!strncmp(p, "true", 4)) return 1;
  }
  return 0;
}

static u64 header_us(char *head, const char *name, u64 otherwise_ns) {
  char *value = header(head, name);
  return value ? (u64)atol(value) * 1000 : otherwise_ns;
}

static int begin_completion(struct connection *c, char *head, char *body, int is_chat, int is_framed) {
  memset(&c->record, 0, sizeof c->record);
  c->record.magic = MAGIC;
  c->record.sequence = sequence++;
  c->record.arrived_ns = arrived_ns ? arrived_ns : now_ns();
  c->record.status = 200;
  char *id = header(head, "x-request-id");
  for (int i = 0; id && id[i] && id[i] != '\r' && i < REQUEST_ID_BYTES - 1; i++)
    c->record.request_id[i] = id[i];
  c->is_chat = is_chat;
  c->is_framed = is_framed;
  c->chunks_sent = 0;
  c->failure = NONE;
  c->tokens = config.tokens;
  long asked = json_number(body, "\"max_tokens\"");
  if (asked > 0) c->tokens = (int)asked;
  char *tokens = header(head, "x-mock-tokens");
  if (tokens) c->tokens = atoi(tokens);
  c->ttft_ns = header_us(head, "x-mock-ttft-us", config.ttft_ns);
  c->itl_ns = header_us(head, "x-mock-itl-us", config.itl_ns);
  c->send_usage = config.usage && json_true(body, "\"include_usage\"");
  c->prompt_tokens = (int)(strlen(body) / 5);
  if (c->content_capacity < c->tokens) {
    c->content_capacity = c->tokens;
    c->content_ns = realloc(c->content_ns, sizeof(u64) * (size_t)c->tokens);
  }
  snprintf(c->id, sizeof c->id, "%s-%016llx", is_chat ? "chatcmpl" : "cmpl",
           (unsigned long long)c->record.sequence);
  active++;
  char *wish = header(head, "x-mock-fail");
  if (wish && !strncmp(wish, "http:", 5)) {
    static const char BODY[] = "{\"error\":{\"message\":\"mock failure\",\"type\":\"ServerError\"}}";
    c->state = WAITING_FIRST;
    c->record.status = (u64)atoi(wish + 5);
    int result = put_whole(c, atoi(wish + 5), "application/json", BODY, sizeof BODY - 1);
    end_request(c);
    return result;
  }
  if (wish) {
    c->failure = !strncmp(wish, "reset", 5)   ? RESET
                 : !strncmp(wish, "stall", 5) ? STALL
                 : !strncmp(wish, "close", 5) ? CLOSE
                                              : ERROR_CHUNK;
    char *after = strchr(wish, ':');
    c->fail_after = after ? atoi(after + 1) : 0;
  }
  if (json_true(body, "\"stream\"")) {
    c->state = WAITING_FIRST;
    c->record.headers_ns = now_ns();
    const char *headers = is_framed ? FRAMED_HEADERS : HEADERS;
    if (put(c, headers, strlen(headers))) return -1;
    set_deadline(c, aligned(c->record.arrived_ns + c->ttft_ns, c->itl_ns));
  } else {
    c->state = WAITING_WHOLE;
    set_deadline(c, c->record.arrived_ns + c->ttft_ns + (u64)(c->tokens - 1) * c->itl_ns);
  }
  return 0;
}

static void configure(const char *path) {
  struct {
    const char *name;
    int *number;
    u64 *us;
  } knobs[] = {{"ttft_us=", 0, &config.ttft_ns}, {"itl_us=", 0, &config.itl_ns},
               {"tokens=", &config.tokens, 0},   {"tpc=", &config.tpc, 0},
               {"step=", &config.step, 0},       {"split=", &config.split, 0},
               {"role=", &config.role, 0},       {"jitter=", &config.jitter, 0},
               {"usage=", &config.usage, 0},     {"style=", &config.style, 0},
               {"frame=", &config.frame, 0},     {"idle_us=", 0, &config.idle_ns}};
  for (size_t i = 0; i < sizeof knobs / sizeof *knobs; i++) {
    const char *found = strstr(path, knobs[i].name);
    if (!found) continue;
    long value = atol(found + strlen(knobs[i].name));
    if (knobs[i].number) *knobs[i].number = (int)value;
    else *knobs[i].us = (u64)value * 1000;
  }
}

static int answer(struct connection *c, char *head, char *body) {
  static const char JSON[] = "application/json", TEXT[] = "text/plain; version=0.0.4";
  char *path = strchr(head, ' ') + 1, text[1024];
  int n = 0;
  if (!strncmp(path, "/v1/chat/completions ", 21)) return begin_completion(c, head, body, 1, 0);
  if (!strncmp(path, "/v1/completions ", 16)) return begin_completion(c, head, body, 0, 0);
  if (!strncmp(path, "/endpoints/", 11)) return begin_completion(c, head, body, 1, 1);
  if (!strncmp(path, "/v1/models ", 11)) {
    n = snprintf(text, sizeof text,
                 "{\"object\":\"list\",\"data\":[{\"id\":\"%s\",\"object\":\"model\"," CREATED
                 ",\"owned_by\":\"vllm\",\"root\":\"%s\",\"max_model_len\":32768}]}",
                 MODEL, MODEL);
    return put_whole(c, 200, JSON, text, (size_t)n);
  }
  if (!strncmp(path, "/health ", 8)) return put_whole(c, 200, TEXT, "", 0);
  if (!strncmp(path, "/version ", 9)) return put_whole(c, 200, JSON, "{\"version\":\"0.32.0\"}", 20);
  if (!strncmp(path, "/metrics ", 9)) {
    n = snprintf(text, sizeof text,
                 "# TYPE vllm:num_requests_running gauge\n"
                 "vllm:num_requests_running{engine=\"0\",model_name=\"%s\"} %d.0\n"
                 "# TYPE vllm:request_success_total counter\n"
                 "vllm:request_success_total{engine=\"0\",finished_reason=\"length\","
                 "model_name=\"%s\"} %llu.0\n",
                 MODEL, active, MODEL, (unsigned long long)sequence);
    return put_whole(c, 200, TEXT, text, (size_t)n);
  }
  if (!strncmp(path, "/mock/log ", 10))
    return put_whole(c, 200, "application/octet-stream", log_bytes ? log_bytes : "", log_length);
  if (!strncmp(path, "/mock/reset ", 12)) {
    log_length = 0;
    late_max_ns = late_sum_ns = fired = sends = 0;
    return put_whole(c, 200, TEXT, "ok", 2);
  }
  if (!strncmp(path, "/mock/config?", 13)) {
    configure(path);
    return put_whole(c, 200, TEXT, "ok", 2);
  }
  if (!strncmp(path, "/mock/stats ", 12)) {
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    double cpu_s = (double)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) +
                   (double)(used.ru_utime.tv_usec + used.ru_stime.tv_usec) / 1e6;
    n = snprintf(text, sizeof text,
                 "{\"cpu_s\":%.6f,\"late_max_us\":%.1f,\"late_mean_us\":%.2f,\"fired\":%llu,"
                 "\"sends\":%llu,\"active\":%d}",
                 cpu_s, (double)late_max_ns / 1e3,
                 fired ? (double)late_sum_ns / 1e3 / (double)fired : 0.0, (unsigned long long)fired,
                 (unsigned long long)sends, active);
    return put_whole(c, 200, JSON, text, (size_t)n);
  }
  return put_whole(c, 404, JSON, "{\"detail\":\"Not Found\"}", 22);
}

// The kernel's receive time of what was just read, on CLOCK_MONOTONIC; 0 where it gave none.
static u64 received_ns(struct msghdr *message) {
  struct cmsghdr *control = CMSG_FIRSTHDR(message);
  if (!control || control->cmsg_type != SCM_TIMESTAMPNS) return 0;
  struct timespec at, real, mono;
  memcpy(&at, CMSG_DATA(control), sizeof at);
  clock_gettime(CLOCK_REALTIME, &real);
  clock_gettime(CLOCK_MONOTONIC, &mono);
  int64_t age_ns = (int64_t)(real.tv_sec - at.tv_sec) * 1000000000ll + real.tv_nsec - at.tv_nsec;
  return (u64)((int64_t)mono.tv_sec * 1000000000ll + mono.tv_nsec - age_ns);
}

static void make_room(struct connection *c) {
  if (c->in_capacity - c->in_length >= 65536) return;
  c->in_capacity = c->in_capacity ? c->in_capacity * 2 : 131072;
  c->in = realloc(c->in, c->in_capacity + 1);
}

// Receive once: how much, or 0 when nothing was there, or -1 when the connection is gone.
static ssize_t receive(struct connection *c, char *at, size_t room) {
  char control[128];
  struct iovec space = {at, room};
  struct msghdr message = {.msg_iov = &space, .msg_iovlen = 1, .msg_control = control,
                           .msg_controllen = sizeof control};
  ssize_t got = recvmsg(c->fd, &message, 0);
  if (got == 0 || (got < 0 && errno != EAGAIN)) return -1;
  if (got > 0) arrived_ns = received_ns(&message);
  return got > 0 ? got : 0;
}

#ifdef MOCK_TLS
static int serve_tls(struct connection *c) {
  char record[20000];
  ssize_t got;
  while ((got = receive(c, record, sizeof record)) > 0) {
    BIO_write(c->tls_in, record, (int)got);
    if (!SSL_is_init_finished(c->tls)) {
      int done = SSL_do_handshake(c->tls);
      if (put_encrypted(c)) return -1;
      if (done <= 0 && SSL_get_error(c->tls, done) != SSL_ERROR_WANT_READ) return -1;
    }
    int plain;
    do {
      make_room(c);
      plain = SSL_read(c->tls, c->in + c->in_length, (int)(c->in_capacity - c->in_length));
      if (plain > 0) c->in_length += (size_t)plain;
    } while (plain > 0);
    if (SSL_get_shutdown(c->tls) & SSL_RECEIVED_SHUTDOWN) return -1;
  }
  return got < 0 ? -1 : 0;
}
#endif

// Read what came and answer the requests it completes; -1 when the connection is gone.
static int serve(struct connection *c) {
#ifdef MOCK_TLS
  if (c->tls && serve_tls(c)) return -1;
  if (c->tls) goto answer_all;
#endif
  for (;;) {
    make_room(c);
    ssize_t got = receive(c, c->in + c->in_length, c->in_capacity - c->in_length);
    if (got < 0) return -1;
    if (got == 0) break;
    c->in_length += (size_t)got;
    if (got < 65536) break;
  }
#ifdef MOCK_TLS
answer_all:
#endif
  while (c->state == READING && c->in_length) {
    c->in[c->in_length] = 0;
    char *end = strstr(c->in, "\r\n\r\n");
    if (!end) break;
    size_t head_length = (size_t)(end - c->in) + 4;
    char *given = header(c->in, "content-length");
    size_t body_length = given ? strtoul(given, 0, 10) : 0, all = head_length + body_length;
    if (c->in_length < all) break;
    char after_head = c->in[head_length - 2], after_body = c->in[all];
    c->in[head_length - 2] = c->in[all] = 0;
    int result = answer(c, c->in, c->in + head_length);
    if (result) return -1;
    c->in[head_length - 2] = after_head;
    c->in[all] = after_body;
    memmove(c->in, c->in + all, c->in_length - all);
    c->in_length -= all;
  }
  return 0;
}

// ---- the loop -----------------------------------------------------------------------------------

static volatile sig_atomic_t stopping;

static void stop(int signal_number) {
  (void)signal_number;
  stopping = 1;
}

static void accept_all(int listener) {
  int on = 1;
  for (;;) {
    int fd = accept4(listener, 0, 0, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd < 0) return;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    setsockopt(fd, SOL_SOCKET, SO_TIMESTAMPNS, &on, sizeof on);
    struct connection *c = calloc(1, sizeof *c);
    c->fd = fd;
    c->heap_index = -1;
#ifdef MOCK_TLS
    if (tls_settings) {
      c->tls = SSL_new(tls_settings);
      c->tls_in = BIO_new(BIO_s_mem());
      c->tls_out = BIO_new(BIO_s_mem());
      SSL_set_bio(c->tls, c->tls_in, c->tls_out);
      SSL_set_accept_state(c->tls);
    }
#endif
    struct epoll_event event = {EPOLLIN, {.ptr = c}};
    epoll_ctl(epoll_fd, EPOLL_CTL_ADD, fd, &event);
  }
}

static int listen_on_loopback(void) {
  int on = 1, listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)config.port),
                                .sin_addr = {htonl(INADDR_LOOPBACK)}};
  socklen_t length = sizeof address;
  if (bind(listener, (struct sockaddr *)&address, length) || listen(listener, 4096)) {
    perror("bind");
    exit(1);
  }
  getsockname(listener, (struct sockaddr *)&address, &length);
  printf("%d\n", ntohs(address.sin_port));
  fflush(stdout);
  return listener;
}

int main(int count, char **arguments) {
  for (int i = 1; i + 1 < count; i += 2) {
    char knob[128];
    snprintf(knob, sizeof knob, "%s=%s", arguments[i] + 2, arguments[i + 1]);
    for (char *p = knob; *p && *p != '='; p++)
      if (*p == '-') *p = '_';
#ifdef MOCK_TLS
    if (!strncmp(arguments[i], "--tls-", 6)) {
      if (!tls_settings) tls_settings = SSL_CTX_new(TLS_server_method());
      int done = !strcmp(arguments[i], "--tls-cert")
                     ? SSL_CTX_use_certificate_chain_file(tls_settings, arguments[i + 1])
                     : SSL_CTX_use_PrivateKey_file(tls_settings, arguments[i + 1], SSL_FILETYPE_PEM);
      if (done != 1) return 2;
      continue;
    }
#endif
    if (!strncmp(knob, "port=", 5)) config.port = atoi(arguments[i + 1]);
    else configure(knob);
  }
  prctl(PR_SET_PDEATHSIG, SIGTERM); // whoever started us may be killed before it can end us
  signal(SIGINT, stop);
  signal(SIGTERM, stop);
  signal(SIGPIPE, SIG_IGN);
  struct rlimit files = {65536, 65536};
  setrlimit(RLIMIT_NOFILE, &files);
  int on = 1, stamped = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  // the kernel switches receive timestamps on lazily; one stamped socket keeps them on
  setsockopt(stamped, SOL_SOCKET, SO_TIMESTAMPNS, &on, sizeof on);
  epoll_fd = epoll_create1(EPOLL_CLOEXEC);
  int listener = listen_on_loopback();
  struct epoll_event event = {EPOLLIN, {.ptr = 0}}, events[512];
  epoll_ctl(epoll_fd, EPOLL_CTL_ADD, listener, &event);
  while (!stopping) {
    struct timespec wait, *limit = 0;
    if (heap_size) {
      u64 now = now_ns(), left = heap[0]->due_ns > now ? heap[0]->due_ns - now : 0;
      wait.tv_sec = (time_t)(left / 1000000000ull);
      wait.tv_nsec = (long)(left % 1000000000ull);
      limit = &wait;
    }
    int ready = (int)syscall(SYS_epoll_pwait2, epoll_fd, events, 512, limit, 0, 8);
    for (int i = 0; i < ready; i++) {
      struct connection *c = events[i].data.ptr;
      if (!c) {
        accept_all(listener);
        continue;
      }
      if (events[i].events & EPOLLOUT) flush(c);
      if (events[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR) && serve(c)) close_connection(c);
    }
    u64 now = now_ns();
    for (int budget = 64; budget && heap_size && heap[0]->due_ns <= now; budget--) {
      struct connection *c = heap[0];
      if (fire(c, now)) close_connection(c);
    }
  }
  return 0;
}
