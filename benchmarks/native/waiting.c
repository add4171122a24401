/* The least that threads need which wait for one sync, in any language: the last one to come appends the bytes of
 * all and syncs them, and one call of the system wakes the others. No record is made, nothing is kept.
 * Takes a file and the bytes of one record. Reads lines "COUNT THREADS" and answers with one line for each:
 * "MEDIAN_NS WALL_NS WRONG". */
#define _GNU_SOURCE
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static int file;
static char *bytes;
static size_t size;
static int threads;
static long rounds;
static atomic_int here, turn;
static atomic_long wrong;

static uint64_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void once(void) {
    int mine = atomic_load(&turn);
    if (atomic_fetch_add(&here, 1) + 1 == threads) {
        if (write(file, bytes, size * (size_t)threads) != (ssize_t)(size * (size_t)threads) || fdatasync(file) != 0)
            atomic_fetch_add(&wrong, 1);
        atomic_store(&here, 0);
        atomic_store(&turn, mine + 1);
        syscall(SYS_futex, &turn, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
        return;
    }
    while (atomic_load(&turn) == mine)
        syscall(SYS_futex, &turn, FUTEX_WAIT_PRIVATE, mine, NULL, NULL, 0);
}

static void *work(void *nothing) {
    for (long done = 0; done < rounds; done++)
        once();
    return nothing;
}

int main(int argc, char **argv) {
    long count;
    if (argc != 3)
        return 2;
    file = open(argv[1], O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    size = (size_t)atol(argv[2]);
    while (scanf("%ld %d", &count, &threads) == 2) {
        bytes = realloc(bytes, size * (size_t)threads);
        pthread_t *all = calloc((size_t)threads, sizeof *all);
        if (file < 0 || bytes == NULL || all == NULL)
            return 1;
        memset(bytes, 'x', size * (size_t)threads);
        rounds = count / threads;
        uint64_t began = now();
        for (int at = 0; at < threads; at++)
            if (pthread_create(&all[at], NULL, work, NULL) != 0)
                return 1;
        for (int at = 0; at < threads; at++)
            pthread_join(all[at], NULL);
        uint64_t wall = now() - began;
        printf("%llu %llu %ld\n", (unsigned long long)(wall / (uint64_t)count), (unsigned long long)wall,
               atomic_load(&wrong));
        fflush(stdout);
        free(all);
    }
    return 0;
}
