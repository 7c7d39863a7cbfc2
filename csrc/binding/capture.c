#include "state.h"

int
core_add_capture(PyObject *module)
{
    (void)module;
    return 0;
}
