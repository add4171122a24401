/* Makers and changers of records (`records.py`): a record's fields filled without a line of Python for each.

   A record is a class with slots. Where in an instance the value of a slot lies is found out once, by looking
   for a value that was put there through the slot itself: nothing is assumed about how the interpreter lays
   instances out, and where it is not found the functions in Python do the work. They also say what is wrong with
   a call. Stable ABI of Python 3.11. */

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000
#include <Python.h>

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#define OBJECT(value) ((PyObject *)(value))

enum { FIELDS_MAX = 64, SITES = 4 };

/* How one place in the code names the fields that it gives: the tuple of the names is the same each time. */
typedef struct {
    PyObject *names;
    uint8_t field[FIELDS_MAX];
} Site;

typedef struct {
    PyObject_HEAD
    PyTypeObject *kind;
    PyObject *slow;    /* the function in Python */
    PyObject *learn;   /* gives names, defaults, factories, and which are changed */
    PyObject *missing; /* in the place of a default or factory that there is not */
    allocfunc make;
    bool is_ready, is_unknown, is_learning;
    bool is_positional;
    Py_ssize_t count, changed_count;
    PyObject *names[FIELDS_MAX], *defaults[FIELDS_MAX], *factories[FIELDS_MAX];
    size_t offset[FIELDS_MAX];
    uint8_t changed[FIELDS_MAX];
    Site sites[SITES];
    size_t next_site;
} Shape;

static PyObject **slot(PyObject *record, size_t offset) { return (PyObject **)(void *)((char *)record + offset); }

/* -- learning ---------------------------------------------------------------------------------------------- */

static bool is_found(Shape *shape, PyObject *trial, Py_ssize_t field, size_t size) {
    PyObject *mark = PyObject_CallNoArgs(OBJECT(&PyBaseObject_Type));
    if (mark == NULL || PyObject_GenericSetAttr(trial, shape->names[field], mark) != 0) {
        Py_XDECREF(mark);
        return false;
    }
    size_t at = sizeof(PyObject);
    while (at + sizeof mark <= size && *slot(trial, at) != mark) at += sizeof mark;
    bool is_there = at + sizeof mark <= size;
    for (size_t after = at + sizeof mark; is_there && after + sizeof mark <= size; after += sizeof mark)
        if (*slot(trial, after) == mark) is_there = false;
    shape->offset[field] = at;
    Py_DECREF(mark);
    return is_there;
}

static bool is_laid_out(Shape *shape) {
    PyObject *told = PyObject_GetAttrString(OBJECT(shape->kind), "__basicsize__");
    Py_ssize_t size = told == NULL ? -1 : PyLong_AsSsize_t(told);
    Py_XDECREF(told);
    PyObject *trial = size <= 0 ? NULL : shape->make(shape->kind, 0);
    bool is_well = trial != NULL;
    for (Py_ssize_t field = 0; is_well && field < shape->count; field++)
        is_well = is_found(shape, trial, field, (size_t)size);
    Py_XDECREF(trial);
    return is_well;
}

static PyObject *unless_missing(Shape *shape, PyObject *value) {
    if (value == shape->missing) return NULL;
    Py_XINCREF(value);
    return value;
}

static bool has_learnt(Shape *shape, PyObject *told) {
    PyObject *names, *defaults, *factories, *changed;
    int is_positional;
    bool is_well = PyArg_ParseTuple(told, "O!O!O!O!p", &PyTuple_Type, &names, &PyTuple_Type, &defaults,
                                                    &PyTuple_Type, &factories, &PyTuple_Type, &changed, &is_positional);
    if (is_well) {
        Py_ssize_t count = PyTuple_Size(names), changes = PyTuple_Size(changed);
        is_well = count <= FIELDS_MAX && PyTuple_Size(defaults) == count && PyTuple_Size(factories) == count &&
                  changes <= count;
        shape->is_positional = is_positional != 0;
        for (Py_ssize_t field = 0; is_well && field < count; field++) {
            PyObject *name = PyTuple_GetItem(names, field);
            Py_INCREF(name);
            PyUnicode_InternInPlace(&name);
            shape->names[field] = name;
            shape->defaults[field] = unless_missing(shape, PyTuple_GetItem(defaults, field));
            shape->factories[field] = unless_missing(shape, PyTuple_GetItem(factories, field));
            shape->count = field + 1;
        }
        for (Py_ssize_t at = 0; is_well && at < changes; at++) {
            Py_ssize_t field = 0;
            while (field < count && PyUnicode_Compare(shape->names[field], PyTuple_GetItem(changed, at)) != 0) field++;
            is_well = field < count;
            shape->changed[at] = (uint8_t)field;
            shape->changed_count = at + 1;
        }
        is_well = is_well && is_laid_out(shape);
    }
    return is_well;
}

/* Whether it can be done here; looked at once. Where an exception is set, it was interrupted while it looked. */
static bool is_ready(Shape *shape) {
    if (shape->is_ready || shape->is_unknown) return shape->is_ready;
    PyObject *told = PyObject_CallNoArgs(shape->learn); /* which is Python: another thread may come meanwhile */
    if (told == NULL && !PyErr_ExceptionMatches(PyExc_Exception)) return false;
    if (!shape->is_ready && !shape->is_unknown && !shape->is_learning) {
        shape->is_learning = true; /* making the trial may run what a collection of garbage ends */
        shape->is_ready = told != NULL && has_learnt(shape, told);
        shape->is_unknown = !shape->is_ready;
        shape->is_learning = false;
    }
    PyErr_Clear();
    Py_XDECREF(told);
    return shape->is_ready;
}

/* -- making and changing ----------------------------------------------------------------------------------- */

static PyObject *done_slowly(Shape *shape, PyObject *const *args, Py_ssize_t count, PyObject *names) {
    if (PyErr_Occurred()) return NULL;
    PyObject *given = PyTuple_New(count), *named = names == NULL ? NULL : PyDict_New(), *made = NULL;
    bool is_well = given != NULL && (names == NULL || named != NULL);
    for (Py_ssize_t at = 0; is_well && at < count; at++) {
        Py_INCREF(args[at]);
        is_well = PyTuple_SetItem(given, at, args[at]) == 0;
    }
    for (Py_ssize_t at = 0; is_well && names != NULL && at < PyTuple_Size(names); at++)
        is_well = PyDict_SetItem(named, PyTuple_GetItem(names, at), args[count + at]) == 0;
    if (is_well) made = PyObject_Call(shape->slow, given, named);
    Py_XDECREF(given);
    Py_XDECREF(named);
    return made;
}

/* Which fields a place in the code names; NULL: one that there is not. */
static const uint8_t *fields_of(Shape *shape, PyObject *names) {
    for (size_t at = 0; at < SITES; at++)
        if (shape->sites[at].names == names) return shape->sites[at].field;
    Site found = {.names = names};
    Py_ssize_t count = PyTuple_Size(names);
    if (count > FIELDS_MAX) return NULL;
    for (Py_ssize_t at = 0; at < count; at++) {
        PyObject *name = PyTuple_GetItem(names, at);
        Py_ssize_t field = 0;
        while (field < shape->count && shape->names[field] != name &&
               PyUnicode_Compare(shape->names[field], name) != 0)
            field++;
        if (field == shape->count) return NULL;
        found.field[at] = (uint8_t)field;
    }
    Site *site = &shape->sites[shape->next_site++ % SITES];
    PyObject *before = site->names;
    Py_INCREF(names); /* so that no other tuple comes to lie in its place */
    *site = found;
    Py_XDECREF(before);
    return site->field;
}

static PyObject *make(PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *names) {
    Shape *shape = (Shape *)self;
    if (!is_ready(shape) || count > (shape->is_positional ? shape->count : 0))
        return done_slowly(shape, args, count, names);
    PyObject *values[FIELDS_MAX];
    memset(values, 0, sizeof values[0] * (size_t)shape->count);
    for (Py_ssize_t at = 0; at < count; at++) values[at] = args[at];
    if (names != NULL) {
        const uint8_t *field = fields_of(shape, names);
        if (field == NULL) return done_slowly(shape, args, count, names);
        Py_ssize_t named = PyTuple_Size(names);
        for (Py_ssize_t at = 0; at < named; at++) {
            if (values[field[at]] != NULL) return done_slowly(shape, args, count, names);
            values[field[at]] = args[count + at];
        }
    }
    for (Py_ssize_t field = 0; field < shape->count; field++) {
        if (values[field] == NULL) values[field] = shape->defaults[field];
        if (values[field] == NULL && shape->factories[field] == NULL) return done_slowly(shape, args, count, names);
    }
    PyObject *record = shape->make(shape->kind, 0);
    for (Py_ssize_t field = 0; record != NULL && field < shape->count; field++) {
        PyObject *value = values[field];
        if (value != NULL) Py_INCREF(value);
        else value = PyObject_CallNoArgs(shape->factories[field]);
        if (value == NULL) Py_CLEAR(record);
        else *slot(record, shape->offset[field]) = value;
    }
    return record;
}

static PyObject *change(PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *names) {
    Shape *shape = (Shape *)self;
    if (!is_ready(shape) || names != NULL || count != shape->changed_count + 1 || Py_TYPE(args[0]) != shape->kind)
        return done_slowly(shape, args, count, names);
    PyObject *values[FIELDS_MAX];
    for (Py_ssize_t field = 0; field < shape->count; field++) values[field] = *slot(args[0], shape->offset[field]);
    for (Py_ssize_t at = 0; at < shape->changed_count; at++) values[shape->changed[at]] = args[at + 1];
    for (Py_ssize_t field = 0; field < shape->count; field++)
        if (values[field] == NULL) return done_slowly(shape, args, count, names);
    /* Ours before anything is made: what a collection of garbage ends may change a record that can be changed. */
    for (Py_ssize_t field = 0; field < shape->count; field++) Py_INCREF(values[field]);
    PyObject *record = shape->make(shape->kind, 0);
    for (Py_ssize_t field = 0; field < shape->count; field++) {
        if (record != NULL) *slot(record, shape->offset[field]) = values[field];
        else Py_DECREF(values[field]);
    }
    return record;
}

/* -- the type, and the module ------------------------------------------------------------------------------ */

static void shape_dealloc(Shape *shape) {
    PyTypeObject *type = Py_TYPE(OBJECT(shape));
    for (Py_ssize_t field = 0; field < shape->count; field++) {
        Py_XDECREF(shape->names[field]);
        Py_XDECREF(shape->defaults[field]);
        Py_XDECREF(shape->factories[field]);
    }
    for (size_t at = 0; at < SITES; at++) Py_XDECREF(shape->sites[at].names);
    Py_XDECREF(OBJECT(shape->kind));
    Py_XDECREF(shape->slow);
    Py_XDECREF(shape->learn);
    Py_XDECREF(shape->missing);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release(shape);
    Py_DECREF(OBJECT(type));
}

static PyType_Slot SHAPE_SLOTS[] = {{Py_tp_dealloc, (void *)shape_dealloc}, {0, NULL}};

static PyType_Spec SHAPE = {
    .name = "toolwright._values.Shape",
    .basicsize = sizeof(Shape),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = SHAPE_SLOTS,
};

typedef struct {
    PyObject *shape_type;
} Module;

static PyMethodDef MAKE = {"make", (PyCFunction)(void (*)(void))make, METH_FASTCALL | METH_KEYWORDS, NULL};
static PyMethodDef CHANGE = {"change", (PyCFunction)(void (*)(void))change, METH_FASTCALL | METH_KEYWORDS, NULL};

static PyObject *function_of(PyObject *module, PyObject *args, PyMethodDef *does) {
    PyObject *kind, *slow, *learn, *missing;
    if (!PyArg_ParseTuple(args, "O!OOO", &PyType_Type, &kind, &slow, &learn, &missing)) return NULL;
    PyTypeObject *type = (PyTypeObject *)((Module *)PyModule_GetState(module))->shape_type;
    allocfunc make_shape = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    Shape *shape = (Shape *)make_shape(type, 0);
    if (shape == NULL) return NULL;
    Py_INCREF(kind);
    Py_INCREF(slow);
    Py_INCREF(learn);
    Py_INCREF(missing);
    shape->kind = (PyTypeObject *)kind;
    shape->slow = slow;
    shape->learn = learn;
    shape->missing = missing;
    shape->make = (allocfunc)PyType_GetSlot(shape->kind, Py_tp_alloc);
    PyObject *function = PyCFunction_NewEx(does, OBJECT(shape), NULL);
    Py_DECREF(OBJECT(shape));
    return function;
}

/* maker(kind, slow, learn, missing), changer(...): `learn` gives the names of all fields, their defaults and
   factories, `missing` where there is none, the names of those that are changed, and whether they have places. */
static PyObject *maker(PyObject *module, PyObject *args) { return function_of(module, args, &MAKE); }
static PyObject *changer(PyObject *module, PyObject *args) { return function_of(module, args, &CHANGE); }

static PyMethodDef METHODS[] = {
    {"maker", maker, METH_VARARGS, NULL},
    {"changer", changer, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static int prepared(PyObject *module) {
    Module *known = PyModule_GetState(module);
    known->shape_type = PyType_FromModuleAndSpec(module, &SHAPE, NULL);
    return known->shape_type == NULL ? -1 : 0;
}

static int module_traverse(PyObject *module, visitproc visit, void *arg) {
    Module *known = PyModule_GetState(module);
    Py_VISIT(known->shape_type);
    return 0;
}

static int module_clear(PyObject *module) {
    Module *known = PyModule_GetState(module);
    Py_CLEAR(known->shape_type);
    return 0;
}

static PyModuleDef_Slot SLOTS[] = {{Py_mod_exec, (void *)prepared}, {0, NULL}};

static struct PyModuleDef MODULE = {
    PyModuleDef_HEAD_INIT,
    .m_name = "toolwright._values",
    .m_doc = "Makers and changers of records (src/native/values.c).",
    .m_size = sizeof(Module),
    .m_methods = METHODS,
    .m_slots = SLOTS,
    .m_traverse = module_traverse,
    .m_clear = module_clear,
};

PyMODINIT_FUNC PyInit__values(void) { return PyModuleDef_Init(&MODULE); }
