/* A request to the spawner, sent and answered in one step without the interpreter.

   A thread that gives the interpreter up gets it back behind the others, which with many callers costs more than
   the calls of the system themselves. So the line of a call is made, its request posted and the first word on it
   heard here: most often the report, and then the line is closed as well. `sandbox/_pipes.py` goes on with it
   otherwise, and does all of it where this was not built. Stable ABI of Python 3.11. */

#define _GNU_SOURCE
#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000
#include <Python.h>

#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum {
    DESCRIPTORS_MAX = 64,
    RIGHTS_MAX = 2,
    LONGEST_S = 1000000,
    /* As `sandbox/_wire.py` says: a report and the output that comes with it; where its reason stands. */
    HEARD_BYTES_MAX = 17 << 10,
    REASON_AT = 8,
    RUNNING = 10,
};

static const char STOP[] = "c"; /* what is said to end a call */

static double now_s(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* -- asking ------------------------------------------------------------------------------------------------ */

typedef union {
    struct cmsghdr head;
    char bytes[CMSG_SPACE(DESCRIPTORS_MAX * sizeof(int))];
} Rights;

/* 0, or why not. EINTR: a signal came. */
static int post(int spawner, const char *message, size_t size, const int *descriptors, size_t count) {
    Rights rights;
    memset(&rights, 0, sizeof rights);
    struct iovec part = {.iov_base = (void *)(uintptr_t)message, .iov_len = size};
    struct msghdr head = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = rights.bytes};
    head.msg_controllen = CMSG_SPACE(count * sizeof(int));
    struct cmsghdr *first = CMSG_FIRSTHDR(&head);
    first->cmsg_level = SOL_SOCKET;
    first->cmsg_type = SCM_RIGHTS;
    first->cmsg_len = CMSG_LEN(count * sizeof(int));
    memcpy(CMSG_DATA(first), descriptors, count * sizeof(int));
    return sendmsg(spawner, &head, MSG_NOSIGNAL) < 0 ? errno : 0;
}

/* -- hearing ----------------------------------------------------------------------------------------------- */

typedef struct {
    int ours;
    ssize_t size; /* of what was said; 0: it hung up */
    bool is_said; /* false: nobody spoke until then, or the button was pressed */
    bool is_cut;
    int rights[RIGHTS_MAX], count;
    char bytes[HEARD_BYTES_MAX];
} Heard;

static void receive(Heard *heard) {
    Rights control;
    struct iovec part = {.iov_base = heard->bytes, .iov_len = sizeof heard->bytes};
    struct msghdr head = {.msg_iov = &part, .msg_iovlen = 1};
    ssize_t size = -1;
    for (int attempt = 0; attempt < 2; attempt++) {
        head.msg_control = control.bytes;
        head.msg_controllen = CMSG_SPACE(RIGHTS_MAX * sizeof(int));
        do size = recvmsg(heard->ours, &head, MSG_CMSG_CLOEXEC);
        while (size < 0 && errno == EINTR);
        /* It ended without having read our "stop": the kernel says so once, then hands over what it sent. */
        if (size >= 0 || errno != ECONNRESET) break;
    }
    heard->is_said = true;
    heard->size = size > 0 ? size : 0;
    if (size < 0) return;
    heard->is_cut = (head.msg_flags & MSG_CTRUNC) != 0;
    for (struct cmsghdr *one = CMSG_FIRSTHDR(&head); one != NULL; one = CMSG_NXTHDR(&head, one)) {
        if (one->cmsg_level != SOL_SOCKET || one->cmsg_type != SCM_RIGHTS) continue;
        size_t many = (one->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t at = 0; at < many && heard->count < RIGHTS_MAX; at++)
            memcpy(&heard->rights[heard->count++], CMSG_DATA(one) + at * sizeof(int), sizeof(int));
    }
    /* One taken for the other would show a call's stderr as its result. */
    while (heard->is_cut && heard->count > 0) close(heard->rights[--heard->count]);
}

/* Wait for the first word. EINTR: a signal came. */
static int listen_until(Heard *heard, int stop, double until) {
    struct pollfd watched[2] = {{.fd = heard->ours, .events = POLLIN}, {.fd = stop, .events = POLLIN}};
    double left_s = until - now_s();
    int left_ms = left_s >= LONGEST_S ? LONGEST_S * 1000 : left_s > 0 ? (int)(left_s * 1000) + 1 : 0;
    int ready = poll(watched, 2, left_ms);
    if (ready < 0) return errno;
    if (watched[0].revents != 0) receive(heard);
    return 0;
}

/* Whether nothing more will be said: it hung up, or this is the report. */
static bool is_last(const Heard *heard) {
    uint32_t reason;
    if (!heard->is_said || (size_t)heard->size < REASON_AT + sizeof reason) return heard->is_said;
    memcpy(&reason, heard->bytes + REASON_AT, sizeof reason);
    return reason != RUNNING;
}

/* -- Python's side ----------------------------------------------------------------------------------------- */

static int descriptor_of(PyObject *number) {
    long value = PyErr_Occurred() ? -1 : PyLong_AsLong(number);
    return value < 0 || value > INT_MAX ? -1 : (int)value;
}

/* Asked as late as can be: another thread that finds the spawner gone closes it, and its number may be another's. */
static int spawner_of(PyObject *socket) {
    PyObject *number = PyObject_CallMethod(socket, "fileno", NULL);
    int found = number == NULL ? -1 : descriptor_of(number);
    Py_XDECREF(number);
    return found;
}

static int add(PyObject *list, PyObject *item) {
    int failed = item == NULL ? -1 : PyList_Append(list, item);
    Py_XDECREF(item);
    return failed;
}

/* Nobody goes on with this call. Attack: a copy of the host, made by fork, has our end as well: closing ours would
   tell nobody. */
static void give_up(int line) {
    send(line, STOP, sizeof STOP - 1, MSG_NOSIGNAL);
    close(line);
}

/* What is left open goes into lists of the caller's before this returns: an interrupt may come as soon as it has, and
   what it returns is nobody's then. */
static PyObject *told(Heard *heard, bool is_over, PyObject *opened, PyObject *lines) {
    bool is_well = true;
    PyObject *handed = PyTuple_New(heard->count);
    for (int at = 0; at < heard->count; at++) {
        PyObject *number = is_well && handed != NULL ? PyLong_FromLong(heard->rights[at]) : NULL;
        is_well = number != NULL && PyList_Append(opened, number) == 0;
        if (!is_well) close(heard->rights[at]);
        if (number != NULL) PyTuple_SetItem(handed, at, number);
    }
    if (!is_over) {
        PyObject *sockets = is_well && handed != NULL ? PyImport_ImportModule("_socket") : NULL;
        PyObject *line = sockets == NULL ? NULL
                                         : PyObject_CallMethod(sockets, "socket", "iiii", AF_UNIX, SOCK_SEQPACKET, 0,
                                                               heard->ours);
        Py_XDECREF(sockets);
        if (line == NULL) give_up(heard->ours);
        is_well = add(lines, line) == 0;
    }
    if (!is_well || handed == NULL) {
        Py_XDECREF(handed);
        return NULL;
    }
    if (!heard->is_said) {
        Py_DECREF(handed);
        Py_RETURN_NONE;
    }
    PyObject *is_cut = heard->is_cut ? Py_True : Py_False;
    return Py_BuildValue("y#NO", heard->bytes, (Py_ssize_t)heard->size, handed, is_cut);
}

/* ask(spawner, message, descriptors, stop, until, opened, lines) */
static PyObject *ask(PyObject *Py_UNUSED(module), PyObject *const *given, Py_ssize_t count) {
    int descriptors[DESCRIPTORS_MAX], error = 0, ends[2];
    char *message;
    Py_ssize_t size;
    if (count != 7 || !PyList_Check(given[2]) || PyList_Size(given[2]) >= DESCRIPTORS_MAX || !PyList_Check(given[5]) ||
        !PyList_Check(given[6])) {
        PyErr_SetString(PyExc_TypeError, "ask takes a socket, bytes, a list of descriptors, a button, a moment, and "
                                         "two lists for what it leaves open");
        return NULL;
    }
    Py_ssize_t many = PyList_Size(given[2]);
    for (Py_ssize_t at = 0; at < many && at < PyList_Size(given[2]); at++)
        descriptors[at + 1] = descriptor_of(PyList_GetItem(given[2], at));
    int stop = descriptor_of(given[3]);
    double until = PyErr_Occurred() ? 0 : PyFloat_AsDouble(given[4]);
    if (PyErr_Occurred() || PyBytes_AsStringAndSize(given[1], &message, &size) != 0) return NULL;
    int spawner = spawner_of(given[0]);
    if (PyErr_Occurred()) return NULL;
    Heard heard;
    heard.ours = -1;
    heard.is_said = heard.is_cut = false;
    heard.count = 0;
    heard.size = 0;
    do {
        Py_BEGIN_ALLOW_THREADS
        error = heard.ours < 0 && socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0 ? errno : 0;
        if (error == 0) {
            heard.ours = ends[0];
            descriptors[0] = ends[1];
            error = post(spawner, message, (size_t)size, descriptors, (size_t)many + 1);
        }
        Py_END_ALLOW_THREADS
    } while (error == EINTR && PyErr_CheckSignals() == 0);
    if (heard.ours >= 0) close(ends[1]); /* only the supervisor's is left: when it closes that, we hear it */
    if (error != 0) {
        if (heard.ours >= 0) close(heard.ours);
        errno = error;
        return PyErr_Occurred() ? NULL : PyErr_SetFromErrno(PyExc_OSError);
    }
    bool is_over;
    do {
        Py_BEGIN_ALLOW_THREADS
        error = listen_until(&heard, stop, until);
        is_over = error == 0 && is_last(&heard);
        if (is_over) close(heard.ours);
        Py_END_ALLOW_THREADS
    } while (error == EINTR && PyErr_CheckSignals() == 0);
    if (PyErr_Occurred()) {
        give_up(heard.ours);
        return NULL;
    }
    return told(&heard, is_over, given[5], given[6]);
}

static PyMethodDef METHODS[] = {
    {"ask", (PyCFunction)(void (*)(void))ask, METH_FASTCALL,
     "Send a request with one end of a new line, and hear what is said on the other."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef MODULE = {
    PyModuleDef_HEAD_INIT,
    .m_name = "toolwright.sandbox._post",
    .m_doc = "Requests to the spawner (src/native/post.c).",
    .m_methods = METHODS,
};

PyMODINIT_FUNC PyInit__post(void) { return PyModuleDef_Init(&MODULE); }
