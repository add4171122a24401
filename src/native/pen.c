/* The native pen: one open segment of the journal, written by many threads (`journal/pen.py` says what it does).

   A record's place, its link and its bytes are made under one mutex, which is held for nothing that can wait.
   Writing and syncing go on without it and without the interpreter: a thread that appends gives the interpreter
   up once, whether it writes, syncs or waits for whoever does. Threads wait in their own semaphores, so that a
   run wakes those whom it served, and one of the others to lead the next.

   The interpreter is never asked for by whoever holds the mutex; whoever has the interpreter may take the mutex.
   What this file is not: it opens, names and closes nothing, knows nothing of what stands in a record, and tells
   nobody anything. Stable ABI of Python 3.11: one binary serves every later one. */

#define _GNU_SOURCE
#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000
#include <Python.h>

#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "sha256.h"

#define OBJECT(value) ((PyObject *)(value))

enum { LINK_BYTES = DIGEST_BYTES, HEAD_BYTES = 48, NUMBERED_BYTES = 12, KEPT_BYTES_MAX = 1 << 20 };

/* -- CRC-32 ------------------------------------------------------------------------------------------------ */

static Blocks blocks;

static uint32_t checksums[256];

static void make_checksums(void) {
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t value = byte;
        for (int bit = 0; bit < 8; bit++) value = value & 1 ? value >> 1 ^ 0xedb88320u : value >> 1;
        checksums[byte] = value;
    }
}

static uint32_t checksum(const uint8_t *data, size_t size) {
    uint32_t value = 0xffffffffu;
    for (size_t at = 0; at < size; at++) value = checksums[(value ^ data[at]) & 0xff] ^ value >> 8;
    return ~value;
}

static void write_little(uint8_t *at, uint64_t value, int bytes) {
    for (int byte = 0; byte < bytes; byte++) at[byte] = (uint8_t)(value >> 8 * byte);
}

/* -- the pen ----------------------------------------------------------------------------------------------- */

typedef enum { SYNCING, WRITING, PLACING, TURNS } Turn;
typedef enum { NOTHING, WRITE, SYNC, LOOK } Failing;

static const uint64_t NEVER = UINT64_MAX;

typedef struct Waiter {
    struct Waiter *next;
    uint64_t upto;
    bool is_called;
    sem_t gate;
} Waiter;

typedef struct {
    uint64_t number;
    uint8_t link[LINK_BYTES];
} Place;

typedef struct {
    uint8_t *bytes;
    size_t size, room;
} Frames;

typedef struct {
    PyObject_HEAD
    pthread_mutex_t lock; /* of all that follows, but for what never changes */
    int descriptor;
    Place last;    /* that was placed */
    Place written; /* in the kernel */
    Place kept;    /* on the disk; number 0: none is known to be */
    Frames frames; /* placed, and not taken to be written */
    Frames spare;  /* memory that was used before */
    uint64_t size, writes;
    bool is_soiled, is_lent, is_over, is_left;
    Failing failing;
    int error_number;
    PyObject *error;
    bool is_taken[TURNS];
    unsigned long owner[TURNS];
    Waiter *first[TURNS], **end[TURNS];
    uint64_t waiting;
    PyObject *write, *sync; /* what a test hands in, NULL: the kernel's */
    PyObject *look;
    double look_s, look_at;
} Pen;

typedef struct {
    PyObject *pen_type, *turn_type;
} Module;

static double now_s(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static void lock(Pen *pen) { pthread_mutex_lock(&pen->lock); }
static void unlock(Pen *pen) { pthread_mutex_unlock(&pen->lock); }

/* Everything below that takes a `PyThreadState **` runs without the interpreter, which it can have back by it. */

static void with_interpreter(PyThreadState **state) {
    PyEval_RestoreThread(*state);
    *state = NULL;
}

static void without_interpreter(PyThreadState **state) { *state = PyEval_SaveThread(); }

/* -- turns: with the lock ---------------------------------------------------------------------------------- */

static bool is_done(Pen *pen, Turn turn, uint64_t upto) {
    if (upto == NEVER || turn == PLACING) return false; /* who wants the turn itself */
    return pen->is_over || (turn == WRITING ? pen->written.number : pen->kept.number) >= upto;
}

/* Let those go on whom the last run served, and one of the others take the turn. Who wants the turn itself has
   it from here on: whoever came meanwhile would take it before he is awake, again and again. Who waits for a run
   does not mind, since it is served by whoever runs. */
static void call_waiting(Pen *pen, Turn turn) {
    bool is_free = !pen->is_taken[turn];
    Waiter **at = &pen->first[turn];
    while (*at != NULL) {
        Waiter *waiter = *at;
        bool served = is_done(pen, turn, waiter->upto);
        if (!served && !is_free) {
            at = &waiter->next;
            continue;
        }
        if (!served) {
            is_free = false;
            pen->is_taken[turn] = waiter->upto == NEVER;
        }
        *at = waiter->next;
        waiter->is_called = true;
        sem_post(&waiter->gate); /* the last that is done with it: it stands on the other thread's stack */
    }
    pen->end[turn] = at;
}

static void let_go(Pen *pen, Turn turn) {
    pen->is_taken[turn] = false;
    pen->owner[turn] = 0;
    call_waiting(pen, turn);
}

/* Wait until somebody calls, who hands the turn over where it is wanted itself (NEVER), or a signal comes: whoever
   waits looks again. False: the signal was an interrupt, whose exception is set.

   The interpreter is asked for by nobody who is in the row: one that ends lets no other thread have it any more,
   and whoever asks is gone, with its stack. */
static bool is_called(Pen *pen, Turn turn, uint64_t upto, bool *is_handed, PyThreadState **state) {
    Waiter mine = {.upto = upto};
    sem_init(&mine.gate, 0, 0); /* which fails for other numbers alone */
    *pen->end[turn] = &mine;
    pen->end[turn] = &mine.next;
    if (turn == SYNCING) pen->waiting++;
    unlock(pen);
    sem_wait(&mine.gate); /* only a signal ends it early */
    lock(pen);
    if (turn == SYNCING) pen->waiting--;
    sem_destroy(&mine.gate);
    if (mine.is_called) {
        *is_handed = upto == NEVER;
        return true; /* where there was a signal as well, the interpreter will find it */
    }
    Waiter **at = &pen->first[turn];
    while (*at != &mine) at = &(*at)->next;
    *at = mine.next;
    if (pen->end[turn] == &mine.next) pen->end[turn] = at;
    unlock(pen);
    with_interpreter(state);
    bool is_well = PyErr_CheckSignals() == 0;
    without_interpreter(state);
    lock(pen);
    return is_well;
}

static bool take(Pen *pen, Turn turn, PyThreadState **state) {
    bool is_handed = false;
    while (!is_handed && pen->is_taken[turn])
        if (!is_called(pen, turn, NEVER, &is_handed, state)) return false;
    pen->is_taken[turn] = true;
    return true;
}

/* -- runs: with the lock, which is let go meanwhile, and with the turn -------------------------------------- */

/* It is over. What was placed and not written did not happen. */
static void fail(Pen *pen, Failing what, int number, PyObject *error, PyThreadState **state) {
    /* A sync that fails says more than a write, what was written is unknown too; and what people do not find. */
    bool is_told = what == WRITE && pen->failing != NOTHING;
    PyObject *left = is_told ? error : pen->error;
    if (!is_told) {
        pen->failing = what;
        pen->error_number = number;
        pen->error = error;
    }
    pen->is_over = true;
    pen->frames.size = 0;
    if (left == NULL) return;
    unlock(pen);
    with_interpreter(state);
    Py_DECREF(left);
    without_interpreter(state);
    lock(pen);
}

static PyObject *raised(void) {
    PyObject *kind, *value, *trace;
    PyErr_Fetch(&kind, &value, &trace);
    PyErr_NormalizeException(&kind, &value, &trace);
    if (trace != NULL) PyException_SetTraceback(value, trace);
    Py_XDECREF(kind);
    Py_XDECREF(trace);
    return value;
}

static void raise_again(PyObject *error) {
    PyErr_SetObject((PyObject *)Py_TYPE(error), error);
}

/* How many bytes were written; -1: it failed, with an exception where a test's function raised one. */
static ssize_t write_some(Pen *pen, const uint8_t *data, size_t size, PyObject **error, PyThreadState **state) {
    if (pen->write == NULL) {
        ssize_t done;
        do done = write(pen->descriptor, data, size);
        while (done < 0 && errno == EINTR);
        return done;
    }
    with_interpreter(state);
    ssize_t done = -1;
    PyObject *given = PyObject_CallFunction(pen->write, "iy#", pen->descriptor, data, (Py_ssize_t)size);
    if (given != NULL) {
        done = PyLong_AsSsize_t(given);
        Py_DECREF(given);
    }
    if (PyErr_Occurred()) *error = raised();
    without_interpreter(state);
    if (*error != NULL) return -1;
    return done < 0 ? 0 : done; /* nothing says why */
}

/* Call what was handed in; the exception that it raised, or NULL. */
static PyObject *raised_by(PyObject *function, const int *descriptor, PyThreadState **state) {
    with_interpreter(state);
    PyObject *given = descriptor != NULL ? PyObject_CallFunction(function, "i", *descriptor)
                                         : PyObject_CallFunctionObjArgs(function, NULL);
    PyObject *error = given == NULL ? raised() : NULL;
    Py_XDECREF(given);
    without_interpreter(state);
    return error;
}

static bool is_instance(PyObject *error, PyObject *kind, PyThreadState **state) {
    with_interpreter(state);
    bool is_one = PyErr_GivenExceptionMatches(error, kind) != 0;
    without_interpreter(state);
    return is_one;
}

/* Have a thread raise what one of its runs met, once it has the interpreter. */
static void keep_raised(PyObject *error, PyThreadState **state) {
    with_interpreter(state);
    raise_again(error);
    without_interpreter(state);
}

/* Write all that was placed. False: an exception is set that is the thread's own. */
static bool run_write(Pen *pen, PyThreadState **state) {
    if (pen->is_over) return true;
    if (pen->is_lent) { /* whoever took them is gone: without them the chain would have a gap */
        fail(pen, WRITE, 0, NULL, state);
        return true;
    }
    if (pen->frames.size == 0) return true;
    Frames taken = pen->frames;
    Place last = pen->last;
    pen->frames = pen->spare;
    pen->frames.size = 0;
    pen->spare = (Frames){0};
    unlock(pen);
    size_t at = 0;
    int number = 0;
    bool is_first = true;
    PyObject *error = NULL;
    while (at < taken.size && number == 0 && error == NULL) {
        ssize_t done = write_some(pen, taken.bytes + at, taken.size - at, &error, state);
        if (done < 0 && error == NULL) number = errno;
        else if (done == 0 && !is_first) number = ENOSPC; /* after a short write: the rest, or the reason */
        else if (done > 0) at += (size_t)done < taken.size - at ? (size_t)done : taken.size - at;
        is_first = false;
    }
    bool is_own = error != NULL && !is_instance(error, PyExc_OSError, state);
    if (is_own) keep_raised(error, state);
    lock(pen);
    if (number != 0 || error != NULL) {
        fail(pen, WRITE, number, error, state);
    } else {
        pen->size += taken.size;
        pen->writes++;
        pen->written = last;
    }
    if (taken.room > KEPT_BYTES_MAX || pen->spare.bytes != NULL) {
        free(taken.bytes);
    } else {
        pen->spare = taken;
    }
    return !is_own;
}

static bool until(Pen *pen, Turn turn, uint64_t upto, PyThreadState **state);

static bool is_dirty(const Pen *pen) { return pen->is_soiled || pen->kept.number < pen->written.number; }

static bool run_sync(Pen *pen, PyThreadState **state) {
    if (!until(pen, WRITING, pen->last.number, state)) return false;
    if (pen->is_over || !is_dirty(pen)) return true;
    Place last = pen->written;
    bool was_soiled = pen->is_soiled;
    pen->is_soiled = false;
    unlock(pen);
    Failing failing = SYNC;
    int number = 0;
    PyObject *error = NULL;
    if (pen->sync != NULL) {
        error = raised_by(pen->sync, &pen->descriptor, state);
    } else {
        int failed;
        do failed = fdatasync(pen->descriptor);
        while (failed != 0 && errno == EINTR);
        number = failed != 0 ? errno : 0;
    }
    double now = now_s();
    if (number == 0 && error == NULL && now >= pen->look_at) {
        pen->look_at = now + pen->look_s; /* nobody else syncs meanwhile */
        failing = LOOK;
        error = raised_by(pen->look, NULL, state);
    }
    bool is_own = error != NULL && !is_instance(error, PyExc_Exception, state); /* an interrupt */
    if (is_own) keep_raised(error, state);
    lock(pen);
    if (number == 0 && error == NULL) {
        pen->kept = last;
        return true;
    }
    pen->is_soiled = was_soiled;
    if (!is_own) {
        fail(pen, failing, number, error, state);
        return true;
    }
    unlock(pen); /* the next one syncs */
    with_interpreter(state);
    Py_DECREF(error);
    without_interpreter(state);
    lock(pen);
    return false;
}

/* Until records up to this number are written, or synced, or never will be. False: an exception is set. */
static bool until(Pen *pen, Turn turn, uint64_t upto, PyThreadState **state) {
    while (!is_done(pen, turn, upto)) {
        if (pen->is_taken[turn]) {
            bool is_handed; /* what is waited for is a run */
            if (!is_called(pen, turn, upto, &is_handed, state)) return false;
            continue;
        }
        pen->is_taken[turn] = true;
        bool is_well = turn == WRITING ? run_write(pen, state) : run_sync(pen, state);
        let_go(pen, turn);
        if (!is_well) return false;
    }
    if (pen->is_over && !pen->is_taken[turn]) call_waiting(pen, turn); /* who was called to lead leads nobody */
    return true;
}

/* -- placing ----------------------------------------------------------------------------------------------- */

static bool has_room(Frames *frames, size_t more) {
    if (frames->size + more <= frames->room) return true;
    size_t room = frames->room > 0 ? frames->room : 1 << 14;
    while (room < frames->size + more) room *= 2;
    uint8_t *bytes = realloc(frames->bytes, room);
    if (bytes == NULL) return false;
    frames->bytes = bytes;
    frames->room = room;
    return true;
}

/* With the lock: a record's number, link and bytes. */
static bool place_one(Pen *pen, const uint8_t *body, size_t size) {
    if (!has_room(&pen->frames, HEAD_BYTES + size)) return false;
    uint8_t *head = pen->frames.bytes + pen->frames.size;
    Hash hash;
    write_little(head, size, 4);
    write_little(head + 4, pen->last.number + 1, 8);
    hash_begin(&hash, blocks);
    hash_add(&hash, pen->last.link, LINK_BYTES);
    hash_add(&hash, head, NUMBERED_BYTES);
    hash_add(&hash, body, size);
    hash_end(&hash, pen->last.link);
    memcpy(head + NUMBERED_BYTES, pen->last.link, LINK_BYTES);
    write_little(head + HEAD_BYTES - 4, checksum(head, HEAD_BYTES - 4), 4);
    memcpy(head + HEAD_BYTES, body, size);
    pen->frames.size += HEAD_BYTES + size;
    pen->last.number++;
    return true;
}

static PyObject *body_at(PyObject *bodies, Py_ssize_t at) {
    return PyList_Check(bodies) ? PyList_GetItem(bodies, at) : PyTuple_GetItem(bodies, at);
}

/* How many; -1: these are no records, and an exception is set. True as long as the interpreter is not given up. */
static Py_ssize_t count_of_bodies(PyObject *bodies) {
    if (!PyList_Check(bodies) && !PyTuple_Check(bodies)) {
        PyErr_SetString(PyExc_TypeError, "records come in a list or a tuple");
        return -1;
    }
    Py_ssize_t count = PyList_Check(bodies) ? PyList_Size(bodies) : PyTuple_Size(bodies);
    for (Py_ssize_t at = 0; at < count; at++) {
        PyObject *body = body_at(bodies, at);
        if (!PyBytes_Check(body) || PyBytes_Size(body) > UINT32_MAX) {
            PyErr_SetString(PyExc_TypeError, "a record is bytes, and no more than 4 GiB of them");
            return -1;
        }
    }
    return count;
}

/* With the lock and the interpreter. All of them, or none. */
static bool is_placed(Pen *pen, PyObject *bodies, Py_ssize_t count) {
    Place before = pen->last;
    size_t size = pen->frames.size;
    for (Py_ssize_t at = 0; at < count; at++) {
        PyObject *body = body_at(bodies, at);
        if (!place_one(pen, (const uint8_t *)PyBytes_AsString(body), (size_t)PyBytes_Size(body))) {
            pen->last = before;
            pen->frames.size = size;
            return false;
        }
    }
    return true;
}

/* With the interpreter. The number of the last one, 0 where it is over; NEVER: an exception is set. */
static uint64_t place_all(Pen *pen, PyObject *bodies) {
    Py_ssize_t count = count_of_bodies(bodies);
    if (count < 0) return NEVER;
    if (pen->is_left) return 0;
    lock(pen);
    while (count >= 0 && pen->is_taken[PLACING] && pen->owner[PLACING] != PyThread_get_thread_ident()) {
        PyThreadState *state = PyEval_SaveThread();
        bool is_handed, is_well = is_called(pen, PLACING, 0, &is_handed, &state);
        unlock(pen); /* never the interpreter with the mutex */
        PyEval_RestoreThread(state);
        if (!is_well) return NEVER;
        count = count_of_bodies(bodies); /* others ran meanwhile, and a list can be changed */
        lock(pen);
    }
    bool is_over = pen->is_over, has_number = count < 0 || (uint64_t)count < NEVER - pen->last.number;
    bool is_well = count >= 0 && (is_over || (has_number && is_placed(pen, bodies, count)));
    uint64_t number = is_over ? 0 : pen->last.number;
    if (!pen->is_taken[PLACING]) call_waiting(pen, PLACING); /* only one was called */
    unlock(pen);
    if (is_well) return number;
    if (!has_number) PyErr_SetString(PyExc_OverflowError, "there is no number left for a record");
    else if (count >= 0) PyErr_NoMemory();
    return NEVER;
}

static PyObject *pen_place(Pen *pen, PyObject *bodies) {
    uint64_t number = place_all(pen, bodies);
    return number == NEVER ? NULL : PyLong_FromUnsignedLongLong(number);
}

static PyObject *appended(Pen *pen, PyObject *bodies, Turn turn) {
    uint64_t number = place_all(pen, bodies);
    if (number == NEVER) return NULL;
    if (number == 0) return PyLong_FromLong(0);
    PyThreadState *state = PyEval_SaveThread();
    lock(pen);
    bool is_well = until(pen, turn, number, &state);
    bool is_there = (turn == WRITING ? pen->written.number : pen->kept.number) >= number;
    unlock(pen);
    PyEval_RestoreThread(state);
    if (!is_well) return NULL;
    return is_there ? PyLong_FromUnsignedLongLong(number) : PyLong_FromLong(-1);
}

static PyObject *pen_append(Pen *pen, PyObject *bodies) { return appended(pen, bodies, WRITING); }

static PyObject *pen_append_durably(Pen *pen, PyObject *bodies) { return appended(pen, bodies, SYNCING); }

static PyObject *pen_write(Pen *pen, PyObject *Py_UNUSED(nothing)) {
    if (pen->is_left) Py_RETURN_NONE;
    PyThreadState *state = PyEval_SaveThread();
    lock(pen);
    bool is_well = until(pen, WRITING, pen->last.number, &state);
    unlock(pen);
    PyEval_RestoreThread(state);
    if (!is_well) return NULL;
    Py_RETURN_NONE;
}

static PyObject *pen_keep(Pen *pen, PyObject *given) {
    uint64_t number = PyLong_AsUnsignedLongLong(given);
    if (PyErr_Occurred()) return NULL;
    PyThreadState *state = PyEval_SaveThread();
    lock(pen);
    bool is_well = pen->is_left || number > pen->last.number || until(pen, SYNCING, number, &state);
    bool is_kept = pen->kept.number >= number;
    unlock(pen);
    PyEval_RestoreThread(state);
    if (!is_well) return NULL;
    return PyBool_FromLong(is_kept);
}

static PyObject *pen_sync(Pen *pen, PyObject *Py_UNUSED(nothing)) {
    if (pen->is_left) Py_RETURN_NONE;
    PyThreadState *state = PyEval_SaveThread();
    lock(pen);
    /* A run that began before may not have seen all, and what soiled the file has no number: one of our own. */
    bool is_well = take(pen, SYNCING, &state);
    if (is_well) {
        is_well = run_sync(pen, &state);
        let_go(pen, SYNCING);
    }
    unlock(pen);
    PyEval_RestoreThread(state);
    if (!is_well) return NULL;
    Py_RETURN_NONE;
}

/* -- for whoever is alone ---------------------------------------------------------------------------------- */

static PyObject *pen_take(Pen *pen, PyObject *Py_UNUSED(nothing)) {
    lock(pen);
    PyObject *taken = PyBytes_FromStringAndSize((const char *)pen->frames.bytes, (Py_ssize_t)pen->frames.size);
    if (taken != NULL) {
        pen->is_lent = pen->is_lent || pen->frames.size > 0;
        pen->frames.size = 0;
    }
    unlock(pen);
    return taken;
}

static PyObject *pen_settle(Pen *pen, PyObject *given) {
    uint64_t size = PyLong_AsUnsignedLongLong(given);
    if (PyErr_Occurred()) return NULL;
    lock(pen);
    pen->size = size;
    pen->writes++;
    pen->written = pen->kept = pen->last;
    pen->is_soiled = pen->is_lent = false;
    unlock(pen);
    Py_RETURN_NONE;
}

static PyObject *pen_soil(Pen *pen, PyObject *Py_UNUSED(nothing)) {
    lock(pen);
    pen->is_soiled = true;
    unlock(pen);
    Py_RETURN_NONE;
}

static PyObject *pen_end(Pen *pen, PyObject *Py_UNUSED(nothing)) {
    lock(pen);
    pen->is_over = true;
    pen->frames.size = 0;
    unlock(pen);
    Py_RETURN_NONE;
}

static PyObject *pen_leave(Pen *pen, PyObject *Py_UNUSED(nothing)) {
    /* There is one thread here, and whoever held the mutex is not in this process. */
    pthread_mutex_init(&pen->lock, NULL);
    pen->is_over = pen->is_left = true;
    /* One that was just writing may have left the same memory in both: it is the copy's, and lost. */
    pen->frames = pen->spare = (Frames){0};
    pen->waiting = 0;
    for (int turn = 0; turn < TURNS; turn++) {
        pen->is_taken[turn] = false;
        pen->owner[turn] = 0;
        pen->first[turn] = NULL;
        pen->end[turn] = &pen->first[turn];
    }
    Py_RETURN_NONE;
}

/* -- turns, as contexts ------------------------------------------------------------------------------------ */

typedef struct {
    PyObject_HEAD
    Pen *pen;
    Turn turn;
    bool is_held;
} Holder;

static PyObject *holder_enter(Holder *holder, PyObject *Py_UNUSED(nothing)) {
    Pen *pen = holder->pen;
    PyThreadState *state = PyEval_SaveThread();
    lock(pen);
    bool is_well = take(pen, holder->turn, &state);
    if (is_well) {
        pen->owner[holder->turn] = PyThread_get_thread_ident();
        holder->is_held = true;
    }
    unlock(pen);
    PyEval_RestoreThread(state);
    if (!is_well) return NULL;
    Py_INCREF(OBJECT(holder));
    return (PyObject *)holder;
}

static PyObject *holder_exit(Holder *holder, PyObject *Py_UNUSED(given)) {
    lock(holder->pen);
    bool was_held = holder->is_held;
    holder->is_held = false;
    if (was_held) let_go(holder->pen, holder->turn);
    unlock(holder->pen);
    if (was_held) Py_RETURN_NONE;
    PyErr_SetString(PyExc_RuntimeError, "this turn was not taken");
    return NULL;
}

static int holder_traverse(Holder *holder, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE(OBJECT(holder)));
    Py_VISIT(OBJECT(holder->pen));
    return 0;
}

static int holder_clear(Holder *Py_UNUSED(holder)) { return 0; }

static void holder_dealloc(Holder *holder) {
    PyTypeObject *type = Py_TYPE(OBJECT(holder));
    PyObject_GC_UnTrack(holder);
    Py_XDECREF(OBJECT(holder->pen));
    PyObject_GC_Del(holder);
    Py_DECREF(OBJECT(type));
}

static PyMethodDef HOLDER_METHODS[] = {
    {"__enter__", (PyCFunction)(void (*)(void))holder_enter, METH_NOARGS, NULL},
    {"__exit__", (PyCFunction)(void (*)(void))holder_exit, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot HOLDER_SLOTS[] = {
    {Py_tp_methods, HOLDER_METHODS},
    {Py_tp_traverse, (void *)holder_traverse},
    {Py_tp_clear, (void *)holder_clear},
    {Py_tp_dealloc, (void *)holder_dealloc},
    {0, NULL},
};

static PyType_Spec HOLDER = {
    .name = "toolwright.journal._pen.Turn",
    .basicsize = sizeof(Holder),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = HOLDER_SLOTS,
};

static PyObject *pen_turn(Pen *pen, void *turn) {
    PyObject *module = PyType_GetModule(Py_TYPE(OBJECT(pen)));
    if (module == NULL) return NULL;
    Module *known = PyModule_GetState(module);
    Holder *holder = PyObject_GC_New(Holder, (PyTypeObject *)known->turn_type);
    if (holder == NULL) return NULL;
    Py_INCREF(OBJECT(pen));
    holder->pen = pen;
    holder->turn = (Turn)(intptr_t)turn;
    holder->is_held = false;
    PyObject_GC_Track(holder);
    return (PyObject *)holder;
}

/* -- what it says of itself -------------------------------------------------------------------------------- */

static PyObject *count_of(Pen *pen, const uint64_t *count) {
    lock(pen);
    uint64_t value = *count;
    unlock(pen);
    return PyLong_FromUnsignedLongLong(value);
}

static PyObject *truth_of(Pen *pen, const bool *truth) {
    lock(pen);
    bool value = *truth;
    unlock(pen);
    return PyBool_FromLong(value);
}

static PyObject *get_descriptor(Pen *pen, void *Py_UNUSED(none)) { return PyLong_FromLong(pen->descriptor); }
static PyObject *get_number(Pen *pen, void *Py_UNUSED(none)) { return count_of(pen, &pen->last.number); }
static PyObject *get_size(Pen *pen, void *Py_UNUSED(none)) { return count_of(pen, &pen->size); }
static PyObject *get_written(Pen *pen, void *Py_UNUSED(none)) { return count_of(pen, &pen->written.number); }
static PyObject *get_writes(Pen *pen, void *Py_UNUSED(none)) { return count_of(pen, &pen->writes); }
static PyObject *get_waiting(Pen *pen, void *Py_UNUSED(none)) { return count_of(pen, &pen->waiting); }
static PyObject *get_is_over(Pen *pen, void *Py_UNUSED(none)) { return truth_of(pen, &pen->is_over); }

static PyObject *get_link(Pen *pen, void *Py_UNUSED(none)) {
    lock(pen);
    Place last = pen->last;
    unlock(pen);
    return PyBytes_FromStringAndSize((const char *)last.link, LINK_BYTES);
}

static PyObject *get_kept(Pen *pen, void *Py_UNUSED(none)) {
    lock(pen);
    Place kept = pen->kept;
    unlock(pen);
    Py_ssize_t size = kept.number > 0 ? LINK_BYTES : 0;
    return Py_BuildValue("Ky#", (unsigned long long)kept.number, kept.link, size);
}

static PyObject *get_is_dirty(Pen *pen, void *Py_UNUSED(none)) {
    lock(pen);
    bool value = is_dirty(pen);
    unlock(pen);
    return PyBool_FromLong(value);
}

static PyObject *get_failing(Pen *pen, void *Py_UNUSED(none)) {
    static const char *const WORDS[] = {"", "write", "sync", "look"};
    lock(pen);
    Failing failing = pen->failing;
    unlock(pen);
    return PyUnicode_FromString(WORDS[failing]);
}

static PyObject *get_error(Pen *pen, void *Py_UNUSED(none)) {
    lock(pen);
    PyObject *error = pen->error; /* which stays until the pen goes */
    int number = pen->error_number;
    unlock(pen);
    if (error != NULL) {
        Py_INCREF(error);
        return error;
    }
    if (number == 0) Py_RETURN_NONE;
    return PyObject_CallFunction(PyExc_OSError, "is", number, strerror(number));
}

static PyGetSetDef PEN_GETTERS[] = {
    {"syncing", (getter)(void (*)(void))pen_turn, NULL, NULL, (void *)(intptr_t)SYNCING},
    {"writing", (getter)(void (*)(void))pen_turn, NULL, NULL, (void *)(intptr_t)WRITING},
    {"placing", (getter)(void (*)(void))pen_turn, NULL, NULL, (void *)(intptr_t)PLACING},
    {"descriptor", (getter)(void (*)(void))get_descriptor, NULL, NULL, NULL},
    {"number", (getter)(void (*)(void))get_number, NULL, NULL, NULL},
    {"link", (getter)(void (*)(void))get_link, NULL, NULL, NULL},
    {"size", (getter)(void (*)(void))get_size, NULL, NULL, NULL},
    {"written", (getter)(void (*)(void))get_written, NULL, NULL, NULL},
    {"writes", (getter)(void (*)(void))get_writes, NULL, NULL, NULL},
    {"kept", (getter)(void (*)(void))get_kept, NULL, NULL, NULL},
    {"waiting", (getter)(void (*)(void))get_waiting, NULL, NULL, NULL},
    {"is_dirty", (getter)(void (*)(void))get_is_dirty, NULL, NULL, NULL},
    {"is_over", (getter)(void (*)(void))get_is_over, NULL, NULL, NULL},
    {"error", (getter)(void (*)(void))get_error, NULL, NULL, NULL},
    {"failing", (getter)(void (*)(void))get_failing, NULL, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMethodDef PEN_METHODS[] = {
    {"place", (PyCFunction)(void (*)(void))pen_place, METH_O, NULL},
    {"append", (PyCFunction)(void (*)(void))pen_append, METH_O, NULL},
    {"append_durably", (PyCFunction)(void (*)(void))pen_append_durably, METH_O, NULL},
    {"write", (PyCFunction)(void (*)(void))pen_write, METH_NOARGS, NULL},
    {"keep", (PyCFunction)(void (*)(void))pen_keep, METH_O, NULL},
    {"sync", (PyCFunction)(void (*)(void))pen_sync, METH_NOARGS, NULL},
    {"take", (PyCFunction)(void (*)(void))pen_take, METH_NOARGS, NULL},
    {"settle", (PyCFunction)(void (*)(void))pen_settle, METH_O, NULL},
    {"soil", (PyCFunction)(void (*)(void))pen_soil, METH_NOARGS, NULL},
    {"end", (PyCFunction)(void (*)(void))pen_end, METH_NOARGS, NULL},
    {"leave", (PyCFunction)(void (*)(void))pen_leave, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

/* A function that a test hands in; NULL where it is the module's own of this name, which is not called. */
static PyObject *other_than(PyObject *given, PyObject *module, const char *name) {
    PyObject *own = PyObject_GetAttrString(module, name);
    bool is_own = own == given;
    if (own == NULL) PyErr_Clear(); /* not every system has it */
    Py_XDECREF(own);
    if (is_own) return NULL;
    Py_INCREF(given);
    return given;
}

static int count_given(PyObject *given, void *count) {
    unsigned long long value = PyLong_AsUnsignedLongLong(given);
    if (PyErr_Occurred()) return 0;
    *(uint64_t *)count = value;
    return 1;
}

static PyObject *pen_new(PyTypeObject *type, PyObject *args, PyObject *names) {
    static char *known[] = {"descriptor", "number", "link", "size", "write", "sync", "look", "look_s", "is_kept", NULL};
    int descriptor, is_kept = 0;
    uint64_t number, size;
    const char *link;
    Py_ssize_t link_bytes;
    PyObject *write_to, *sync_to, *look;
    double look_s;
    if (!PyArg_ParseTupleAndKeywords(args, names, "iO&y#O&OOOdp", known, &descriptor, count_given, &number, &link,
                                     &link_bytes, count_given, &size, &write_to, &sync_to, &look, &look_s, &is_kept))
        return NULL;
    if (link_bytes != LINK_BYTES) {
        PyErr_SetString(PyExc_ValueError, "a link has 32 bytes");
        return NULL;
    }
    PyObject *os = PyImport_ImportModule("os");
    if (os == NULL) return NULL;
    allocfunc make = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    Pen *pen = (Pen *)make(type, 0);
    if (pen == NULL) {
        Py_DECREF(os);
        return NULL;
    }
    pthread_mutex_init(&pen->lock, NULL);
    pen->descriptor = descriptor;
    pen->last.number = number;
    memcpy(pen->last.link, link, LINK_BYTES);
    pen->written = pen->last;
    if (is_kept) pen->kept = pen->last;
    pen->size = size;
    for (int turn = 0; turn < TURNS; turn++) pen->end[turn] = &pen->first[turn];
    pen->write = other_than(write_to, os, "write");
    pen->sync = other_than(sync_to, os, "fdatasync");
    Py_DECREF(os);
    Py_INCREF(look);
    pen->look = look;
    pen->look_s = look_s;
    return (PyObject *)pen;
}

static int pen_traverse(Pen *pen, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE(OBJECT(pen)));
    Py_VISIT(pen->write);
    Py_VISIT(pen->sync);
    Py_VISIT(pen->look);
    Py_VISIT(pen->error);
    return 0;
}

static int pen_clear(Pen *pen) {
    Py_CLEAR(pen->write);
    Py_CLEAR(pen->sync);
    Py_CLEAR(pen->look);
    Py_CLEAR(pen->error);
    return 0;
}

static void pen_dealloc(Pen *pen) {
    PyTypeObject *type = Py_TYPE(OBJECT(pen));
    PyObject_GC_UnTrack(pen);
    pen_clear(pen);
    free(pen->frames.bytes);
    free(pen->spare.bytes);
    pthread_mutex_destroy(&pen->lock);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release(pen);
    Py_DECREF(OBJECT(type));
}

static PyType_Slot PEN_SLOTS[] = {
    {Py_tp_doc, "One open segment, written by many threads."},
    {Py_tp_new, (void *)pen_new},
    {Py_tp_methods, PEN_METHODS},
    {Py_tp_getset, PEN_GETTERS},
    {Py_tp_traverse, (void *)pen_traverse},
    {Py_tp_clear, (void *)pen_clear},
    {Py_tp_dealloc, (void *)pen_dealloc},
    {0, NULL},
};

static PyType_Spec PEN = {
    .name = "toolwright.journal._pen.Pen",
    .basicsize = sizeof(Pen),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .slots = PEN_SLOTS,
};

/* -- the module -------------------------------------------------------------------------------------------- */

static PyObject *sha256_plainly(PyObject *Py_UNUSED(module), PyObject *given) {
    char *data;
    Py_ssize_t size;
    if (PyBytes_AsStringAndSize(given, &data, &size) != 0) return NULL;
    Hash hash;
    uint8_t digest[LINK_BYTES];
    hash_begin(&hash, plain_blocks);
    hash_add(&hash, (const uint8_t *)data, (size_t)size);
    hash_end(&hash, digest);
    return PyBytes_FromStringAndSize((const char *)digest, LINK_BYTES);
}

static PyMethodDef METHODS[] = {
    {"sha256_plainly", sha256_plainly, METH_O,
     "SHA-256 as it is computed where the processor has no instructions for it; for tests."},
    {NULL, NULL, 0, NULL},
};

static int made(PyObject *module) {
    Module *known = PyModule_GetState(module);
    make_checksums();
    blocks = choose_blocks();
    known->turn_type = PyType_FromModuleAndSpec(module, &HOLDER, NULL);
    if (known->turn_type == NULL) return -1;
    known->pen_type = PyType_FromModuleAndSpec(module, &PEN, NULL);
    if (known->pen_type == NULL) return -1;
    return PyModule_AddObjectRef(module, "Pen", known->pen_type);
}

static int module_traverse(PyObject *module, visitproc visit, void *arg) {
    Module *known = PyModule_GetState(module);
    Py_VISIT(known->pen_type);
    Py_VISIT(known->turn_type);
    return 0;
}

static int module_clear(PyObject *module) {
    Module *known = PyModule_GetState(module);
    Py_CLEAR(known->pen_type);
    Py_CLEAR(known->turn_type);
    return 0;
}

static void module_free(void *module) { module_clear(module); }

static PyModuleDef_Slot SLOTS[] = {{Py_mod_exec, (void *)made}, {0, NULL}};

static struct PyModuleDef MODULE = {
    PyModuleDef_HEAD_INIT,
    .m_name = "toolwright.journal._pen",
    .m_doc = "The journal's pen (src/native/pen.c).",
    .m_size = sizeof(Module),
    .m_methods = METHODS,
    .m_slots = SLOTS,
    .m_traverse = module_traverse,
    .m_clear = module_clear,
    .m_free = module_free,
};

PyMODINIT_FUNC PyInit__pen(void) { return PyModuleDef_Init(&MODULE); }
