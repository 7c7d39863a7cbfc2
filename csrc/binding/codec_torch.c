/* Encodings of values of torch and numpy, and of types without a name. */
#include "codec.h"

/* New reference to an attribute path of torch; the *count* names are items of
   *encoded* after the tag, the first attribute is *head* unless NULL. */
PyObject *
codec_decode_torch_path(decoder *self, PyObject *encoded, const char *head, int count)
{
    PyObject *object = PyImport_ImportModule("torch"); /* owned, returned */
    if (object != NULL && head != NULL) {
        Py_SETREF(object, PyObject_GetAttrString(object, head));
    }
    for (int i = 1; object != NULL && i <= count; i++) {
        Py_SETREF(object, PyObject_GetAttr(object, PyTuple_GET_ITEM(encoded, i)));
    }
    if (object == NULL) {
        codec_stale_from_error(self->state, "torch has no %R any more", encoded, NULL);
    }
    return object;
}

/* torch.<name>(argument). */
PyObject *
codec_call_torch(const char *name, PyObject *argument)
{
    PyObject *torch = PyImport_ImportModule("torch"); /* owned */
    PyObject *result = NULL;                          /* owned, returned */
    if (torch != NULL) {
        result = PyObject_CallMethod(torch, name, "(O)", argument);
        Py_DECREF(torch);
    }
    return result;
}

PyObject *
codec_decode_state_guard(decoder *self, PyObject *encoded)
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
    ignore =
        PyObject_CallMethod(guard, "__setstate__", "O", PyTuple_GET_ITEM(encoded, 1));
    if (ignore == NULL) {
        Py_CLEAR(guard);
    }
    Py_XDECREF(ignore);
    return guard;
}

PyObject *
codec_decode_numpy(PyObject *encoded)
{
    PyObject *numpy = NULL;  /* owned */
    PyObject *array = NULL;  /* owned */
    PyObject *result = NULL; /* owned, returned */
    if (!codec_has_shape(encoded, "sy")) {
        return NULL;
    }
    numpy = PyImport_ImportModule("numpy");
    array = numpy == NULL ? NULL
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
PyObject *
codec_decode_sharded_class(decoder *self, PyObject *encoded)
{
    PyObject *original = NULL; /* owned */
    PyObject *name = NULL;     /* owned */
    PyObject *module = NULL;   /* owned */
    PyObject *classes = NULL;  /* owned */
    PyObject *found = NULL;    /* owned, returned */
    if (!codec_has_shape(encoded, "e")) {
        return NULL;
    }
    original = codec_decode_value(self, PyTuple_GET_ITEM(encoded, 1));
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

/* 0 when the value of an enum member equals the encoded one, else -1 with an error. */
static int
check_member(decoder *self, PyObject *member, PyObject *encoded)
{
    PyObject *expected = codec_decode_value(self, encoded); /* owned */
    PyObject *value =
        expected == NULL ? NULL : PyObject_GetAttrString(member, "_value_"); /* owned */
    int same = value == NULL || Py_TYPE(value) != Py_TYPE(expected)
                   ? 0
                   : PyObject_RichCompareBool(value, expected, Py_EQ);
    if (value != NULL && same == 0) {
        codec_stale(self->state, "%R had the value %R", member, expected);
    }
    Py_XDECREF(expected);
    Py_XDECREF(value);
    return same == 1 ? 0 : -1;
}

PyObject *
codec_decode_enum(decoder *self, PyObject *encoded)
{
    PyObject *type;         /* owned */
    PyObject *found = NULL; /* owned, returned */
    if (!codec_has_shape(encoded, "ese")) {
        return NULL;
    }
    type = codec_decode_value(self, PyTuple_GET_ITEM(encoded, 1));
    if (type == NULL) {
        return NULL;
    }
    found = PyObject_GetItem(type, PyTuple_GET_ITEM(encoded, 2));
    if (found == NULL && PyErr_ExceptionMatches(PyExc_TypeError)) {
        PyErr_Clear();
        codec_stale(self->state, "%R is no enum any more", type);
    }
    else if (found == NULL) {
        codec_stale_from_error(self->state, "%R has no member %U any more", type,
                               PyTuple_GET_ITEM(encoded, 2));
    }
    else if (PyTuple_GET_ITEM(encoded, 3) != Py_None &&
             check_member(self, found, PyTuple_GET_ITEM(encoded, 3)) < 0) {
        Py_CLEAR(found);
    }
    Py_DECREF(type);
    return found;
}

/* Types without an importable name. */
PyObject *
codec_decode_anonymous(decoder *self, PyObject *encoded)
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
    if (!codec_has_shape(encoded, "s")) {
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
        codec_stale_from_error(self->state, "no builtin type %U", name, NULL);
    }
    return found;
}

PyObject *
codec_decode_key_set(decoder *self, PyObject *encoded)
{
    PyObject *cls = core_torch(self->state, "DispatchKeySet"); /* borrowed */
    if (cls == NULL || !codec_has_shape(encoded, "i")) {
        return NULL;
    }
    return PyObject_CallMethod(cls, "from_raw_repr", "O", PyTuple_GET_ITEM(encoded, 1));
}

PyObject *
codec_decode_inverse_mode(decoder *self, PyObject *encoded)
{
    PyObject *cls = core_torch(self->state, "InverseReturnMode"); /* borrowed */
    if (cls == NULL || !codec_has_shape(encoded, "s")) {
        return NULL;
    }
    return PyObject_GetAttr(cls, PyTuple_GET_ITEM(encoded, 1));
}
