/* The yardstick: bare posix_spawn of the same tool with pipes, its answer read and checked, its end waited for.
 * No isolation, no limits, no record; with a file and a number as further arguments each call first appends so many
 * bytes to the file, and waits until they are on the disk. Reads lines "COUNT THREADS" and answers with one line for each:
 * "MEDIAN_NS WALL_NS WRONG". */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <spawn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static const char *tool;
static int record = -1;
static char begin[4096];
static size_t begin_bytes;
static const char input[] = "{\"value\":7}";
static const char expected[] = "{\"echo\":{\"value\":7}}\n";
static long count;
static long next_call;
static long wrong;
static uint64_t *took;

static uint64_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static int once(void) {
    if (record >= 0 && (write(record, begin, begin_bytes) != (ssize_t)begin_bytes || fdatasync(record) != 0))
        return 0;
    int in[2], out[2], err[2];
    if (pipe2(in, O_CLOEXEC) || pipe2(out, O_CLOEXEC) || pipe2(err, O_CLOEXEC))
        return 0;
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, in[0], 0);
    posix_spawn_file_actions_adddup2(&actions, out[1], 1);
    posix_spawn_file_actions_adddup2(&actions, err[1], 2);
    char *const argv[] = {(char *)tool, NULL};
    char *const env[] = {"PATH=/usr/bin:/bin", NULL};
    pid_t pid;
    int failed = posix_spawn(&pid, tool, &actions, NULL, argv, env);
    posix_spawn_file_actions_destroy(&actions);
    close(in[0]);
    close(out[1]);
    close(err[1]);
    if (failed)
        return 0;
    if (write(in[1], input, sizeof input - 1) < 0)
        return 0;
    close(in[1]);
    char answer[256];
    size_t length = 0;
    ssize_t got;
    while ((got = read(out[0], answer + length, sizeof answer - length)) > 0)
        length += (size_t)got;
    char rest[256];
    while (read(err[0], rest, sizeof rest) > 0) {
    }
    close(out[0]);
    close(err[0]);
    int status;
    if (waitpid(pid, &status, 0) != pid || status != 0)
        return 0;
    return length == sizeof expected - 1 && memcmp(answer, expected, length) == 0;
}

static void *work(void *unused) {
    (void)unused;
    for (;;) {
        long mine = __atomic_fetch_add(&next_call, 1, __ATOMIC_RELAXED);
        if (mine >= count)
            return NULL;
        uint64_t before = now();
        if (!once())
            __atomic_fetch_add(&wrong, 1, __ATOMIC_RELAXED);
        took[mine] = now() - before;
    }
}

static int ascending(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

int main(int argc, char **argv) {
    if (argc != 2 && argc != 4)
        return 2;
    tool = argv[1];
    if (argc == 4) {
        record = open(argv[2], O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
        begin_bytes = strtoul(argv[3], NULL, 10);
        if (record < 0 || begin_bytes > sizeof begin)
            return 2;
    }
    long threads;
    while (scanf("%ld %ld", &count, &threads) == 2) {
        took = calloc((size_t)count, sizeof *took);
        next_call = wrong = 0;
        pthread_t all[256];
        if (threads > 256 || took == NULL)
            return 2;
        uint64_t before = now();
        if (threads == 1) {
            work(NULL);
        } else {
            for (long i = 0; i < threads; i++)
                pthread_create(&all[i], NULL, work, NULL);
            for (long i = 0; i < threads; i++)
                pthread_join(all[i], NULL);
        }
        uint64_t wall = now() - before;
        qsort(took, (size_t)count, sizeof *took, ascending);
        printf("%llu %llu %ld\n", (unsigned long long)took[count / 2], (unsigned long long)wall, wrong);
        fflush(stdout);
        free(took);
    }
    return 0;
}
