/* How the codec finds what an encoding names: modules, attribute paths, code by
 * steps (docs/internals.md, section 5), and how it says that a name is stale.
 *
 * Nothing of torch's compiler is ever imported here: such a module is found in
 * *twins* or in sys.modules, or the value counts as stale.
 */
#include "codec.h"

PyObject *
codec_stale(core_state *state, const char *format, ...)
{
    PyObject *message = NULL; /* owned */
    va_list arguments;
    va_start(arguments, format);
    message = PyUnicode_FromFormatV(format, arguments);
    va_end(arguments);
    if (message != NULL) {
        PyErr_SetObject(state->stale, message);
        Py_DECREF(message);
    }
    return NULL;
}

/* Turns the AttributeError, KeyError or ImportError that is set into Stale. */
PyObject *
codec_stale_from_error(core_state *state, const char *format, PyObject *a, PyObject *b)
{
    if (PyErr_ExceptionMatches(PyExc_AttributeError) ||
        PyErr_ExceptionMatches(PyExc_KeyError) ||
        PyErr_ExceptionMatches(PyExc_ImportError)) {
        PyErr_Clear();
        codec_stale(state, format, a, b);
    }
    return NULL;
}

int
codec_has_tag(PyObject *encoded, const char *tag)
{
    return PyTuple_CheckExact(encoded) && PyTuple_GET_SIZE(encoded) > 0 &&
           PyUnicode_CheckExact(PyTuple_GET_ITEM(encoded, 0)) &&
           PyUnicode_CompareWithASCIIString(PyTuple_GET_ITEM(encoded, 0), tag) == 0;
}

PyObject *
codec_bad_encoding(PyObject *encoded)
{
    PyErr_Format(PyExc_ValueError, "decode: not an encoded value: %.200R", encoded);
    return NULL;
}

/* 1 when *encoded* has the items that *types* names after the tag: 's' str,
   'i' int, 'y' bytes, 't' tuple, 'e' anything. Else 0 with ValueError set. */
int
codec_has_shape(PyObject *encoded, const char *types)
{
    size_t count = strlen(types);
    int fits = PyTuple_GET_SIZE(encoded) == (Py_ssize_t)count + 1;
    for (size_t i = 0; fits && i < count; i++) {
        PyObject *item = PyTuple_GET_ITEM(encoded, (Py_ssize_t)i + 1); /* borrowed */
        switch (types[i]) {
            case 's':
                fits = PyUnicode_CheckExact(item);
                break;
            case 'i':
                fits = PyLong_CheckExact(item);
                break;
            case 'y':
                fits = PyBytes_CheckExact(item);
                break;
            case 't':
                fits = PyTuple_CheckExact(item);
                break;
            default:
                break;
        }
    }
    if (!fits) {
        codec_bad_encoding(encoded);
    }
    return fits;
}

/* ---- names ------------------------------------------------------------- */

/* 1 when importing *module* would start torch's compiler. */
static int
is_compiler_module(PyObject *module)
{
    static const char *const roots[] = {"torch._dynamo", "torch._inductor", "triton",
                                        "sympy", "torch._functorch.aot_autograd"};
    const char *name = PyUnicode_AsUTF8(module);
    if (name == NULL) {
        PyErr_Clear();
        return 0;
    }
    for (size_t i = 0; i < sizeof(roots) / sizeof(*roots); i++) {
        size_t length = strlen(roots[i]);
        if (strncmp(name, roots[i], length) == 0 &&
            (name[length] == '\0' || name[length] == '.')) {
            return 1;
        }
    }
    return 0;
}

/* New reference to twins[module, qualname]; NULL without an error when absent. */
static PyObject *
find_twin(decoder *self, PyObject *module, PyObject *qualname)
{
    PyObject *key = NULL;   /* owned */
    PyObject *found = NULL; /* borrowed, then owned */
    if (self->twins == NULL || PyDict_GET_SIZE(self->twins) == 0) {
        return NULL;
    }
    key = PyTuple_Pack(2, module, qualname);
    if (key == NULL) {
        return NULL;
    }
    found = PyDict_GetItemWithError(self->twins, key);
    Py_XINCREF(found);
    Py_DECREF(key);
    return found;
}

/* New reference to the module of that name, imported if needed. */
PyObject *
codec_find_module(decoder *self, PyObject *name)
{
    PyObject *empty = NULL; /* owned */
    PyObject *found = NULL; /* owned, returned */
    empty = PyUnicode_FromStringAndSize(NULL, 0);
    if (empty == NULL) {
        goto done;
    }
    found = find_twin(self, name, empty);
    if (found != NULL || PyErr_Occurred()) {
        goto done;
    }
    found = PyImport_GetModule(name);
    if (found != NULL || PyErr_Occurred()) {
        goto done;
    }
    if (is_compiler_module(name)) {
        codec_stale(self->state,
                    "module %U belongs to torch's compiler and is not loaded", name);
        goto done;
    }
    found = PyImport_Import(name);
    if (found == NULL) {
        codec_stale_from_error(self->state, "module %U cannot be imported", name, NULL);
        goto done;
    }
    /* PyImport_Import gives the leaf module already. */
done:
    Py_XDECREF(empty);
    return found;
}

/* New reference to the object at *qualname* of *module*, by getattr. */
static PyObject *
find_object(decoder *self, PyObject *module, PyObject *qualname)
{
    PyObject *dot = NULL;    /* owned */
    PyObject *parts = NULL;  /* owned */
    PyObject *object = NULL; /* owned, returned */
    object = find_twin(self, module, qualname);
    if (object != NULL || PyErr_Occurred()) {
        return object;
    }
    object = codec_find_module(self, module);
    if (object == NULL) {
        return NULL;
    }
    dot = PyUnicode_FromString(".");
    parts = dot == NULL ? NULL : PyUnicode_Split(qualname, dot, -1);
    if (parts == NULL) {
        Py_CLEAR(object);
        goto done;
    }
    for (Py_ssize_t i = 0; object != NULL && i < PyList_GET_SIZE(parts); i++) {
        Py_SETREF(object, PyObject_GetAttr(object, PyList_GET_ITEM(parts, i)));
    }
    if (object == NULL) {
        codec_stale_from_error(self->state, "%U has no %U any more", module, qualname);
    }
done:
    Py_XDECREF(dot);
    Py_XDECREF(parts);
    return object;
}

/* A twin stands for a function that the version of torch fixes: no digest. */
static int
is_twinned(decoder *self, PyObject *module)
{
    return self->twins != NULL && PyDict_GET_SIZE(self->twins) > 0 &&
           is_compiler_module(module);
}

PyObject *
codec_kind_of(PyObject *object)
{
    static const char *const names[] = {"__module__", "__qualname__"};
    PyObject *parts[2] = {NULL, NULL}; /* owned */
    PyObject *result = NULL;           /* owned, returned */
    for (int i = 0; i < 2; i++) {
        parts[i] = PyObject_GetAttrString(object, names[i]);
        if (parts[i] == NULL && !PyErr_ExceptionMatches(PyExc_AttributeError)) {
            goto done;
        }
        PyErr_Clear();
        if (parts[i] != NULL && !PyUnicode_Check(parts[i])) {
            Py_CLEAR(parts[i]);
        }
        if (parts[i] == NULL) {
            parts[i] = PyUnicode_FromStringAndSize(NULL, 0);
        }
        if (parts[i] == NULL) {
            goto done;
        }
    }
    result =
        PyUnicode_FromFormat("%s %U.%U", Py_TYPE(object)->tp_name, parts[0], parts[1]);
done:
    Py_XDECREF(parts[0]);
    Py_XDECREF(parts[1]);
    return result;
}

/* The object at a path, which must be what it was: of the same type and with the
   same name of its own. A name that was bound to something else is stale. */
PyObject *
codec_decode_path(decoder *self, PyObject *encoded)
{
    PyObject *object = NULL; /* owned, returned */
    PyObject *kind = NULL;   /* owned */
    if (!codec_has_shape(encoded, "sss")) {
        return NULL;
    }
    PyObject *module = PyTuple_GET_ITEM(encoded, 1);   /* borrowed */
    PyObject *qualname = PyTuple_GET_ITEM(encoded, 2); /* borrowed */
    object = find_object(self, module, qualname);
    if (object == NULL || is_twinned(self, module)) {
        return object;
    }
    kind = codec_kind_of(object);
    if (kind == NULL) {
        Py_CLEAR(object);
    }
    else if (PyUnicode_Compare(kind, PyTuple_GET_ITEM(encoded, 3)) != 0) {
        if (!PyErr_Occurred()) {
            codec_stale(self->state, "%U.%U was %U, is %U now", module, qualname,
                        PyTuple_GET_ITEM(encoded, 3), kind);
        }
        Py_CLEAR(object);
    }
    Py_XDECREF(kind);
    return object;
}

/* ---- code by steps ------------------------------------------------------ */

/* New reference to *name* of a module or class, from __dict__ only (along the
   MRO of a class); NULL without an error when it is absent. */
static PyObject *
lookup_static(PyObject *owner, PyObject *name)
{
    PyObject *found = NULL; /* borrowed, then owned */
    if (PyModule_Check(owner)) {
        PyObject *dict = PyModule_GetDict(owner); /* borrowed */
        found = dict == NULL ? NULL : PyDict_GetItemWithError(dict, name);
        Py_XINCREF(found);
        return found;
    }
    if (!PyType_Check(owner)) {
        return NULL;
    }
    PyObject *mro = ((PyTypeObject *)owner)->tp_mro; /* borrowed */
    for (Py_ssize_t i = 0; mro != NULL && i < PyTuple_GET_SIZE(mro); i++) {
        PyObject *dict = PyObject_GetAttrString(PyTuple_GET_ITEM(mro, i), "__dict__");
        if (dict == NULL) {
            return NULL;
        }
        found = PyObject_GetItem(dict, name);
        Py_DECREF(dict);
        if (found != NULL) {
            return found;
        }
        if (!PyErr_ExceptionMatches(PyExc_KeyError)) {
            return NULL;
        }
        PyErr_Clear();
    }
    return NULL;
}

static PyObject *
closure_content(PyObject *function, Py_ssize_t index)
{
    PyObject *closure; /* borrowed */
    if (!PyFunction_Check(function)) {
        return NULL;
    }
    closure = PyFunction_GET_CLOSURE(function);
    if (closure == NULL || index < 0 || index >= PyTuple_GET_SIZE(closure)) {
        return NULL;
    }
    return PyCell_Get(PyTuple_GET_ITEM(closure, index));
}

/* New reference to the function that Dynamo's wrapper of it calls: torch.nn.Module's
   __init__ and __setstate__ are wrapped as soon as a process compiles, and plain in one
   that is only served. Anything else is what it is. */
PyObject *
codec_unwrapped(PyObject *object)
{
    PyObject *module;       /* borrowed */
    PyObject *inner = NULL; /* owned, returned */
    if (PyFunction_Check(object)) {
        module = ((PyFunctionObject *)object)->func_module;
        if (module != NULL && PyUnicode_Check(module) &&
            PyUnicode_CompareWithASCIIString(module, "torch._dynamo.mutation_guard") ==
                0) {
            inner = closure_content(object, 0);
        }
    }
    if (inner != NULL && !PyFunction_Check(inner)) {
        Py_CLEAR(inner);
    }
    return inner != NULL ? inner : Py_NewRef(object);
}

static PyObject *
code_constant(PyObject *code, Py_ssize_t index)
{
    PyObject *constants = NULL; /* owned */
    PyObject *found = NULL;     /* owned, returned */
    if (!PyCode_Check(code)) {
        return NULL;
    }
    constants = PyObject_GetAttrString(code, "co_consts");
    if (constants != NULL && index >= 0 && index < PyTuple_GET_SIZE(constants)) {
        found = PyTuple_GET_ITEM(constants, index);
        Py_INCREF(found);
    }
    Py_XDECREF(constants);
    return found;
}

/* New reference to what one step leads to; NULL with or without an error. */
static PyObject *
take_step(PyObject *object, PyObject *step)
{
    PyObject *kind;     /* borrowed */
    PyObject *argument; /* borrowed */
    if (!PyTuple_CheckExact(step) || PyTuple_GET_SIZE(step) != 2 ||
        !PyUnicode_CheckExact(PyTuple_GET_ITEM(step, 0)) ||
        PyUnicode_GET_LENGTH(PyTuple_GET_ITEM(step, 0)) != 1) {
        return codec_bad_encoding(step);
    }
    kind = PyTuple_GET_ITEM(step, 0);
    argument = PyTuple_GET_ITEM(step, 1);
    Py_UCS4 letter = PyUnicode_READ_CHAR(kind, 0);
    if (letter == 'a' && PyUnicode_CheckExact(argument)) {
        PyObject *found = lookup_static(object, argument); /* owned */
        PyObject *inner = found == NULL ? NULL : codec_unwrapped(found);
        Py_XDECREF(found);
        return inner;
    }
    if (letter == 'f' && PyUnicode_CheckExact(argument)) {
        PyObject *found = PyObject_GetAttr(object, argument);
        if (found == NULL && PyErr_ExceptionMatches(PyExc_AttributeError)) {
            PyErr_Clear();
        }
        return found;
    }
    if ((letter == 'c' || letter == 'k') && PyLong_CheckExact(argument)) {
        Py_ssize_t index = PyLong_AsSsize_t(argument);
        if (index == -1 && PyErr_Occurred()) {
            return NULL;
        }
        return letter == 'c' ? closure_content(object, index)
                             : code_constant(object, index);
    }
    return codec_bad_encoding(step);
}

/* New reference to what *steps* of *module* lead to, or NULL. */
PyObject *
codec_follow(decoder *self, PyObject *module, PyObject *steps)
{
    PyObject *object = NULL; /* owned, returned */
    Py_ssize_t first = 0;
    Py_ssize_t count = PyTuple_GET_SIZE(steps);
    if (count > 0 && self->twins != NULL) {
        PyObject *step = PyTuple_GET_ITEM(steps, 0); /* borrowed */
        if (PyTuple_CheckExact(step) && PyTuple_GET_SIZE(step) == 2) {
            object = find_twin(self, module, PyTuple_GET_ITEM(step, 1));
            first = object != NULL;
        }
    }
    if (object == NULL && !PyErr_Occurred()) {
        object = codec_find_module(self, module);
    }
    if (object == NULL) {
        return NULL;
    }
    for (Py_ssize_t i = first; i < count; i++) {
        Py_SETREF(object, take_step(object, PyTuple_GET_ITEM(steps, i)));
        if (object == NULL) {
            if (!PyErr_Occurred()) {
                codec_stale(self->state, "%U: nothing at %R any more", module, steps);
            }
            return NULL;
        }
    }
    return object;
}

/* New reference to the code object at *steps* of *module*, or NULL. */
PyObject *
codec_find_code(decoder *self, PyObject *module, PyObject *steps)
{
    PyObject *object = codec_follow(self, module, steps); /* owned, returned */
    if (object != NULL && !PyCode_Check(object)) {
        codec_stale(self->state, "%U: %R does not lead to code any more", module,
                    steps);
        Py_CLEAR(object);
    }
    return object;
}

/* New str: the names on the way of *steps*, with dots. */
static PyObject *
steps_text(PyObject *steps)
{
    PyObject *dot = NULL;            /* owned */
    PyObject *result = NULL;         /* owned, returned */
    PyObject *names = PyList_New(0); /* owned */
    for (Py_ssize_t i = 0; names != NULL && i < PyTuple_GET_SIZE(steps); i++) {
        PyObject *step = PyTuple_GET_ITEM(steps, i); /* borrowed: it was taken */
        if (codec_has_tag(step, "a") &&
            PyList_Append(names, PyTuple_GET_ITEM(step, 1)) < 0) {
            Py_CLEAR(names);
        }
    }
    dot = names == NULL ? NULL : PyUnicode_FromString(".");
    if (dot != NULL) {
        result = PyUnicode_Join(dot, names);
    }
    Py_XDECREF(dot);
    Py_XDECREF(names);
    return result;
}

/* 0 when *code* has that digest, else -1 with Stale set, which names *module* and
   *name* (NULL: -1 with an error set). */
static int
check_digest(decoder *self, PyObject *code, PyObject *digest, PyObject *module,
             PyObject *name)
{
    PyObject *found = name == NULL ? NULL : codec_code_digest(code); /* owned */
    int result = -1;
    if (found == NULL) {
        return -1;
    }
    if (PyUnicode_Compare(found, digest) == 0) {
        result = 0;
    }
    else if (!PyErr_Occurred()) {
        codec_stale(self->state, "source of %U.%U has changed", module, name);
    }
    Py_DECREF(found);
    return result;
}

PyObject *
codec_decode_code_path(decoder *self, PyObject *encoded)
{
    PyObject *code; /* owned, returned */
    if (!codec_has_shape(encoded, "sts")) {
        return NULL;
    }
    PyObject *module = PyTuple_GET_ITEM(encoded, 1); /* borrowed */
    PyObject *steps = PyTuple_GET_ITEM(encoded, 2);  /* borrowed */
    code = codec_find_code(self, module, steps);
    if (code != NULL && !is_twinned(self, module)) {
        PyObject *name = steps_text(steps); /* owned */
        if (check_digest(self, code, PyTuple_GET_ITEM(encoded, 3), module, name) < 0) {
            Py_CLEAR(code);
        }
        Py_XDECREF(name);
    }
    return code;
}

PyObject *
codec_decode_function(decoder *self, PyObject *encoded)
{
    PyObject *function; /* owned, returned */
    if (!codec_has_shape(encoded, "sss")) {
        return NULL;
    }
    PyObject *module = PyTuple_GET_ITEM(encoded, 1);   /* borrowed */
    PyObject *qualname = PyTuple_GET_ITEM(encoded, 2); /* borrowed */
    function = find_object(self, module, qualname);
    if (function == NULL) {
        return NULL;
    }
    if (!PyFunction_Check(function)) {
        codec_stale(self->state, "%U.%U is no function any more", module, qualname);
        Py_CLEAR(function);
    }
    else if (!is_twinned(self, module) &&
             check_digest(self, PyFunction_GET_CODE(function),
                          PyTuple_GET_ITEM(encoded, 3), module, qualname) < 0) {
        Py_CLEAR(function);
    }
    return function;
}
