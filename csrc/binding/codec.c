#include "state.h"

int
core_add_codec(PyObject *module)
{
    (void)module;
    return 0;
}

PyObject *
core_decode(core_state *state, PyObject *encoded, PyObject *twins)
{
    (void)state, (void)encoded, (void)twins;
    PyErr_SetString(PyExc_RuntimeError, "codec");
    return NULL;
}
