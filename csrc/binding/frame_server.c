#include "state.h"

int
core_add_frame_server(PyObject *module)
{
    (void)module;
    return 0;
}
