/* Arguments of a plan that are DTensors.
 *
 * The graphs know plain tensors: of each such argument the forward graph takes the local
 * tensor and the mesh, and of what the backward graph returns for it a DTensor is made.
 * Follows torch's subclass_codegen.py.
 */
#include "plan.h"

PyObject *
plan_graph_args(PlanObject *self, PyObject *const *args)
{
    PyObject *list = PyList_New(self->n_inputs + self->n_unwrap); /* owned */
    if (list == NULL) {
        return NULL;
    }
    Py_ssize_t next = 0;
    for (Py_ssize_t i = 0; i < self->n_inputs; i++) {
        if (self->unwrap == NULL || !self->unwrap[i]) {
            PyList_SET_ITEM(list, next++, Py_NewRef(args[i]));
            continue;
        }
        static const int parts[] = {NAME__local_tensor, NAME_device_mesh};
        for (int k = 0; k < 2; k++) {
            PyObject *part =
                PyObject_GetAttr(args[i], self->name[parts[k]]); /* owned */
            if (part == NULL) {
                Py_DECREF(list);
                return NULL;
            }
            PyList_SET_ITEM(list, next++, part);
        }
    }
    return list;
}

PyObject *
plan_wrap_gradients(PlanObject *self, PyObject *outs)
{
    PyObject *result = PyTuple_New(self->n_gradients); /* owned */
    if (result == NULL) {
        goto done;
    }
    for (Py_ssize_t i = 0; i < self->n_gradients; i++) {
        const plan_gradient *gradient = &self->gradients[i];
        PyObject *value = NULL; /* owned */
        if (gradient->index + (gradient->wrap != NULL) >= PyTuple_GET_SIZE(outs)) {
            PyErr_Format(PyExc_AssertionError, "expected more than %zd gradients",
                         PyTuple_GET_SIZE(outs));
        }
        else if (gradient->wrap == NULL) {
            value = Py_NewRef(PyTuple_GET_ITEM(outs, gradient->index));
        }
        else {
            PyObject *args[] = {PyTuple_GET_ITEM(outs, gradient->index),
                                PyTuple_GET_ITEM(outs, gradient->index + 1)};
            value = PyObject_Vectorcall(gradient->wrap, args, 2, NULL);
        }
        if (value == NULL) {
            Py_CLEAR(result);
            goto done;
        }
        PyTuple_SET_ITEM(result, i, value);
    }
done:
    Py_DECREF(outs);
    return result;
}
