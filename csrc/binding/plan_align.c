/* Arguments of a graph that must lie on an aligned address.
 *
 * Inductor's kernels assume what held at capture; a tensor that breaks it is cloned
 * before the call and, if the graph writes to it, copied back after. Follows
 * align_inputs_from_check_idxs of torch/_inductor/utils.py.
 */
#include "plan.h"

/* ALIGNMENT of torch/_inductor/utils.py, in bytes. */
#define PLAN_ALIGNMENT 16

/* Whether the data of *tensor* is misaligned: 0, 1 or -1. */
static int
plan_is_misaligned(PlanObject *self, PyObject *tensor)
{
    PyObject *pointer =
        PyObject_CallMethodNoArgs(tensor, self->name[NAME_data_ptr]); /* owned */
    if (pointer == NULL) {
        return -1;
    }
    unsigned long long address = PyLong_AsUnsignedLongLongMask(pointer);
    Py_DECREF(pointer);
    return PyErr_Occurred() ? -1 : address % PLAN_ALIGNMENT != 0;
}

/* Number of elements that *size* and *stride* (tuples of int) span. -1 on error. */
static Py_ssize_t
plan_span(PyObject *size, PyObject *stride)
{
    Py_ssize_t span = 1;
    if (!PyTuple_Check(size) || !PyTuple_Check(stride) ||
        PyTuple_GET_SIZE(size) != PyTuple_GET_SIZE(stride)) {
        PyErr_SetString(PyExc_TypeError, "expected size and stride of a tensor");
        return -1;
    }
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(size); i++) {
        Py_ssize_t n = PyLong_AsSsize_t(PyTuple_GET_ITEM(size, i));
        Py_ssize_t step = PyLong_AsSsize_t(PyTuple_GET_ITEM(stride, i));
        if (PyErr_Occurred()) {
            return -1;
        }
        if (n == 0) {
            return 0;
        }
        span += (n - 1) * step;
    }
    return span;
}

/* A clone of *tensor* with the same sizes and strides, also of overlapping ones.
   Borrows. Returns a new reference or NULL. */
static PyObject *
plan_clone_strided(PlanObject *self, PyObject *tensor)
{
    PyObject *size = NULL;   /* owned */
    PyObject *stride = NULL; /* owned */
    PyObject *flat = NULL;   /* owned, (span,) */
    PyObject *unit = NULL;   /* owned, (1,) */
    PyObject *view = NULL;   /* owned */
    PyObject *clone = NULL;  /* owned */
    PyObject *result = NULL; /* owned */
    size = PyObject_CallMethodNoArgs(tensor, self->name[NAME_size]);
    if (size == NULL) {
        goto done;
    }
    stride = PyObject_CallMethodNoArgs(tensor, self->name[NAME_stride]);
    if (stride == NULL) {
        goto done;
    }
    Py_ssize_t span = plan_span(size, stride);
    if (span < 0) {
        goto done;
    }
    flat = Py_BuildValue("(n)", span);
    if (flat == NULL) {
        goto done;
    }
    unit = Py_BuildValue("(i)", 1);
    if (unit == NULL) {
        goto done;
    }
    PyObject *flat_args[] = {tensor, flat, unit};
    view = PyObject_VectorcallMethod(self->name[NAME_as_strided], flat_args, 3, NULL);
    if (view == NULL) {
        goto done;
    }
    clone = PyObject_CallMethodNoArgs(view, self->name[NAME_clone]);
    if (clone == NULL) {
        goto done;
    }
    PyObject *args[] = {clone, size, stride};
    result = PyObject_VectorcallMethod(self->name[NAME_as_strided], args, 3, NULL);
done:
    Py_XDECREF(size);
    Py_XDECREF(stride);
    Py_XDECREF(flat);
    Py_XDECREF(unit);
    Py_XDECREF(view);
    Py_XDECREF(clone);
    return result;
}

/* Adds *tensor* to the list *old* and *clone* to *fresh*. Returns 0 or -1. */
static int
plan_remember(PyObject **old, PyObject *tensor, PyObject **fresh, PyObject *clone)
{
    if (*old == NULL) {
        *old = PyList_New(0);
        if (*old == NULL) {
            return -1;
        }
    }
    if (*fresh == NULL) {
        *fresh = PyList_New(0);
        if (*fresh == NULL) {
            return -1;
        }
    }
    return PyList_Append(*old, tensor) < 0 ? -1 : PyList_Append(*fresh, clone);
}

int
plan_align(PlanObject *self, const plan_graph *graph, PyObject *args, PyObject **old,
           PyObject **fresh)
{
    for (Py_ssize_t i = 0; i < graph->n_checked; i++) {
        const plan_check *check = &graph->checked[i];
        if (check->input >= PyList_GET_SIZE(args)) {
            PyErr_SetString(PyExc_IndexError, "Plan: aligned argument out of range");
            return -1;
        }
        PyObject *tensor = PyList_GET_ITEM(args, check->input); /* borrowed */
        if (!plan_is_tensor(self, tensor)) {
            PyErr_Format(PyExc_AssertionError, "Expected tensors only, but got: %R",
                         Py_TYPE(tensor));
            return -1;
        }
        int misaligned = plan_is_misaligned(self, tensor);
        if (misaligned <= 0) {
            if (misaligned < 0) {
                return -1;
            }
            continue;
        }
        PyObject *clone = plan_clone_strided(self, tensor); /* owned */
        if (clone == NULL) {
            return -1;
        }
        if (check->write_back && plan_remember(old, tensor, fresh, clone) < 0) {
            Py_DECREF(clone);
            return -1;
        }
        if (PyList_SetItem(args, check->input, clone) < 0) {
            return -1;
        }
    }
    return 0;
}

PyObject *
plan_copy_back(PlanObject *self, PyObject *old, PyObject *fresh, PyObject *result)
{
    if (result != NULL && old != NULL && PyList_GET_SIZE(old) > 0) {
        PyObject *args[] = {old, fresh};
        PyObject *done = PyObject_Vectorcall(self->fn[FN_FOREACH_COPY], args, 2, NULL);
        if (done == NULL) {
            Py_CLEAR(result);
        }
        Py_XDECREF(done);
    }
    Py_XDECREF(old);
    Py_XDECREF(fresh);
    return result;
}
