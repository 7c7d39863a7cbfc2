/* Finds the line of the user's program that caused something to compile.
 *
 * A frame belongs to the user unless its module is part of torch, Triton, precomp, a
 * test runner or the standard library. Modules are told by __name__, not by path: the
 * answer must not depend on where packages are installed.
 */
#include "gate.h"

#include <frameobject.h> /* PyFrame_GetBack on Python 3.10 */
#include <string.h>

static const char *const machinery[] = {
    "torch",  "triton",     "precomp",   "functorch", "torchgen", "_pytest",   "pytest",
    "pluggy", "setuptools", "distutils", "importlib", "ninja",    "torch_xla",
};

/* Returns 1 if the module *name* (any object) is machinery, 0 if not, -1 on error. */
static int
is_machinery(PyObject *name)
{
    PyObject *head = NULL;
    int result = -1;
    const char *text = NULL;
    const char *dot = NULL;
    PyObject *stdlib = NULL; /* borrowed */

    if (!PyUnicode_Check(name)) {
        return 1;
    }
    text = PyUnicode_AsUTF8(name);
    if (text == NULL) {
        goto done;
    }
    dot = strchr(text, '.');
    size_t length = dot == NULL ? strlen(text) : (size_t)(dot - text);
    for (size_t i = 0; i < sizeof(machinery) / sizeof(*machinery); i++) {
        if (strlen(machinery[i]) == length && memcmp(machinery[i], text, length) == 0) {
            result = 1;
            goto done;
        }
    }
    stdlib = PySys_GetObject("stdlib_module_names");
    if (stdlib == NULL) {
        result = 0;
        goto done;
    }
    head = PyUnicode_FromStringAndSize(text, (Py_ssize_t)length);
    if (head != NULL) {
        result = PySequence_Contains(stdlib, head);
    }
done:
    Py_XDECREF(head);
    return result;
}

/* Returns 1 if *frame*, which runs *code*, is the user's, 0 if not, -1 on error. */
static int
is_user_frame(PyFrameObject *frame, PyCodeObject *code)
{
    PyObject *globals = NULL;
    PyObject *name = NULL; /* borrowed */
    int result = -1;

    globals = PyObject_GetAttrString((PyObject *)frame, "f_globals");
    if (globals == NULL) {
        goto done;
    }
    name = PyDict_Check(globals) ? core_dict_get(globals, "__name__") : NULL;
    if (name == NULL) {
        /* Graph code: its namespace has no name. */
        result = PyErr_Occurred() ? -1 : 0;
        goto done;
    }
    result = is_machinery(name);
    if (result == 0) {
        /* "<eval_with_key>.1", "<frozen ...>"; but "<string>" and "<stdin>" are what
           a user typed. */
        const char *file = PyUnicode_AsUTF8(code->co_filename);
        if (file == NULL) {
            result = -1;
        }
        else {
            result = file[0] != '<' || strcmp(file, "<string>") == 0 ||
                     strncmp(file, "<stdin", 6) == 0 ||
                     strncmp(file, "<ipython", 8) == 0;
        }
    }
    else if (result == 1) {
        result = 0;
    }
done:
    Py_XDECREF(globals);
    return result;
}

PyObject *
core_gate_where(void)
{
    PyFrameObject *frame = NULL;
    PyCodeObject *code = NULL;
    PyObject *result = NULL;

    frame = PyThreadState_GetFrame(PyThreadState_Get());
    while (frame != NULL) {
        code = PyFrame_GetCode(frame);
        int user = is_user_frame(frame, code);
        if (user < 0) {
            goto done;
        }
        if (user) {
            result = PyUnicode_FromFormat("%U:%d", code->co_filename,
                                          PyFrame_GetLineNumber(frame));
            goto done;
        }
        PyFrameObject *back = PyFrame_GetBack(frame);
        Py_DECREF(frame);
        Py_CLEAR(code);
        frame = back;
    }
    result = PyUnicode_FromString("");
done:
    Py_XDECREF(frame);
    Py_XDECREF(code);
    return result;
}
