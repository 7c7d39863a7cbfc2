/* Module state of precomp._core and what all files of csrc/binding share.
 *
 * One type per file. Each file offers one function core_add_<file>(module),
 * called once by module.c at module execution; it creates the heap type, stores
 * it in the state (which owns it) and adds public names to the module.
 */
#ifndef PRECOMP_BINDING_STATE_H
#define PRECOMP_BINDING_STATE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "pc_error.h"

/* METH_FASTCALL functions have another C type than PyCFunction. */
#define PC_METHOD(function) ((PyCFunction)(void (*)(void))(function))

/* How C asks a compiled torch where a tensor's memory is (cuda_tensor.c). */
typedef struct {
    ptrdiff_t offset; /* of the at::Tensor in its Python object; 0 if none was found */
    int32_t (*data_ptr)(void *tensor, void **data);
    int32_t (*device_type)(void *tensor, int32_t *type);
    int32_t (*device_index)(void *tensor, int32_t *index);
    int32_t cuda; /* the device type */
} core_tensor_reader;

typedef struct {
    /* Heap types, owned. */
    PyTypeObject *artifact_type;
    PyTypeObject *capture_type;
    PyTypeObject *tap_type;
    PyTypeObject *bound_call_type;
    PyTypeObject *guard_tape_type;
    PyTypeObject *frame_server_type;
    PyTypeObject *frame_return_type;
    PyTypeObject *plan_type;
    PyTypeObject *kernel_type;
    PyTypeObject *gate_type;
    PyTypeObject *cuda_library_type;
    PyTypeObject *cuda_launcher_type;
    /* Module precomp.errors, owned, imported at module execution. */
    PyObject *errors;
    /* dict str -> object: the private torch names, bound once by
       precomp.torch_api through _core.bind_torch; owned, empty until then. */
    PyObject *torch;
    /* The capture that records, or NULL. Borrowed: it clears this when it leaves. */
    PyObject *active_capture;
    /* Exception class _core.Stale, owned (codec.c). */
    PyObject *stale;
    /* dict: example tensors that guard constructors look at (guard_tape.c);
       owned, empty until a tape is replayed. */
    PyObject *examples;
    /* Callable that is told each violation when it is raised, or NULL; owned (gate.c). */
    PyObject *listener;
    core_tensor_reader tensor_reader;
} core_state;

extern struct PyModuleDef core_module_def;

/* Borrows *type* (any heap type of this module or a subclass of one). Returns a borrowed
   reference to the module, or NULL with TypeError set. Never while an object is cleared
   or deallocated: the collector may have cleared its type before. */
PyObject *core_module_by_type(PyTypeObject *type);

/* The state of that module, likewise. */
core_state *core_state_by_type(PyTypeObject *type);

/* Returns the state of *module*; never NULL. */
core_state *core_state_get(PyObject *module);

/* Raises the exception that belongs to *error* (class from precomp.errors).
   Always returns NULL. The only place that turns core errors into exceptions. */
PyObject *core_raise(core_state *state, const pc_error *error);

/* Raises precomp.errors.<class_name>(message). Always returns NULL. */
PyObject *core_raise_named(core_state *state, const char *class_name,
                           const char *format, ...);

/* Borrowed reference to the torch name *name* bound by torch_api, or NULL with
   RuntimeError set that names it. */
PyObject *core_torch(core_state *state, const char *name);

/* Borrowed reference to dict[name], or NULL: with an error set only when the look-up
   itself failed (PyDict_GetItemString hides a MemoryError). */
PyObject *core_dict_get(PyObject *dict, const char *name);

/* The strict gate, seen from other files (gate.c). *kind* is one of "trace",
   "lower", "build", "load", "tune", "record", "fallback", "spawn",
   "driver_jit". Borrows all arguments; *why*, *where*, *hint* may be NULL.
   Returns 0 when no active gate forbids *kind*; otherwise records the violation,
   sets CompileViolation and returns -1. */
int core_gate_trip(core_state *state, const char *kind, PyObject *what, PyObject *why,
                   PyObject *where, PyObject *hint);

/* Decodes one encoded value (codec.c). Borrows both. *twins* is a dict
   {(module, qualname): object} or NULL. Returns a new reference or NULL. */
PyObject *core_decode(core_state *state, PyObject *encoded, PyObject *twins);

/* Reads tensors from now on as it finds *example* (borrowed) to be made, which holds
   *pointer* to its implementation. Returns whether it is made so that it can be read
   (cuda_tensor.c). */
bool core_read_tensors_like(core_state *state, PyObject *example, const void *pointer);

int core_add_artifact(PyObject *module);
int core_add_capture(PyObject *module);
int core_add_codec(PyObject *module);
int core_add_code_digest(PyObject *module);
int core_add_guard_tape(PyObject *module);
int core_add_frame_server(PyObject *module);
int core_add_plan(PyObject *module);
int core_add_kernel(PyObject *module);
int core_add_gate(PyObject *module);
int core_add_tap(PyObject *module);
int core_add_cuda(PyObject *module);
int core_add_bound_call(PyObject *module);
int core_add_triton(PyObject *module);

#endif
