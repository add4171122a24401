/* Fuzzes the spawner's parser: messages that are right, and the same with something wrong in them.
 *
 *     fuzz-spawner SECONDS SEED
 *
 * Compile it with the sanitizers: each message lies in memory of exactly its size, so that a read past the end
 * is found. Messages that are right must be accepted; of every accepted one, all that the spawner would use is
 * read. It prints what it did; a finding aborts with the seed. */
#define SPAWNER_PARSER_ONLY
#include "../src/native/spawner.c"
#include <stdlib.h>

static uint64_t state;

static uint32_t any(void)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (uint32_t)(state >> 16);
}

static uint32_t below(uint32_t most) { return any() % most; }

static void demand(bool holds, const char *what)
{
    if (holds) return;
    fprintf(stderr, "found: %s\n", what);
    abort();
}

static size_t put_string(unsigned char *at, bool path)
{
    size_t size = 0;
    if (path) at[size++] = '/';
    for (uint32_t left = below(4) == 0 ? below(300) : below(12); left > 0; left--)
        at[size++] = (unsigned char)(1 + below(255));
    at[size++] = 0;
    return size;
}

/* A message as the host would send it; how many descriptors come with it. */
static size_t put_message(unsigned char *bytes, unsigned *nfds)
{
    struct head head = {.magic = REQUEST_MAGIC, .version = VERSION, .kind = 1 + below(3)};
    bool run = head.kind == KIND_RUN;
    *nfds = 1;
    if (run && below(2)) head.flags |= HAS_STDIN, ++*nfds;
    if (run && below(2)) head.flags |= HAS_OUTPUT, *nfds += 2;
    if (run && !(head.flags & HAS_STDIN)) head.stdin_size = below(2) ? below(STDIN_MAX + 1) : 0;
    for (uint32_t bit = 0; bit < 5; bit++) {
        if (below(2)) continue;
        if (bit == 3 && !(head.flags & HAS_MOUNT_NS)) continue;  /* a user namespace never comes alone */
        head.flags |= 1u << bit;
        ++*nfds;
    }
    if (head.flags & HAS_USER_NS && !(head.flags & HAS_MOUNT_NS)) head.flags |= HAS_MOUNT_NS, ++*nfds;
    if (head.flags & HAS_MOUNT_NS) *nfds += 2;  /* its root and the IPC namespace come along */
    if (head.flags & HAS_PROGRAM && below(2)) head.flags |= KEEP_PROGRAM;
    if (below(2)) head.flags |= SET_UID | SET_GID;
    head.slot = any();
    head.kit = any();
    head.timeout_ms = any();
    head.argc = (run ? 1 : 0) + below(6);
    head.envc = below(6);
    head.bindc = below(5);
    head.rlimitc = below(6);
    head.filter_size = 8 * below(20);
    unsigned char *at = bytes + sizeof head;
    for (uint32_t i = 0; i < head.rlimitc; i++, at += sizeof(struct limit)) {
        struct limit limit = {.resource = below(RLIM_NLIMITS), .value = any()};
        memcpy(at, &limit, sizeof limit);
    }
    for (uint32_t i = 0; i < head.filter_size; i++) *at++ = (unsigned char)any();
    for (uint32_t i = 0; i < head.bindc; i++, at += 4) {
        uint32_t flags = below(head.kind == KIND_PROBE ? 4 : 8);
        if (head.kind == KIND_NAMESPACE && flags & BIND_SEALED) head.sealedc++;
        memcpy(at, &flags, 4);
    }
    *nfds += head.sealedc;
    unsigned char *strings = at;
    at += put_string(at, true);                       /* program */
    at += put_string(at, true);                       /* cwd */
    at += below(2) ? put_string(at, true) : (*at = 0, (size_t)1);  /* scratch, or none */
    for (uint32_t i = 0; i < head.argc + head.envc; i++) at += put_string(at, false);
    for (uint32_t i = 0; i < 2 * head.bindc; i++) at += put_string(at, true);
    head.strings_size = (uint32_t)(at - strings);
    for (uint32_t i = 0; i < head.stdin_size; i++) *at++ = (unsigned char)any();
    head.size = (uint32_t)(at - bytes);
    memcpy(bytes, &head, sizeof head);
    return head.size;
}

static size_t spoil(unsigned char *bytes, size_t size, size_t room, unsigned *nfds)
{
    static const uint32_t telling[] = {0, 1, 2, 0x7f, 0x80, 0xff, 0x7fff, 0xffff, 0x10000, 0x7fffffff, 0x80000000, ~0u};
    for (uint32_t times = 1 + below(3); times > 0; times--) {
        switch (below(8)) {
        case 0: bytes[below((uint32_t)size)] ^= (unsigned char)(1u << below(8)); break;
        case 1: bytes[below((uint32_t)size)] = (unsigned char)any(); break;
        case 2: size = below((uint32_t)size + 1); break;
        case 3: *nfds = below(FDS_MAX + 1); break;
        case 4: bytes[size - 1] = 'x'; break;
        case 5: while (size < room && below(9)) bytes[size++] = (unsigned char)any(); break;
        default: {  /* a number of the head */
            uint32_t value = below(3) ? telling[below(sizeof telling / sizeof *telling)] : any();
            if (size >= sizeof(struct head)) memcpy(bytes + 4 * below(sizeof(struct head) / 4), &value, 4);
        }
        }
        if (size == 0) break;
        if (below(2) && size >= sizeof(struct head)) {  /* then the wrong is not that the size is */
            uint32_t whole = (uint32_t)size;
            memcpy(bytes + offsetof(struct head, size), &whole, 4);
        }
    }
    return size;
}

static uint64_t sink;

static void use(const struct request *r, unsigned nfds)
{
    const int places[] = {r->control, r->in, r->out, r->err, r->ruleset, r->sealed, r->channel, r->root,
                          r->user_ns, r->mount_ns, r->payload};
    uint64_t seen = 0;
    for (unsigned i = 0; i < sizeof places / sizeof *places; i++) {
        if (places[i] < 0) continue;
        demand((unsigned)places[i] < nfds, "a descriptor that did not come");
        demand(!(seen & 1ull << places[i]), "a descriptor in two roles");
        seen |= 1ull << places[i];
    }
    demand(r->head.sealedc == 0 || (unsigned)r->contents + r->head.sealedc <= nfds, "contents that did not come");
    if (r->argv == NULL) return;  /* the rest is in a file */
    for (uint32_t i = 0; i < r->head.rlimitc; i++) sink += r->limits[i].value + r->limits[i].resource;
    for (uint32_t i = 0; i < r->head.filter_size; i++) sink += ((const unsigned char *)r->filter)[i];
    for (uint32_t i = 0; i < r->head.bindc; i++) sink += r->bind_flags[i] + strlen(r->binds[2 * i]) + strlen(r->binds[2 * i + 1]);
    for (uint32_t i = 0; i < r->head.argc; i++) sink += strlen(r->argv[i]);
    for (uint32_t i = 0; i < r->head.envc; i++) sink += strlen(r->envp[i]);
    for (uint32_t i = 0; i < r->head.stdin_size; i++) sink += r->given[i];
    demand(r->head.stdin_size == 0 || r->in < 0, "two things for one stdin");
    demand(r->argv[r->head.argc] == NULL && r->envp[r->head.envc] == NULL, "a list without an end");
    demand(r->head.kind != KIND_RUN || (r->head.argc > 0 && r->cwd[0] == '/'), "a start without argv or cwd");
    sink += strlen(r->program) + strlen(r->cwd) + strlen(r->scratch);
}

int main(int argc, char **argv)
{
    long seconds = argc > 1 ? atol(argv[1]) : 10;
    uint64_t seed = argc > 2 ? strtoull(argv[2], NULL, 10) : 1, messages = 0, accepted = 0;
    static unsigned char bytes[DATAGRAM_MAX];
    char **found = malloc((STRINGS_MAX + 8) * sizeof *found);
    time_t until = time(NULL) + seconds;
    fprintf(stderr, "seed %llu\n", (unsigned long long)seed);
    for (; found != NULL && (messages % 1024 != 0 || time(NULL) < until); messages++) {
        state = (seed << 32) + messages + 0x9e3779b97f4a7c15u;
        for (int i = 0; i < 8; i++) any();
        unsigned nfds = 0;
        size_t size = put_message(bytes, &nfds);
        bool right = below(8) == 0;
        if (!right) size = spoil(bytes, size, sizeof bytes, &nfds);
        unsigned char *exact = malloc(size ? size : 1);
        if (exact == NULL) return 2;
        memcpy(exact, bytes, size);
        struct request request;
        int error = parse(exact, size, nfds, found, &request);
        demand(!right || error == 0, "a message that is right was refused");
        if (!error) use(&request, nfds), accepted++;
        free(exact);
    }
    free(found);
    printf("%llu messages, %llu accepted, no finding (%llu)\n", (unsigned long long)messages,
           (unsigned long long)accepted, (unsigned long long)sink % 10);
    return 0;
}
