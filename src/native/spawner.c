/* The spawner: starts tools inside kernel limits, watches them, and leaves nothing of them behind.
 *
 * The host (Python) starts it once and hands it, as descriptors, one end of a SEQPACKET socket (3), a page of
 * shared memory (4) and a pidfd of itself (5). Each request on the socket is one datagram with descriptors.
 * Whoever of the waiting supervisors receives it serves it:
 *
 *     host ==requests==> supervisor (child subreaper, forked from the spawner, no exec)
 *                            └ clone + exec -> the tool and its descendants
 *
 * It knows no permits, no formats and no policy: it applies what the request says, completely, or starts
 * nothing and says at which stage the kernel refused. It trusts the host, not the tool: a request that makes
 * no sense is refused without harm, because a mistake in the host must not become a hole in the fence.
 *
 * Read it from top to bottom: wire format, parser (pure), small helpers, the tool's side of the fence, the
 * embryo, watching and sweeping, namespaces, probe, supervisor, spawner.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/futex.h>
#include <linux/seccomp.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysinfo.h>
#include <sys/wait.h>

#if !defined(__x86_64__) && !defined(__aarch64__)
#error "only x86-64 and aarch64 are supported"
#endif
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the wire format is little-endian");

/* Headers older than the kernel lack these; from 424 on, numbers are the same on every architecture. */
enum {
    NR_pidfd_send_signal = 424, NR_open_tree = 428, NR_move_mount = 429, NR_fsopen = 430, NR_fsconfig = 431,
    NR_fsmount = 432, NR_pidfd_open = 434, NR_close_range = 436, NR_openat2 = 437, NR_mount_setattr = 442,
    NR_landlock_restrict_self = 446,
};
#define TREE_CLONE 1u
#define TREE_CLOEXEC ((unsigned)O_CLOEXEC)
#define TREE_RECURSIVE 0x8000u
#define MOVE_FROM_FD 0x4u
#define ATTR_READ_ONLY 0x1ull
#define ATTR_NO_SUID_NO_DEVICES 0x6u
#define CONFIG_SET_STRING 1u
#define CONFIG_CREATE 6u
#define ATTR_IS_MOUNT_ROOT 0x2000ull
#define RESOLVE_BELOW_ROOT 0x10ull  /* RESOLVE_IN_ROOT: absolute links too */
#define CLOSE_UNSHARED (1u << 1)
#define CLOSE_ON_EXEC (1u << 2)
#ifndef PR_SET_NO_NEW_PRIVS
#define PR_SET_NO_NEW_PRIVS 38
#endif
#ifndef CLONE_PIDFD
#define CLONE_PIDFD 0x1000
#endif

/* == The wire format ======================================================================================= */

enum {
    REQUEST_MAGIC = 0x51535754, /* "TWSQ" */
    REPORT_MAGIC = 0x52535754,  /* "TWSR" */
    VERSION = 6,
};

/* A call's byte of the shared page. The host may try a call again whose byte was never set. */
enum slot { SLOT_UNUSED, SLOT_MAY_HAVE_STARTED };

enum kind { KIND_RUN = 1, KIND_NAMESPACE = 2, KIND_PROBE = 3 };

/* Which descriptors came along, in this order, after the control socket and, where there are any, stdin (HAS_STDIN),
 * stdout and stderr (HAS_OUTPUT). Of a RUN without them we make the pipes: the message ends in the bytes for stdin,
 * and what the tool wrote comes back with the report. */
enum {
    HAS_RULESET = 1u << 0,  /* a Landlock ruleset */
    HAS_PROGRAM = 1u << 1,  /* a sealed program, executed instead of what lies at the path */
    HAS_CHANNEL = 1u << 2,  /* becomes the tool's descriptor 3 */
    HAS_USER_NS = 1u << 3,  /* namespaces to enter, as KIND_NAMESPACE made them */
    HAS_MOUNT_NS = 1u << 4, /* before both: the root folder inside; behind both: the IPC namespace */
    HAS_PAYLOAD = 1u << 5,  /* the whole message lies in this memfd: too long for a datagram */
    HAS_STDIN = 1u << 6,
    HAS_OUTPUT = 1u << 7,
    SET_UID = 1u << 8,
    SET_GID = 1u << 9,
    KEEP_PROGRAM = 1u << 10,  /* the sealed program is a script: its interpreter reads it as descriptor 4 */
    FLAGS_KNOWN = 0x7ff,
};

struct head {
    uint32_t magic, version, kind, flags;
    uint32_t size;           /* of the whole message */
    uint32_t slot;           /* its byte of the shared page */
    uint32_t timeout_ms;     /* 0: none */
    uint32_t processes_max;  /* 0: not watched, as with the next two */
    uint64_t memory_max, scratch_max;
    uint32_t uid, gid;
    uint32_t argc, envc, bindc, rlimitc, filter_size, strings_size;
    uint32_t sealedc;        /* NAMESPACE: descriptors with the bytes for BIND_SEALED, in their order */
    uint32_t kit;            /* not 0: everything a tool is restricted by is as in other requests of this number */
    uint32_t stdin_size, zero;
};
_Static_assert(sizeof(struct head) == 96, "no padding");

/* After the head: rlimits, the seccomp filter, one word per bind, strings, bytes for stdin. */
struct limit { uint32_t resource, zero; uint64_t value; };
enum {
    BIND_READ_ONLY = 1u << 0,
    BIND_ABSENT = 1u << 1,  /* there was nothing to cover, and there must still be nothing */
    BIND_SEALED = 1u << 2,  /* the target shows checked bytes, whatever lies there */
    BIND_KNOWN = 7,
};
/* strings, each closed by NUL: program, cwd, scratch, argv..., environment..., then per bind source, target. */

enum {
    FDS_MAX = 32, SEALED_MAX = 16, NAMESPACE_FDS = 4, LIMITS_MAX = 32, BINDS_MAX = 1024, FILTER_MAX = 4096 * 8,
    STRINGS_MAX = 1 << 18, DATAGRAM_MAX = 1 << 16, MESSAGE_MAX = 4 << 20, SCRIPT_FD = 4,
    SLOTS = 4096,            /* of the shared page */
    STDIN_MAX = 4096,        /* what every pipe takes at once */
    OUTPUT_MAX = 16 << 10,   /* what comes back in a report; of more, the pipes do */
    PACKET_MAX = 64 << 10,   /* what one read takes: of a packet, what it has no room for is lost */
};

enum stage {  /* where a start failed */
    STAGE_NONE, STAGE_REQUEST, STAGE_CLONE, STAGE_GROUP, STAGE_DESCRIPTORS, STAGE_NAMESPACE, STAGE_STALE,
    STAGE_RLIMIT, STAGE_IDENTITY, STAGE_CAPABILITIES, STAGE_CWD, STAGE_NO_NEW_PRIVS, STAGE_LANDLOCK,
    STAGE_SECCOMP, STAGE_EXEC, STAGE_BIND,
};

enum reason {  /* why it ended */
    REASON_EXITED = 1, REASON_NOT_STARTED, REASON_DEADLINE, REASON_CANCELLED, REASON_PROCESSES,
    REASON_MEMORY, REASON_SCRATCH, REASON_DONE /* a namespace or a probe */,
    REASON_SWAPPED /* what was shown in place of a file is not shown any more */,
    REASON_RUNNING /* no end yet: with this come the pipes, stdout and stderr, for the host to read from now on, or,
                    * where none can be handed over, a piece of what the tool wrote */,
};

enum {  /* layers that were in force */
    LAYER_SUBREAPER = 1u << 0, LAYER_NO_NEW_PRIVS = 1u << 1, LAYER_LANDLOCK = 1u << 2,
    LAYER_SECCOMP = 1u << 3, LAYER_USER_NS = 1u << 4, LAYER_MOUNT_NS = 1u << 5, LAYER_RLIMITS = 1u << 6,
    LAYER_SEALED = 1u << 7, LAYER_IDENTITY = 1u << 8, LAYER_PIDFD = 1u << 9, LAYER_IPC_NS = 1u << 10,
};

enum { PROBES = 8 };  /* subreaper, pidfd, landlock, seccomp, mount namespace, user namespace, sealed, proc */

struct report {
    uint32_t magic, version, reason, stage;
    int32_t status, error;        /* as wait4 gives it; errno of the stage */
    uint32_t layers, strays;      /* strays: descendants that had to be killed after the tool's own end */
    uint64_t user_us, system_us, memory_bytes, duration_us;
    uint32_t processes_peak, survivors, detail;
    uint32_t stdout_size;         /* of what follows; the rest of it is stderr */
    int64_t scratch_changed_ns;   /* when the scratch folder last changed, once nobody was left; 0: not looked at */
    int32_t probes[PROBES];       /* errno of each, 0: works */
};
_Static_assert(sizeof(struct report) == 120, "no padding");

/* == The parser: a pure function over bytes ================================================================ */

struct request {
    struct head head;
    const struct limit *limits;
    const void *filter;
    const uint32_t *bind_flags;
    const char *program, *cwd, *scratch;
    const unsigned char *given;     /* for stdin */
    char **argv, **envp, **binds;   /* binds: source, target, source, target, ... */
    /* Positions among the received descriptors; -1: not there. */
    int control, in, out, err, ruleset, sealed, channel, root, user_ns, mount_ns, ipc_ns, payload, contents;
};

/* `bytes` is aligned to 8 and stays as it is; `pointers` has room for STRINGS_MAX + 8. 0: fine. */
static int parse(const unsigned char *bytes, size_t size, unsigned nfds, char **pointers, struct request *out)
{
    memset(out, 0, sizeof *out);
    if (size < sizeof out->head || size > MESSAGE_MAX) return EMSGSIZE;
    memcpy(&out->head, bytes, sizeof out->head);
    const struct head *head = &out->head;
    if (head->magic != REQUEST_MAGIC || head->version != VERSION) return EPROTO;
    if (head->kind < KIND_RUN || head->kind > KIND_PROBE || (head->flags & ~(uint32_t)FLAGS_KNOWN)) return EPROTO;
    if (head->sealedc > SEALED_MAX || head->zero != 0) return EPROTO;

    /* Descriptors are found by counting, so that none can be taken for another. */
    int next = 0;
    bool run = head->kind == KIND_RUN;
    uint32_t flags = head->flags;
    out->control = next++;
    out->in = flags & HAS_STDIN ? next++ : -1;
    out->out = flags & HAS_OUTPUT ? next++ : -1;
    out->err = flags & HAS_OUTPUT ? next++ : -1;
    if (!run && flags & (HAS_STDIN | HAS_OUTPUT)) return EPROTO;
    out->ruleset = flags & HAS_RULESET ? next++ : -1;
    out->sealed = flags & HAS_PROGRAM ? next++ : -1;
    out->channel = flags & HAS_CHANNEL ? next++ : -1;
    out->root = flags & HAS_MOUNT_NS ? next++ : -1;
    out->user_ns = flags & HAS_USER_NS ? next++ : -1;
    out->mount_ns = flags & HAS_MOUNT_NS ? next++ : -1;
    out->ipc_ns = flags & HAS_MOUNT_NS ? next++ : -1;
    out->contents = next;
    next += (int)head->sealedc;
    out->payload = flags & HAS_PAYLOAD ? next++ : -1;
    if ((unsigned)next != nfds) return EBADF;
    if (flags & HAS_PAYLOAD && size == sizeof *head) return 0;  /* the rest is in the memfd */
    if (head->size != size) return EMSGSIZE;

    if (head->rlimitc > LIMITS_MAX || head->bindc > BINDS_MAX || head->filter_size > FILTER_MAX) return E2BIG;
    if (head->filter_size % sizeof(struct sock_filter) != 0) return EPROTO;
    if (head->stdin_size > STDIN_MAX || (head->stdin_size > 0 && (!run || flags & HAS_STDIN))) return E2BIG;
    if (head->argc > STRINGS_MAX || head->envc > STRINGS_MAX) return E2BIG;
    uint64_t strings = 3ull + head->argc + head->envc + 2ull * head->bindc;
    if (strings > STRINGS_MAX) return E2BIG;
    uint64_t limits_size = head->rlimitc * (uint64_t)sizeof(struct limit);
    uint64_t body = limits_size + head->filter_size + head->bindc * 4ull + head->strings_size
                    + head->stdin_size;
    if (body != size - sizeof *head) return EMSGSIZE;

    const unsigned char *at = bytes + sizeof *head;
    out->limits = (const void *)at;
    for (uint32_t i = 0; i < head->rlimitc; i++)
        if (out->limits[i].zero != 0 || out->limits[i].resource >= RLIM_NLIMITS) return EPROTO;
    at += limits_size;
    out->filter = at;
    at += head->filter_size;
    out->bind_flags = (const void *)at;
    uint32_t sealed = 0;
    for (uint32_t i = 0; i < head->bindc; i++) {
        if (out->bind_flags[i] & ~(uint32_t)BIND_KNOWN) return EPROTO;
        sealed += (out->bind_flags[i] & BIND_SEALED) != 0;
    }
    if (head->sealedc != (head->kind == KIND_NAMESPACE ? sealed : 0)) return EPROTO;
    if (head->kind == KIND_PROBE && sealed > 0) return EPROTO;
    at += head->bindc * 4ull;

    /* Exactly as many strings as announced, the last one closed: nothing is read past the end later. */
    const unsigned char *end = at + head->strings_size;
    if (at == end || end[-1] != 0) return EPROTO;
    const char *first[3] = {0};
    for (uint64_t i = 0; i < strings; i++) {
        if (at >= end) return EPROTO;
        char *string = (char *)(uintptr_t)at;
        at = (const unsigned char *)memchr(at, 0, (size_t)(end - at)) + 1;
        if (i < 3) { first[i] = string; continue; }
        /* argv and environ are each followed by a NULL. */
        uint64_t index = i - 3;
        if (index >= head->argc) index++;
        if (i - 3 >= (uint64_t)head->argc + head->envc) index++;
        pointers[index] = string;
    }
    if (at != end) return EPROTO;
    out->given = end;
    out->program = first[0];
    out->cwd = first[1];
    out->scratch = first[2];
    out->argv = pointers;
    out->argv[head->argc] = NULL;
    out->envp = pointers + head->argc + 1;
    out->envp[head->envc] = NULL;
    out->binds = out->envp + head->envc + 1;
    for (uint32_t i = 0; i < 2 * head->bindc; i++)
        if (out->binds[i][0] != '/') return EINVAL;
    if (run) {
        /* Attack: an empty argv, which programs take argv[1] (then an environment string) out of. */
        if (head->argc == 0 || out->cwd[0] != '/') return EINVAL;
        if (!(flags & HAS_PROGRAM) && out->program[0] != '/') return EINVAL;
    }
    if (out->scratch[0] != '/' && out->scratch[0] != 0) return EINVAL;
    if (flags & HAS_USER_NS && !(flags & HAS_MOUNT_NS)) return EINVAL;
    if (flags & KEEP_PROGRAM && !(flags & HAS_PROGRAM)) return EINVAL;
    return 0;
}

#ifndef SPAWNER_PARSER_ONLY

/* == Small helpers ========================================================================================= */

enum { HOST_SOCKET = 3, SHARED_PAGE = 4, HOST_PIDFD = 5, FIRST_FREE = 6 };
enum {
    SUPERVISOR_CALLS_MAX = 256,   /* then it is replaced: nothing may grow for ever */
    IDLE_MIN = 2, IDLE_MAX = 16, SEATS = 4096,
    SAMPLE_EVERY_MS = 100,
    GLANCE_BYTES = 2048,          /* with as much in a pipe the tool may soon wait: some hold no more than a page */
    OUTPUT_HELD_MS = 80,          /* then the host reads, whatever there is */
    ALARM_FIRST_MS = 5,           /* between samples: has it written much, has the machine many more tasks? */
    ALARM_EVERY_MS = 20,
    TASKS_PER_PROCESS = 8,        /* threads count as well, but programs have a few each */
    OPENED_MS = 1000,             /* by then an interpreter has opened its script */
    SHOWN_TRIES = 1000,           /* a microsecond each; on a busy machine one in five fails */
    FEW_PROCESSES = 8,
    SWEEP_MS = 2000,              /* then the report goes out and says how many are left; killing goes on */
    REAPS_PER_KILL = 64,
    MEMBERS_MAX = 1 << 16, WALK_DEPTH_MAX = 128, WALK_ENTRIES_MAX = 200000, ENTRY_BYTES = 4096,
};

/* Shared by the spawner and its supervisors, each of which has a seat. Who is idle is counted, not added up: a
 * supervisor that is killed in the wrong moment must not spoil a sum. */
static struct {
    int wake;
    atomic_uint used;  /* seats from here on were never taken */
    struct { _Atomic pid_t pid; atomic_bool idle; } seats[SEATS];
} *pool;
static unsigned char *started;                       /* shared with the host: one byte per call */
static size_t started_size;
static pid_t spawner;
static rlim_t own_max[RLIM_NLIMITS];                 /* a tool's limits are never wider than ours */

static _Alignas(16) unsigned char datagram[DATAGRAM_MAX];
static _Alignas(16) unsigned char payload[MESSAGE_MAX];
static char *pointers[STRINGS_MAX + 8];
static struct member { pid_t pid, parent; } members[MEMBERS_MAX];
static _Alignas(16) unsigned char tool_stack[32 << 10];

static int output[2] = {-1, -1};                     /* ours to read: stdout and stderr, until the host has them */
static unsigned char output_bytes[OUTPUT_MAX + PACKET_MAX];

static int64_t now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

static int pidfd_open(pid_t pid) { return (int)syscall(NR_pidfd_open, pid, 0u); }

static pid_t fork_plain(void) { return (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0); }

static unsigned idle_supervisors(void)
{
    unsigned count = 0, used = atomic_load(&pool->used);
    for (unsigned seat = 0; seat < used; seat++) count += atomic_load(&pool->seats[seat].idle);
    return count;
}

/* Attack: hundreds of processes that all want to run, so that whoever should stop them waits for its turn. As
 * root we do not take turns with them. Only from the first look at a call on: a short call never gets there, and
 * many of them at once would lose a third of their throughput by it. Somebody who made the host a
 * background job is left alone. An ordinary user may not, but there the kernel counts processes. */
static void take_precedence(bool take)
{
    static bool taken;
    struct sched_param first = {.sched_priority = 1}, ordinary = {.sched_priority = 0};
    if (take == taken) return;
    if (!take) syscall(SYS_sched_setscheduler, 0, SCHED_OTHER, &ordinary);
    else if (syscall(SYS_sched_getscheduler, 0) != SCHED_OTHER) return;
    else if (syscall(SYS_sched_setscheduler, 0, SCHED_RR | SCHED_RESET_ON_FORK, &first) != 0) return;
    taken = take;
}

static void close_fds(const int *fds, unsigned count)
{
    for (unsigned i = 0; i < count; i++)
        if (fds[i] >= 0) close(fds[i]);
}

static bool read_small(const char *path, char *text, size_t room)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return false;
    ssize_t got = read(fd, text, room - 1);
    close(fd);
    if (got < 0) return false;
    text[got] = 0;
    return true;
}

static bool write_small(const char *path, const char *text)
{
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0) return false;
    size_t size = strlen(text);
    bool done = write(fd, text, size) == (ssize_t)size;
    int kept = errno;
    close(fd);
    errno = kept;
    return done;
}

/* == The tool's side: between clone and exec =============================================================== */

/* In memory that both have, as after vfork, so a failed start needs no pipe and no guessing of exit codes. */
struct birth {
    const struct request *request;
    const int *fds;
    pid_t supervisor;
    _Atomic uint32_t tid;       /* ALIVE, until the kernel clears it: it executes a program, or ended */
    volatile uint32_t stage;
    volatile int32_t error;
    volatile uint32_t layers, detail;
    bool shares_files;
};
enum { ALIVE = 1 };

/* No program that is started from here on can get a capability. Done once, in the spawner, because the list of
 * forty costs a tenth of a start; a new user namespace undoes it, so there it is done again.
 * Attack: root without capabilities gets them all back by starting any program; no-root is locked, so it does
 * not. (For an ordinary user there is nothing to take, and no_new_privs keeps it so.) */
static int close_capabilities(void)
{
    enum { NOROOT = 1 << 0, NOROOT_LOCKED = 1 << 1, NO_SETUID_FIXUP = 1 << 2, NO_SETUID_FIXUP_LOCKED = 1 << 3,
           NO_AMBIENT_RAISE = 1 << 6, NO_AMBIENT_RAISE_LOCKED = 1 << 7 };
    for (unsigned long capability = 0; capability < 64; capability++)
        if (prctl(PR_CAPBSET_DROP, capability, 0, 0, 0) != 0) break;  /* beyond the last one */
    prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0);
    return prctl(PR_SET_SECUREBITS, NOROOT | NOROOT_LOCKED | NO_SETUID_FIXUP | NO_SETUID_FIXUP_LOCKED
                 | NO_AMBIENT_RAISE | NO_AMBIENT_RAISE_LOCKED, 0, 0, 0);
}

static bool has_capabilities(void)
{
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3, .pid = 0};
    struct __user_cap_data_struct held[2] = {{0}};
    return syscall(SYS_capget, &header, held) != 0 || held[0].permitted || held[1].permitted;
}

static int forget_capabilities(void)
{
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3, .pid = 0};
    struct __user_cap_data_struct none[2] = {{0}};
    return (int)syscall(SYS_capset, &header, none);
}

/* As much of struct statx as is asked for; musl has it since 2024 only. */
struct looked { uint32_t mask, block_size; uint64_t attributes, rest[30]; };

static int look_at(int folder, const char *path, int flags, struct looked *found)
{
    return (int)syscall(SYS_statx, folder, path, flags, 0, found);
}

/* Whether a folder of somebody else above the path lets this process not through: what lies there is out of the
 * tool's reach, whether or not something is still mounted over it. Attack: a tool that closes a folder of its own, so
 * that nobody can look whether the mount is gone, and opens it again. */
static bool is_closed_to_us(const char *path)
{
    char above[PATH_MAX];
    size_t size = strlen(path);
    struct stat found;
    if (size >= sizeof above) return false;
    memcpy(above, path, size + 1);
    do {
        while (size > 1 && above[size - 1] != '/') size--;
        while (size > 1 && above[size - 1] == '/') size--;
        above[size] = '\0';
        if (lstat(above, &found) == 0) return S_ISDIR(found.st_mode) && found.st_uid != geteuid();
    } while (errno == EACCES && size > 1);
    return false;
}

/* The namespace was made for these binds, perhaps long ago. Attack, or just `git config`: a protected file is
 * replaced by rename outside, which takes the mount away with the old file. So look, each time. */
static int check_binds(const struct request *r, uint32_t *which)
{
    for (uint32_t i = 0; i < r->head.bindc; i++) {
        struct looked found;
        *which = i;
        const char *target = r->binds[2 * i + 1];
        int why = look_at(AT_FDCWD, target, AT_SYMLINK_NOFOLLOW | AT_NO_AUTOMOUNT, &found) == 0 ? 0 : errno;
        if (why == EACCES && is_closed_to_us(target)) continue;
        /* What cannot be seen is not missing, neither here nor when the namespace is made. */
        if (r->bind_flags[i] & BIND_ABSENT ? why != ENOENT && why != ENOTDIR
                                           : why != 0 || !(found.attributes & ATTR_IS_MOUNT_ROOT)) {
            return ESTALE;
        }
    }
    return 0;
}

#define FAIL(where) do { birth->error = errno ? errno : EIO; birth->stage = (where); _exit(127); } while (0)

/* Not for the address sanitizer: functions that end in exec never clean the marks it puts on their stack. */
#define UNCHECKED __attribute__((no_sanitize("address")))

/* Everything that holds the tool, and nothing that only this one call knows. */
UNCHECKED static void restrict_tool(struct birth *birth)
{
    const struct request *r = birth->request;
    const int *fds = birth->fds;
    uint32_t flags = r->head.flags, layers = LAYER_SUBREAPER;

    if (setpgid(0, 0) != 0) FAIL(STAGE_GROUP);  /* not setsid: that costs three times the whole start */

    if (r->mount_ns >= 0) {
        struct stat before, after;
        if (stat("/", &before) != 0) FAIL(STAGE_NAMESPACE);
        if (r->user_ns >= 0) {
            if (setns(fds[r->user_ns], CLONE_NEWUSER) != 0) FAIL(STAGE_NAMESPACE);
            layers |= LAYER_USER_NS;
        }
        if (setns(fds[r->mount_ns], CLONE_NEWNS) != 0) FAIL(STAGE_NAMESPACE);
        /* Attack: a host inside a chroot, whose tools would find themselves outside of it. */
        if (stat("/", &after) != 0 || before.st_dev != after.st_dev || before.st_ino != after.st_ino) {
            errno = EXDEV;
            FAIL(STAGE_NAMESPACE);
        }
        layers |= LAYER_MOUNT_NS;
        /* Attack: memory, semaphores and queues of other programs of the same user, which have no path to hide. */
        if (setns(fds[r->ipc_ns], CLONE_NEWIPC) != 0) FAIL(STAGE_NAMESPACE);
        layers |= LAYER_IPC_NS;
    }

    for (uint32_t i = 0; i < r->head.rlimitc; i++) {
        uint32_t resource = r->limits[i].resource;
        struct rlimit new = {r->limits[i].value, r->limits[i].value};
        if (new.rlim_max > own_max[resource]) new.rlim_cur = new.rlim_max = own_max[resource];
        if (syscall(SYS_prlimit64, 0L, resource, &new, NULL) != 0) FAIL(STAGE_RLIMIT);
        layers |= LAYER_RLIMITS;
    }
    umask(022);

    if (r->user_ns >= 0 && geteuid() == 0 && close_capabilities() != 0) FAIL(STAGE_CAPABILITIES);
    if (flags & (SET_UID | SET_GID)) {
        /* Raw calls: the library's want to tell threads, and this is not quite a process of its own yet. */
        if (syscall(SYS_setgroups, 0, NULL) != 0) FAIL(STAGE_IDENTITY);
        gid_t gid = r->head.gid;
        uid_t uid = r->head.uid;
        if (flags & SET_GID && syscall(SYS_setresgid, gid, gid, gid) != 0) FAIL(STAGE_IDENTITY);
        if (flags & SET_UID && syscall(SYS_setresuid, uid, uid, uid) != 0) FAIL(STAGE_IDENTITY);
        /* Where fs.suid_dumpable is 1, this memory, which is the supervisor's, could now be read by that user. */
        if (prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) != 0) FAIL(STAGE_IDENTITY);
        layers |= LAYER_IDENTITY;
    }
    if (forget_capabilities() != 0) FAIL(STAGE_CAPABILITIES);
    /* If somebody kills the supervisor, this process goes at once and the spawner finds the others.
     * Attack: somebody kills both before this line, and what nobody watches becomes the tool. */
    if (prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0) != 0 || getppid() != birth->supervisor) FAIL(STAGE_GROUP);

    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) FAIL(STAGE_NO_NEW_PRIVS);
    layers |= LAYER_NO_NEW_PRIVS;
    if (r->ruleset >= 0) {
        if (syscall(NR_landlock_restrict_self, fds[r->ruleset], 0u) != 0) FAIL(STAGE_LANDLOCK);
        layers |= LAYER_LANDLOCK;
    }
    if (r->head.filter_size > 0) {
        struct sock_fprog program = {
            .len = (unsigned short)(r->head.filter_size / sizeof(struct sock_filter)),
            .filter = (struct sock_filter *)(uintptr_t)r->filter,
        };
        if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0) != 0) FAIL(STAGE_SECCOMP);
        layers |= LAYER_SECCOMP;
    }
    birth->layers = layers;
}

/* What is this call's own: descriptors, folder, program. Only system calls that every tool may make. */
UNCHECKED static _Noreturn void become_tool(struct birth *birth)
{
    const struct request *r = birth->request;
    const int *fds = birth->fds;
    uint32_t flags = r->head.flags;
    unsigned how = CLOSE_ON_EXEC | (birth->shares_files ? CLOSE_UNSHARED : 0);

    /* The second lock: everything that we open or receive is closed on exec anyway. (Before 5.11 there is none.) */
    if (syscall(NR_close_range, 3u, ~0u, how) != 0 && (birth->shares_files || (errno != ENOSYS && errno != EINVAL)))
        FAIL(STAGE_DESCRIPTORS);
    if (dup2(fds[r->in], 0) < 0 || dup2(fds[r->out], 1) < 0 || dup2(fds[r->err], 2) < 0) FAIL(STAGE_DESCRIPTORS);
    /* Everything received lies above 4, so no copy overwrites one that is still needed. */
    int sealed = r->sealed >= 0 ? fds[r->sealed] : -1;
    if (r->channel >= 0 && dup2(fds[r->channel], 3) < 0) FAIL(STAGE_DESCRIPTORS);
    if (flags & KEEP_PROGRAM) {
        sealed = dup2(sealed, SCRIPT_FD);
        if (sealed < 0) FAIL(STAGE_DESCRIPTORS);
    }
    if (r->mount_ns >= 0) {
        uint32_t which = 0;
        errno = check_binds(r, &which);
        if (errno != 0) {
            birth->detail = which;
            FAIL(STAGE_STALE);
        }
    }
    if (chdir(r->cwd) != 0) FAIL(STAGE_CWD);

    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    if (sealed >= 0) birth->layers |= LAYER_SEALED;
    if (sealed >= 0) syscall(SYS_execveat, sealed, "", r->argv, r->envp, AT_EMPTY_PATH);
    else execve(r->program, r->argv, r->envp);
    FAIL(STAGE_EXEC);
}

/* Not by a flag of clone: musl's refuses it, because a thread would not bear it. */
UNCHECKED static void have_tid_cleared(struct birth *birth) { syscall(SYS_set_tid_address, &birth->tid); }

UNCHECKED static int tool_main(void *argument)
{
    have_tid_cleared(argument);
    restrict_tool(argument);
    become_tool(argument);
}

/* Whether nobody waits for a call any more. Its words stay where they are: others read them. */
static bool is_given_up(int control)
{
    struct pollfd waits[2] = {{control, POLLIN, 0}, {HOST_PIDFD, POLLIN, 0}};
    char word = 0;
    if (poll(waits, 2, 0) <= 0) return false;
    if (waits[1].revents || waits[0].revents & POLLHUP) return true;
    return recv(control, &word, 1, MSG_PEEK | MSG_DONTWAIT) == 1;
}

/* Waits until what is to become the tool executes its program, or ends. False: nobody waits for it, or it had the time
 * that it may take.
 * Attack: somebody stops it, and whoever waits for it outlives call and host. So not by vfork, which nothing but our
 * own death would wake us from.
 * We are not woken when it executes: that would take the processor from it just then. A short tool is over before we
 * look. */
static bool has_moved(struct birth *birth, int pidfd, int64_t patience_us)
{
    struct pollfd its_end = {pidfd, POLLIN, 0};
    int64_t since = now_us();
    while (atomic_load(&birth->tid) == ALIVE) {
        if (now_us() - since >= patience_us) return false;
        int ready = poll(&its_end, 1, ALARM_FIRST_MS);
        if (ready > 0) break;
        if (ready == 0 && is_given_up(birth->fds[birth->request->control])) return false;
    }
    return true;
}

/* == The embryo: the next tool, restricted while nobody waits ============================================== */

/* Restricting takes a fifth of a short call. Whoever calls the same tool again and again is spared that: after a
 * call a supervisor makes a process, restricts it as it did the last, and lets it wait. It lives in our memory, as
 * every tool until it executes, and with our descriptors, and whenever it runs we do nothing but wait. When the
 * next request has the same kit it becomes the tool; with any other it is killed, and so it is when nobody comes for a
 * while. Where anything about it goes wrong, the tool is started as if it had not been there. */
static struct {
    struct birth birth;
    pid_t pid;
    int pidfd;
    uint32_t kit, streak;
    _Atomic uint32_t is_ready, go;
} embryo;
enum { STREAK = 2, EMBRYO_LIFE_S = 5 };
#ifndef EMBRYO_WAIT_MS  /* a test has less patience */
#define EMBRYO_WAIT_MS 5000
#endif

UNCHECKED static void futex_wake(_Atomic uint32_t *word) { syscall(SYS_futex, word, FUTEX_WAKE, 1, NULL, NULL, 0); }

UNCHECKED static int embryo_main(void *argument)
{
    have_tid_cleared(argument);
    signal(SIGUSR1, SIG_DFL);
    restrict_tool(argument);
    atomic_store(&embryo.is_ready, 1);
    futex_wake(&embryo.is_ready);
    while (atomic_load(&embryo.go) == 0) syscall(SYS_futex, &embryo.go, FUTEX_WAIT, 0, NULL, NULL, 0);
    become_tool(argument);
}

static void discard_embryo(void)
{
    if (embryo.pid <= 0) return;
    kill(embryo.pid, SIGKILL);
    while (waitpid(embryo.pid, NULL, __WALL) < 0 && errno == EINTR) {}
    close(embryo.pidfd);
    embryo.pid = 0;
}

/* After a call of this kit, whose descriptors are still open. */
static void make_embryo(const struct request *r, const int *fds)
{
    uint32_t kit = r->head.kit;
    if (kit == 0 || r->channel >= 0 || r->head.flags & KEEP_PROGRAM) return;
    /* With many callers every request is of another kit, and an embryo would only be in the way. */
    embryo.streak = kit == embryo.kit ? embryo.streak + 1 : 1;
    embryo.kit = kit;
    if (embryo.streak < STREAK) return;
    embryo.birth = (struct birth){.request = r, .fds = fds, .supervisor = getpid(), .tid = ALIVE, .shares_files = true};
    embryo.is_ready = embryo.go = 0;
    sigset_t all, before;
    sigfillset(&all);
    sigprocmask(SIG_SETMASK, &all, &before);  /* it must not run our handlers */
    embryo.pid = clone(embryo_main, tool_stack + sizeof tool_stack,
                       CLONE_VM | CLONE_FILES | CLONE_PIDFD | SIGCHLD, &embryo.birth, &embryo.pidfd);
    sigprocmask(SIG_SETMASK, &before, NULL);
    if (embryo.pid <= 0) return;
    struct timespec moment = {0, 20000000};
    int64_t until = now_us() + EMBRYO_WAIT_MS * 1000;
    struct pollfd its_end = {embryo.pidfd, POLLIN, 0};
    while (!atomic_load(&embryo.is_ready) && poll(&its_end, 1, 0) == 0 && now_us() < until)
        syscall(SYS_futex, &embryo.is_ready, FUTEX_WAIT, 0, &moment, NULL, 0);
    if (!atomic_load(&embryo.is_ready)) discard_embryo();
}

/* Turns the embryo into the tool of this request; 0: there is none that fits. */
static pid_t hatch(const struct request *r, const int *fds, struct birth *birth, int *pidfd)
{
    if (embryo.pid <= 0) return 0;
    if (r->head.kit != embryo.kit || r->head.kit == 0 || r->channel >= 0 || r->head.flags & KEEP_PROGRAM
        || atomic_load(&embryo.birth.tid) != ALIVE) {
        discard_embryo();
        return 0;
    }
    embryo.birth.request = r;
    embryo.birth.fds = fds;
    atomic_store(&embryo.go, 1);
    futex_wake(&embryo.go);
    if (!has_moved(&embryo.birth, embryo.pidfd, EMBRYO_WAIT_MS * 1000)) {
        kill(embryo.pid, SIGKILL);  /* it may have become the tool just now: then that was the call */
    } else if (embryo.birth.stage != STAGE_NONE) {
        discard_embryo();  /* it certainly did not; starting again says what is wrong */
        return 0;
    }
    pid_t tool = embryo.pid;
    embryo.pid = 0;
    *birth = embryo.birth;
    *pidfd = embryo.pidfd;
    return tool;
}

/* == Watching and sweeping ================================================================================= */

static void add_usage(struct report *report, const struct rusage *used)
{
    report->user_us += (uint64_t)used->ru_utime.tv_sec * 1000000u + (uint64_t)used->ru_utime.tv_usec;
    report->system_us += (uint64_t)used->ru_stime.tv_sec * 1000000u + (uint64_t)used->ru_stime.tv_usec;
    uint64_t largest = (uint64_t)used->ru_maxrss * 1024;
    if (largest > report->memory_bytes) report->memory_bytes = largest;
}

/* Calls `each` with the names in a folder until it says stop. */
static bool each_entry(int folder, bool (*each)(int folder, const char *name, unsigned char type, void *with),
                       void *with)
{
    _Alignas(8) char buffer[8192];
    for (;;) {
        long got = syscall(SYS_getdents64, folder, buffer, sizeof buffer);
        if (got <= 0) return got == 0;
        for (long at = 0; at < got;) {
            struct { uint64_t inode; int64_t next; unsigned short size; unsigned char type; char name[]; } *entry;
            entry = (void *)(buffer + at);
            at += entry->size;
            if (strcmp(entry->name, ".") != 0 && strcmp(entry->name, "..") != 0)
                if (!each(folder, entry->name, entry->type, with)) return false;
        }
    }
}

static pid_t number(const char *text)
{
    long value = 0;
    for (; *text >= '0' && *text <= '9' && value < 1 << 28; text++) value = value * 10 + (*text - '0');
    return *text == 0 || *text == ' ' || *text == '\n' ? (pid_t)value : 0;
}

/* The fields after the command's name, which may itself hold spaces and brackets. */
static pid_t parent_of(pid_t pid)
{
    char path[64], text[512];
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    if (!read_small(path, text, sizeof text)) return 0;
    const char *bracket = strrchr(text, ')');
    return bracket && strlen(bracket) > 4 ? number(bracket + 4) : 0;
}

struct family { unsigned count, threads; pid_t of; };

static bool add_children_of_thread(int tasks, const char *name, unsigned char type, void *with)
{
    (void)type;
    struct family *family = with;
    char path[32], text[4096];
    family->threads++;
    snprintf(path, sizeof path, "%.20s/children", name);
    int fd = openat(tasks, path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return true;
    size_t kept = 0;
    for (;;) {
        ssize_t got = read(fd, text + kept, sizeof text - 1 - kept);
        if (got <= 0) break;
        size_t have = kept + (size_t)got;
        text[have] = 0;
        char *at = text, *space;
        while ((space = strchr(at, ' ')) != NULL) {
            pid_t pid = number(at);
            if (pid > 0 && family->count < MEMBERS_MAX) members[family->count++] = (struct member){pid, family->of};
            at = space + 1;
        }
        kept = have - (size_t)(at - text);
        memmove(text, at, kept);
    }
    close(fd);
    return true;
}

static bool add_if_child(int folder, const char *name, unsigned char type, void *with)
{
    (void)folder, (void)type;
    struct family *family = with;
    pid_t pid = number(name);
    if (pid > 0 && pid != family->of && parent_of(pid) == family->of && family->count < MEMBERS_MAX)
        members[family->count++] = (struct member){pid, family->of};
    return true;
}

static void add_children(struct family *family, pid_t of)
{
    static int lists = -1;  /* does this kernel keep lists of children? */
    char path[64];
    family->of = of;
    if (lists < 0) {
        snprintf(path, sizeof path, "/proc/self/task/%d/children", (int)getpid());
        lists = access(path, R_OK) == 0;
    }
    if (lists) snprintf(path, sizeof path, "/proc/%d/task", (int)of);
    else snprintf(path, sizeof path, "/proc");
    int folder = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (folder < 0) return;
    each_entry(folder, lists ? add_children_of_thread : add_if_child, family);
    close(folder);
}

/* Everybody below us, children first; where asked, with their threads (0: this kernel does not list them). */
static unsigned find_descendants(unsigned *threads)
{
    struct family family = {0};
    add_children(&family, getpid());
    family.threads = 0;
    for (unsigned i = 0; i < family.count; i++) add_children(&family, members[i].pid);
    if (threads != NULL) *threads = family.threads;
    return family.count;
}

/* Stopping them all before killing would gain nothing: from the signal on, a process cannot fork either way. */
static void kill_descendants(void)
{
    pid_t self = getpid();
    struct rlimit no_more = {0, 0};
    /* Our own children first and at once: a chain of processes, each of which forks the next and ends, is always
     * here, and only while we look. Their groups with them: the kernel kills a group in one go, in which nobody
     * can fork. Neither number can be somebody else's before we reap the child. */
    struct family children = {0};
    add_children(&children, self);
    for (unsigned i = 0; i < children.count; i++) {
        kill(members[i].pid, SIGKILL);
        kill(-members[i].pid, SIGKILL);
    }
    unsigned count = find_descendants(NULL);
    for (unsigned i = 0; i < count; i++) {
        pid_t pid = members[i].pid;
        /* Attack: a fork bomb that is faster than we are. (The kernel does not count for root.) */
        if (members[i].parent == self) {
            kill(pid, SIGKILL);
            kill(-pid, SIGKILL);
            prlimit(pid, RLIMIT_NPROC, &no_more, NULL);
            continue;
        }
        int fd = pidfd_open(pid);
        if (fd < 0) continue;
        /* Attack: numbers used again. What we hold is a descendant only if its parent still is one. */
        pid_t parent = parent_of(pid);
        if (parent == members[i].parent || parent == self) {
            prlimit(pid, RLIMIT_NPROC, &no_more, NULL);
            syscall(NR_pidfd_send_signal, fd, SIGKILL, NULL, 0u);
        }
        close(fd);
    }
}

/* Kills and reaps until no descendant is left. Every kill hands the victim's children to us (subreaper), so
 * daemons that left their parents, groups and sessions come along in turn. False: time is up. */
static bool sweep(struct report *report, int64_t until_us)
{
    sigset_t child;
    sigemptyset(&child);
    sigaddset(&child, SIGCHLD);
    for (unsigned reaped = 0;;) {
        int status = 0;
        struct rusage used;
        pid_t pid = wait4(-1, &status, WNOHANG | __WALL, &used);
        if (pid < 0 && errno == ECHILD) return true;
        take_precedence(true);
        if (pid > 0) {
            add_usage(report, &used);
            if (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) report->strays++;
            /* Attack: so many that die by themselves that there is always one to reap, and nobody is killed. */
            if (++reaped % REAPS_PER_KILL != 0) continue;
        }
        if (now_us() > until_us) return false;
        kill_descendants();
        struct timespec moment = {0, 2000000};
        if (pid == 0) sigtimedwait(&child, NULL, &moment);
    }
}

struct walk { uint64_t bytes, max; int64_t until_us; unsigned depth, entries; };

static bool weigh(int folder, const char *name, unsigned char type, void *with)
{
    struct walk *walk = with;
    struct stat found;
    if (fstatat(folder, name, &found, AT_SYMLINK_NOFOLLOW) != 0) return true;  /* gone meanwhile */
    /* Attack: millions of empty files. Each costs at least a block of bookkeeping. */
    walk->bytes += ENTRY_BYTES + (uint64_t)found.st_blocks * 512;
    if (walk->bytes > walk->max || ++walk->entries > WALK_ENTRIES_MAX) return false;
    if (walk->entries % 256 == 0 && now_us() > walk->until_us) return false;
    (void)type;
    if (!S_ISDIR(found.st_mode)) return true;
    /* Attack: files hidden below a folder that cannot be read, or that lies too deep. Both count as too much. */
    int below = openat(folder, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (below < 0) {
        if (errno == ENOENT || errno == ENOTDIR || errno == ELOOP) return true;
        walk->bytes = walk->max + 1;
        return false;
    }
    bool go_on = ++walk->depth <= WALK_DEPTH_MAX && each_entry(below, weigh, walk);
    walk->depth--;
    close(below);
    if (!go_on && walk->bytes <= walk->max) walk->bytes = walk->max + 1;
    return go_on;
}

/* Pages that a process has in memory; 0: it has ended. False: it is gone altogether. */
static bool resident_pages(pid_t pid, uint64_t *pages)
{
    char path[64], text[128];
    snprintf(path, sizeof path, "/proc/%d/statm", (int)pid);
    if (!read_small(path, text, sizeof text)) return false;
    const char *space = strchr(text, ' ');
    *pages = space ? (uint64_t)number(space + 1) : 0;
    return true;
}

/* What a process takes, its share of what it has in common with others; 0: nobody tells. */
static uint64_t proportional_memory(pid_t pid)
{
    char path[64], text[2048];
    snprintf(path, sizeof path, "/proc/%d/smaps_rollup", (int)pid);
    if (!read_small(path, text, sizeof text)) return 0;
    const char *line = strstr(text, "\nPss:");
    if (line == NULL) return 0;
    for (line += 5; *line == ' ';) line++;
    return (uint64_t)number(line) * 1024;
}

/* Looks at the processes once; 0 or the limit that they went over. */
static uint32_t sample_processes(const struct head *head, struct report *report, pid_t tool)
{
    unsigned threads = 0, count = find_descendants(&threads), alive = 0;
    uint64_t memory = 0, page = (uint64_t)sysconf(_SC_PAGESIZE);
    pid_t self = getpid();
    for (unsigned i = 0; i < count; i++) {
        uint64_t pages = 0;
        if (!resident_pages(members[i].pid, &pages)) continue;
        /* A daemon's remains that only we can reap; they are no process of the tool's any more. */
        if (pages == 0 && members[i].parent == self && members[i].pid != tool) {
            struct rusage used;
            if (wait4(members[i].pid, NULL, WNOHANG | __WALL, &used) > 0) {
                add_usage(report, &used);
                continue;
            }
        }
        members[alive++] = members[i];
        memory += pages * page;
    }
    if (alive > report->processes_peak) report->processes_peak = alive;
    if (head->processes_max > 0) {
        report->detail = alive <= head->processes_max;  /* then it is its threads */
        if (alive > head->processes_max || threads / TASKS_PER_PROCESS > head->processes_max)
            return REASON_PROCESSES;
        report->detail = 0;
    }
    if (head->memory_max > 0 && memory > head->memory_max && alive > 1) {
        /* Pages that parent and children share were counted for each of them. Who shares what is slow to find
         * out, so only now. */
        uint64_t exact = 0, pages = 0;
        for (unsigned i = 0; i < alive && exact < memory; i++) {
            uint64_t own = proportional_memory(members[i].pid);
            if (own == 0 && resident_pages(members[i].pid, &pages) && pages > 0) own = memory;  /* it hides */
            exact += own;
        }
        if (exact < memory) memory = exact;
    }
    return head->memory_max > 0 && memory > head->memory_max ? REASON_MEMORY : 0;
}

/* Looks at everything once; 0 or the limit that was passed. */
static uint32_t sample(const struct request *r, struct report *report, pid_t tool, int64_t deadline_us)
{
    const struct head *head = &r->head;
    if (head->processes_max > 0 || head->memory_max > 0) {
        uint32_t over = sample_processes(head, report, tool);
        if (over) return over;
    }
    if (head->scratch_max > 0 && r->scratch[0] != 0) {
        struct walk walk = {.max = head->scratch_max, .until_us = deadline_us};
        int folder = open(r->scratch, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (folder >= 0) {
            bool whole = each_entry(folder, weigh, &walk);
            close(folder);
            if (now_us() > deadline_us) return 0;  /* however much there is: its time is up */
            if (!whole || walk.bytes > walk.max) return REASON_SCRATCH;
        }
    }
    return 0;
}

/* Whether something is mounted right at the path, walked from the root of a namespace: entering it would take
 * another process. 0, or what is wrong: ENOENT, ENOTDIR, ESTALE where nothing is mounted there. */
static int find_mount(int root, const char *path)
{
    struct { uint64_t flags, mode, resolve; } how = {O_PATH | O_NOFOLLOW | O_CLOEXEC, 0, RESOLVE_BELOW_ROOT};
    struct looked found;
    int fd = -1;
    /* Where links lead up, the kernel wants to be asked again when anything was renamed meanwhile, anywhere. */
    for (int tries = 0; fd < 0 && tries < SHOWN_TRIES; tries++) {
        fd = (int)syscall(NR_openat2, root, path, &how, sizeof how);
        if (fd < 0 && errno != EAGAIN && errno != EINTR) break;
    }
    if (fd < 0) return errno;
    int error = look_at(fd, "", AT_EMPTY_PATH, &found) != 0 ? errno
                : found.attributes & ATTR_IS_MOUNT_ROOT ? 0 : ESTALE;
    close(fd);
    return error;
}

/* Attack: somebody outside renames a file over the tool's script after we looked and before its interpreter opens
 * it, which takes our mount away. Nothing can prevent that while the interpreter goes by the path. But the mount
 * does not come back, so looking once more afterwards tells, and what the tool said is not believed. */
static bool is_still_shown(const struct request *r, const int *fds)
{
    if (r->mount_ns < 0) return true;
    for (uint32_t i = 0; i < r->head.bindc; i++) {
        if (!(r->bind_flags[i] & BIND_SEALED)) continue;
        int error = find_mount(fds[r->root], r->binds[2 * i + 1]);
        if (r->bind_flags[i] & BIND_ABSENT ? error != ENOENT && error != ENOTDIR : error != 0) return false;
    }
    return true;
}

/* How many tasks the whole machine has: one quick call, while looking for our own takes a while. The kernel
 * tells the lowest 16 bits. */
static uint16_t tasks(void)
{
    struct sysinfo machine;
    return sysinfo(&machine) == 0 ? machine.procs : 0;
}

/* == What the tool writes ================================================================================== */

static bool send_report(int control, struct report *report, const void *tail, size_t tail_size, const int *fds,
                        unsigned nfds);

/* The pipes of a call that came without: the tool's ends go among its descriptors, ours stay here. 0, or errno.
 * Attack: pipes that serve a second call, while somebody outside still holds those of the first. So these are made
 * for each. */
static int make_pipes(struct request *r, int *fds, unsigned *nfds)
{
    int ends[2];
    if (*nfds + 3 > FDS_MAX) return EMFILE;
    if (r->in < 0) {
        if (pipe2(ends, O_CLOEXEC) != 0) return errno;
        r->in = (int)*nfds;
        fds[(*nfds)++] = ends[0];
        ssize_t done = r->head.stdin_size ? write(ends[1], r->given, r->head.stdin_size) : 0;
        close(ends[1]);
        if (done != (ssize_t)r->head.stdin_size) return EIO;
    }
    if (r->out >= 0) return 0;
    for (int i = 0; i < 2; i++) {
        if (pipe2(ends, O_CLOEXEC) != 0) return errno;
        output[i] = ends[0];
        *(i == 0 ? &r->out : &r->err) = (int)*nfds;
        fds[(*nfds)++] = ends[1];
        /* Attack: somebody who holds the pipe as well (it has a name in /proc) takes out of it what we saw there,
         * and we, or the host, wait for it for ever. Ours only: the tool's end is another file. */
        if (fcntl(ends[0], F_SETFL, O_NONBLOCK) != 0) return errno;
    }
    return 0;
}

static void close_output(void)
{
    close_fds(output, 2);
    output[0] = output[1] = -1;
}

static size_t pending(int fd)
{
    int count = 0;
    return ioctl(fd, FIONREAD, &count) == 0 && count > 0 ? (size_t)count : 0;
}

/* What lies in the pipes, in pieces before the report that the rest goes with; `size`: how much of each at least. Where
 * a piece does not arrive, the report must not either. Attack: somebody outside who holds the pipes and writes on. We
 * read as much as there was. */
static void send_written(int control, struct report *report, size_t size[2])
{
    size_t have = 0, most = 0;
    bool is_sent = true;
    struct report piece = {.reason = REASON_RUNNING};
    for (int i = 0; i < 2; i++) {
        /* One read is not enough where the tool made its pipe one of packets (O_DIRECT), and of a packet nothing is
         * left for the next. */
        while (size[i] > 0 && is_sent) {
            ssize_t got = read(output[i], output_bytes + have, PACKET_MAX);
            if (got <= 0) break;
            size[i] -= size[i] < (size_t)got ? size[i] : (size_t)got;
            have += (size_t)got;
            if (have > most) most = have;
            for (; have > OUTPUT_MAX && is_sent; have -= OUTPUT_MAX) {
                piece.stdout_size = i == 0 ? OUTPUT_MAX : report->stdout_size;
                report->stdout_size = 0;
                is_sent = send_report(control, &piece, output_bytes, OUTPUT_MAX, NULL, 0);
                memmove(output_bytes, output_bytes + OUTPUT_MAX, have - OUTPUT_MAX);
            }
        }
        if (i == 0) report->stdout_size = (uint32_t)have;
    }
    if (is_sent) send_report(control, report, output_bytes, have, NULL, 0);
    explicit_bzero(output_bytes, most);
}

/* From now on the host reads what the tool writes. Attack: another tool of the same user has so many descriptors under
 * way that the kernel takes no more. Then they stay ours, and we try again: closed, they would tell this tool that
 * nobody reads, and what it wrote would be missing from its result. So that it does not wait for room meanwhile, some of
 * that goes in pieces, as much as the host surely has room for: we must not wait for it while the tool runs. */
static void hand_over(int control)
{
    struct report running = {.reason = REASON_RUNNING};
    if (send_report(control, &running, NULL, 0, output, 2)) {
        close_output();
        return;
    }
    struct pollfd room = {control, POLLOUT, 0};
    if (poll(&room, 1, 0) != 1 || room.revents != POLLOUT) return;
    size_t size[2] = {pending(output[0]), pending(output[1])};
    for (int i = 0; i < 2; i++) if (size[i] > OUTPUT_MAX) size[i] = OUTPUT_MAX;
    if (size[0] || size[1]) send_written(control, &running, size);
}

/* The report with what the tool wrote, or with the pipes, where that is long. Those that wrote it are dead, so all
 * of it lies there. Attack: another tool of the same user has so many descriptors under way that the kernel takes no
 * more. Then all of it goes in pieces before the report. */
static void send_all(int control, struct report *report)
{
    size_t size[2] = {0, 0};
    if (output[0] >= 0) for (int i = 0; i < 2; i++) size[i] = pending(output[i]);
    bool is_long = size[0] > OUTPUT_MAX || size[1] > OUTPUT_MAX - size[0];
    if (!is_long || !send_report(control, report, NULL, 0, output, 2)) send_written(control, report, size);
    close_output();
}

/* Waits until the tool ends or has to end. 0: the host is gone, and nobody waits for a report. */
static uint32_t watch(const struct request *r, const int *fds, struct report *report, int pidfd, pid_t tool,
                      int64_t began_us)
{
    int control = fds[r->control];
    int64_t opened = began_us + OPENED_MS * 1000;
    if (r->mount_ns < 0) opened = INT64_MAX;
    int64_t deadline = r->head.timeout_ms ? began_us + (int64_t)r->head.timeout_ms * 1000 : INT64_MAX;
    bool samples = r->head.processes_max || r->head.memory_max || r->head.scratch_max;
    int64_t look = samples ? began_us + SAMPLE_EVERY_MS * 1000 : INT64_MAX;
    int64_t alarm = r->head.processes_max || output[0] >= 0 ? began_us + ALARM_FIRST_MS * 1000 : INT64_MAX;
    bool has_counted = false;
    uint16_t before = 0;
    struct pollfd waits[3] = {{pidfd, POLLIN, 0}, {control, POLLIN, 0}, {HOST_PIDFD, POLLIN, 0}};
    for (;;) {
        int64_t now = now_us(), next = deadline < look ? deadline : look;
        if (alarm < next) next = alarm;
        if (opened < next) next = opened;
        int64_t wait_ms = next == INT64_MAX ? -1 : next <= now ? 0 : (next - now + 999) / 1000;
        int ready = poll(waits, 3, wait_ms > 1 << 30 ? 1 << 30 : (int)wait_ms);
        if (ready < 0 && errno != EINTR) return REASON_CANCELLED;
        if (ready > 0) {
            if (waits[0].revents)
                return opened == INT64_MAX || is_still_shown(r, fds) ? REASON_EXITED : REASON_SWAPPED;
            if (waits[2].revents) return 0;
            if (waits[1].revents) return REASON_CANCELLED;
        }
        now = now_us();
        if (now >= deadline) return REASON_DEADLINE;
        if (now >= opened) {
            if (!is_still_shown(r, fds)) return REASON_SWAPPED;
            opened = INT64_MAX;
        }
        if (now >= alarm) {
            if (output[0] >= 0 && (now >= began_us + OUTPUT_HELD_MS * 1000 || pending(output[0]) > GLANCE_BYTES
                                   || pending(output[1]) > GLANCE_BYTES)) hand_over(control);
            /* Attack: a fork bomb that goes off between two looks. */
            uint16_t count = tasks(), more = (uint16_t)(count - before);
            if (!has_counted) before = count;
            else if (r->head.processes_max && more > r->head.processes_max && more < 0x8000) look = now;
            alarm = now + (has_counted ? ALARM_EVERY_MS : ALARM_FIRST_MS) * 1000;
            if (!r->head.processes_max && output[0] < 0) alarm = INT64_MAX;
            has_counted = true;
        }
        if (now >= look) {
            take_precedence(true);
            uint32_t over = sample(r, report, tool, deadline);
            if (over) return over;
            int64_t cost = now_us() - now;  /* looking must not become the load itself */
            look = now + (cost * 10 > SAMPLE_EVERY_MS * 1000 ? cost * 10 : SAMPLE_EVERY_MS * 1000);
            before = tasks();
        }
    }
}

/* Makes the tool of this request from nothing; -1 with errno. One that does not start is left to `watch`: it has all
 * the time that its call has. */
static pid_t bear(struct birth *birth, int *pidfd)
{
    uint32_t timeout_ms = birth->request->head.timeout_ms;
    pid_t tool = clone(tool_main, tool_stack + sizeof tool_stack, CLONE_VM | CLONE_PIDFD | SIGCHLD, birth, pidfd);
    if (tool < 0) return -1;
    has_moved(birth, *pidfd, timeout_ms ? (int64_t)timeout_ms * 1000 : INT64_MAX);
    return tool;
}

/* True: nothing of it is left. */
static bool run_tool(const struct request *r, const int *fds, struct report *report, bool *send)
{
    int64_t began = now_us();
    struct birth birth = {.request = r, .fds = fds, .supervisor = getpid(), .tid = ALIVE};
    int pidfd = -1;
    /* While this is not written, a host that gets no answer knows that nothing was started. */
    if (r->head.slot < started_size)
        __atomic_store_n(started + r->head.slot, SLOT_MAY_HAVE_STARTED, __ATOMIC_RELEASE);
    pid_t tool = hatch(r, fds, &birth, &pidfd);
    if (tool == 0) tool = bear(&birth, &pidfd);
    report->reason = REASON_NOT_STARTED;
    if (tool < 0) {
        report->stage = STAGE_CLONE;
        report->error = errno;
        return true;
    }
    report->layers = birth.layers | LAYER_PIDFD;
    struct rusage used;
    int status = 0;
    if (birth.stage != STAGE_NONE) {
        report->detail = birth.detail;
        report->stage = birth.stage;
        report->error = birth.error;
        wait4(tool, &status, __WALL, &used);
        close(pidfd);
        return true;
    }
    /* Nothing of the tool's stays open here: its readers see its end when it ends. */
    close(fds[r->in]);
    close(fds[r->out]);
    close(fds[r->err]);

    report->reason = watch(r, fds, report, pidfd, tool, began);
    *send = report->reason != 0;
    /* The group by its number while the leader is unreaped: no other group can have that number now. */
    kill(-tool, SIGKILL);
    kill(tool, SIGKILL);
    /* The last thread of a program with several wakes us before it has left /proc. Reaping the program waits for
     * that without letting it run, if we do not take turns: a second is lost. Few processes are no flood. */
    if (report->processes_peak <= FEW_PROCESSES) take_precedence(false);
    if (wait4(tool, &status, __WALL, &used) == tool) add_usage(report, &used);
    report->status = status;
    close(pidfd);
    bool clean = sweep(report, now_us() + SWEEP_MS * 1000);
    struct stat scratch;
    if (!clean) report->survivors = find_descendants(NULL);
    else if (r->scratch[0] != 0 && lstat(r->scratch, &scratch) == 0)
        report->scratch_changed_ns = (int64_t)scratch.st_ctim.tv_sec * 1000000000 + scratch.st_ctim.tv_nsec;
    report->duration_us = (uint64_t)(now_us() - began);
    return clean;
}

/* == Namespaces: made once per list of binds, entered by every call that has this list ===================== */

/* A file system in memory for checked bytes, at an empty place that the caller takes it away from again. Its
 * files have no name in any tree but where they are bound. Attack: a private copy in a folder of ours, which
 * another tool of the same user writes to. */
#define WORKBENCH "/proc"
static int make_workbench(void)
{
    int context = (int)syscall(NR_fsopen, "tmpfs", 1u);
    if (context < 0) return -1;
    int bench = -1;
    if (syscall(NR_fsconfig, context, CONFIG_SET_STRING, "mode", "0755", 0) == 0
        && syscall(NR_fsconfig, context, CONFIG_CREATE, NULL, NULL, 0) == 0)
        bench = (int)syscall(NR_fsmount, context, 1u, ATTR_NO_SUID_NO_DEVICES);
    int kept = errno;
    close(context);
    errno = kept;
    if (bench >= 0 && syscall(NR_move_mount, bench, "", AT_FDCWD, WORKBENCH, MOVE_FROM_FD) != 0) return -1;
    return bench;
}

/* A file on the workbench with the bytes of a descriptor, as a mount; -1 with errno. */
static int make_sealed(int bench, uint32_t index, int content)
{
    char name[16], bytes[16384];
    snprintf(name, sizeof name, "%u", index);
    int file = openat(bench, name, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0555);
    if (file < 0) return -1;
    fchmod(file, 0555);
    off_t at = 0;
    for (ssize_t got; (got = pread(content, bytes, sizeof bytes, at)) != 0; at += got)
        if (got < 0 || write(file, bytes, (size_t)got) != got) return -1;
    close(file);
    return (int)syscall(NR_open_tree, bench, name, TREE_CLONE | TREE_CLOEXEC);
}

/* In a process of its own, which holds no call's secrets: it becomes dumpable, since the kernel gives the maps
 * of one that is not to root alone. */
static int make_namespace(const struct request *r, const int *fds, struct report *report, unsigned char *absent,
                          int *made, unsigned *count)
{
    char map[64];
    uid_t uid = geteuid();
    gid_t gid = getegid();
    report->stage = STAGE_NAMESPACE;
    if (uid != 0 || unshare(CLONE_NEWNS | CLONE_NEWIPC) != 0) {
        if (prctl(PR_SET_DUMPABLE, 1, 0, 0, 0) != 0 || unshare(CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWIPC) != 0)
            return errno;
        report->layers |= LAYER_USER_NS;
        if (!write_small("/proc/self/setgroups", "deny") && errno != ENOENT) return errno;
        snprintf(map, sizeof map, "%u %u 1", uid, uid);
        if (!write_small("/proc/self/uid_map", map)) return errno;
        snprintf(map, sizeof map, "%u %u 1", gid, gid);
        if (!write_small("/proc/self/gid_map", map)) return errno;
    }
    /* Slave, not private: what the machine mounts or unmounts later is seen by later calls too. */
    if (mount(NULL, "/", NULL, MS_SLAVE | MS_REC, NULL) != 0) return errno;
    report->layers |= LAYER_MOUNT_NS | LAYER_IPC_NS;
    report->stage = STAGE_BIND;
    int bench = -1, content = r->contents;
    for (uint32_t i = 0; i < r->head.bindc; i++) {
        /* Private: what is mounted below it later would not be read-only. */
        struct { uint64_t set, clear, propagation, userns; } change = {ATTR_READ_ONLY, 0, MS_PRIVATE, 0};
        const char *source = r->binds[2 * i], *target = r->binds[2 * i + 1];
        struct stat found;
        report->detail = i;
        if (lstat(target, &found) != 0) {
            if (errno != ENOENT && errno != ENOTDIR) return errno;
            absent[i] = 1;
            if (r->bind_flags[i] & BIND_SEALED) content++;
            continue;
        }
        /* Attack: a link put in the place of a protected path, so that the mount lands elsewhere. */
        if (S_ISLNK(found.st_mode)) return ELOOP;
        int tree;
        if (r->bind_flags[i] & BIND_SEALED) {
            if (bench < 0 && (bench = make_workbench()) < 0) return errno;
            tree = make_sealed(bench, i, fds[content++]);
        } else {
            tree = (int)syscall(NR_open_tree, AT_FDCWD, source,
                                TREE_CLONE | TREE_CLOEXEC | TREE_RECURSIVE | (unsigned)AT_SYMLINK_NOFOLLOW);
        }
        if (tree < 0) return errno;
        if (r->bind_flags[i] & BIND_READ_ONLY
            && syscall(NR_mount_setattr, tree, "", (unsigned)AT_EMPTY_PATH | TREE_RECURSIVE, &change,
                       sizeof change) != 0) return errno;
        if (syscall(NR_move_mount, tree, "", AT_FDCWD, target, MOVE_FROM_FD) != 0) return errno;
        /* Landlock knows files, not paths: the host needs this one to allow it. */
        if (r->bind_flags[i] & BIND_SEALED) made[(*count)++] = tree;
        else close(tree);
    }
    if (bench >= 0 && umount2(WORKBENCH, MNT_DETACH) != 0) return errno;
    report->stage = STAGE_NONE;
    return 0;
}

static bool send_report(int control, struct report *report, const void *tail, size_t tail_size, const int *fds,
                        unsigned nfds)
{
    report->magic = REPORT_MAGIC;
    report->version = VERSION;
    struct iovec parts[2] = {{report, sizeof *report}, {(void *)(uintptr_t)tail, tail_size}};
    union {
        char bytes[CMSG_SPACE((NAMESPACE_FDS + SEALED_MAX) * sizeof(int))];
        struct cmsghdr align;
    } ancillary = {{0}};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = tail_size > 0 ? 2 : 1};
    if (nfds > 0) {
        message.msg_control = ancillary.bytes;
        message.msg_controllen = (socklen_t)CMSG_SPACE(nfds * sizeof(int));
        struct cmsghdr *header = CMSG_FIRSTHDR(&message);
        header->cmsg_level = SOL_SOCKET;
        header->cmsg_type = SCM_RIGHTS;
        header->cmsg_len = (socklen_t)CMSG_LEN(nfds * sizeof(int));
        memcpy(CMSG_DATA(header), fds, nfds * sizeof(int));
    }
    ssize_t sent;
    while ((sent = sendmsg(control, &message, MSG_NOSIGNAL)) < 0 && errno == EINTR) {}
    return sent >= 0;
}

/* The maker answers with descriptors (sealed files, the root, the user namespace where there is one, the mount
 * namespace, the IPC namespace) and, per bind, whether there was nothing to cover. The namespaces live as long as
 * these descriptors are open. False: there was no answer. */
static bool serve_namespace(const struct request *r, const int *fds, struct report *report)
{
    static unsigned char absent[BINDS_MAX];
    report->reason = REASON_NOT_STARTED;
    report->stage = STAGE_CLONE;
    pid_t maker = fork_plain();
    if (maker == 0) {
        memset(absent, 0, sizeof absent);
        int made[NAMESPACE_FDS + SEALED_MAX];
        unsigned count = 0;
        report->error = make_namespace(r, fds, report, absent, made, &count);
        if (!report->error) {
            report->reason = REASON_DONE;
            made[count++] = open("/", O_PATH | O_DIRECTORY | O_CLOEXEC);
            if (report->layers & LAYER_USER_NS) made[count++] = open("/proc/self/ns/user", O_RDONLY | O_CLOEXEC);
            made[count++] = open("/proc/self/ns/mnt", O_RDONLY | O_CLOEXEC);
            made[count++] = open("/proc/self/ns/ipc", O_RDONLY | O_CLOEXEC);
        } else {
            count = 0;
        }
        send_report(fds[r->control], report, absent, r->head.bindc, made, count);
        _exit(0);
    }
    if (maker < 0) {
        report->error = errno;
        return false;
    }
    int status = 0;
    waitpid(maker, &status, __WALL);
    report->error = ECHILD;
    return WIFEXITED(status);
}

/* == The probe: each layer used for real, in a child ======================================================= */

static int probe_subreaper(const struct request *r, const int *fds)
{
    (void)r, (void)fds;
    if (prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0) return errno;
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) return errno;
    pid_t self = getpid(), middle = fork_plain();
    if (middle < 0) return errno;
    if (middle == 0) {
        pid_t daemon = fork_plain();
        if (daemon != 0) _exit(daemon < 0 ? errno : 0);
        char go;
        close(ends[1]);
        if (read(ends[0], &go, 1) < 0) _exit(EIO);  /* returns when the prober has reaped the middle */
        _exit(getppid() == self ? 0 : ENOSYS);
    }
    int status = 0;
    if (waitpid(middle, &status, 0) < 0) return errno;
    if (status != 0) return WIFEXITED(status) ? WEXITSTATUS(status) : EIO;
    close(ends[1]);
    if (waitpid(-1, &status, 0) < 0) return errno;
    return WIFEXITED(status) ? WEXITSTATUS(status) : EIO;
}

static int probe_pidfd(const struct request *r, const int *fds)
{
    (void)r, (void)fds;
    pid_t child = fork_plain();
    if (child == 0) for (;;) pause();
    int fd = child > 0 ? pidfd_open(child) : -1;
    if (fd < 0) return errno;
    if (syscall(NR_pidfd_send_signal, fd, SIGKILL, NULL, 0u) != 0) return errno;
    struct pollfd ends = {fd, POLLIN, 0};
    int ready = poll(&ends, 1, 2000);
    waitpid(child, NULL, 0);
    return ready == 1 ? 0 : ETIMEDOUT;
}

static int probe_landlock(const struct request *r, const int *fds)
{
    if (r->ruleset < 0) return ENOTSUP;
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) return errno;
    if (syscall(NR_landlock_restrict_self, fds[r->ruleset], 0u) != 0) return errno;
    /* The host's ruleset for the probe allows nothing. */
    if (open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC) >= 0) return EBADE;
    return errno == EACCES ? 0 : errno;
}

static int probe_seccomp(const struct request *r, const int *fds)
{
    (void)r, (void)fds;
    struct sock_filter refuse_one[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_getppid, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EXDEV),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {.len = 4, .filter = refuse_one};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) return errno;
    if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0) != 0) return errno;
    return syscall(SYS_getppid) < 0 && errno == EXDEV ? 0 : EBADE;
}

/* The first bind of the request is made, and must refuse a new file. */
static int probe_mounts(const struct request *r, const int *fds, bool user)
{
    static unsigned char absent[BINDS_MAX];
    struct report ignored = {0};
    unsigned count = 0;
    if (r->head.bindc == 0) return ENOTSUP;
    if (user && geteuid() == 0) {  /* would tools of an ordinary user get one? */
        if (prctl(PR_SET_DUMPABLE, 1, 0, 0, 0) != 0 || unshare(CLONE_NEWUSER) != 0) return errno;
        return write_small("/proc/self/uid_map", "0 0 1") ? 0 : errno;
    }
    int error = make_namespace(r, fds, &ignored, absent, NULL, &count);
    if (error) return error;
    if (absent[0]) return ENOENT;
    /* As tools enter it. Inside a chroot they would leave that, so each of them would be refused. */
    struct stat before, after;
    int entered = open("/proc/self/ns/mnt", O_RDONLY | O_CLOEXEC);
    if (entered < 0 || stat("/", &before) != 0 || setns(entered, CLONE_NEWNS) != 0 || stat("/", &after) != 0)
        return errno;
    if (before.st_dev != after.st_dev || before.st_ino != after.st_ino) return EXDEV;
    /* Without this look, every call that shows checked files would be taken for swapped. */
    error = find_mount(open("/", O_PATH | O_DIRECTORY | O_CLOEXEC), r->binds[1]);
    if (error) return error;
    if (chdir(r->binds[1]) != 0) return errno;
    if (open(".toolcrib-probe", O_CREAT | O_WRONLY | O_CLOEXEC, 0600) >= 0) return EBADE;
    return errno == EROFS ? 0 : errno;
}

static int probe_mount_ns(const struct request *r, const int *fds) { return probe_mounts(r, fds, false); }
static int probe_user_ns(const struct request *r, const int *fds) { return probe_mounts(r, fds, true); }

static int probe_sealed(const struct request *r, const int *fds)
{
    if (r->sealed < 0) return ENOTSUP;
    pid_t child = fork_plain();
    if (child == 0) {
        syscall(SYS_execveat, fds[r->sealed], "", r->argv, r->envp, AT_EMPTY_PATH);
        _exit(errno & 0x7f);
    }
    int status = 0;
    if (child < 0 || waitpid(child, &status, 0) < 0) return errno;
    return WIFEXITED(status) ? WEXITSTATUS(status) : EBADE;
}

static int probe_proc(const struct request *r, const int *fds)
{
    (void)r, (void)fds;
    pid_t child = fork_plain();
    if (child == 0) for (;;) pause();
    if (child < 0) return errno;
    unsigned found = find_descendants(NULL);
    int error = found == 1 && members[0].pid == child ? 0 : ENOENT;
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    return error;
}

static void serve_probe(const struct request *r, struct report *report, const int *fds)
{
    static int (*const probes[PROBES])(const struct request *, const int *) = {
        probe_subreaper, probe_pidfd, probe_landlock, probe_seccomp,
        probe_mount_ns, probe_user_ns, probe_sealed, probe_proc,
    };
    for (unsigned i = 0; i < PROBES; i++) {
        pid_t child = fork_plain();
        if (child == 0) _exit(probes[i](r, fds) & 0xff);
        int status = 0;
        if (child < 0 || waitpid(child, &status, __WALL) < 0) report->probes[i] = errno;
        else report->probes[i] = WIFEXITED(status) ? WEXITSTATUS(status) : EBADE;
    }
    report->reason = REASON_DONE;
}

/* == The supervisor: one call at a time ==================================================================== */

/* The next request; -1: there will be none. Descriptors that came along are in fds. */
static ssize_t receive(int *fds, unsigned *nfds)
{
    union { char bytes[CMSG_SPACE(FDS_MAX * sizeof(int))]; struct cmsghdr align; } ancillary;
    struct iovec part = {datagram, sizeof datagram};
    for (;;) {
        struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = ancillary.bytes,
                                 .msg_controllen = sizeof ancillary.bytes};
        ssize_t size = recvmsg(HOST_SOCKET, &message, MSG_CMSG_CLOEXEC);
        if (size < 0 && errno == EINTR) continue;
        if (size < 0 && errno == EAGAIN) {  /* nobody came for a while */
            discard_embryo();
            continue;
        }
        if (size <= 0) return -1;
        *nfds = 0;
        /* The kernel puts all descriptors of a message behind one head, and nothing else was asked for. */
        struct cmsghdr *h = CMSG_FIRSTHDR(&message);
        if (h != NULL && h->cmsg_level == SOL_SOCKET && h->cmsg_type == SCM_RIGHTS) {
            unsigned count = (unsigned)((h->cmsg_len - CMSG_LEN(0)) / sizeof(int));
            for (unsigned i = 0; i < count && *nfds < FDS_MAX; i++)
                memcpy(&fds[(*nfds)++], CMSG_DATA(h) + i * sizeof(int), sizeof(int));
        }
        if (*nfds > 0 && !(message.msg_flags & (MSG_CTRUNC | MSG_TRUNC))) return size;
        if (*nfds > 0) {  /* too long, or we are out of descriptors: say so to whoever waits */
            struct report refused = {.reason = REASON_NOT_STARTED, .stage = STAGE_REQUEST,
                                     .error = message.msg_flags & MSG_CTRUNC ? EMFILE : EMSGSIZE};
            send_report(fds[0], &refused, NULL, 0, NULL, 0);
        }
        close_fds(fds, *nfds);
    }
}

/* Copies a payload out of its memfd, so that nobody changes it while it is read. */
static ssize_t fetch(int fd)
{
    size_t have = 0;
    while (have < sizeof payload) {
        ssize_t got = pread(fd, payload + have, sizeof payload - have, (off_t)have);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return -1;
        if (got == 0) return (ssize_t)have;
        have += (size_t)got;
    }
    errno = E2BIG;
    return -1;
}

/* False: something may be left, so this process must not serve another call. */
static bool serve(ssize_t size, int *fds, unsigned nfds)
{
    struct request request;
    struct report report = {0};
    bool clean = true, send = true;
    size_t fetched = 0;
    int error = parse(datagram, (size_t)size, nfds, pointers, &request);
    if (!error && request.payload >= 0) {
        uint32_t flags = request.head.flags;
        ssize_t whole = fetch(fds[request.payload]);
        error = whole < 0 ? errno : parse(payload, (size_t)whole, nfds, pointers, &request);
        if (!error && (request.head.flags != flags || (size_t)whole == sizeof(struct head))) error = EPROTO;
        fetched = whole > 0 ? (size_t)whole : 0;
    }
    if (error) {
        report.reason = REASON_NOT_STARTED;
        report.stage = STAGE_REQUEST;
        report.error = error;
    } else if (request.head.kind == KIND_NAMESPACE) {
        send = !serve_namespace(&request, fds, &report);
    } else if (request.head.kind == KIND_PROBE) {
        serve_probe(&request, &report, fds);
    } else {
        report.reason = REASON_NOT_STARTED;
        report.stage = STAGE_DESCRIPTORS;
        report.error = make_pipes(&request, fds, &nfds);
        if (!report.error) {
            report.stage = STAGE_NONE;
            clean = run_tool(&request, fds, &report, &send);
        }
        if (report.reason != REASON_NOT_STARTED)
            fds[request.in] = fds[request.out] = fds[request.err] = -1;  /* closed already */
    }
    int control = fds[0];
    if (send) send_all(control, &report);
    close_output();
    bool again = clean && report.reason == REASON_EXITED;
    while (!clean) clean = sweep(&report, now_us() + SWEEP_MS * 1000);  /* until they are gone, however long */
    take_precedence(false);
    if (again) make_embryo(&request, fds);
    close_fds(fds, nfds);
    explicit_bzero(payload, fetched);
    return report.reason != 0;
}

/* The spawner died while we serve. Requests that wait in its socket would wait until the last of us is done; with
 * nobody left at this end they are given back at once, and the host starts another spawner. */
static void on_orphaned(int signal_number)
{
    (void)signal_number;
    close(HOST_SOCKET);
}

static _Noreturn void supervise(unsigned seat)
{
    prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
    prctl(PR_SET_NAME, "tw-supervisor", 0, 0, 0);
    signal(SIGCHLD, SIG_DFL);  /* stays blocked: the sweep waits for it */
    struct sigaction orphaned = {.sa_handler = on_orphaned};
    sigaction(SIGUSR1, &orphaned, NULL);
    for (unsigned calls = 0; calls < SUPERVISOR_CALLS_MAX; calls++) {
        /* While idle it goes with the spawner; while it serves, the tool's end comes first. */
        prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
        if (getppid() != spawner) break;
        int fds[FDS_MAX];
        unsigned nfds = 0;
        ssize_t size = receive(fds, &nfds);
        if (size < 0) break;
        prctl(PR_SET_PDEATHSIG, SIGUSR1, 0, 0, 0);
        if (getppid() != spawner) close(HOST_SOCKET);
        atomic_store(&pool->seats[seat].idle, false);
        if (idle_supervisors() == 0) eventfd_write(pool->wake, 1);
        bool again = serve(size, fds, nfds);
        explicit_bzero(datagram, (size_t)size);  /* the environment had secrets in it */
        /* A change of user before exec may have made this memory readable (fs.suid_dumpable). */
        prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
        if (!again || idle_supervisors() >= IDLE_MAX) break;
        atomic_store(&pool->seats[seat].idle, true);
    }
    discard_embryo();
    _exit(0);  /* the spawner notices */
}

/* == The spawner =========================================================================================== */

static void on_child(int signal_number) { (void)signal_number; }

static int seat_of(pid_t pid)
{
    for (unsigned seat = 0; seat < SEATS; seat++)
        if (pool->seats[seat].pid == pid) return (int)seat;
    return -1;
}

/* Takes leave of supervisors that ended. True: there are strays, which want another look.
 * Attack: a tool kills its supervisor. Its processes come to us then (we are a subreaper too), and go.
 * Attack: a tool stops its supervisor, and nobody keeps it to its limits. So a supervisor that stands still is killed. */
static bool reap(void)
{
    static bool strays;
    int status;
    for (pid_t pid; (pid = waitpid(-1, &status, WNOHANG | WUNTRACED | __WALL)) > 0;) {
        if (WIFSTOPPED(status)) {
            kill(pid, SIGKILL);
            continue;
        }
        int seat = seat_of(pid);
        strays = strays || seat < 0 || !WIFEXITED(status);
        if (seat < 0) continue;
        atomic_store(&pool->seats[seat].idle, false);
        pool->seats[seat].pid = 0;
    }
    take_precedence(strays);
    if (!strays) return false;
    strays = false;
    struct family family = {0};
    add_children(&family, getpid());
    for (unsigned i = 0; i < family.count; i++) {
        if (seat_of(members[i].pid) >= 0) continue;
        strays = true;
        kill(members[i].pid, SIGKILL);
        kill(-members[i].pid, SIGKILL);
    }
    return strays;
}

/* False: the machine is out of processes, or this is more than we serve at once. */
static bool add_supervisor(void)
{
    int seat = seat_of(0);
    if (seat < 0) return false;
    atomic_store(&pool->seats[seat].idle, true);
    if ((unsigned)seat >= atomic_load(&pool->used)) atomic_store(&pool->used, (unsigned)seat + 1);
    pid_t pid = fork_plain();
    if (pid == 0) supervise((unsigned)seat);
    pool->seats[seat].pid = pid > 0 ? pid : 0;
    if (pid < 0) atomic_store(&pool->seats[seat].idle, false);
    return pid > 0;
}

int main(int argc, char **argv)
{
    if (argc == 2 && strcmp(argv[1], "--version") == 0) {
        printf("toolcrib-spawner %d\n", VERSION);
        return 0;
    }
    for (int number_of = 1; number_of < 65; number_of++) signal(number_of, SIG_DFL);
    sigset_t child, none;
    sigemptyset(&none);
    sigemptyset(&child);
    sigaddset(&child, SIGCHLD);
    sigprocmask(SIG_SETMASK, &child, NULL);
    struct sigaction action = {.sa_handler = on_child};
    sigaction(SIGCHLD, &action, NULL);
    prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);  /* Attack: a tool of the same user reads requests out of our memory */
    prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
    prctl(PR_SET_NAME, "tw-spawner", 0, 0, 0);
    if (close_capabilities() != 0 && geteuid() == 0 && has_capabilities()) return 1;
    if (chdir("/") != 0) return 1;
    syscall(NR_close_range, FIRST_FREE, ~0u, 0u);
    int null = open("/dev/null", O_RDWR);
    for (int fd = 0; fd < 3; fd++) if (null < 0 || dup2(null, fd) < 0) return 1;
    if (null > 5) close(null);
    for (int fd = HOST_SOCKET; fd < FIRST_FREE; fd++) if (fcntl(fd, F_SETFD, FD_CLOEXEC) != 0) return 1;
    struct stat page;
    if (fstat(SHARED_PAGE, &page) != 0 || page.st_size < SLOTS) return 1;
    started_size = (size_t)page.st_size;
    started = mmap(NULL, started_size, PROT_READ | PROT_WRITE, MAP_SHARED, SHARED_PAGE, 0);
    pool = mmap(NULL, sizeof *pool, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (started == MAP_FAILED || pool == MAP_FAILED) return 1;
    pool->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (pool->wake < 0) return 1;
    for (uint32_t i = 0; i < RLIM_NLIMITS; i++) {
        struct rlimit own;
        if (syscall(SYS_prlimit64, 0L, i, NULL, &own) != 0) return 1;
        own_max[i] = own.rlim_max;
    }
    spawner = getpid();
    struct timeval patience = {.tv_sec = EMBRYO_LIFE_S};
    if (setsockopt(HOST_SOCKET, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience) != 0) return 1;

    struct pollfd waits[3] = {{HOST_SOCKET, 0, 0}, {HOST_PIDFD, POLLIN, 0}, {pool->wake, POLLIN, 0}};
    bool strays = false;
    for (;;) {
        bool short_of = false;
        while (idle_supervisors() < IDLE_MIN && !short_of) short_of = !add_supervisor();
        struct timespec moment = {0, 5000000};
        int ready = ppoll(waits, 3, short_of || strays ? &moment : NULL, &none);
        if (ready < 0 || strays) strays = reap();
        if (ready > 0) {
            if (waits[0].revents || waits[1].revents) break;
            eventfd_t ignored;
            eventfd_read(pool->wake, &ignored);
        }
    }
    /* The host is gone. Idle supervisors follow us, the others end their calls first. */
    int64_t until = now_us() + SWEEP_MS * 1000;
    while (reap() && now_us() < until) {
        struct timespec moment = {0, 2000000};
        nanosleep(&moment, NULL);
    }
    return 0;
}
#endif
