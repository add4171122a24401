/* The bodies of plain records: what `journal/audit.py` writes of a call that begins, and of one that ends well.

   Plain is what most calls are: nobody asked for a dry run, nothing failed, no text needs an escape. Of every
   other, and of whatever is not as expected, None is said, and the caller writes the record itself: it is the
   one that says what stands in a record, and tests hold both to the same bytes.

   What this file is not: it knows no file and no chain (`pen.c`), and decides nothing. Stable ABI of Python 3.11. */

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000
#include <Python.h>

#include "sha256.h"

#define OBJECT(value) ((PyObject *)(value))

enum {
    BODY_BYTES_MAX = 8192,
    NAMES_MAX = 64,       /* ITEMS_MAX in audit.py */
    SHAPE_CHARS_MIN = 15, /* no credential that is known by its looks is shorter: redaction.py */
    SOUND_MAX = 4096,
    TOLD_BYTES_MAX = 2048,
    SOUND_CHARS_MAX = 200, /* Attack: names of a megabyte each, which would be remembered for good */
    KEPT_MAX = 40,
};

static const double MILLION = 1e6, THOUSAND = 1e3;
/* From here on a double has fewer digits than we write (2 ** 33 seconds in millionths), so that another number, or a
   shorter one, reads back as the same. */
static const double SCALED_MAX = 8.5e15;
/* Below this many parts the reference may write an exponent. */
static const double SCALED_MIN = 10;

/* -- writing ----------------------------------------------------------------------------------------------- */

typedef struct {
    size_t size;
    bool is_plain;
    int kept_count;
    PyObject *kept[KEPT_MAX]; /* what was asked of records: ours until the body is written */
    uint8_t bytes[BODY_BYTES_MAX];
} Body;

static void begin_body(Body *body) {
    body->size = 0;
    body->is_plain = true;
    body->kept_count = 0;
}

static void put(Body *body, const void *bytes, size_t size) {
    if (!body->is_plain || size > sizeof body->bytes - body->size) {
        body->is_plain = false;
        return;
    }
    memcpy(body->bytes + body->size, bytes, size);
    body->size += size;
}

#define PUT(body, text) put(body, "" text, sizeof text - 1)

static void put_number(Body *body, uint64_t number) {
    uint8_t digits[20];
    size_t at = sizeof digits;
    do {
        digits[--at] = (uint8_t)('0' + number % 10);
        number /= 10;
    } while (number > 0);
    put(body, digits + at, sizeof digits - at);
}

/* A number that is not negative, in so many parts of one, as short as it can be. */
static void put_decimal(Body *body, double value, double parts) {
    double scaled = value * parts + 0.5;
    if (!(scaled >= 0 && scaled < SCALED_MAX)) { /* what has a sign, or is no number */
        body->is_plain = false;
        return;
    }
    if (parts > THOUSAND && scaled >= 1 && scaled < SCALED_MIN) body->is_plain = false;
    uint64_t whole = (uint64_t)scaled, one = (uint64_t)parts, rest = whole % one;
    put_number(body, whole / one);
    PUT(body, ".");
    do {
        one /= 10;
        uint8_t digit = (uint8_t)('0' + rest / one);
        put(body, &digit, 1);
        rest %= one;
    } while (rest > 0);
}

static void put_utf8(Body *body, const char *text, Py_ssize_t size) {
    for (Py_ssize_t at = 0; at < size; at++) {
        unsigned char byte = (unsigned char)text[at];
        if (byte < 0x20 || byte == '"' || byte == '\\') body->is_plain = false;
    }
    PUT(body, "\"");
    put(body, text, (size_t)size);
    PUT(body, "\"");
}

/* A text that needs no escape, or null. One of a class of its own may be written as something else. */
static void put_text(Body *body, PyObject *text) {
    if (text == Py_None) {
        PUT(body, "null");
        return;
    }
    Py_ssize_t size;
    const char *utf8 = text != NULL && PyUnicode_CheckExact(text) ? PyUnicode_AsUTF8AndSize(text, &size) : NULL;
    if (utf8 == NULL) {
        PyErr_Clear(); /* half of a character, say */
        body->is_plain = false;
        return;
    }
    put_utf8(body, utf8, size);
}

static void put_truth(Body *body, PyObject *truth) {
    if (truth == Py_True) PUT(body, "true");
    else if (truth == Py_False) PUT(body, "false");
    else body->is_plain = false;
}

static void put_count(Body *body, PyObject *count) {
    unsigned long long value = count != NULL && PyLong_CheckExact(count) ? PyLong_AsUnsignedLongLong(count) : 0;
    if (count == NULL || !PyLong_CheckExact(count) || PyErr_Occurred()) {
        PyErr_Clear();
        body->is_plain = false;
        return;
    }
    put_number(body, value);
}

static void put_ms(Body *body, PyObject *ms) {
    if (ms == NULL || !PyFloat_CheckExact(ms)) {
        body->is_plain = false;
        return;
    }
    double value = PyFloat_AsDouble(ms);
    put_decimal(body, value > 0 ? value : 0, THOUSAND);
}

static void put_moment(Body *body, PyObject *ts) {
    if (PyFloat_CheckExact(ts)) put_decimal(body, PyFloat_AsDouble(ts), MILLION);
    else body->is_plain = false;
}

/* The body, None where it is not plain, or why neither can be said. */
static PyObject *written(Body *body) {
    while (body->kept_count > 0) Py_DECREF(body->kept[--body->kept_count]);
    if (PyErr_Occurred()) return NULL;
    if (!body->is_plain) Py_RETURN_NONE;
    return PyBytes_FromStringAndSize((const char *)body->bytes, (Py_ssize_t)body->size);
}

static PyObject *not_plain(Body *body) {
    body->is_plain = false;
    return written(body);
}

/* -- what is written of ------------------------------------------------------------------------------------ */

#define NAMES(one)                                                                                             \
    one(id) one(tool) one(caller) one(conversation) one(arguments) one(dry_run) one(approved_by)               \
    one(idempotency_key) one(key) one(format) one(door) one(catalog) one(seen_digest) one(runs_digest)         \
    one(error) one(rule) one(notes) one(isolation) one(spent) one(duration_ms) one(output_bytes)               \
    one(truncated) one(attempts) one(latency) one(cost) one(exit_status) one(stdout_bytes) one(stderr_bytes)

#define MEMBER(name) PyObject *name;

typedef struct {
    PyObject_HEAD
    PyObject *dumps;          /* of arguments, in the order of their names */
    PyObject *has_credential; /* of a text */
    PyObject *sound;          /* texts that have none */
    PyObject *option;         /* of dumps */
    Blocks blocks;
    struct {
        NAMES(MEMBER)
    } names;
    PyObject *facts; /* of the last call: those of one tool and door are the same, and so is what is told of them */
    bool is_told;    /* that it is plain */
    size_t told_before, told_bytes; /* before the caller, and in all: the rest comes after the conversation */
    uint8_t told[TOLD_BYTES_MAX];
} Bodies;

/* A member of a record; NULL: there is none. It is kept until the body is written: what looks for credentials is
   Python, and while that runs anything may happen to whoever held it. */
static PyObject *of(Body *body, PyObject *record, PyObject *name) {
    PyObject *value = record == NULL || body->kept_count == KEPT_MAX ? NULL : PyObject_GetAttr(record, name);
    if (value == NULL) PyErr_Clear();
    else body->kept[body->kept_count++] = value;
    return value;
}

static bool is_empty(PyObject *text) {
    return text != NULL && PyUnicode_CheckExact(text) && PyUnicode_GetLength(text) == 0;
}

/* Attack: a credential as the name of an argument, a tool or a caller. Names come again: each is looked at once. */
static bool is_sound(Bodies *bodies, PyObject *text) {
    if (text == NULL || !PyUnicode_CheckExact(text)) return false;
    Py_ssize_t size = PyUnicode_GetLength(text);
    if (size < SHAPE_CHARS_MIN) return true;
    int known = size > SOUND_CHARS_MAX ? 0 : PyDict_Contains(bodies->sound, text);
    if (known != 0) return known > 0;
    PyObject *has = PyObject_CallFunctionObjArgs(bodies->has_credential, text, NULL);
    bool is_one = has == Py_False;
    Py_XDECREF(has);
    if (is_one && size <= SOUND_CHARS_MAX) {
        if (PyDict_Size(bodies->sound) >= SOUND_MAX) PyDict_Clear(bodies->sound);
        is_one = PyDict_SetItem(bodies->sound, text, Py_None) == 0;
    }
    return is_one;
}

static void put_digest(Bodies *bodies, Body *body, PyObject *arguments) {
    PyObject *given = PyTuple_Pack(1, arguments);
    PyObject *text = given == NULL ? NULL : PyObject_Call(bodies->dumps, given, bodies->option);
    Py_XDECREF(given);
    char *bytes;
    Py_ssize_t size;
    if (text == NULL || PyBytes_AsStringAndSize(text, &bytes, &size) != 0) {
        PyErr_Clear(); /* an integer beyond 64 bits, a lone surrogate, a name that is no text */
        Py_XDECREF(text);
        body->is_plain = false;
        return;
    }
    Hash hash;
    uint8_t digest[DIGEST_BYTES];
    char digits[2 * DIGEST_BYTES];
    hash_begin(&hash, bodies->blocks);
    hash_add(&hash, (const uint8_t *)bytes, (size_t)size);
    hash_end(&hash, digest);
    Py_DECREF(text);
    for (int at = 0; at < DIGEST_BYTES; at++) {
        digits[2 * at] = "0123456789abcdef"[digest[at] >> 4];
        digits[2 * at + 1] = "0123456789abcdef"[digest[at] & 15];
    }
    put(body, digits, sizeof digits);
}

/* What is told of facts, which are frozen: written once for calls that have the same ones. */
static void tell(Bodies *bodies, PyObject *facts) {
    if (bodies->facts == facts) return;
    Body body;
    begin_body(&body);
    PUT(&body, ",\"key\":");
    put_text(&body, of(&body, facts, bodies->names.key));
    PUT(&body, ",\"format\":");
    put_text(&body, of(&body, facts, bodies->names.format));
    PUT(&body, ",\"door\":");
    put_text(&body, of(&body, facts, bodies->names.door));
    PUT(&body, ",\"caller\":");
    size_t half = body.size;
    PUT(&body, ",\"catalog\":");
    put_text(&body, of(&body, facts, bodies->names.catalog));
    PUT(&body, ",\"seen\":");
    put_text(&body, of(&body, facts, bodies->names.seen_digest));
    PUT(&body, ",\"runs\":");
    put_text(&body, of(&body, facts, bodies->names.runs_digest));
    PUT(&body, ",\"arguments\":[");
    /* All at once: whatever asks a record, or lets go of what it said, may let another thread in. */
    PyObject *last = bodies->facts;
    Py_INCREF(facts); /* so that no others come to lie in their place */
    bodies->facts = facts;
    bodies->is_told = body.is_plain && body.size <= sizeof bodies->told;
    bodies->told_before = half;
    bodies->told_bytes = body.size;
    if (bodies->is_told) memcpy(bodies->told, body.bytes, body.size);
    while (body.kept_count > 0) Py_DECREF(body.kept[--body.kept_count]);
    Py_XDECREF(last);
}

/* begin(call, facts, ts) */
static PyObject *bodies_begin(Bodies *bodies, PyObject *const *given, Py_ssize_t count) {
    if (count != 3) {
        PyErr_SetString(PyExc_TypeError, "begin takes a call, its facts and a moment");
        return NULL;
    }
    PyObject *call = given[0], *facts = given[1];
    Body body;
    begin_body(&body);
    PyObject *arguments = of(&body, call, bodies->names.arguments);
    PyObject *tool = of(&body, call, bodies->names.tool), *caller = of(&body, call, bodies->names.caller);
    PyObject *conversation = of(&body, call, bodies->names.conversation);
    if (arguments == NULL || !PyDict_CheckExact(arguments) || PyDict_Size(arguments) > NAMES_MAX ||
        of(&body, call, bodies->names.dry_run) != Py_False ||
        !is_empty(of(&body, call, bodies->names.approved_by)) ||
        of(&body, call, bodies->names.idempotency_key) != Py_None || !is_sound(bodies, tool) ||
        !is_sound(bodies, caller) || !is_sound(bodies, conversation))
        return not_plain(&body);
    PUT(&body, "{\"what\":\"begin\",\"ts\":");
    put_moment(&body, given[2]);
    PUT(&body, ",\"call\":");
    put_text(&body, of(&body, call, bodies->names.id));
    PUT(&body, ",\"tool\":");
    put_text(&body, tool);
    tell(bodies, facts);
    if (bodies->facts != facts || !bodies->is_told) return not_plain(&body);
    put(&body, bodies->told, bodies->told_before); /* from here on nothing lets another thread in until all is put */
    put_text(&body, caller);
    PUT(&body, ",\"conversation\":");
    put_text(&body, conversation);
    put(&body, bodies->told + bodies->told_before, bodies->told_bytes - bodies->told_before);
    PyObject *name, *value;
    Py_ssize_t at = 0;
    bool is_first = true;
    while (body.is_plain && PyDict_Next(arguments, &at, &name, &value)) {
        if (!is_first) PUT(&body, ",");
        is_first = false;
        Py_INCREF(name);
        if (is_sound(bodies, name)) put_text(&body, name);
        else body.is_plain = false;
        Py_DECREF(name);
    }
    PUT(&body, "],\"arguments_digest\":\"");
    if (body.is_plain) put_digest(bodies, &body, arguments); /* else there may be an interrupt to tell of */
    PUT(&body, "\"}");
    return written(&body);
}

/* end(call, result, tool, ts, run, start, note): `run` is None where nothing was started; `start` and `note` are
   what is told of it in words, as JSON: an object without its end, and the end. */
static PyObject *bodies_end(Bodies *bodies, PyObject *const *given, Py_ssize_t count) {
    if (count != 7) {
        PyErr_SetString(PyExc_TypeError, "end takes a call, its result, its tool, a moment, a run and its words");
        return NULL;
    }
    PyObject *call = given[0], *result = given[1], *tool = given[2], *run = given[4];
    Body body;
    begin_body(&body);
    PyObject *notes = of(&body, result, bodies->names.notes), *layers = of(&body, result, bodies->names.isolation);
    PyObject *spent = of(&body, result, bodies->names.spent), *attempts = of(&body, spent, bodies->names.attempts);
    PyObject *key = of(&body, result, bodies->names.key);
    if (tool != Py_None) {
        PyObject *told = of(&body, tool, bodies->names.notes);
        if (of(&body, told, bodies->names.latency) != Py_None || of(&body, told, bodies->names.cost) != Py_None)
            return not_plain(&body);
    }
    if (key == Py_None || is_empty(key)) key = tool != Py_None ? of(&body, tool, bodies->names.key) : Py_None;
    if (of(&body, result, bodies->names.error) != Py_None || !is_empty(of(&body, result, bodies->names.rule)) ||
        notes == NULL || !PyTuple_CheckExact(notes) || PyTuple_Size(notes) != 0 || layers == NULL ||
        !PyTuple_CheckExact(layers) || attempts == NULL || !PyLong_CheckExact(attempts) ||
        PyLong_AsLong(attempts) != 1) {
        PyErr_Clear(); /* more attempts than a long has room for */
        return not_plain(&body);
    }
    PUT(&body, "{\"what\":\"end\",\"ts\":");
    put_moment(&body, given[3]);
    PUT(&body, ",\"call\":");
    put_text(&body, of(&body, call, bodies->names.id));
    PUT(&body, ",\"key\":");
    put_text(&body, key);
    PUT(&body, ",\"ok\":true,\"ms\":");
    put_ms(&body, of(&body, spent, bodies->names.duration_ms));
    PUT(&body, ",\"output_bytes\":");
    put_count(&body, of(&body, spent, bodies->names.output_bytes));
    PUT(&body, ",\"truncated\":");
    put_truth(&body, of(&body, spent, bodies->names.truncated));
    Py_ssize_t layers_count = PyTuple_Size(layers);
    if (layers_count > 0) {
        PUT(&body, ",\"layers\":[");
        for (Py_ssize_t at = 0; at < layers_count; at++) {
            if (at > 0) PUT(&body, ",");
            put_text(&body, PyTuple_GetItem(layers, at));
        }
        PUT(&body, "]");
    }
    if (run != Py_None) {
        char *start, *note;
        Py_ssize_t start_bytes, note_bytes;
        if (PyBytes_AsStringAndSize(given[5], &start, &start_bytes) != 0 ||
            PyBytes_AsStringAndSize(given[6], &note, &note_bytes) != 0 || start_bytes == 0)
            return not_plain(&body);
        PyObject *status = of(&body, run, bodies->names.exit_status);
        PUT(&body, ",\"run\":");
        put(&body, start, (size_t)start_bytes);
        PUT(&body, ",\"exit\":");
        if (status == Py_None) PUT(&body, "null");
        else put_count(&body, status);
        PUT(&body, ",\"ms\":");
        put_ms(&body, of(&body, run, bodies->names.duration_ms));
        PUT(&body, ",\"stdout_bytes\":");
        put_count(&body, of(&body, run, bodies->names.stdout_bytes));
        PUT(&body, ",\"stderr_bytes\":");
        put_count(&body, of(&body, run, bodies->names.stderr_bytes));
        PUT(&body, ",\"truncated\":");
        put_truth(&body, of(&body, run, bodies->names.truncated));
        put(&body, note, (size_t)note_bytes);
    }
    PUT(&body, "}");
    return written(&body);
}

/* -- the type ---------------------------------------------------------------------------------------------- */

static int bodies_clear(Bodies *bodies) {
    Py_CLEAR(bodies->dumps);
    Py_CLEAR(bodies->has_credential);
    Py_CLEAR(bodies->sound);
    Py_CLEAR(bodies->option);
    Py_CLEAR(bodies->facts);
    return 0;
}

static int bodies_traverse(Bodies *bodies, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE(OBJECT(bodies)));
    Py_VISIT(bodies->dumps);
    Py_VISIT(bodies->has_credential);
    Py_VISIT(bodies->sound);
    Py_VISIT(bodies->option);
    Py_VISIT(bodies->facts);
    return 0;
}

static void bodies_dealloc(Bodies *bodies) {
    PyTypeObject *type = Py_TYPE(OBJECT(bodies));
    PyObject_GC_UnTrack(bodies);
    bodies_clear(bodies);
#define FORGET(name) Py_XDECREF(bodies->names.name);
    NAMES(FORGET)
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release(bodies);
    Py_DECREF(OBJECT(type));
}

static PyObject *bodies_new(PyTypeObject *type, PyObject *args, PyObject *given) {
    static char *known[] = {"dumps", "option", "has_credential", NULL};
    PyObject *dumps, *option, *has_credential;
    if (!PyArg_ParseTupleAndKeywords(args, given, "OOO", known, &dumps, &option, &has_credential)) return NULL;
    allocfunc make = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    Bodies *bodies = (Bodies *)make(type, 0);
    if (bodies == NULL) return NULL;
    Py_INCREF(dumps);
    Py_INCREF(has_credential);
    bodies->dumps = dumps;
    bodies->has_credential = has_credential;
    bodies->sound = PyDict_New();
    bodies->option = PyDict_New();
    PyObject *word = PyUnicode_InternFromString("option"); /* orjson knows its options by this very object */
    bool is_whole = bodies->sound != NULL && bodies->option != NULL && word != NULL &&
                    PyDict_SetItem(bodies->option, word, option) == 0;
    Py_XDECREF(word);
    bodies->blocks = choose_blocks();
#define LEARN(name) is_whole = (bodies->names.name = PyUnicode_InternFromString(#name)) != NULL && is_whole;
    NAMES(LEARN)
    if (!is_whole) {
        Py_DECREF(OBJECT(bodies));
        return NULL;
    }
    return OBJECT(bodies);
}

static PyMethodDef BODIES_METHODS[] = {
    {"begin", (PyCFunction)(void (*)(void))bodies_begin, METH_FASTCALL, NULL},
    {"end", (PyCFunction)(void (*)(void))bodies_end, METH_FASTCALL, NULL},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot BODIES_SLOTS[] = {
    {Py_tp_doc, "Writes the bodies of plain records."},
    {Py_tp_new, (void *)bodies_new},
    {Py_tp_methods, BODIES_METHODS},
    {Py_tp_traverse, (void *)bodies_traverse},
    {Py_tp_clear, (void *)bodies_clear},
    {Py_tp_dealloc, (void *)bodies_dealloc},
    {0, NULL},
};

static PyType_Spec BODIES = {
    .name = "toolwright.journal._records.Bodies",
    .basicsize = sizeof(Bodies),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .slots = BODIES_SLOTS,
};

static int made(PyObject *module) {
    PyObject *type = PyType_FromModuleAndSpec(module, &BODIES, NULL);
    int failed = type == NULL ? -1 : PyModule_AddObjectRef(module, "Bodies", type);
    Py_XDECREF(type);
    return failed;
}

static PyModuleDef_Slot SLOTS[] = {{Py_mod_exec, (void *)made}, {0, NULL}};

static struct PyModuleDef MODULE = {
    PyModuleDef_HEAD_INIT,
    .m_name = "toolwright.journal._records",
    .m_doc = "The bodies of plain records (src/native/records.c).",
    .m_slots = SLOTS,
};

PyMODINIT_FUNC PyInit__records(void) { return PyModuleDef_Init(&MODULE); }
