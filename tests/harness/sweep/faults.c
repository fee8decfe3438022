/* Faults of a computer, injected below Python: loaded with LD_PRELOAD.

   faults_arm(prefix, n): of all that changes files under `prefix`, the n-th call and every later one
   fail as on a full disk; n = 0 counts and fails none.  faults_calls(): how many there were.
   faults_clock(seconds): every reading of the time of day jumps by up to so many seconds, forwards
   or backwards.  Removing a file never fails: a full disk lets files go. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

static char prefix[4096];
static long fails_at = -1, calls;
static long jump_s;
static unsigned seed = 1;

void faults_arm(const char *under, long n) {
  snprintf(prefix, sizeof prefix, "%s", under);
  fails_at = n;
  calls = 0;
}

long faults_calls(void) { return calls; }

void faults_clock(long seconds) { jump_s = seconds; }

static int under(const char *path) {
  char whole[4096], folder[3000];
  if (fails_at < 0 || path == NULL) return 0;
  if (path[0] == '/') return strncmp(path, prefix, strlen(prefix)) == 0;
  if (getcwd(folder, sizeof folder) == NULL) return 0;
  snprintf(whole, sizeof whole, "%s/%s", folder, path);
  return strncmp(whole, prefix, strlen(prefix)) == 0;
}

static int under_fd(int fd) {
  char link[64], path[4096];
  ssize_t length;
  if (fails_at < 0) return 0;
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  length = readlink(link, path, sizeof path - 1);
  if (length < 0) return 0;
  path[length] = 0;
  return under(path);
}

/* Whether this call is one that fails. */
static int full(int counts) {
  if (!counts) return 0;
  calls++;
  if (fails_at == 0 || calls < fails_at) return 0;
  errno = ENOSPC;
  return 1;
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

ssize_t write(int fd, const void *data, size_t size) {
  return full(under_fd(fd)) ? -1 : REAL(write)(fd, data, size);
}
ssize_t writev(int fd, const struct iovec *parts, int count) {
  return full(under_fd(fd)) ? -1 : REAL(writev)(fd, parts, count);
}
ssize_t pwrite(int fd, const void *data, size_t size, off_t at) {
  return full(under_fd(fd)) ? -1 : REAL(pwrite)(fd, data, size, at);
}
ssize_t pwrite64(int fd, const void *data, size_t size, off64_t at) {
  return full(under_fd(fd)) ? -1 : REAL(pwrite64)(fd, data, size, at);
}
int ftruncate(int fd, off_t size) {
  return full(under_fd(fd)) ? -1 : REAL(ftruncate)(fd, size);
}
int ftruncate64(int fd, off64_t size) {
  return full(under_fd(fd)) ? -1 : REAL(ftruncate64)(fd, size);
}
int posix_fallocate(int fd, off_t at, off_t size) {
  return full(under_fd(fd)) ? ENOSPC : REAL(posix_fallocate)(fd, at, size);
}
int fsync(int fd) { return full(under_fd(fd)) ? -1 : REAL(fsync)(fd); }
int fdatasync(int fd) { return full(under_fd(fd)) ? -1 : REAL(fdatasync)(fd); }
int mkdir(const char *path, mode_t mode) {
  return full(under(path)) ? -1 : REAL(mkdir)(path, mode);
}
int rename(const char *from, const char *to) {
  return full(under(to)) ? -1 : REAL(rename)(from, to);
}

#define OPEN(name)                                                     \
  int name(const char *path, int flags, ...) {                         \
    mode_t mode = 0;                                                   \
    if (flags & (O_CREAT | O_TMPFILE)) {                               \
      va_list rest;                                                    \
      va_start(rest, flags);                                           \
      mode = va_arg(rest, mode_t);                                     \
      va_end(rest);                                                    \
    }                                                                  \
    if ((flags & O_CREAT) && access(path, F_OK) && full(under(path)))  \
      return -1;                                                       \
    return REAL(name)(path, flags, mode);                              \
  }
OPEN(open)
OPEN(open64)

static time_t jumped(time_t now) {
  return jump_s ? now + rand_r(&seed) % (2 * jump_s + 1) - jump_s : now;
}
int clock_gettime(clockid_t clock, struct timespec *now) {
  int found = REAL(clock_gettime)(clock, now);
  if (clock == CLOCK_REALTIME) now->tv_sec = jumped(now->tv_sec);
  return found;
}
int gettimeofday(struct timeval *now, void *zone) {
  int found = ((int (*)(struct timeval *, void *))dlsym(RTLD_NEXT, "gettimeofday"))(now, zone);
  now->tv_sec = jumped(now->tv_sec);
  return found;
}
time_t time(time_t *now) {
  time_t found = jumped(REAL(time)(NULL));
  if (now) *now = found;
  return found;
}
