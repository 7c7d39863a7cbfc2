#include "state.h"

int
core_add_tap(PyObject *module)
{
    (void)module;
    return 0;
}
