/* The codec of values that are not plain data: reads what
 * precomp.freeze.values writes (docs/internals.md, sections 2 and 5).
 *
 * A value that is gone or has changed since it was captured raises _core.Stale.
 * Nothing of torch's compiler is ever imported here: such a module is found in
 * *twins* or in sys.modules, or the value counts as stale.
 */
#include "codec.h"

#include <marshal.h>

/* What one decoding needs; borrowed all. */
typedef struct {
    core_state *state;
    PyObject *twins; /* dict or NULL */
    PyObject *memo;  /* dict or NULL */
} decoder;

static PyObject *decode_value(decoder *self, PyObject *encoded);

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
static PyObject *
stale_from_error(core_state *state, const char *format, PyObject *a, PyObject *b)
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

static PyObject *
bad_encoding(PyObject *encoded)
{
    PyErr_Format(PyExc_ValueError, "decode: not an encoded value: %.200R", encoded);
    return NULL;
}

/* 1 when *encoded* has the items that *types* names after the tag: 's' str,
   'i' int, 'y' bytes, 't' tuple, 'e' anything. Else 0 with ValueError set. */
static int
has_shape(PyObject *encoded, const char *types)
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
        bad_encoding(encoded);
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
static PyObject *
find_module(decoder *self, PyObject *name)
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
        codec_stale(self->state, "module %U belongs to torch's compiler and is not loaded",
                    name);
        goto done;
    }
    found = PyImport_Import(name);
    if (found == NULL) {
        stale_from_error(self->state, "module %U cannot be imported", name, NULL);
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
    object = find_module(self, module);
    if (object == NULL) {
        return NULL;
    }
    if (PyUnicode_FindChar(qualname, '.', 0, PyUnicode_GET_LENGTH(qualname), 1) < 0) {
        PyErr_Clear();
        Py_SETREF(object, PyObject_GetAttr(object, qualname));
        goto done;
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
done:
    if (object == NULL) {
        stale_from_error(self->state, "%U has no %U any more", module, qualname);
    }
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
    result = PyUnicode_FromFormat("%s %U.%U", Py_TYPE(object)->tp_name, parts[0], parts[1]);
done:
    Py_XDECREF(parts[0]);
    Py_XDECREF(parts[1]);
    return result;
}

/* The object at a path, which must be what it was: of the same type and with the
   same name of its own. A name that was bound to something else is stale. */
static PyObject *
decode_path(decoder *self, PyObject *encoded)
{
    PyObject *object = NULL; /* owned, returned */
    PyObject *kind = NULL;   /* owned */
    if (!has_shape(encoded, "sss")) {
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
        return bad_encoding(step);
    }
    kind = PyTuple_GET_ITEM(step, 0);
    argument = PyTuple_GET_ITEM(step, 1);
    Py_UCS4 letter = PyUnicode_READ_CHAR(kind, 0);
    if (letter == 'a' && PyUnicode_CheckExact(argument)) {
        return lookup_static(object, argument);
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
    return bad_encoding(step);
}

/* New reference to the code object at *steps* of *module*, or NULL. */
static PyObject *
find_code(decoder *self, PyObject *module, PyObject *steps)
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
        object = find_module(self, module);
    }
    if (object == NULL) {
        return NULL;
    }
    for (Py_ssize_t i = first; i < count; i++) {
        Py_SETREF(object, take_step(object, PyTuple_GET_ITEM(steps, i)));
        if (object == NULL) {
            if (!PyErr_Occurred()) {
                codec_stale(self->state, "%U: no code at %R any more", module, steps);
            }
            return NULL;
        }
    }
    if (!PyCode_Check(object)) {
        codec_stale(self->state, "%U: %R does not lead to code any more", module, steps);
        Py_CLEAR(object);
    }
    return object;
}

/* 0 when *code* has that digest, else -1 with Stale set. */
static int
check_digest(decoder *self, PyObject *code, PyObject *digest, PyObject *module)
{
    PyObject *found = codec_code_digest(code); /* owned */
    int result = -1;
    if (found == NULL) {
        return -1;
    }
    int equal = PyUnicode_Compare(found, digest);
    if (equal == 0) {
        result = 0;
    }
    else if (!PyErr_Occurred()) {
        PyObject *name = PyObject_GetAttrString(code, "co_name"); /* owned */
        if (name != NULL) {
            codec_stale(self->state, "source of %U.%U has changed", module, name);
            Py_DECREF(name);
        }
    }
    Py_DECREF(found);
    return result;
}

static PyObject *
decode_code_path(decoder *self, PyObject *encoded)
{
    PyObject *code; /* owned, returned */
    if (!has_shape(encoded, "sts")) {
        return NULL;
    }
    PyObject *module = PyTuple_GET_ITEM(encoded, 1); /* borrowed */
    code = find_code(self, module, PyTuple_GET_ITEM(encoded, 2));
    if (code != NULL && !is_twinned(self, module) &&
        check_digest(self, code, PyTuple_GET_ITEM(encoded, 3), module) < 0) {
        Py_CLEAR(code);
    }
    return code;
}

static PyObject *
decode_function(decoder *self, PyObject *encoded)
{
    PyObject *function; /* owned, returned */
    if (!has_shape(encoded, "sss")) {
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
                          PyTuple_GET_ITEM(encoded, 3), module) < 0) {
        Py_CLEAR(function);
    }
    return function;
}

/* ---- containers --------------------------------------------------------- */

/* New list of the decoded items of the tuple *items*, or NULL. */
static PyObject *
decode_items(decoder *self, PyObject *items)
{
    Py_ssize_t count = PyTuple_GET_SIZE(items);
    PyObject *list = PyList_New(count); /* owned, returned */
    for (Py_ssize_t i = 0; list != NULL && i < count; i++) {
        PyObject *item = decode_value(self, PyTuple_GET_ITEM(items, i));
        if (item == NULL) {
            Py_CLEAR(list);
            break;
        }
        PyList_SET_ITEM(list, i, item);
    }
    return list;
}

static PyObject *
decode_tuple(decoder *self, PyObject *items)
{
    Py_ssize_t count = PyTuple_GET_SIZE(items);
    PyObject *tuple = PyTuple_New(count); /* owned, returned */
    for (Py_ssize_t i = 0; tuple != NULL && i < count; i++) {
        PyObject *item = decode_value(self, PyTuple_GET_ITEM(items, i));
        if (item == NULL) {
            Py_CLEAR(tuple);
            break;
        }
        PyTuple_SET_ITEM(tuple, i, item);
    }
    return tuple;
}

static PyObject *
decode_dict(decoder *self, PyObject *pairs)
{
    PyObject *dict = PyDict_New(); /* owned, returned */
    PyObject *key = NULL;          /* owned */
    PyObject *value = NULL;        /* owned */
    for (Py_ssize_t i = 0; dict != NULL && i < PyTuple_GET_SIZE(pairs); i++) {
        PyObject *pair = PyTuple_GET_ITEM(pairs, i); /* borrowed */
        if (!PyTuple_CheckExact(pair) || PyTuple_GET_SIZE(pair) != 2) {
            bad_encoding(pair);
            goto fail;
        }
        key = decode_value(self, PyTuple_GET_ITEM(pair, 0));
        value = key == NULL ? NULL : decode_value(self, PyTuple_GET_ITEM(pair, 1));
        if (value == NULL || PyDict_SetItem(dict, key, value) < 0) {
            goto fail;
        }
        Py_CLEAR(key);
        Py_CLEAR(value);
    }
    return dict;
fail:
    Py_XDECREF(key);
    Py_XDECREF(value);
    Py_XDECREF(dict);
    return NULL;
}

static PyObject *
decode_slice(decoder *self, PyObject *encoded)
{
    PyObject *parts = NULL;  /* owned */
    PyObject *result = NULL; /* owned, returned */
    PyObject *tail = NULL;   /* owned */
    if (!has_shape(encoded, "eee")) {
        return NULL;
    }
    tail = PyTuple_GetSlice(encoded, 1, 4);
    parts = tail == NULL ? NULL : decode_tuple(self, tail);
    if (parts != NULL) {
        result = PySlice_New(PyTuple_GET_ITEM(parts, 0), PyTuple_GET_ITEM(parts, 1),
                             PyTuple_GET_ITEM(parts, 2));
    }
    Py_XDECREF(tail);
    Py_XDECREF(parts);
    return result;
}

/* callable(*items) for items that are plain: range, torch.Size. */
static PyObject *
call_with(PyObject *callable, PyObject *arguments)
{
    return callable == NULL ? NULL : PyObject_Call(callable, arguments, NULL);
}

static PyObject *
decode_range(PyObject *encoded)
{
    PyObject *result = NULL; /* owned, returned */
    if (!has_shape(encoded, "iii")) {
        return NULL;
    }
    PyObject *tail = PyTuple_GetSlice(encoded, 1, 4); /* owned */
    if (tail != NULL) {
        result = call_with((PyObject *)&PyRange_Type, tail);
        Py_DECREF(tail);
    }
    return result;
}

static PyObject *
decode_dict_keys(decoder *self, PyObject *encoded)
{
    PyObject *dict = NULL;   /* owned */
    PyObject *items = NULL;  /* owned */
    PyObject *result = NULL; /* owned, returned */
    if (!has_shape(encoded, "t")) {
        return NULL;
    }
    items = decode_items(self, PyTuple_GET_ITEM(encoded, 1));
    dict = PyDict_New();
    if (items == NULL || dict == NULL) {
        goto done;
    }
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(items); i++) {
        if (PyDict_SetItem(dict, PyList_GET_ITEM(items, i), Py_None) < 0) {
            goto done;
        }
    }
    result = PyObject_CallMethod(dict, "keys", NULL);
done:
    Py_XDECREF(items);
    Py_XDECREF(dict);
    return result;
}

static PyObject *
decode_partial(decoder *self, PyObject *encoded)
{
    PyObject *functools = NULL; /* owned */
    PyObject *partial = NULL;   /* owned */
    PyObject *function = NULL;  /* owned */
    PyObject *arguments = NULL; /* owned */
    PyObject *keywords = NULL;  /* owned */
    PyObject *all = NULL;       /* owned */
    PyObject *result = NULL;    /* owned, returned */
    if (!has_shape(encoded, "eee")) {
        return NULL;
    }
    function = decode_value(self, PyTuple_GET_ITEM(encoded, 1));
    arguments = function == NULL ? NULL : decode_value(self, PyTuple_GET_ITEM(encoded, 2));
    keywords = arguments == NULL ? NULL : decode_value(self, PyTuple_GET_ITEM(encoded, 3));
    if (keywords == NULL) {
        goto done;
    }
    if (!PyTuple_CheckExact(arguments) || !PyDict_CheckExact(keywords)) {
        bad_encoding(encoded);
        goto done;
    }
    functools = PyImport_ImportModule("functools");
    partial = functools == NULL ? NULL : PyObject_GetAttrString(functools, "partial");
    all = partial == NULL ? NULL : PyTuple_Pack(1, function);
    if (all == NULL) {
        goto done;
    }
    Py_SETREF(all, PySequence_Concat(all, arguments));
    if (all != NULL) {
        result = PyObject_Call(partial, all, keywords);
    }
done:
    Py_XDECREF(functools);
    Py_XDECREF(partial);
    Py_XDECREF(function);
    Py_XDECREF(arguments);
    Py_XDECREF(keywords);
    Py_XDECREF(all);
    return result;
}

/* ---- torch and numpy ---------------------------------------------------- */

/* New reference to an attribute path of torch; the *count* names are items of
   *encoded* after the tag, the first attribute is *head* unless NULL. */
static PyObject *
decode_torch_path(decoder *self, PyObject *encoded, const char *head, int count)
{
    PyObject *object = PyImport_ImportModule("torch"); /* owned, returned */
    if (object != NULL && head != NULL) {
        Py_SETREF(object, PyObject_GetAttrString(object, head));
    }
    for (int i = 1; object != NULL && i <= count; i++) {
        Py_SETREF(object, PyObject_GetAttr(object, PyTuple_GET_ITEM(encoded, i)));
    }
    if (object == NULL) {
        stale_from_error(self->state, "torch has no %R any more", encoded, NULL);
    }
    return object;
}

/* torch.<name>(argument). */
static PyObject *
call_torch(const char *name, PyObject *argument)
{
    PyObject *torch = PyImport_ImportModule("torch"); /* owned */
    PyObject *result = NULL;                          /* owned, returned */
    if (torch != NULL) {
        result = PyObject_CallMethod(torch, name, "(O)", argument);
        Py_DECREF(torch);
    }
    return result;
}

static PyObject *
decode_state_guard(decoder *self, PyObject *encoded)
{
    PyObject *guard;  /* owned, returned */
    PyObject *ignore; /* owned */
    PyObject *cls = core_torch(self->state, "GlobalStateGuard");
    if (cls == NULL) {
        return NULL;
    }
    guard = PyObject_CallNoArgs(cls);
    if (guard == NULL) {
        return NULL;
    }
    ignore = PyObject_CallMethod(guard, "__setstate__", "O", PyTuple_GET_ITEM(encoded, 1));
    if (ignore == NULL) {
        Py_CLEAR(guard);
    }
    Py_XDECREF(ignore);
    return guard;
}

static PyObject *
decode_numpy(PyObject *encoded)
{
    PyObject *numpy = NULL;  /* owned */
    PyObject *array = NULL;  /* owned */
    PyObject *result = NULL; /* owned, returned */
    if (!has_shape(encoded, "sy")) {
        return NULL;
    }
    numpy = PyImport_ImportModule("numpy");
    array = numpy == NULL
                ? NULL
                : PyObject_CallMethod(numpy, "frombuffer", "OO",
                                      PyTuple_GET_ITEM(encoded, 2),
                                      PyTuple_GET_ITEM(encoded, 1));
    if (array != NULL) {
        result = PySequence_GetItem(array, 0);
    }
    Py_XDECREF(numpy);
    Py_XDECREF(array);
    return result;
}

/* The class that fully_shard made of another class: its own name is not
   importable, so it is found through the original. */
static PyObject *
decode_sharded_class(decoder *self, PyObject *encoded)
{
    PyObject *original = NULL; /* owned */
    PyObject *name = NULL;     /* owned */
    PyObject *module = NULL;   /* owned */
    PyObject *classes = NULL;  /* owned */
    PyObject *found = NULL;    /* owned, returned */
    if (!has_shape(encoded, "e")) {
        return NULL;
    }
    original = decode_value(self, PyTuple_GET_ITEM(encoded, 1));
    name = PyUnicode_FromString("torch.distributed.fsdp._fully_shard._fully_shard");
    if (original == NULL || name == NULL) {
        goto done;
    }
    module = PyImport_GetModule(name);
    if (module == NULL) {
        goto done;
    }
    classes = PyObject_GetAttrString(module, "cls_to_fsdp_cls");
    if (classes == NULL) {
        goto done;
    }
    found = PyObject_GetItem(classes, original);
    if (found == NULL && PyErr_ExceptionMatches(PyExc_KeyError)) {
        PyErr_Clear();
    }
done:
    if (found == NULL && !PyErr_Occurred()) {
        codec_stale(self->state, "not wrapped by fully_shard yet: %R", original);
    }
    Py_XDECREF(original);
    Py_XDECREF(name);
    Py_XDECREF(module);
    Py_XDECREF(classes);
    return found;
}

static PyObject *
decode_enum(decoder *self, PyObject *encoded)
{
    PyObject *type;         /* owned */
    PyObject *found = NULL; /* owned, returned */
    if (!has_shape(encoded, "es")) {
        return NULL;
    }
    type = decode_value(self, PyTuple_GET_ITEM(encoded, 1));
    if (type == NULL) {
        return NULL;
    }
    found = PyObject_GetItem(type, PyTuple_GET_ITEM(encoded, 2));
    if (found == NULL && PyErr_ExceptionMatches(PyExc_TypeError)) {
        PyErr_Clear();
        codec_stale(self->state, "%R is no enum any more", type);
    }
    else if (found == NULL) {
        stale_from_error(self->state, "%R has no member %U any more", type,
                         PyTuple_GET_ITEM(encoded, 2));
    }
    Py_DECREF(type);
    return found;
}

/* Types without an importable name. */
static PyObject *
decode_anonymous(decoder *self, PyObject *encoded)
{
    static const struct {
        const char *name;
        PyTypeObject *type;
    } types[] = {
        {"tuple_iterator", &PyTupleIter_Type},
        {"list_iterator", &PyListIter_Type},
        {"list_reverseiterator", &PyListRevIter_Type},
        {"range_iterator", &PyRangeIter_Type},
        {"dict_keys", &PyDictKeys_Type},
        {"dict_values", &PyDictValues_Type},
        {"dict_items", &PyDictItems_Type},
        {"dict_keyiterator", &PyDictIterKey_Type},
        {"dict_valueiterator", &PyDictIterValue_Type},
        {"dict_itemiterator", &PyDictIterItem_Type},
        {"set_iterator", &PySetIter_Type},
        {"callable_iterator", &PyCallIter_Type},
        {"iterator", &PySeqIter_Type},
        {"bytes_iterator", &PyBytesIter_Type},
        {"str_iterator", &PyUnicodeIter_Type},
    };
    if (!has_shape(encoded, "s")) {
        return NULL;
    }
    PyObject *name = PyTuple_GET_ITEM(encoded, 1); /* borrowed */
    for (size_t i = 0; i < sizeof(types) / sizeof(*types); i++) {
        if (PyUnicode_CompareWithASCIIString(name, types[i].name) == 0) {
            Py_INCREF(types[i].type);
            return (PyObject *)types[i].type;
        }
    }
    PyObject *module = PyImport_ImportModule("types"); /* owned */
    if (module == NULL) {
        return NULL;
    }
    PyObject *found = PyObject_GetAttr(module, name); /* owned, returned */
    Py_DECREF(module);
    if (found == NULL) {
        stale_from_error(self->state, "no builtin type %U", name, NULL);
    }
    return found;
}

/* ---- dispatch ------------------------------------------------------------ */

#define TAG1(a) ((uint32_t)(a))
#define TAG2(a, b) (((uint32_t)(a) << 8) | (uint32_t)(b))
#define TAG3(a, b, c) ((TAG2(a, b) << 8) | (uint32_t)(c))

/* The tag packed into a number, 0 when *encoded* has none. */
static uint32_t
tag_of(PyObject *encoded)
{
    if (!PyTuple_CheckExact(encoded) || PyTuple_GET_SIZE(encoded) < 1) {
        return 0;
    }
    PyObject *tag = PyTuple_GET_ITEM(encoded, 0); /* borrowed */
    if (!PyUnicode_CheckExact(tag) || !PyUnicode_IS_COMPACT_ASCII(tag) ||
        PyUnicode_GET_LENGTH(tag) > 4) {
        return 0;
    }
    uint32_t packed = 0;
    for (Py_ssize_t i = 0; i < PyUnicode_GET_LENGTH(tag); i++) {
        packed = (packed << 8) | (uint32_t)PyUnicode_READ_CHAR(tag, i);
    }
    return packed;
}

static int
is_plain(PyObject *value)
{
    return value == Py_None || value == Py_Ellipsis || PyBool_Check(value) ||
           PyLong_CheckExact(value) || PyFloat_CheckExact(value) ||
           PyUnicode_CheckExact(value) || PyBytes_CheckExact(value) ||
           PyComplex_CheckExact(value);
}

static PyObject *
decode_container(decoder *self, uint32_t tag, PyObject *encoded)
{
    PyObject *items;         /* owned */
    PyObject *result = NULL; /* owned, returned */
    if (!has_shape(encoded, "t")) {
        return NULL;
    }
    PyObject *content = PyTuple_GET_ITEM(encoded, 1); /* borrowed */
    switch (tag) {
        case TAG1('t'):
            return decode_tuple(self, content);
        case TAG1('l'):
            return decode_items(self, content);
        case TAG1('d'):
            return decode_dict(self, content);
        case TAG2('s', 'z'):
            return call_torch("Size", content);
        default:
            break;
    }
    items = decode_items(self, content);
    if (items != NULL) {
        result = tag == TAG1('s') ? PySet_New(items) : PyFrozenSet_New(items);
        Py_DECREF(items);
    }
    return result;
}

static PyObject *
decode_proxy(decoder *self, PyObject *encoded)
{
    PyObject *dict;          /* owned */
    PyObject *result = NULL; /* owned, returned */
    if (!has_shape(encoded, "e")) {
        return NULL;
    }
    dict = decode_value(self, PyTuple_GET_ITEM(encoded, 1));
    if (dict != NULL) {
        result = PyDictProxy_New(dict);
        Py_DECREF(dict);
    }
    return result;
}

static PyObject *
decode_key_set(decoder *self, PyObject *encoded)
{
    PyObject *cls = core_torch(self->state, "DispatchKeySet"); /* borrowed */
    if (cls == NULL || !has_shape(encoded, "i")) {
        return NULL;
    }
    return PyObject_CallMethod(cls, "from_raw_repr", "O", PyTuple_GET_ITEM(encoded, 1));
}

static PyObject *
decode_inverse_mode(decoder *self, PyObject *encoded)
{
    PyObject *cls = core_torch(self->state, "InverseReturnMode"); /* borrowed */
    if (cls == NULL || !has_shape(encoded, "s")) {
        return NULL;
    }
    return PyObject_GetAttr(cls, PyTuple_GET_ITEM(encoded, 1));
}

/* Identities: found by name, so worth remembering while one tree is built. */
static PyObject *
decode_identity(decoder *self, uint32_t tag, PyObject *encoded)
{
    switch (tag) {
        case TAG1('P'):
            return decode_path(self, encoded);
        case TAG2('P', 'F'):
            return decode_function(self, encoded);
        case TAG1('C'):
            return decode_code_path(self, encoded);
        case TAG1('M'):
            return has_shape(encoded, "s") ? find_module(self, PyTuple_GET_ITEM(encoded, 1))
                                           : NULL;
        case TAG1('A'):
            return decode_anonymous(self, encoded);
        case TAG2('F', 'S'):
            return decode_sharded_class(self, encoded);
        case TAG2('e', 'n'):
            return decode_enum(self, encoded);
        case TAG2('d', 't'):
            return has_shape(encoded, "s") ? decode_torch_path(self, encoded, NULL, 1) : NULL;
        case TAG2('n', 's'):
            return has_shape(encoded, "s") ? decode_torch_path(self, encoded, "ops", 1) : NULL;
        case TAG2('o', 'p'):
            return has_shape(encoded, "sss") ? decode_torch_path(self, encoded, "ops", 3)
                                             : NULL;
        case TAG3('o', 'p', 'p'):
            return has_shape(encoded, "ss") ? decode_torch_path(self, encoded, "ops", 2)
                                            : NULL;
        default:
            return bad_encoding(encoded);
    }
}

static PyObject *
decode_remembered(decoder *self, uint32_t tag, PyObject *encoded)
{
    PyObject *found; /* owned, returned */
    if (self->memo == NULL) {
        return decode_identity(self, tag, encoded);
    }
    found = PyDict_GetItemWithError(self->memo, encoded);
    if (found != NULL) {
        Py_INCREF(found);
        return found;
    }
    if (PyErr_Occurred()) {
        return NULL;
    }
    found = decode_identity(self, tag, encoded);
    if (found != NULL && PyDict_SetItem(self->memo, encoded, found) < 0) {
        Py_CLEAR(found);
    }
    return found;
}

static PyObject *
decode_tagged(decoder *self, uint32_t tag, PyObject *encoded)
{
    switch (tag) {
        case TAG1('t'):
        case TAG1('l'):
        case TAG1('s'):
        case TAG1('f'):
        case TAG1('d'):
        case TAG2('s', 'z'):
            return decode_container(self, tag, encoded);
        case TAG1('N'):
            Py_INCREF(Py_NotImplemented);
            return Py_NotImplemented;
        case TAG2('s', 'l'):
            return decode_slice(self, encoded);
        case TAG1('r'):
            return decode_range(encoded);
        case TAG2('d', 'v'):
            return has_shape(encoded, "s") ? call_torch("device", PyTuple_GET_ITEM(encoded, 1))
                                           : NULL;
        case TAG2('d', 'k'):
            return decode_key_set(self, encoded);
        case TAG3('i', 'r', 'm'):
            return decode_inverse_mode(self, encoded);
        case TAG2('g', 's'):
            return has_shape(encoded, "e") ? decode_state_guard(self, encoded) : NULL;
        case TAG3('d', 'k', 's'):
            return decode_dict_keys(self, encoded);
        case TAG2('m', 'p'):
            return decode_proxy(self, encoded);
        case TAG2('n', 'p'):
            return decode_numpy(encoded);
        case TAG2('p', 't'):
            return decode_partial(self, encoded);
        default:
            return decode_remembered(self, tag, encoded);
    }
}

static PyObject *
decode_value(decoder *self, PyObject *encoded)
{
    uint32_t tag = tag_of(encoded);
    PyObject *result; /* owned, returned */
    if (tag == TAG1('k')) {
        if (PyTuple_GET_SIZE(encoded) != 2 || !is_plain(PyTuple_GET_ITEM(encoded, 1))) {
            return bad_encoding(encoded);
        }
        result = PyTuple_GET_ITEM(encoded, 1);
        Py_INCREF(result);
        return result;
    }
    if (tag == 0) {
        return bad_encoding(encoded);
    }
    if (Py_EnterRecursiveCall(" while decoding a value")) {
        return NULL;
    }
    result = decode_tagged(self, tag, encoded);
    Py_LeaveRecursiveCall();
    return result;
}

PyObject *
codec_decode(core_state *state, PyObject *encoded, PyObject *twins, PyObject *memo)
{
    decoder self = {state, twins, memo};
    return decode_value(&self, encoded);
}

PyObject *
core_decode(core_state *state, PyObject *encoded, PyObject *twins)
{
    return codec_decode(state, encoded, twins, NULL);
}

/* ---- whole code objects -------------------------------------------------- */

static PyObject *
decode_code_object(decoder *self, PyObject *encoded, PyObject *filename, long base)
{
    PyObject *code = NULL;      /* owned */
    PyObject *constants = NULL; /* owned */
    PyObject *replace = NULL;   /* owned */
    PyObject *keywords = NULL;  /* owned */
    PyObject *nothing = NULL;   /* owned */
    PyObject *result = NULL;    /* owned, returned */
    if (!PyTuple_CheckExact(encoded) || PyTuple_GET_SIZE(encoded) != 3 ||
        !PyBytes_CheckExact(PyTuple_GET_ITEM(encoded, 0)) ||
        !PyLong_CheckExact(PyTuple_GET_ITEM(encoded, 1)) ||
        !PyTuple_CheckExact(PyTuple_GET_ITEM(encoded, 2))) {
        return bad_encoding(encoded);
    }
    PyObject *marshalled = PyTuple_GET_ITEM(encoded, 0); /* borrowed */
    PyObject *items = PyTuple_GET_ITEM(encoded, 2);      /* borrowed */
    long line = PyLong_AsLong(PyTuple_GET_ITEM(encoded, 1));
    if (line == -1 && PyErr_Occurred()) {
        return NULL;
    }
    if (Py_EnterRecursiveCall(" while decoding code")) {
        return NULL;
    }
    code = PyMarshal_ReadObjectFromString(PyBytes_AS_STRING(marshalled),
                                          PyBytes_GET_SIZE(marshalled));
    if (code == NULL) {
        goto done;
    }
    if (!PyCode_Check(code)) {
        bad_encoding(encoded);
        goto done;
    }
    constants = PyTuple_New(PyTuple_GET_SIZE(items));
    for (Py_ssize_t i = 0; constants != NULL && i < PyTuple_GET_SIZE(items); i++) {
        PyObject *item = PyTuple_GET_ITEM(items, i); /* borrowed */
        PyObject *value = codec_has_tag(item, "CODE") && PyTuple_GET_SIZE(item) == 2
                              ? decode_code_object(self, PyTuple_GET_ITEM(item, 1),
                                                   filename, base)
                              : decode_value(self, item);
        if (value == NULL) {
            goto done;
        }
        PyTuple_SET_ITEM(constants, i, value);
    }
    replace = PyObject_GetAttrString(code, "replace");
    nothing = PyTuple_New(0);
    if (constants == NULL || replace == NULL || nothing == NULL) {
        goto done;
    }
    line += base;
    keywords = Py_BuildValue("{sOsOsl}", "co_consts", constants, "co_filename", filename,
                             "co_firstlineno", line < 1 ? 1L : line);
    if (keywords != NULL) {
        result = PyObject_Call(replace, nothing, keywords);
    }
done:
    Py_LeaveRecursiveCall();
    Py_XDECREF(code);
    Py_XDECREF(constants);
    Py_XDECREF(replace);
    Py_XDECREF(keywords);
    Py_XDECREF(nothing);
    return result;
}

/* ---- module functions ----------------------------------------------------- */

/* NULL for None; 0 and TypeError when *twins* is neither None nor a dict. */
static int
take_twins(PyObject **twins)
{
    if (*twins == Py_None) {
        *twins = NULL;
    }
    if (*twins != NULL && !PyDict_Check(*twins)) {
        PyErr_Format(PyExc_TypeError, "twins: expected a dict or None, got %.100s",
                     Py_TYPE(*twins)->tp_name);
        return 0;
    }
    return 1;
}

PyDoc_STRVAR(core_decode_doc,
             "decode(encoded, twins=None)\n--\n\n"
             "The value of an encoded value (docs/internals.md, section 2).\n\n"
             "*twins* maps (module, qualname) to what stands for it while the real module\n"
             "is not loaded, and (module, '') to a stand-in of the module itself.\n"
             "Raises Stale when the value is gone or has changed since it was captured,\n"
             "ValueError when *encoded* is malformed.");

static PyObject *
core_decode_function(PyObject *module, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {(char *)"encoded", (char *)"twins", NULL};
    PyObject *encoded = NULL; /* borrowed */
    PyObject *twins = NULL;   /* borrowed */
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|O:decode", names, &encoded, &twins) ||
        !take_twins(&twins)) {
        return NULL;
    }
    return core_decode(core_state_get(module), encoded, twins);
}

PyDoc_STRVAR(core_decode_code_doc,
             "decode_code(encoded, filename, firstlineno, twins=None)\n--\n\n"
             "The code object of freeze.values.encode_code, placed at *filename* and\n"
             "*firstlineno* (the line that the encoder's base line stands for).");

static PyObject *
core_decode_code(PyObject *module, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {(char *)"encoded", (char *)"filename", (char *)"firstlineno", (char *)"twins", NULL};
    PyObject *encoded = NULL;  /* borrowed */
    PyObject *filename = NULL; /* borrowed */
    PyObject *twins = NULL;    /* borrowed */
    int line = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OUi|O:decode_code", names, &encoded,
                                     &filename, &line, &twins) ||
        !take_twins(&twins)) {
        return NULL;
    }
    decoder self = {core_state_get(module), twins, NULL};
    return decode_code_object(&self, encoded, filename, line);
}

PyDoc_STRVAR(core_code_at_doc,
             "code_at(module, steps, twins=None)\n--\n\n"
             "The code object that *steps* (docs/internals.md, section 5) lead to from the\n"
             "module of that name. No descriptor is run. Raises Stale when they lead to\n"
             "no code any more.");

static PyObject *
core_code_at(PyObject *module, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {(char *)"module", (char *)"steps", (char *)"twins", NULL};
    PyObject *name = NULL;  /* borrowed */
    PyObject *steps = NULL; /* borrowed */
    PyObject *twins = NULL; /* borrowed */
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "UO!|O:code_at", names, &name,
                                     &PyTuple_Type, &steps, &twins) ||
        !take_twins(&twins)) {
        return NULL;
    }
    decoder self = {core_state_get(module), twins, NULL};
    return find_code(&self, name, steps);
}

PyDoc_STRVAR(core_kind_of_doc,
             "kind_of(object, /)\n--\n\n"
             "Type and own name of an object, as text: what the tag 'P' compares.");

static PyObject *
core_kind_of(PyObject *module, PyObject *object)
{
    (void)module;
    return codec_kind_of(object);
}

static PyMethodDef codec_methods[] = {
    {"kind_of", core_kind_of, METH_O, core_kind_of_doc},
    {"decode", PC_METHOD(core_decode_function), METH_VARARGS | METH_KEYWORDS,
     core_decode_doc},
    {"decode_code", PC_METHOD(core_decode_code), METH_VARARGS | METH_KEYWORDS,
     core_decode_code_doc},
    {"code_at", PC_METHOD(core_code_at), METH_VARARGS | METH_KEYWORDS, core_code_at_doc},
    {NULL, NULL, 0, NULL},
};

int
core_add_codec(PyObject *module)
{
    core_state *state = core_state_get(module);
    state->stale = PyErr_NewExceptionWithDoc(
        "precomp._core.Stale",
        "Something an artifact names is gone or has changed since it was captured.", NULL,
        NULL);
    if (state->stale == NULL || PyModule_AddObjectRef(module, "Stale", state->stale) < 0) {
        return -1;
    }
    return PyModule_AddFunctions(module, codec_methods);
}
