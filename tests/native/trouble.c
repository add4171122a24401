/* A tool that misbehaves as it is told, for tests of the levels. Static, so it needs nothing to start.
 *
 * Whatever it does it bounds itself: no more than MOST processes or threads, and every one of them ends by an
 * alarm after LIFE_S. A level that fails its test must not take the machine with it. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MOST = 300, GENERATIONS = 2000, LIFE_S = 20, BOMB_LIFE_S = 4 };

extern char **environ;

/* Tells whoever reads the FIFO that this process lives: the reader sees its end when the last one is gone. */
static void hold(const char *fifo)
{
    int fd = open(fifo, O_WRONLY);
    if (fd < 0 || write(fd, "+", 1) != 1) _exit(90);
}

static pid_t fork_bounded(unsigned seconds)
{
    pid_t child = fork();
    if (child == 0) alarm(seconds);  /* which fork does not hand on */
    return child;
}

static void sleep_for_ever(void)
{
    for (;;) pause();
}

/* Returns when the daemon holds the FIFO: killed before that, nobody could tell that it is gone. */
static void daemon_now(const char *fifo)
{
    int ends[2];
    char ready;
    if (pipe(ends)) _exit(92);
    if (fork_bounded(LIFE_S) > 0) {
        close(ends[1]);
        if (read(ends[0], &ready, 1) != 0) _exit(92);
        close(ends[0]);
        return;
    }
    setsid();
    if (fork_bounded(LIFE_S) > 0) _exit(0);
    for (int fd = 0; fd < 3; fd++) close(fd);
    hold(fifo);
    close(ends[1]);
    sleep_for_ever();
}

static void flood(int fd)
{
    char block[8192];
    memset(block, 'y', sizeof block);
    while (write(fd, block, sizeof block) > 0) {}
}

/* As many as it can, as fast as it can, all of them forking: MOST in all. */
static void bomb(const char *fifo, int sessions)
{
    atomic_int *count = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (count == MAP_FAILED) _exit(93);
    hold(fifo);
    while (atomic_fetch_add(count, 1) < MOST)
        if (fork_bounded(BOMB_LIFE_S) == 0 && sessions) setsid();
    sleep_for_ever();
}

static void *wait_in_thread(void *unused)
{
    sleep_for_ever();
    return unused;
}

static void copy_stdin(void)
{
    char block[65536];
    for (ssize_t got; (got = read(0, block, sizeof block)) > 0;)
        for (ssize_t done = 0; done < got;) {
            ssize_t put = write(1, block + done, (size_t)(got - done));
            if (put < 0) _exit(91);
            done += put;
        }
}

/* Descriptors that are sent and never received, as many as the kernel lets a user have. */
static void send_descriptors(void)
{
    enum { EACH = 250, SOCKETS = 64, SENDS_MAX = 4096 };
    union { char bytes[CMSG_SPACE(EACH * sizeof(int))]; struct cmsghdr align; } ancillary = {{0}};
    char byte = 0;
    struct iovec part = {&byte, 1};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = ancillary.bytes,
                             .msg_controllen = sizeof ancillary.bytes};
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(EACH * sizeof(int));  /* all of them descriptor 0 */
    for (int i = 0, ends[2]; i < SOCKETS && socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends) == 0; i++)
        for (int sent = 0; sent < SENDS_MAX && sendmsg(ends[0], &message, MSG_DONTWAIT) >= 0; sent++) {}
    if (errno != ETOOMANYREFS) _exit(94);
}

int main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "", *with = argc > 2 ? argv[2] : "";
    long number = atol(with);
    alarm(LIFE_S);
    if (!strcmp(what, "exit")) return (int)number;
    if (!strcmp(what, "signal")) { raise((int)number); sleep_for_ever(); }
    if (!strcmp(what, "say")) { fputs(with, stdout); return 0; }
    if (!strcmp(what, "echo")) { copy_stdin(); return 0; }
    if (!strcmp(what, "out-first")) {  /* writes a lot before it reads anything */
        char block[65536];
        memset(block, 'o', sizeof block);
        for (long i = 0; i < number; i++) if (write(1, block, sizeof block) < 0) return 92;
        copy_stdin();
        return 0;
    }
    if (!strcmp(what, "pause")) { usleep((useconds_t)number * 1000); fputs("late", stdout); return 0; }
    if (!strcmp(what, "packets")) {  /* so many of a size, as packets, each of which takes a read of its own */
        char block[4096];
        memset(block, 'p', sizeof block);
        if (fcntl(1, F_SETFL, O_WRONLY | O_DIRECT) != 0) return 92;
        for (long i = 0; i < number; i++) if (write(1, block, (size_t)atol(argv[3])) < 0) return 92;
        return 0;
    }
    if (!strcmp(what, "descriptors")) { send_descriptors(); usleep(300000); fputs("late", stdout); return 0; }
    if (!strcmp(what, "steal")) {  /* takes back, for a while, what it writes, and then waits */
        char byte = 's';
        int own = open("/proc/self/fd/1", O_RDONLY);
        if (own < 0) return 92;
        usleep(200000);
        if (fork_bounded(LIFE_S) == 0) for (;;) if (read(own, &byte, 1) < 0) _exit(92);
        for (long i = 0; i < number; i++) if (write(1, &byte, 1) < 0) return 92;
        hold(argv[3]);
        sleep_for_ever();
    }
    if (!strcmp(what, "close-output")) { close(1); close(2); usleep(20000); return 0; }
    if (!strcmp(what, "close-stdin")) { close(0); usleep(20000); return 0; }
    if (!strcmp(what, "hang")) { if (*with) hold(with); sleep_for_ever(); }
    if (!strcmp(what, "deaf")) {  /* ignores every signal it can, but its own alarm */
        for (int i = 1; i < 65; i++) if (i != SIGALRM) signal(i, SIG_IGN);
        if (*with) hold(with);
        for (;;) sleep(60);
    }
    if (!strcmp(what, "stop")) { raise(SIGSTOP); return 0; }
    if (!strcmp(what, "flood-out")) flood(1);
    if (!strcmp(what, "flood-err")) flood(2);
    if (!strcmp(what, "flood-both")) { if (fork_bounded(LIFE_S)) flood(1); flood(2); }
    if (!strcmp(what, "daemon")) { daemon_now(with); usleep(20000); return argc > 3 ? atoi(argv[3]) : 0; }
    if (!strcmp(what, "daemon-and-hang")) { daemon_now(with); hold(with); sleep_for_ever(); }
    if (!strcmp(what, "pipe-holder")) {  /* a child that keeps stdout and stderr */
        int ends[2];
        char ready;
        if (pipe(ends)) return 92;
        if (fork_bounded(LIFE_S) == 0) { hold(with); close(ends[1]); sleep_for_ever(); }
        close(ends[1]);
        if (read(ends[0], &ready, 1) < 0) return 92;  /* returns when the child holds the FIFO */
        puts("done");
        return 0;
    }
    if (!strcmp(what, "hop")) {  /* never the same process for long, each in a session of its own */
        hold(with);
        if (fork_bounded(BOMB_LIFE_S) > 0) { usleep(20000); return 0; }
        for (int i = 0; i < GENERATIONS; i++) { if (fork_bounded(BOMB_LIFE_S) > 0) _exit(0); setsid(); }
        sleep_for_ever();
    }
    if (!strcmp(what, "bomb")) bomb(with, 0);
    if (!strcmp(what, "bomb-of-sessions")) bomb(with, 1);
    if (!strcmp(what, "late-bomb")) { usleep(500000); bomb(with, 0); }
    if (!strcmp(what, "threads")) {
        pthread_attr_t small;
        pthread_t thread;
        pthread_attr_init(&small);
        pthread_attr_setstacksize(&small, 65536);
        for (int i = 0; i < MOST; i++) if (pthread_create(&thread, &small, wait_in_thread, NULL)) return 97;
        sleep_for_ever();
    }
    if (!strcmp(what, "share")) {  /* memory that its children have as well, and count as theirs */
        size_t size = (size_t)number << 20;
        char *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (memory == MAP_FAILED) return 93;
        memset(memory, 1, size);
        for (int i = 0; i < 4; i++) if (fork_bounded(LIFE_S) == 0) sleep_for_ever();
        usleep(400000);
        return 0;
    }
    if (!strcmp(what, "short-lived")) {  /* many orphans that end at once, one after the other */
        for (long i = 0; i < number && i < MOST; i++) {
            pid_t middle = fork_bounded(LIFE_S);
            if (middle == 0) { if (fork_bounded(LIFE_S) == 0) setsid(); _exit(0); }
            waitpid(middle, NULL, 0);
            usleep(1000);
        }
        return 0;
    }
    if (!strcmp(what, "hog")) {
        size_t size = (size_t)(number < 500 ? number : 500) << 20;
        char *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (memory == MAP_FAILED) return 93;
        memset(memory, 1, size);
        sleep_for_ever();
    }
    if (!strcmp(what, "fill")) {  /* fills its scratch folder: one file, or (deep) many small ones */
        if (chdir(getenv("TMPDIR"))) return 94;
        if (!strcmp(with, "deep"))
            for (int i = 0; i < 5000; i++) {
                char name[16];
                snprintf(name, sizeof name, "%d", i);
                if (i % 50 == 0 && (mkdir("d", 0700) || chdir("d"))) break;
                close(open(name, O_CREAT | O_WRONLY, 0600));
            }
        else if (!strcmp(with, "hidden")) {
            if (mkdir("d", 0700)) return 95;
            int file = open("d/file", O_CREAT | O_WRONLY, 0600);
            if (ftruncate(file, 0) || chmod("d", 0)) return 95;
        } else {
            int file = open("file", O_CREAT | O_WRONLY, 0600);
            char block[65536] = {1};
            for (long i = 0; i < number * 16 && i < 4800; i++) if (write(file, block, sizeof block) < 0) return 96;
        }
        sleep_for_ever();
    }
    if (!strcmp(what, "environment")) {
        for (char **at = environ; *at; at++) puts(*at);
        return 0;
    }
    if (!strcmp(what, "state")) {  /* what it finds itself in */
        sigset_t mask;
        sigprocmask(SIG_SETMASK, NULL, &mask);
        int blocked = 0, ignored = 0;
        for (int i = 1; i < 65; i++) {
            struct sigaction action;
            blocked += sigismember(&mask, i) == 1;
            if (sigaction(i, NULL, &action) == 0) ignored += action.sa_handler == SIG_IGN;
        }
        char cwd[4096];
        mode_t mask_of_files = umask(0);
        printf("blocked=%d ignored=%d umask=%03o group=%d nnp=%d cwd=%s uid=%d fds=", blocked, ignored,
               (unsigned)mask_of_files, getpgid(0) == getpid(), prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0),
               getcwd(cwd, sizeof cwd) ? cwd : "?", (int)getuid());
        for (int fd = 0; fd < 256; fd++) if (fcntl(fd, F_GETFD) >= 0) printf("%d,", fd);
        puts("");
        return 0;
    }
    if (!strcmp(what, "length")) {  /* of all its arguments */
        size_t total = 0;
        for (int i = 2; i < argc; i++) total += strlen(argv[i]);
        printf("%d %zu\n", argc - 2, total);
        return 0;
    }
    if (!strcmp(what, "write") || !strcmp(what, "rename") || !strcmp(what, "read")) {
        int bad = !strcmp(what, "rename") ? rename(with, argv[3])
                  : open(with, !strcmp(what, "read") ? O_RDONLY : O_CREAT | O_WRONLY, 0600) < 0;
        if (bad) { printf("%s\n", strerrorname_np(errno)); return 1; }
        return 0;
    }
    if (!strcmp(what, "kill")) {  /* somebody else */
        int bad = kill((pid_t)number, SIGKILL);
        printf("%s\n", bad ? strerrorname_np(errno) : "killed");
        return 0;
    }
    if (!strcmp(what, "kill-parent")) {  /* its supervisor, while a daemon runs */
        daemon_now(with);
        usleep(50000);
        if (kill(getppid(), SIGKILL)) { printf("%s\n", strerrorname_np(errno)); return 0; }
        sleep_for_ever();
    }
    if (!strcmp(what, "stop-parent") || !strcmp(what, "stop-spawner")) {  /* its supervisor; the spawner before it */
        char path[64];
        int spawner = 0;
        daemon_now(with);
        usleep(50000);
        snprintf(path, sizeof path, "/proc/%d/stat", (int)getppid());
        FILE *told = fopen(path, "r");
        if (told == NULL || fscanf(told, "%*d %*s %*c %d", &spawner) != 1) return 96;
        if (!strcmp(what, "stop-spawner") && kill(spawner, SIGSTOP)) return 97;
        if (kill(getppid(), SIGSTOP)) return 98;
        sleep_for_ever();
    }
    if (!strcmp(what, "channel")) {  /* echoes what comes over descriptor 3 */
        char block[4096];
        for (ssize_t got; (got = read(3, block, sizeof block)) > 0;) if (write(3, block, (size_t)got) < 0) break;
        return 0;
    }
    fprintf(stderr, "unknown trouble: %s\n", what);
    return 99;
}
