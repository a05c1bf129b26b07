// What a load client cannot cost less than: the loop of the load engine, in C, with nothing parsed.
//
// Every token is read by itself with the kernel's time of its arrival (SO_TIMESTAMPNS), naps are the
// engine's (2 ms), acknowledgements are TCP's own. Of an answer only the end is looked for. So what
// this takes per token is the kernel's share and a little; a client that also knows what it has read
// takes more.
//
//   cc -O2 -o floor_client floor_client.c && ./floor_client PORT STREAMS WAVES TOKENS
//
// Prints: tokens, CPU seconds, seconds of wall time. Linux only.

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { MOST_STREAMS = 4096, READ_BYTES = 8192, CROWD = 64, NAP_US = 2000 };

static const char END_OF_ANSWER[] = "0\r\n\r\n";

static struct timespec stamp;  // the last one: taken, and not kept

static double cpu_s(void) {
  struct rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_utime.tv_sec + usage.ru_stime.tv_sec +
         (usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6;
}

static double now_s(void) {
  struct timespec at;
  clock_gettime(CLOCK_MONOTONIC, &at);
  return at.tv_sec + at.tv_nsec / 1e9;
}

static int connected(int port) {
  int fd = socket(AF_INET, SOCK_STREAM, 0), on = 1;
  struct sockaddr_in where = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
  where.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (fd < 0 || connect(fd, (struct sockaddr *)&where, sizeof where)) return -1;
  fcntl(fd, F_SETFL, O_NONBLOCK);
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  setsockopt(fd, SOL_SOCKET, SO_TIMESTAMPNS, &on, sizeof on);
  return fd;
}

// One read with its stamp; returns the bytes, 0 at the end of the connection, -1 for nothing there.
static ssize_t receive(int fd, char *into) {
  static char control[128];
  struct iovec place = {into, READ_BYTES};
  struct msghdr message = {
      .msg_iov = &place, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
  ssize_t got = recvmsg(fd, &message, 0);
  struct cmsghdr *first = got > 0 ? CMSG_FIRSTHDR(&message) : NULL;
  if (first && first->cmsg_type == SCM_TIMESTAMPNS) memcpy(&stamp, CMSG_DATA(first), sizeof stamp);
  return got;
}

int main(int count, char **words) {
  if (count != 5) return fprintf(stderr, "usage: floor_client PORT STREAMS WAVES TOKENS\n"), 2;
  int port = atoi(words[1]), streams = atoi(words[2]), waves = atoi(words[3]), tokens = atoi(words[4]);
  if (streams < 1 || streams > MOST_STREAMS) return 2;
  struct rlimit files = {MOST_STREAMS + 64, MOST_STREAMS + 64};
  setrlimit(RLIMIT_NOFILE, &files);
  prctl(PR_SET_TIMERSLACK, 1000, 0, 0, 0);

  char body[512], request[1024];
  snprintf(body, sizeof body,
           "{\"model\":\"mock-model\",\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}],"
           "\"max_tokens\":%d,\"stream\":true,\"stream_options\":{\"include_usage\":true}}",
           tokens);
  int length = snprintf(request, sizeof request,
                        "POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\n"
                        "content-type: application/json\r\ncontent-length: %zu\r\n\r\n%s",
                        strlen(body), body);

  static int left[MOST_STREAMS];
  static int fds[MOST_STREAMS];
  static struct epoll_event ready[MOST_STREAMS];
  static char data[READ_BYTES];
  int poller = epoll_create1(0);
  for (int i = 0; i < streams; i++) {
    if ((fds[i] = connected(port)) < 0) return perror("connect"), 1;
    left[i] = waves;
    struct epoll_event wanted = {EPOLLIN, {.u32 = (uint32_t)i}};
    epoll_ctl(poller, EPOLL_CTL_ADD, fds[i], &wanted);
  }
  double began_s = now_s(), cpu_began_s = cpu_s();
  for (int i = 0; i < streams; i++)
    if (send(fds[i], request, (size_t)length, MSG_NOSIGNAL) != length) return perror("send"), 1;

  for (int busy = streams; busy;) {
    int n = epoll_wait(poller, ready, MOST_STREAMS, -1);
    if (n > 0 && n < CROWD) {
      struct timespec nap = {0, NAP_US * 1000};
      nanosleep(&nap, NULL);
      n = epoll_wait(poller, ready, MOST_STREAMS, 0);
    }
    for (int k = 0; k < n; k++) {
      uint32_t i = ready[k].data.u32;
      ssize_t got = receive(fds[i], data);
      if (got < 0 && errno == EAGAIN) continue;
      if (got <= 0) return fprintf(stderr, "the server closed a connection\n"), 1;
      if (got < 5 || memcmp(data + got - 5, END_OF_ANSWER, 5)) continue;
      if (--left[i] == 0)
        busy--;
      else if (send(fds[i], request, (size_t)length, MSG_NOSIGNAL) != length)
        return perror("send"), 1;
    }
  }
  printf("%ld %.6f %.6f\n", (long)streams * waves * tokens, cpu_s() - cpu_began_s, now_s() - began_s);
  return 0;
}
