/* The codec of values that are not plain data: reads what
 * precomp.freeze.values writes (docs/internals.md, section 2).
 *
 * A value that is gone or has changed since it was captured raises _core.Stale.
 */
#include "codec.h"

#include <marshal.h>

/* ---- containers --------------------------------------------------------- */

/* New list of the decoded items of the tuple *items*, or NULL. */
static PyObject *
decode_items(decoder *self, PyObject *items)
{
    Py_ssize_t count = PyTuple_GET_SIZE(items);
    PyObject *list = PyList_New(count); /* owned, returned */
    for (Py_ssize_t i = 0; list != NULL && i < count; i++) {
        PyObject *item = codec_decode_value(self, PyTuple_GET_ITEM(items, i));
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
        PyObject *item = codec_decode_value(self, PyTuple_GET_ITEM(items, i));
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
            codec_bad_encoding(pair);
            goto fail;
        }
        key = codec_decode_value(self, PyTuple_GET_ITEM(pair, 0));
        value =
            key == NULL ? NULL : codec_decode_value(self, PyTuple_GET_ITEM(pair, 1));
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
    if (!codec_has_shape(encoded, "eee")) {
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
    if (!codec_has_shape(encoded, "iii")) {
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
    if (!codec_has_shape(encoded, "t")) {
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
    if (!codec_has_shape(encoded, "eee")) {
        return NULL;
    }
    function = codec_decode_value(self, PyTuple_GET_ITEM(encoded, 1));
    arguments = function == NULL
                    ? NULL
                    : codec_decode_value(self, PyTuple_GET_ITEM(encoded, 2));
    keywords = arguments == NULL
                   ? NULL
                   : codec_decode_value(self, PyTuple_GET_ITEM(encoded, 3));
    if (keywords == NULL) {
        goto done;
    }
    if (!PyTuple_CheckExact(arguments) || !PyDict_CheckExact(keywords)) {
        codec_bad_encoding(encoded);
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

/* What a partial of the same shape gives when it is called. */
static PyObject *
decode_instance(decoder *self, PyObject *encoded)
{
    PyObject *call = decode_partial(self, encoded); /* owned */
    PyObject *result = call == NULL ? NULL : PyObject_CallNoArgs(call);
    Py_XDECREF(call);
    return result;
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
    if (!codec_has_shape(encoded, "t")) {
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
            return codec_call_torch("Size", content);
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
    if (!codec_has_shape(encoded, "e")) {
        return NULL;
    }
    dict = codec_decode_value(self, PyTuple_GET_ITEM(encoded, 1));
    if (dict != NULL) {
        result = PyDictProxy_New(dict);
        Py_DECREF(dict);
    }
    return result;
}

/* Identities: found by name, so worth remembering while one tree is built. */
static PyObject *
decode_identity(decoder *self, uint32_t tag, PyObject *encoded)
{
    switch (tag) {
        case TAG1('P'):
            return codec_decode_path(self, encoded);
        case TAG2('P', 'F'):
            return codec_decode_function(self, encoded);
        case TAG1('C'):
            return codec_decode_code_path(self, encoded);
        case TAG1('M'):
            return codec_has_shape(encoded, "s")
                       ? codec_find_module(self, PyTuple_GET_ITEM(encoded, 1))
                       : NULL;
        case TAG1('A'):
            return codec_decode_anonymous(self, encoded);
        case TAG2('F', 'S'):
            return codec_decode_sharded_class(self, encoded);
        case TAG2('e', 'n'):
            return codec_decode_enum(self, encoded);
        case TAG2('d', 't'):
            return codec_has_shape(encoded, "s")
                       ? codec_decode_torch_path(self, encoded, NULL, 1)
                       : NULL;
        case TAG2('n', 's'):
            return codec_has_shape(encoded, "s")
                       ? codec_decode_torch_path(self, encoded, "ops", 1)
                       : NULL;
        case TAG2('o', 'p'):
            return codec_has_shape(encoded, "sss")
                       ? codec_decode_torch_path(self, encoded, "ops", 3)
                       : NULL;
        case TAG3('o', 'p', 'p'):
            return codec_has_shape(encoded, "ss")
                       ? codec_decode_torch_path(self, encoded, "ops", 2)
                       : NULL;
        default:
            return codec_bad_encoding(encoded);
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
            return codec_has_shape(encoded, "s")
                       ? codec_call_torch("device", PyTuple_GET_ITEM(encoded, 1))
                       : NULL;
        case TAG2('d', 'k'):
            return codec_decode_key_set(self, encoded);
        case TAG3('i', 'r', 'm'):
            return codec_decode_inverse_mode(self, encoded);
        case TAG2('g', 's'):
            return codec_has_shape(encoded, "e")
                       ? codec_decode_state_guard(self, encoded)
                       : NULL;
        case TAG3('d', 'k', 's'):
            return decode_dict_keys(self, encoded);
        case TAG2('m', 'p'):
            return decode_proxy(self, encoded);
        case TAG2('n', 'p'):
            return codec_decode_numpy(encoded);
        case TAG2('p', 't'):
            return decode_partial(self, encoded);
        case TAG2('n', 'w'):
            return decode_instance(self, encoded);
        default:
            return decode_remembered(self, tag, encoded);
    }
}

PyObject *
codec_decode_value(decoder *self, PyObject *encoded)
{
    uint32_t tag = tag_of(encoded);
    PyObject *result; /* owned, returned */
    if (tag == TAG1('k')) {
        if (PyTuple_GET_SIZE(encoded) != 2 || !is_plain(PyTuple_GET_ITEM(encoded, 1))) {
            return codec_bad_encoding(encoded);
        }
        result = PyTuple_GET_ITEM(encoded, 1);
        Py_INCREF(result);
        return result;
    }
    if (tag == 0) {
        return codec_bad_encoding(encoded);
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
    return codec_decode_value(&self, encoded);
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
        return codec_bad_encoding(encoded);
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
        codec_bad_encoding(encoded);
        goto done;
    }
    constants = PyTuple_New(PyTuple_GET_SIZE(items));
    for (Py_ssize_t i = 0; constants != NULL && i < PyTuple_GET_SIZE(items); i++) {
        PyObject *item = PyTuple_GET_ITEM(items, i); /* borrowed */
        PyObject *value =
            codec_has_tag(item, "CODE") && PyTuple_GET_SIZE(item) == 2
                ? decode_code_object(self, PyTuple_GET_ITEM(item, 1), filename, base)
                : codec_decode_value(self, item);
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
    keywords = Py_BuildValue("{sOsOsl}", "co_consts", constants, "co_filename",
                             filename, "co_firstlineno", line < 1 ? 1L : line);
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

PyDoc_STRVAR(
    core_decode_doc,
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
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|O:decode", names, &encoded,
                                     &twins) ||
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
    static char *names[] = {(char *)"encoded", (char *)"filename",
                            (char *)"firstlineno", (char *)"twins", NULL};
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

PyDoc_STRVAR(
    core_code_at_doc,
    "code_at(module, steps, twins=None)\n--\n\n"
    "The code object that *steps* (docs/internals.md, section 5) lead to from the\n"
    "module of that name. No descriptor is run. Raises Stale when they lead to\n"
    "no code any more.");

PyDoc_STRVAR(core_object_at_doc,
             "object_at(module, steps, twins=None)\n--\n\n"
             "Like code_at, for anything that *steps* lead to.");

static PyObject *
at_steps(PyObject *module, PyObject *args, PyObject *kwargs, const char *format,
         PyObject *(*find)(decoder *, PyObject *, PyObject *))
{
    static char *names[] = {(char *)"module", (char *)"steps", (char *)"twins", NULL};
    PyObject *name = NULL;  /* borrowed */
    PyObject *steps = NULL; /* borrowed */
    PyObject *twins = NULL; /* borrowed */
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, format, names, &name, &PyTuple_Type,
                                     &steps, &twins) ||
        !take_twins(&twins)) {
        return NULL;
    }
    decoder self = {core_state_get(module), twins, NULL};
    return find(&self, name, steps);
}

static PyObject *
core_code_at(PyObject *module, PyObject *args, PyObject *kwargs)
{
    return at_steps(module, args, kwargs, "UO!|O:code_at", codec_find_code);
}

static PyObject *
core_object_at(PyObject *module, PyObject *args, PyObject *kwargs)
{
    return at_steps(module, args, kwargs, "UO!|O:object_at", codec_follow);
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

PyDoc_STRVAR(
    core_unwrapped_doc,
    "unwrapped(object, /)\n--\n\n"
    "The function below the wrapper that torch._dynamo.mutation_guard puts around\n"
    "methods of torch.nn.Module; any other object itself. Steps lead through it.");

static PyObject *
core_unwrapped(PyObject *module, PyObject *object)
{
    (void)module;
    return codec_unwrapped(object);
}

static PyMethodDef codec_methods[] = {
    {"unwrapped", core_unwrapped, METH_O, core_unwrapped_doc},
    {"kind_of", core_kind_of, METH_O, core_kind_of_doc},
    {"decode", PC_METHOD(core_decode_function), METH_VARARGS | METH_KEYWORDS,
     core_decode_doc},
    {"decode_code", PC_METHOD(core_decode_code), METH_VARARGS | METH_KEYWORDS,
     core_decode_code_doc},
    {"code_at", PC_METHOD(core_code_at), METH_VARARGS | METH_KEYWORDS,
     core_code_at_doc},
    {"object_at", PC_METHOD(core_object_at), METH_VARARGS | METH_KEYWORDS,
     core_object_at_doc},
    {NULL, NULL, 0, NULL},
};

int
core_add_codec(PyObject *module)
{
    core_state *state = core_state_get(module);
    state->stale = PyErr_NewExceptionWithDoc(
        "precomp._core.Stale",
        "Something an artifact names is gone or has changed since it was captured.",
        NULL, NULL);
    if (state->stale == NULL ||
        PyModule_AddObjectRef(module, "Stale", state->stale) < 0) {
        return -1;
    }
    return PyModule_AddFunctions(module, codec_methods);
}
