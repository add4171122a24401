/* The forker: lets a Node process that has loaded a tool answer each call in a child of its own.
 *
 * Node itself cannot fork. This addon can, because of what it demands of its process: V8 runs single-threaded
 * (so no helper thread holds a lock or owes us work), only the main thread forks, and whoever returns to
 * JavaScript renews the event loop first. Three kinds of process, as with Python's zygotes (_zygote.py):
 *
 *     Z  the zygote: Node with the tool loaded; forks a slot for every "+" on its channel
 *     P  a slot: serves one call after another; never runs JavaScript again, and has one thread
 *     T  the child that P forked ahead: restricts itself, runs JavaScript for its one call, and is killed
 *
 * It decides nothing: the rules come from the host, which also watches the clock and ends T. Secrets travel
 * only in a request, so only T ever holds them. If the host goes away, every socket ends, and so do we.
 *
 * Read it from top to bottom: Node's side, descriptors, rules, the scratch folder, T, P, Z, the exports.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the rules are little-endian");

enum {
    CHANNEL = 3,
    NR_pidfd_open = 434, NR_close_range = 436, NR_landlock_create = 444, NR_landlock_add = 445, NR_landlock_restrict = 446,
    FILE_RIGHTS = 0xc007,      /* the Landlock rights that a rule for a plain file may hold */
    REFER = 1 << 13,
    DESCRIPTORS_END = 1024,    /* numbers from here on are closed in a call; Node and its tools hold some dozens */
    DEPTH_MAX = 64,            /* folders in each other that we empty; what is deeper goes with the zygote */
    REQUEST_BYTES_MAX = 1 << 30,
    SWEEP_MS = 2000,
    ATTEMPT_MS = 3000,
};

/* == Node's side =========================================================================================== */

/* Of Node's stable C interface we use a dozen functions, declared here so that no headers are needed. */
typedef struct napi_env__ *napi_env;
typedef struct napi_value__ *napi_value;
typedef struct napi_callback_info__ *napi_callback_info;
typedef napi_value (*napi_callback)(napi_env, napi_callback_info);
int napi_create_function(napi_env, const char *, size_t, napi_callback, void *, napi_value *);
int napi_set_named_property(napi_env, napi_value, const char *, napi_value);
int napi_get_cb_info(napi_env, napi_callback_info, size_t *, napi_value *, napi_value *, void **);
int napi_get_buffer_info(napi_env, napi_value, void **, size_t *);
int napi_create_buffer(napi_env, size_t, void **, napi_value *);
int napi_create_string_utf8(napi_env, const char *, size_t, napi_value *);
int napi_create_int32(napi_env, int32_t, napi_value *);
int napi_create_array(napi_env, napi_value *);
int napi_set_element(napi_env, napi_value, uint32_t, napi_value);
int napi_get_value_int32(napi_env, napi_value, int32_t *);
int napi_throw_error(napi_env, const char *, const char *);
int napi_get_uv_event_loop(napi_env, void **);
int uv_loop_fork(void *);
napi_value napi_register_module_v1(napi_env, napi_value);

static napi_value throw_error(napi_env env, const char *what)
{
    napi_throw_error(env, NULL, what);
    return NULL;
}

/* V8 asks the kernel to leave its heap out of forked children, since Node's own fork only ever execs. Ours go
 * on, so all of it is asked back, up to this frame: the stack is the highest of what a program maps. A range
 * may have holes (ENOMEM) and, rarely, mappings of the kernel that refuse (EINVAL): those are stepped around. */
static void let_fork(uintptr_t from, uintptr_t to)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    if (madvise((void *)from, to - from, MADV_DOFORK) == 0 || errno == ENOMEM || to - from <= page) return;
    uintptr_t middle = from + ((to - from) / 2 & ~(page - 1));
    let_fork(from, middle);
    let_fork(middle, to);
}

static void let_all_fork(void)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    let_fork(page, (uintptr_t)__builtin_frame_address(0) & ~(page - 1));
}

/* == Descriptors =========================================================================================== */

static bool send_fds(int socket, const void *text, size_t size, const int *fds, size_t nfds)
{
    union { char bytes[CMSG_SPACE(4 * sizeof(int))]; struct cmsghdr align; } ancillary = {0};
    struct iovec part = {(void *)(uintptr_t)text, size};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    if (nfds > 0) {
        message.msg_control = ancillary.bytes;
        message.msg_controllen = (socklen_t)CMSG_SPACE(nfds * sizeof(int));
        struct cmsghdr *head = CMSG_FIRSTHDR(&message);
        head->cmsg_level = SOL_SOCKET;
        head->cmsg_type = SCM_RIGHTS;
        head->cmsg_len = (socklen_t)CMSG_LEN(nfds * sizeof(int));
        memcpy(CMSG_DATA(head), fds, nfds * sizeof(int));
    }
    ssize_t sent;
    while ((sent = sendmsg(socket, &message, MSG_NOSIGNAL)) < 0 && errno == EINTR) {}
    return sent == (ssize_t)size;
}

/* One descriptor that comes with a short message; -1 where none does. */
static int receive_fd(int socket)
{
    char text[16];
    union { char bytes[CMSG_SPACE(sizeof(int))]; struct cmsghdr align; } ancillary = {0};
    struct iovec part = {text, sizeof text};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = ancillary.bytes,
                             .msg_controllen = sizeof ancillary.bytes};
    ssize_t got;
    while ((got = recvmsg(socket, &message, MSG_CMSG_CLOEXEC)) < 0 && errno == EINTR) {}
    struct cmsghdr *head = got > 0 ? CMSG_FIRSTHDR(&message) : NULL;
    int fd = -1;
    if (head != NULL && head->cmsg_type == SCM_RIGHTS) memcpy(&fd, CMSG_DATA(head), sizeof fd);
    return fd;
}

static void close_fd(int *fd)
{
    if (*fd >= 0) close(*fd);
    *fd = -1;
}

/* == Rules ================================================================================================= */

/* As the host packs them: this head, the limits, then for each path its rights and its text, NUL included. */
struct rules_head {
    uint64_t handled, scoped;
    uint32_t limitc, pathc;
    uint32_t has_scratch, zero;
};
struct limit { uint32_t resource, zero; uint64_t value; };

struct rules {
    struct rules_head head;
    const char *limits, *paths, *end;
};

static bool parse_rules(const char *bytes, size_t size, struct rules *rules)
{
    if (size < sizeof rules->head) return false;
    memcpy(&rules->head, bytes, sizeof rules->head);
    rules->limits = bytes + sizeof rules->head;
    rules->end = bytes + size;
    if (rules->head.limitc > (size - sizeof rules->head) / sizeof(struct limit)) return false;
    rules->paths = rules->limits + rules->head.limitc * sizeof(struct limit);
    const char *at = rules->paths;
    for (uint32_t i = 0; i < rules->head.pathc; i++) {
        if ((size_t)(rules->end - at) <= sizeof(uint64_t)) return false;
        at += sizeof(uint64_t);
        const char *nul = memchr(at, 0, (size_t)(rules->end - at));
        if (nul == NULL) return false;
        at = nul + 1;
    }
    return at == rules->end;
}

static void allow(int ruleset, const char *path, uint64_t rights)
{
    struct { uint64_t rights; int32_t fd; } __attribute__((packed)) rule = {rights, -1};
    rule.fd = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (rule.fd < 0) {
        rule.rights &= FILE_RIGHTS;
        rule.fd = open(path, O_PATH | O_CLOEXEC);
    }
    if (rule.fd < 0) return;
    if (rule.rights) syscall(NR_landlock_add, ruleset, 1, &rule, 0);
    close(rule.fd);
}

/* A Landlock layer for the children of one slot, inside the one that already holds us. -1: there is no Landlock;
 * -2: there is, and it refused.
 * Attack: a call that plants code in the zygote for the next caller, or looks into another call. A domain of its
 * own can neither trace nor open the memory of a process outside it, nor signal it (from version 6). Below our
 * scratch folder only the slot's own part is allowed. */
static int new_ruleset(const struct rules *rules, const char *scratch)
{
    long version = syscall(NR_landlock_create, NULL, 0, 1);
    if (version < 1) return -1;
    uint64_t attributes[3] = {rules->head.handled, 0, rules->head.scoped};
    if (version >= 2) attributes[0] |= REFER;  /* every layer refuses it unless it is allowed */
    size_t size = version >= 6 ? 24 : version >= 4 ? 16 : 8;
    int ruleset = (int)syscall(NR_landlock_create, attributes, size, 0);
    if (ruleset < 0) return -2;
    fcntl(ruleset, F_SETFD, FD_CLOEXEC);
    const char *at = rules->paths;
    for (uint32_t i = 0; i < rules->head.pathc; i++) {
        uint64_t rights;
        memcpy(&rights, at, sizeof rights);
        allow(ruleset, at + sizeof rights, rights & attributes[0]);
        at += sizeof rights + strlen(at + sizeof rights) + 1;
    }
    if (attributes[0] & REFER) allow(ruleset, "/", REFER);
    if (scratch[0]) allow(ruleset, scratch, attributes[0]);
    return ruleset;
}

static bool apply_limits(const struct rules *rules)
{
    for (uint32_t i = 0; i < rules->head.limitc; i++) {
        struct limit limit;
        memcpy(&limit, rules->limits + i * sizeof limit, sizeof limit);
        struct rlimit own;
        if (syscall(SYS_prlimit64, 0L, limit.resource, NULL, &own) != 0) return false;
        if (own.rlim_max != RLIM_INFINITY && limit.value >= own.rlim_max) continue;
        own.rlim_cur = own.rlim_max = limit.value;
        if (syscall(SYS_prlimit64, 0L, limit.resource, &own, NULL) != 0) return false;
    }
    return true;
}

/* == The scratch folder ==================================================================================== */

/* Removes whatever lies in a folder, closed folders included; links are removed, never followed. Takes the fd. */
static bool empty_folder(int fd, unsigned depth)
{
    DIR *folder = fchmod(fd, 0700) == 0 ? fdopendir(fd) : NULL;
    if (folder == NULL) {
        close(fd);
        return false;
    }
    bool empty = true;
    for (struct dirent *entry; empty && (entry = readdir(folder)) != NULL;) {
        const char *name = entry->d_name;
        if (strcmp(name, ".") == 0 || strcmp(name, "..") == 0) continue;
        if (unlinkat(fd, name, 0) == 0) continue;
        empty = false;
        if (errno != EISDIR || depth >= DEPTH_MAX) break;
        if (fchmodat(fd, name, 0700, 0) != 0) break;  /* its maker may have closed it */
        int inner = openat(fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        empty = inner >= 0 && empty_folder(inner, depth + 1) && unlinkat(fd, name, AT_REMOVEDIR) == 0;
    }
    closedir(folder);
    return empty;
}

static bool empty_scratch(const char *path)
{
    if (!path[0]) return true;
    chmod(path, 0700);
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    return fd >= 0 && empty_folder(fd, 0);
}

/* == T: one call =========================================================================================== */

static int talk = -1;
static char scratch[4096];
static char parent[3072];  /* of scratch folders: TMPDIR as it was before the tool's own code could change it */

static bool read_exactly(int fd, void *into, size_t size)
{
    for (char *at = into; size > 0;) {
        ssize_t got = read(fd, at, size);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) return false;
        at += got;
        size -= (size_t)got;
    }
    return true;
}

static bool write_exactly(int fd, const void *from, size_t size)
{
    for (const char *at = from; size > 0;) {
        ssize_t sent = send(fd, at, size, MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR) continue;
        if (sent < 0) return false;
        at += sent;
        size -= (size_t)sent;
    }
    return true;
}

/* What the slot held open before it forked: pipes by their number in the kernel. */
static struct { bool there; dev_t device; ino_t number; } held[DESCRIPTORS_END];
static int held_end = 3;

static void note_descriptors(int from, int end)
{
    struct stat found;
    for (int fd = from; fd < end; fd++) {
        held[fd].there = fstat(fd, &found) == 0;
        if (!held[fd].there) continue;
        held[fd].device = found.st_dev;
        held[fd].number = found.st_ino;
        if (fd >= held_end) held_end = fd + 1;
    }
}

/* Attack: a call that leaves a message for the next one in a pipe of the zygote, or writes one that a thread of
 * the zygote takes for its own. Whatever was open before the fork (other loops' pipes and counters, what the file
 * opened when it was loaded) is replaced by something of this child alone; its numbers stay taken, since somebody in
 * here may still close or watch them. What libuv made anew for the child when it was forked is another pipe by now. */
static bool own_descriptors(int talk_fd)
{
    struct stat found;
    int own = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (own < 0 || own >= DESCRIPTORS_END || talk_fd >= DESCRIPTORS_END) return false;
    for (int fd = 3; fd < held_end; fd++) {
        if (!held[fd].there || fd == talk_fd || fd == own || fstat(fd, &found) != 0) continue;
        if (found.st_dev != held[fd].device || found.st_ino != held[fd].number) continue;
        if (dup3(own, fd, O_CLOEXEC) < 0) return false;
    }
    close(own);
    return syscall(NR_close_range, DESCRIPTORS_END, ~0u, 0) == 0;
}

/* Restricted first; then it may go back to JavaScript. */
static bool become_tool(napi_env env, const struct rules *rules, int out, int err, int ruleset)
{
    sigset_t child;
    sigemptyset(&child);
    sigaddset(&child, SIGCHLD);
    void *loop;
    if (setpgid(0, 0) != 0 || dup2(out, 1) < 0 || dup2(err, 2) < 0) return false;
    close(out);
    close(err);
    if (sigprocmask(SIG_UNBLOCK, &child, NULL) != 0 || !apply_limits(rules)) return false;
    if (ruleset >= 0 && syscall(NR_landlock_restrict, ruleset, 0) != 0) return false;
    if (ruleset >= 0) close(ruleset);
    if (!own_descriptors(talk)) return false;
    prctl(PR_SET_DUMPABLE, 1, 0, 0, 0);  /* its own /proc/self is its own */
    return napi_get_uv_event_loop(env, &loop) == 0 && uv_loop_fork(loop) == 0;
}

/* == P: one call after another ============================================================================= */

struct slot {
    int control;
    int children;  /* the list of our children, which the rules do not let us open: the host lent it */
    int ruleset;
    unsigned number;
};

static int64_t now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* A scratch folder, and the rules that let the calls of this slot, and no others, use it. */
static bool new_scratch(struct slot *slot, const struct rules *rules)
{
    close_fd(&slot->ruleset);
    scratch[0] = 0;
    if (rules->head.has_scratch && parent[0]) {
        struct timespec now;
        clock_gettime(CLOCK_MONOTONIC, &now);
        int length = snprintf(scratch, sizeof scratch, "%s/call-%u-%lld%09ld", parent, slot->number,
                              (long long)now.tv_sec, now.tv_nsec);
        if (length < 0 || (size_t)length >= sizeof scratch || mkdir(scratch, 0700) != 0) return false;
    }
    slot->ruleset = new_ruleset(rules, scratch);
    return slot->ruleset != -2;
}

/* Ends every descendant: whoever loses its parent becomes our child, so an end comes. */
static bool sweep(const struct slot *slot, pid_t group)
{
    static char listed[1 << 16];
    int64_t until = now_ms() + SWEEP_MS;
    sigset_t child;
    sigemptyset(&child);
    sigaddset(&child, SIGCHLD);
    for (;;) {
        pid_t gone = waitpid(-1, NULL, WNOHANG);
        if (gone < 0 && errno == ECHILD) return true;
        if (gone > 0) continue;
        kill(-group, SIGKILL);
        ssize_t size = slot->children >= 0 ? pread(slot->children, listed, sizeof listed - 1, 0) : 0;
        listed[size > 0 ? size : 0] = 0;
        for (char *at = listed, *next; *at; at = next) {
            long pid = strtol(at, &next, 10);
            if (next == at) break;
            if (pid > 1) kill((pid_t)pid, SIGKILL);
        }
        if (now_ms() > until) return false;
        struct timespec moment = {0, 20000000};
        sigtimedwait(&child, NULL, &moment);
    }
}

/* As _zygote.ENDED reads it, in network order: whether all is swept, the status, seconds, bytes. */
static void put_number(unsigned char *at, uint64_t value, unsigned size)
{
    for (unsigned i = 0; i < size; i++) at[i] = (unsigned char)(value >> (8 * (size - 1 - i)));
}

static void put_seconds(unsigned char *at, struct timeval time)
{
    double seconds = (double)time.tv_sec + (double)time.tv_usec / 1e6;
    uint64_t bits;
    memcpy(&bits, &seconds, sizeof bits);
    put_number(at, bits, 8);
}

static bool report(int control, bool swept, int status, const struct rusage *usage)
{
    unsigned char text[30] = {'E', swept ? 'S' : 'L'};
    int code = WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
    put_number(text + 2, (uint32_t)code, 4);
    put_seconds(text + 6, usage->ru_utime);
    put_seconds(text + 14, usage->ru_stime);
    put_number(text + 22, (uint64_t)usage->ru_maxrss * 1024, 8);
    return send_fds(control, text, sizeof text, NULL, 0);
}

enum outcome { SERVED, OVER, IS_TOOL };

/* Keeps a child ready, waits for its end, and sweeps up after it. */
static enum outcome one_call(napi_env env, struct slot *slot, const struct rules *rules)
{
    int pair[2], out[2] = {-1, -1}, err[2] = {-1, -1};
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0) return OVER;
    if (pipe2(out, O_CLOEXEC) != 0 || pipe2(err, O_CLOEXEC) != 0) return OVER;
    note_descriptors(3, held_end);
    pid_t pid = fork();
    if (pid < 0) return OVER;
    if (pid == 0) {
        close(pair[0]);
        close(out[0]);
        close(err[0]);
        close_fd(&slot->control);
        close_fd(&slot->children);
        talk = pair[1];
        if (!become_tool(env, rules, out[1], err[1], slot->ruleset)) _exit(1);
        return IS_TOOL;
    }
    int watch = (int)syscall(NR_pidfd_open, pid, 0);
    char ready[sizeof scratch + 32];
    int length = snprintf(ready, sizeof ready, "R%d %s", (int)pid, scratch);
    bool host_is_there = watch >= 0 && send_fds(slot->control, ready, (size_t)length,
                                                (int[]){pair[0], out[0], err[0], watch}, 4);
    close(pair[0]);
    close(out[0]);
    close(err[0]);
    if (host_is_there) {
        /* The host ends a call by killing T; all that comes on the control socket now is its end. */
        struct pollfd waits[2] = {{watch, POLLIN, 0}, {slot->control, POLLIN, 0}};
        while (poll(waits, 2, -1) < 0 && errno == EINTR) {}
        host_is_there = waits[0].revents != 0;
    }
    if (!host_is_there) kill(pid, SIGKILL);
    int status = 0;
    struct rusage usage = {0};
    while (wait4(pid, &status, 0, &usage) < 0 && errno == EINTR) {}
    if (watch >= 0) close(watch);
    bool swept = sweep(slot, pid);
    /* Only now: while we held the other ends, the host was not woken by each of them closing. */
    close(out[1]);
    close(err[1]);
    close(pair[1]);
    if (!report(slot->control, swept, status, &usage) || !host_is_there || !swept) return OVER;
    /* Attack: folders without number, so that a call is answered when they are gone. No call waits for this slot
     * before it is ready again. */
    return empty_scratch(scratch) || new_scratch(slot, rules) ? SERVED : OVER;
}

/* Returns only in T. */
static void be_slot(napi_env env, const struct rules *rules, unsigned number)
{
    sigset_t child;
    sigemptyset(&child);
    sigaddset(&child, SIGCHLD);
    signal(SIGCHLD, SIG_DFL);
    sigprocmask(SIG_BLOCK, &child, NULL);
    prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0) _exit(1);
    /* The host learns who we are from the kernel, not from us. */
    if (!send_fds(CHANNEL, "S", 1, pair, 1)) _exit(1);
    close(CHANNEL);
    close(pair[0]);
    struct slot slot = {.control = pair[1], .children = receive_fd(pair[1]), .ruleset = -1, .number = number};
    if (!new_scratch(&slot, rules)) _exit(1);
    note_descriptors(3, DESCRIPTORS_END);
    enum outcome outcome;
    while ((outcome = one_call(env, &slot, rules)) == SERVED) {}
    if (outcome == IS_TOOL) return;
    if (scratch[0] && empty_scratch(scratch)) rmdir(scratch);
    _exit(0);
}

/* == Z: the zygote ========================================================================================= */

/* serve(rules): forks slots until the channel ends. Returns only in T: its number, its scratch folder and
 * four random numbers. */
static napi_value serve(napi_env env, napi_callback_info info)
{
    size_t count = 1, size;
    napi_value argument, pid, folder, result;
    void *bytes;
    struct rules rules;
    if (napi_get_cb_info(env, info, &count, &argument, NULL, NULL) != 0 || count != 1 ||
        napi_get_buffer_info(env, argument, &bytes, &size) != 0 || !parse_rules(bytes, size, &rules))
        return throw_error(env, "these are no rules");
    let_all_fork();
    /* Attack: a call that reads or changes the memory of the process that later calls are forked from. The
     * child's own Landlock layer stops it; where there is none, this does. */
    prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
    signal(SIGCHLD, SIG_IGN);  /* slots that end are nobody's to wait for */
    for (unsigned number = 1;; number++) {
        char plus;
        ssize_t got;
        while ((got = recv(CHANNEL, &plus, 1, 0)) < 0 && errno == EINTR) {}
        if (got <= 0) _exit(0);
        pid_t slot = fork();
        if (slot < 0) _exit(1);  /* the host takes another way when we are gone, and would wait for this slot */
        if (slot == 0) {
            be_slot(env, &rules, number);
            break;
        }
    }
    if (napi_create_int32(env, (int32_t)getpid(), &pid) != 0 || napi_create_array(env, &result) != 0 ||
        napi_create_string_utf8(env, scratch, strlen(scratch), &folder) != 0 ||
        napi_set_element(env, result, 0, pid) != 0 || napi_set_element(env, result, 1, folder) != 0)
        _exit(1);
    int32_t seed[4];
    if (getrandom(seed, sizeof seed, 0) != (ssize_t)sizeof seed) _exit(1);
    for (uint32_t i = 0; i < 4; i++) {
        napi_value part;
        if (napi_create_int32(env, seed[i], &part) != 0 || napi_set_element(env, result, 2 + i, part) != 0)
            _exit(1);
    }
    return result;
}

/* attempt(): forks a child to try out whether this Node bears it. -1 in the child; in the parent 1 where the child
 * left with status 0 in time, else 0. */
static napi_value attempt(napi_env env, napi_callback_info info)
{
    (void)info;
    void *loop;
    napi_value result;
    let_all_fork();
    int32_t outcome = -1;
    pid_t pid = fork();
    if (pid == 0) {
        if (napi_get_uv_event_loop(env, &loop) != 0 || uv_loop_fork(loop) != 0) _exit(1);
    } else {
        int watch = pid > 0 ? (int)syscall(NR_pidfd_open, pid, 0) : -1, status = -1;
        struct pollfd wait = {watch, POLLIN, 0};
        int64_t until = now_ms() + ATTEMPT_MS;
        for (int64_t left = ATTEMPT_MS; watch >= 0 && left > 0; left = until - now_ms())
            if (poll(&wait, 1, (int)left) >= 0 || errno != EINTR) break;
        if (pid > 0) {
            if (!wait.revents) kill(pid, SIGKILL);
            while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {}
        }
        if (watch >= 0) close(watch);
        outcome = pid > 0 && WIFEXITED(status) && WEXITSTATUS(status) == 0;
    }
    return napi_create_int32(env, outcome, &result) == 0 ? result : NULL;
}

/* == The exports =========================================================================================== */

/* request(): waits for the one request of this child. */
static napi_value request(napi_env env, napi_callback_info info)
{
    (void)info;
    unsigned char head[8];
    if (!read_exactly(talk, head, sizeof head)) _exit(0);  /* nobody wants us any more */
    uint64_t size = 0;
    for (unsigned i = 0; i < sizeof head; i++) size = size << 8 | head[i];
    void *bytes;
    napi_value result;
    if (size > REQUEST_BYTES_MAX || napi_create_buffer(env, (size_t)size, &bytes, &result) != 0)
        return throw_error(env, "the request is too long");
    if (!read_exactly(talk, bytes, (size_t)size)) _exit(0);
    return result;
}

/* answer(tag, body): sends the frame that _loader.HEAD describes, and waits for the end. Does not return. */
static napi_value answer(napi_env env, napi_callback_info info)
{
    size_t count = 2, size;
    napi_value arguments[2];
    int32_t tag;
    void *body;
    if (napi_get_cb_info(env, info, &count, arguments, NULL, NULL) != 0 || count != 2 ||
        napi_get_value_int32(env, arguments[0], &tag) != 0 ||
        napi_get_buffer_info(env, arguments[1], &body, &size) != 0)
        return throw_error(env, "this is no answer");
    struct rusage own, theirs;
    getrusage(RUSAGE_SELF, &own);
    getrusage(RUSAGE_CHILDREN, &theirs);
    timeradd(&own.ru_utime, &theirs.ru_utime, &own.ru_utime);
    timeradd(&own.ru_stime, &theirs.ru_stime, &own.ru_stime);
    long most = own.ru_maxrss > theirs.ru_maxrss ? own.ru_maxrss : theirs.ru_maxrss;
    unsigned char head[33] = {(unsigned char)tag};
    put_number(head + 1, size, 8);
    put_seconds(head + 9, own.ru_utime);
    put_seconds(head + 17, own.ru_stime);
    put_number(head + 25, (uint64_t)most * 1024, 8);
    /* The host has its answer, and ends us. Leaving by ourselves would make it wait until our memory is gone. */
    char ignored;
    if (write_exactly(talk, head, sizeof head) && write_exactly(talk, body, size))
        while (read(talk, &ignored, 1) < 0 && errno == EINTR) {}
    _exit(0);
}

/* leave(status): ends this process at once. Node's own way out waits for threads that a child does not have. */
static napi_value leave(napi_env env, napi_callback_info info)
{
    size_t count = 1;
    napi_value argument;
    int32_t status = 0;
    if (napi_get_cb_info(env, info, &count, &argument, NULL, NULL) == 0 && count == 1)
        napi_get_value_int32(env, argument, &status);
    _exit(status & 0xff);
}

__attribute__((visibility("default"))) napi_value napi_register_module_v1(napi_env env, napi_value exports)
{
    static const struct { const char *name; napi_callback call; } all[] = {
        {"serve", serve}, {"attempt", attempt}, {"request", request}, {"answer", answer}, {"leave", leave},
    };
    const char *place = getenv("TMPDIR");
    if (place != NULL && strlen(place) < sizeof parent) strcpy(parent, place);
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        napi_value function;
        if (napi_create_function(env, all[i].name, strlen(all[i].name), all[i].call, NULL, &function) != 0 ||
            napi_set_named_property(env, exports, all[i].name, function) != 0)
            return throw_error(env, "no exports");
    }
    return exports;
}
