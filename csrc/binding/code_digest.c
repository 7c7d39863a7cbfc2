#include "state.h"

int
core_add_code_digest(PyObject *module)
{
    (void)module;
    return 0;
}
