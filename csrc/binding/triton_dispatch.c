/* TritonDispatch: stands in for the method run of one kernel of triton.jit. A call binds
 * the arguments to the parameters, finds the words of their specialisation (triton_key.c)
 * and launches what was frozen for these words; Triton has no part in it. A call that
 * has no frozen specialisation goes to *miss*.
 */
#include "triton.h"

#include <stddef.h>
#include <structmember.h>

enum {
    PARAMETERS = 256, /* of a kernel, at most */
    OPTIONS = 32,     /* keyword arguments of a call that are no parameters, at most */
    LEAVES = 512,     /* arguments of a launcher, at most */
};

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    core_state *state; /* borrowed from the module, which the type keeps */
    Py_ssize_t count;
    core_triton_parameter *parameters; /* owned */
    core_triton_words words;
    PyObject *table;   /* owned: dict bytes -> CudaLauncher, or what *load* takes */
    PyObject *miss;    /* owned: called with the arguments of run */
    PyObject *load;    /* owned: makes the launcher of a value of *table* */
    PyObject *device;  /* owned: () -> ordinal of the current device */
    PyObject *stream;  /* owned: ordinal -> handle of its current stream */
    PyObject *archs;   /* owned: tuple of int, the architecture of each device */
    PyObject *watched; /* owned: tuple of (object, name, the value that it must have) */
    PyObject *empty;   /* owned: tuple of lists that must be empty */
    PyObject *globals; /* owned: tuple of (dict, name, value, identity is enough) */
    PyObject *names;   /* owned: ("grid", "warmup"), interned */
    PyObject *by_name; /* owned: ("stream",), interned: names of a launcher's call */
} DispatchObject;

#define DispatchObject_CAST(op) ((DispatchObject *)(op))

/* A call, bound. All borrowed. */
typedef struct {
    PyObject *values[PARAMETERS];
    PyObject *option_names[OPTIONS];
    PyObject *options[OPTIONS];
    Py_ssize_t option_count;
    PyObject *grid;
    PyObject *warmup;
} bound_call;

/* --- binding --- */

static bool
same_name(PyObject *one, PyObject *other)
{
    return one == other || PyUnicode_Compare(one, other) == 0;
}

/* Where a keyword argument belongs, or NULL if the call has too many options. Options
   stay sorted by name. */
static PyObject **
place_of(const DispatchObject *self, PyObject *name, bound_call *call)
{
    for (Py_ssize_t i = 0; i < self->count; i++) {
        if (self->parameters[i].name == name) {
            return &call->values[i];
        }
    }
    for (Py_ssize_t i = 0; i < self->count; i++) {
        if (same_name(self->parameters[i].name, name)) {
            return &call->values[i];
        }
    }
    if (same_name(PyTuple_GET_ITEM(self->names, 0), name)) {
        return &call->grid;
    }
    if (same_name(PyTuple_GET_ITEM(self->names, 1), name)) {
        return &call->warmup;
    }
    if (call->option_count == OPTIONS) {
        return NULL;
    }
    Py_ssize_t at = call->option_count++;
    for (; at > 0 && PyUnicode_Compare(call->option_names[at - 1], name) > 0; at--) {
        call->option_names[at] = call->option_names[at - 1];
        call->options[at] = call->options[at - 1];
    }
    call->option_names[at] = name;
    call->options[at] = NULL;
    return &call->options[at];
}

/* Binds the arguments. False if they do not fit: Triton then says why. */
static bool
bind(const DispatchObject *self, PyObject *const *args, Py_ssize_t given,
     PyObject *kwnames, bound_call *call)
{
    call->option_count = 0;
    call->grid = NULL;
    call->warmup = NULL;
    if (given > self->count) {
        return false;
    }
    for (Py_ssize_t i = 0; i < self->count; i++) {
        call->values[i] = i < given ? args[i] : NULL;
    }
    for (Py_ssize_t i = 0; kwnames != NULL && i < PyTuple_GET_SIZE(kwnames); i++) {
        PyObject **place = place_of(self, PyTuple_GET_ITEM(kwnames, i), call);
        if (place == NULL || *place != NULL) {
            return false;
        }
        *place = args[given + i];
    }
    for (Py_ssize_t i = given; i < self->count; i++) {
        if (call->values[i] == NULL) {
            call->values[i] = self->parameters[i].fallback;
        }
        if (call->values[i] == NULL) {
            return false;
        }
    }
    return true;
}

/* --- what must not have changed --- */

/* Returns 1 if the attributes are as they were, 0 if not, -1 with an exception set. */
static int
watched_as_before(const DispatchObject *self)
{
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(self->watched); i++) {
        PyObject *row = PyTuple_GET_ITEM(self->watched, i); /* borrowed */
        PyObject *found =
            PyObject_GetAttr(PyTuple_GET_ITEM(row, 0), PyTuple_GET_ITEM(row, 1));
        if (found == NULL) {
            return -1;
        }
        Py_DECREF(found);
        if (found != PyTuple_GET_ITEM(row, 2)) {
            return 0;
        }
    }
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(self->empty); i++) {
        if (PyList_GET_SIZE(PyTuple_GET_ITEM(self->empty, i)) != 0) {
            return 0;
        }
    }
    return 1;
}

/* The same of the global variables that the kernel was compiled with. */
static int
globals_as_before(const DispatchObject *self)
{
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(self->globals); i++) {
        PyObject *row = PyTuple_GET_ITEM(self->globals, i); /* borrowed, as the next */
        PyObject *expected = PyTuple_GET_ITEM(row, 2);
        PyObject *found =
            PyDict_GetItemWithError(PyTuple_GET_ITEM(row, 0), PyTuple_GET_ITEM(row, 1));
        if (found == NULL) {
            return PyErr_Occurred() ? -1 : 0;
        }
        if (found == expected && PyTuple_GET_ITEM(row, 3) == Py_True) {
            continue;
        }
        if (Py_TYPE(found) != Py_TYPE(expected)) {
            return 0;
        }
        Py_INCREF(found);
        int same = PyObject_RichCompareBool(found, expected, Py_EQ);
        Py_DECREF(found);
        if (same <= 0) {
            return same;
        }
    }
    return 1;
}

/* --- the words of a call --- */

/* Appends the words of one option. As core_triton_word. */
static int
option_word(const DispatchObject *self, PyObject *name, PyObject *value,
            core_triton_text *text)
{
    Py_ssize_t length = 0;
    const char *bytes = PyUnicode_AsUTF8AndSize(name, &length);
    if (bytes == NULL || core_triton_put(text, bytes, (size_t)length) < 0 ||
        core_triton_put(text, "=", 1) < 0) {
        return -1;
    }
    return core_triton_constant(&self->words, value, true, text);
}

/* Appends the key of a call. Returns 1, 0 if it has no frozen form, or -1. */
static int
call_key(const DispatchObject *self, const bound_call *call, core_triton_text *text)
{
    int result = 1;
    for (Py_ssize_t i = 0; result > 0 && i < self->count; i++) {
        result =
            core_triton_word(&self->words, &self->parameters[i], call->values[i], text);
        if (result > 0 && core_triton_put(text, "\n", 1) < 0) {
            result = -1;
        }
    }
    for (Py_ssize_t i = 0; result > 0 && i < call->option_count; i++) {
        result = option_word(self, call->option_names[i], call->options[i], text);
        if (result > 0 && core_triton_put(text, "\n", 1) < 0) {
            result = -1;
        }
    }
    return result;
}

/* The key of a specialisation for devices of an architecture begins so. */
static int
put_arch(core_triton_text *text, PyObject *arch)
{
    long number = PyLong_AsLong(arch);
    char head[24];
    if (number == -1 && PyErr_Occurred()) {
        return -1;
    }
    int length = PyOS_snprintf(head, sizeof(head), "%ld\n", number);
    return core_triton_put(text, head, (size_t)length);
}

/* The launcher for a key, made if need be. New reference; NULL without an exception if
   there is none. */
static PyObject *
launcher_of(DispatchObject *self, const core_triton_text *text)
{
    PyObject *launcher = NULL;
    PyObject *key = PyBytes_FromStringAndSize(text->at, (Py_ssize_t)text->length);
    PyObject *value =
        key == NULL ? NULL : PyDict_GetItemWithError(self->table, key); /* borrowed */
    if (value != NULL && Py_IS_TYPE(value, self->state->cuda_launcher_type)) {
        launcher = Py_NewRef(value);
    }
    else if (value != NULL) {
        Py_INCREF(value);
        launcher = PyObject_CallOneArg(self->load, value);
        Py_DECREF(value);
        if (launcher != NULL &&
            !Py_IS_TYPE(launcher, self->state->cuda_launcher_type)) {
            PyErr_SetString(PyExc_TypeError, "load did not return a CudaLauncher");
            Py_CLEAR(launcher);
        }
        if (launcher != NULL && PyDict_SetItem(self->table, key, launcher) < 0) {
            Py_CLEAR(launcher);
        }
    }
    Py_XDECREF(key);
    return launcher;
}

/* --- launching --- */

/* Appends what *value* passes to a launcher: itself, or the leaves of a tuple. */
static int
put_leaves(PyObject *value, bool whole, PyObject **leaves, Py_ssize_t *count)
{
    if (whole || !PyTuple_Check(value)) {
        if (*count == LEAVES) {
            PyErr_SetString(PyExc_ValueError, "a kernel with too many arguments");
            return -1;
        }
        leaves[(*count)++] = value;
        return 0;
    }
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(value); i++) {
        if (put_leaves(PyTuple_GET_ITEM(value, i), false, leaves, count) < 0) {
            return -1;
        }
    }
    return 0;
}

/* dict of all parameters with their values, for a grid that is a function. */
static PyObject *
bound_arguments(const DispatchObject *self, const bound_call *call)
{
    PyObject *made = PyDict_New();
    for (Py_ssize_t i = 0; made != NULL && i < self->count; i++) {
        if (PyDict_SetItem(made, self->parameters[i].name, call->values[i]) < 0) {
            Py_CLEAR(made);
        }
    }
    return made;
}

/* The three dimensions of the grid as a new tuple or list, at least one of them there. */
static PyObject *
grid_of(const DispatchObject *self, const bound_call *call)
{
    PyObject *grid = NULL;
    if (PyCallable_Check(call->grid)) {
        PyObject *arguments = bound_arguments(self, call);
        grid = arguments == NULL ? NULL : PyObject_CallOneArg(call->grid, arguments);
        Py_XDECREF(arguments);
    }
    else {
        grid = Py_NewRef(call->grid);
    }
    PyObject *items =
        grid == NULL ? NULL
                     : PySequence_Fast(grid, "the grid of a kernel is no sequence");
    Py_XDECREF(grid);
    if (items != NULL && PySequence_Fast_GET_SIZE(items) == 0) {
        PyErr_SetString(PyExc_IndexError, "the grid of a kernel has no dimension");
        Py_CLEAR(items);
    }
    return items;
}

static PyObject *
launch(DispatchObject *self, const bound_call *call, PyObject *launcher,
       PyObject *device)
{
    PyObject *leaves[LEAVES + 4];
    Py_ssize_t count = 0;
    PyObject *result = NULL;
    PyObject *one = NULL; /* owned, as the next two */
    PyObject *stream = NULL;
    PyObject *grid = grid_of(self, call);
    if (grid == NULL) {
        goto done;
    }
    one = PyLong_FromLong(1);
    stream = PyObject_CallOneArg(self->stream, device);
    if (one == NULL || stream == NULL) {
        goto done;
    }
    for (Py_ssize_t i = 0; i < self->count; i++) {
        const core_triton_parameter *parameter = &self->parameters[i];
        bool whole = parameter->constant || parameter->type != NULL;
        if (put_leaves(call->values[i], whole, leaves, &count) < 0) {
            goto done;
        }
    }
    for (Py_ssize_t i = 0; i < 3; i++) {
        leaves[count + i] = i < PySequence_Fast_GET_SIZE(grid)
                                ? PySequence_Fast_GET_ITEM(grid, i)
                                : one;
    }
    leaves[count + 3] = stream;
    result = PyObject_Vectorcall(launcher, leaves, (size_t)count + 3, self->by_name);
done:
    Py_XDECREF(grid);
    Py_XDECREF(one);
    Py_XDECREF(stream);
    return result;
}

/* Launches a bound call if it is frozen. Returns 1 with *result, which is NULL with an
   exception set if the launch failed; 0 if Triton has to do it, without an exception. */
static int
serve(DispatchObject *self, const bound_call *call, PyObject **result)
{
    core_triton_text text;
    PyObject *device = NULL; /* owned, as the next */
    PyObject *launcher = NULL;
    int served = 0;
    core_triton_text_init(&text);
    if (watched_as_before(self) <= 0 || globals_as_before(self) <= 0) {
        goto done;
    }
    device = PyObject_CallNoArgs(self->device);
    Py_ssize_t ordinal = device == NULL ? -1 : PyLong_AsSsize_t(device);
    if (ordinal < 0 || ordinal >= PyTuple_GET_SIZE(self->archs) ||
        put_arch(&text, PyTuple_GET_ITEM(self->archs, ordinal)) < 0 ||
        call_key(self, call, &text) <= 0) {
        goto done;
    }
    launcher = launcher_of(self, &text);
    served = launcher != NULL || PyErr_Occurred() != NULL;
    if (launcher != NULL) {
        *result = launch(self, call, launcher, device);
    }
done:
    if (!served && PyErr_Occurred() && PyErr_ExceptionMatches(PyExc_Exception)) {
        PyErr_Clear(); /* Triton asks the same of the arguments, and raises it */
    }
    served |= PyErr_Occurred() != NULL;
    Py_XDECREF(launcher);
    Py_XDECREF(device);
    core_triton_text_free(&text);
    return served;
}

static PyObject *
Dispatch_vectorcall(PyObject *op, PyObject *const *args, size_t nargsf,
                    PyObject *kwnames)
{
    DispatchObject *self = DispatchObject_CAST(op);
    bound_call call;
    PyObject *result = NULL;
    if (bind(self, args, PyVectorcall_NARGS(nargsf), kwnames, &call) &&
        call.grid != NULL && call.grid != Py_None && call.warmup == Py_False &&
        serve(self, &call, &result)) {
        return result;
    }
    return PyObject_Vectorcall(self->miss, args, nargsf, kwnames);
}

/* --- methods --- */

PyDoc_STRVAR(Dispatch_add_doc,
             "add($self, arch, words, value, /)\n--\n\n"
             "Serve calls with *words* (tuple of str, as ``describe`` gives them) on\n"
             "devices of compute capability *arch* with what ``load(value)`` makes.");

static PyObject *
Dispatch_add(PyObject *op, PyObject *args)
{
    DispatchObject *self = DispatchObject_CAST(op);
    PyObject *arch = NULL; /* borrowed, as the next two */
    PyObject *words = NULL;
    PyObject *value = NULL;
    PyObject *key = NULL; /* owned */
    PyObject *result = NULL;
    core_triton_text text;
    if (!PyArg_ParseTuple(args, "O!O!O:add", &PyLong_Type, &arch, &PyTuple_Type, &words,
                          &value)) {
        return NULL;
    }
    core_triton_text_init(&text);
    if (put_arch(&text, arch) < 0) {
        goto done;
    }
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(words); i++) {
        Py_ssize_t length = 0;
        const char *word = PyUnicode_AsUTF8AndSize(PyTuple_GET_ITEM(words, i), &length);
        if (word == NULL || core_triton_put(&text, word, (size_t)length) < 0 ||
            core_triton_put(&text, "\n", 1) < 0) {
            goto done;
        }
    }
    key = PyBytes_FromStringAndSize(text.at, (Py_ssize_t)text.length);
    if (key != NULL && PyDict_SetDefault(self->table, key, value) != NULL) {
        result = Py_NewRef(Py_None);
    }
done:
    Py_XDECREF(key);
    core_triton_text_free(&text);
    return result;
}

/* str of one word, or None if the argument has no frozen form. New reference. */
static PyObject *
word_text(int status, const core_triton_text *text)
{
    if (status < 0) {
        return NULL;
    }
    return status == 0 ? Py_NewRef(Py_None)
                       : PyUnicode_DecodeUTF8(text->at, (Py_ssize_t)text->length, NULL);
}

PyDoc_STRVAR(
    Dispatch_describe_doc,
    "describe($self, /, *args, **kwargs)\n--\n\n"
    "The words of a call: tuple of str, one for each parameter, then ``name=value``\n"
    "for each option. None in place of a word: there is no frozen form. Raises\n"
    "TypeError if the arguments do not fit the parameters.");

static PyObject *
Dispatch_describe(PyObject *op, PyObject *const *args, Py_ssize_t nargs,
                  PyObject *kwnames)
{
    DispatchObject *self = DispatchObject_CAST(op);
    bound_call call;
    core_triton_text text;
    if (!bind(self, args, nargs, kwnames, &call)) {
        PyErr_SetString(PyExc_TypeError, "the arguments do not fit the parameters");
        return NULL;
    }
    PyObject *found = PyTuple_New(self->count + call.option_count);
    for (Py_ssize_t i = 0; found != NULL && i < PyTuple_GET_SIZE(found); i++) {
        Py_ssize_t option = i - self->count;
        core_triton_text_init(&text);
        int status = option < 0 ? core_triton_word(&self->words, &self->parameters[i],
                                                   call.values[i], &text)
                                : option_word(self, call.option_names[option],
                                              call.options[option], &text);
        PyObject *word = word_text(status, &text);
        core_triton_text_free(&text);
        if (word == NULL) {
            Py_CLEAR(found);
        }
        else {
            PyTuple_SET_ITEM(found, i, word); /* steals *word* */
        }
    }
    return found;
}

/* --- life --- */

static int
take_parameter(core_triton_parameter *to, PyObject *row)
{
    PyObject *name = NULL; /* borrowed, as the next two */
    PyObject *type = NULL;
    PyObject *fallback = NULL;
    int constant = 0;
    int specialize = 0;
    int align = 0;
    int read_only = 0;
    if (!PyTuple_Check(row) ||
        !PyArg_ParseTuple(row, "UOpppp|O:parameter", &name, &type, &constant,
                          &specialize, &align, &read_only, &fallback)) {
        if (!PyErr_Occurred()) {
            PyErr_SetString(PyExc_TypeError, "TritonDispatch: a parameter is a tuple");
        }
        return -1;
    }
    to->name = Py_NewRef(name);
    PyUnicode_InternInPlace(&to->name);
    to->type = type == Py_None ? NULL : Py_NewRef(type);
    to->fallback = Py_XNewRef(fallback);
    to->constant = constant != 0;
    to->specialize = specialize != 0;
    to->align = align != 0;
    to->read_only = read_only != 0;
    return 0;
}

static int
take_parameters(DispatchObject *self, PyObject *rows)
{
    if (PyTuple_GET_SIZE(rows) > PARAMETERS) {
        PyErr_Format(PyExc_ValueError,
                     "TritonDispatch: expected at most %d parameters, found %zd",
                     PARAMETERS, PyTuple_GET_SIZE(rows));
        return -1;
    }
    self->parameters =
        PyMem_Calloc((size_t)PyTuple_GET_SIZE(rows) + 1, sizeof(*self->parameters));
    if (self->parameters == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    for (; self->count < PyTuple_GET_SIZE(rows); self->count++) {
        if (take_parameter(&self->parameters[self->count],
                           PyTuple_GET_ITEM(rows, self->count)) < 0) {
            return -1;
        }
    }
    return 0;
}

static PyObject *
Dispatch_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {
        (char *)"parameters",
        (char *)"elements",
        (char *)"element",
        (char *)"constant",
        (char *)"miss",
        (char *)"load",
        (char *)"device",
        (char *)"stream",
        (char *)"archs",
        (char *)"watched",
        (char *)"empty",
        (char *)"globals",
        NULL,
    };
    core_state *state = core_state_by_type(type);
    PyObject *parameters = NULL; /* borrowed, as all that is parsed */
    PyObject *elements = NULL, *element = NULL, *constant = NULL;
    PyObject *miss = NULL, *load = NULL, *device = NULL, *stream = NULL;
    PyObject *archs = NULL, *watched = NULL, *empty = NULL, *globals = NULL;
    PyObject *result = NULL;

    if (state == NULL ||
        !PyArg_ParseTupleAndKeywords(
            args, kwargs, "O!O!OOOOOOO!O!O!O!:TritonDispatch", names, &PyTuple_Type,
            &parameters, &PyDict_Type, &elements, &element, &constant, &miss, &load,
            &device, &stream, &PyTuple_Type, &archs, &PyTuple_Type, &watched,
            &PyTuple_Type, &empty, &PyTuple_Type, &globals)) {
        return NULL;
    }
    DispatchObject *self = DispatchObject_CAST(type->tp_alloc(type, 0));
    if (self == NULL) {
        return NULL;
    }
    self->vectorcall = Dispatch_vectorcall;
    self->state = state;
    self->words.elements = Py_NewRef(elements);
    self->words.element = Py_NewRef(element);
    self->words.constant = Py_NewRef(constant);
    self->words.dtype = PyUnicode_InternFromString("dtype");
    self->words.data_ptr = PyUnicode_InternFromString("data_ptr");
    self->words.descriptors =
        PyUnicode_InternFromString("triton.tools.tensor_descriptor");
    self->miss = Py_NewRef(miss);
    self->load = Py_NewRef(load);
    self->device = Py_NewRef(device);
    self->stream = Py_NewRef(stream);
    self->archs = Py_NewRef(archs);
    self->watched = Py_NewRef(watched);
    self->empty = Py_NewRef(empty);
    self->globals = Py_NewRef(globals);
    self->table = PyDict_New();
    self->names = Py_BuildValue("(NN)", PyUnicode_InternFromString("grid"),
                                PyUnicode_InternFromString("warmup"));
    self->by_name = Py_BuildValue("(N)", PyUnicode_InternFromString("stream"));
    if (self->words.dtype != NULL && self->words.data_ptr != NULL &&
        self->words.descriptors != NULL && self->table != NULL && self->names != NULL &&
        self->by_name != NULL && core_cuda_torch_init(&self->words.torch, state) == 0 &&
        take_parameters(self, parameters) == 0) {
        result = Py_NewRef((PyObject *)self);
    }
    Py_DECREF(self);
    return result;
}

static int
Dispatch_traverse(PyObject *op, visitproc visit, void *arg)
{
    DispatchObject *self = DispatchObject_CAST(op);
    Py_VISIT(Py_TYPE(op));
    for (Py_ssize_t i = 0; i < self->count; i++) {
        Py_VISIT(self->parameters[i].fallback);
    }
    Py_VISIT(self->words.elements);
    Py_VISIT(self->words.element);
    Py_VISIT(self->words.constant);
    Py_VISIT(self->table);
    Py_VISIT(self->miss);
    Py_VISIT(self->load);
    Py_VISIT(self->device);
    Py_VISIT(self->stream);
    Py_VISIT(self->archs);
    Py_VISIT(self->watched);
    Py_VISIT(self->empty);
    Py_VISIT(self->globals);
    return core_cuda_torch_traverse(&self->words.torch, visit, arg);
}

static int
Dispatch_clear(PyObject *op)
{
    DispatchObject *self = DispatchObject_CAST(op);
    Py_CLEAR(self->words.elements);
    Py_CLEAR(self->words.element);
    Py_CLEAR(self->words.constant);
    Py_CLEAR(self->table);
    Py_CLEAR(self->miss);
    Py_CLEAR(self->load);
    Py_CLEAR(self->device);
    Py_CLEAR(self->stream);
    Py_CLEAR(self->archs);
    Py_CLEAR(self->watched);
    Py_CLEAR(self->empty);
    Py_CLEAR(self->globals);
    core_cuda_torch_clear(&self->words.torch);
    return 0;
}

static void
Dispatch_dealloc(PyObject *op)
{
    DispatchObject *self = DispatchObject_CAST(op);
    PyTypeObject *type = Py_TYPE(op);
    PyObject_GC_UnTrack(op);
    (void)Dispatch_clear(op);
    for (Py_ssize_t i = 0; i < self->count; i++) {
        Py_CLEAR(self->parameters[i].name);
        Py_CLEAR(self->parameters[i].type);
        Py_CLEAR(self->parameters[i].fallback);
    }
    PyMem_Free(self->parameters);
    Py_CLEAR(self->words.dtype);
    Py_CLEAR(self->words.data_ptr);
    Py_CLEAR(self->words.descriptors);
    Py_CLEAR(self->names);
    Py_CLEAR(self->by_name);
    type->tp_free(op);
    Py_DECREF(type);
}

static PyMethodDef Dispatch_methods[] = {
    {"add", Dispatch_add, METH_VARARGS, Dispatch_add_doc},
    {"describe", PC_METHOD(Dispatch_describe), METH_FASTCALL | METH_KEYWORDS,
     Dispatch_describe_doc},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef Dispatch_members[] = {
    {"miss", T_OBJECT, offsetof(DispatchObject, miss), READONLY,
     "What gets the calls that are not frozen."},
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(DispatchObject, vectorcall), READONLY,
     NULL},
    {NULL, 0, 0, 0, NULL},
};

PyDoc_STRVAR(
    Dispatch_doc,
    "TritonDispatch(parameters, elements, element, constant, miss, load, device,\n"
    "               stream, archs, watched, empty, globals)\n--\n\n"
    "The method ``run`` of a kernel of triton.jit, served from frozen "
    "specialisations.\n\n"
    "*parameters*: a tuple (name, declared type or None, constexpr, specialize, "
    "align,\n"
    "read-only[, default]) for each. *elements* (dict) and *element(dtype)* give "
    "Triton's\n"
    "names of element types, *constant(value, declared)* the text of a constant that "
    "is\n"
    "not plain, or None. *device()* is the ordinal of the current device, "
    "*stream(device)*\n"
    "its stream, *archs* (tuple of int) the compute capability of each. A call goes "
    "to\n"
    "*miss* if it is not frozen, or if an attribute in *watched* (object, name, "
    "value),\n"
    "a list in *empty* or a variable in *globals* (dict, name, value, identity is "
    "enough)\n"
    "is not as it was. Returns None after a launch.");

static PyType_Slot Dispatch_slots[] = {
    {Py_tp_doc, (void *)Dispatch_doc},
    {Py_tp_new, Dispatch_new},
    {Py_tp_call, PyVectorcall_Call},
    {Py_tp_traverse, Dispatch_traverse},
    {Py_tp_clear, Dispatch_clear},
    {Py_tp_dealloc, Dispatch_dealloc},
    {Py_tp_methods, Dispatch_methods},
    {Py_tp_members, Dispatch_members},
    {0, NULL},
};

static PyType_Spec Dispatch_spec = {
    .name = "precomp._core.TritonDispatch",
    .basicsize = sizeof(DispatchObject),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    .slots = Dispatch_slots,
};

int
core_add_triton(PyObject *module)
{
    PyObject *type = PyType_FromModuleAndSpec(module, &Dispatch_spec, NULL);
    if (type == NULL) {
        return -1;
    }
    int result = PyModule_AddType(module, (PyTypeObject *)type);
    Py_DECREF(type);
    return result;
}
