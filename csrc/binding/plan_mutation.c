/* Arguments that a plan changes: version counters of those that the graph writes
 * itself, write-back of the others.
 *
 * Follows the generated _apply_mutations of torch's runtime_wrappers.py.
 */
#include "plan.h"

/* target.set_(value) without grad mode. Returns 0 or -1. */
static int
plan_set_storage(PlanObject *self, PyObject *target, PyObject *value)
{
    int grad = plan_flag(self, FN_IS_GRAD_ENABLED);
    if (grad < 0) {
        return -1;
    }
    PyObject *done = PyObject_CallOneArg(self->fn[FN_SET_GRAD_ENABLED], Py_False);
    if (done == NULL) {
        return -1;
    }
    Py_DECREF(done);
    done = PyObject_CallMethodOneArg(target, self->name[NAME_set_], value); /* owned */
    done = plan_finally(self->fn[FN_SET_GRAD_ENABLED], grad ? Py_True : Py_False, done);
    int status = done == NULL ? -1 : 0;
    Py_XDECREF(done);
    return status;
}

/* Writes the values of *updated* into *target*. Returns 0 or -1. */
static int
plan_copy_data(PlanObject *self, const plan_mutation *mutation, PyObject *target,
               PyObject *updated)
{
    PyObject *detached = NULL; /* owned */
    if (mutation->leaf) {
        int needs = plan_attribute_flag(target, self->name[NAME_requires_grad]);
        if (needs < 0) {
            return -1;
        }
        if (needs) {
            detached = PyObject_CallMethodNoArgs(target, self->name[NAME_detach]);
            if (detached == NULL) {
                return -1;
            }
            target = detached;
        }
    }
    PyObject *done = PyObject_CallMethodOneArg(target, self->name[NAME_copy_], updated);
    Py_XDECREF(detached);
    int status = done == NULL ? -1 : 0;
    Py_XDECREF(done);
    return status;
}

int
plan_write_back(PlanObject *self, const plan_mutation *mutation, PyObject *target,
                PyObject *updated)
{
    if (!mutation->data && !mutation->metadata) {
        return 0;
    }
    if (self->joint && (mutation->storage || !mutation->data)) {
        updated = plan_unwrap_alias(self, updated);
        if (updated == NULL) {
            return -1;
        }
    }
    if (mutation->storage) {
        return plan_set_storage(self, target, updated);
    }
    if (mutation->metadata) {
        PyObject *done = plan_restride(self, self->name[NAME_as_strided_], target,
                                       updated); /* owned */
        if (done == NULL) {
            return -1;
        }
        Py_DECREF(done);
        if (!mutation->data) {
            return 0;
        }
    }
    return plan_copy_data(self, mutation, target, updated);
}

int
plan_bump_versions(PlanObject *self, PyObject *const *args)
{
    PyObject *tuple = PyTuple_New(self->n_bump); /* owned */
    if (tuple == NULL) {
        return -1;
    }
    for (Py_ssize_t i = 0; i < self->n_bump; i++) {
        PyTuple_SET_ITEM(tuple, i, Py_NewRef(args[self->bump[i]]));
    }
    PyObject *done = PyObject_CallOneArg(self->fn[FN_INCREMENT_VERSION], tuple);
    Py_DECREF(tuple);
    int status = done == NULL ? -1 : 0;
    Py_XDECREF(done);
    return status;
}
