/* A tool that misbehaves on request: argv is MODE MARK [LOG]. It reads JSON with a "nonce" on stdin, appends the
 * nonce to LOG where there is one, so that somebody outside knows that it started, and does what MODE says.
 * MARK is there to be found in /proc. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

static char input[1 << 20];
static char nonce[64];

static void read_nonce(void) {
    size_t length = 0;
    for (;;) {
        ssize_t got = read(0, input + length, sizeof input - 1 - length);
        if (got <= 0)
            break;
        length += (size_t)got;
    }
    static const char name[] = "\"nonce\":\"";
    char *at = strstr(input, name);
    if (at == NULL)
        _exit(40);
    at += sizeof name - 1;
    for (size_t i = 0; i + 1 < sizeof nonce && at[i] != '"' && at[i] != 0; i++)
        nonce[i] = at[i];
}

static void log_start(const char *path) {
    char line[80];
    int length = snprintf(line, sizeof line, "%s\n", nonce);
    int file = open(path, O_WRONLY | O_APPEND | O_CLOEXEC);
    if (file < 0 || write(file, line, (size_t)length) != length)
        _exit(41);
    close(file);
}

static int answer(const char *text) {
    char line[128];
    int length = snprintf(line, sizeof line, "{\"echo\":\"%s\"}\n", text);
    return write(1, line, (size_t)length) == length ? 0 : 42;
}

/* Deaf to everything that can be blocked. */
static void hang(void) {
    sigset_t all;
    sigfillset(&all);
    sigprocmask(SIG_BLOCK, &all, NULL);
    for (;;)
        pause();
}

static pid_t child(void) {
    pid_t pid = fork();
    if (pid < 0)
        _exit(43);
    return pid;
}

int main(int argc, char **argv) {
    if (argc < 3)
        return 44;
    const char *mode = argv[1];
    prctl(PR_SET_NAME, argv[2]);
    if (strcmp(mode, "ignorer") == 0) {
        close(0);
        return answer("ignored");
    }
    read_nonce();
    if (argc > 3)
        log_start(argv[3]);
    if (strcmp(mode, "echo") == 0)
        return answer(nonce);
    if (strcmp(mode, "three") == 0)
        return answer(nonce) ? 45 : 3;
    if (strcmp(mode, "segv") == 0) {
        signal(SIGSEGV, SIG_DFL);
        raise(SIGSEGV);
    }
    if (strcmp(mode, "hang") == 0)
        hang();
    if (strcmp(mode, "stubborn") == 0) { /* hangs, and so does a descendant that left the group */
        if (child() == 0)
            setsid();
        hang();
    }
    if (strcmp(mode, "flood") == 0 || strcmp(mode, "loud") == 0) {
        int where = strcmp(mode, "flood") == 0 ? 1 : 2;
        memset(input, 'x', sizeof input);
        signal(SIGPIPE, SIG_IGN);
        for (;;)
            if (write(where, input, sizeof input) < 0)
                hang();
    }
    if (strcmp(mode, "swarm") == 0) { /* many, but not too many */
        for (int i = 0; i < 12; i++)
            if (child() == 0)
                hang();
        return answer(nonce);
    }
    if (strcmp(mode, "bomb") == 0) { /* more than it may, but the machine lives if nobody stops it */
        for (int i = 0; i < 300; i++) {
            if (fork() == 0)
                hang();
            usleep(500);
        }
        hang();
    }
    if (strcmp(mode, "daemon") == 0) { /* the two forks of the textbook, and nothing kept open */
        if (child() == 0) {
            setsid();
            if (child() == 0) {
                if (chdir("/"))
                    _exit(46);
                for (int i = 0; i < 256; i++)
                    close(i);
                hang();
            }
            _exit(0);
        }
        return answer(nonce);
    }
    if (strcmp(mode, "holder") == 0) { /* a grandchild that keeps the pipes */
        if (child() == 0) {
            if (child() == 0)
                hang();
            _exit(0);
        }
        return answer(nonce);
    }
    return 47;
}
