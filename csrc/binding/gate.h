/* What the files of the strict gate share: gate.c (gates, violations), gate_where.c
 * (the user's frame), gate_exempt.c (threads that trip nothing), gate_spawn.c (compiler processes), gate_nvrtc.c (compilers inside
 * libtorch), door.c (hooks).
 */
#ifndef PRECOMP_BINDING_GATE_H
#define PRECOMP_BINDING_GATE_H

#include "state.h"

enum {
    GATE_TRACE = 1u << 0,
    GATE_LOWER = 1u << 1,
    GATE_BUILD = 1u << 2,
    GATE_LOAD = 1u << 3,
    GATE_TUNE = 1u << 4,
    GATE_RECORD = 1u << 5,
    GATE_FALLBACK = 1u << 6,
    GATE_SPAWN = 1u << 7,
    GATE_DRIVER_JIT = 1u << 8,
    GATE_ALL = (1u << 9) - 1,
};

/* Bit of the kind *name*, or 0 if there is no such kind. Sets no exception. */
unsigned core_gate_bit(const char *name);

/* Union of what the active gates forbid in the calling thread: 0 when no gate is
   active or the thread is exempt. One atomic load when no gate is active. */
unsigned core_gate_forbidden(void);

/* Opens and closes a stretch of the calling thread in which nothing is forbidden. */
void core_gate_exempt_enter(void);
void core_gate_exempt_leave(void);

/* State of the module that owns the active gates, or NULL when no gate is active. */
core_state *core_gate_state(void);

/* Returns a new str "file:line" of the innermost frame of the calling thread that
   belongs neither to torch, Triton, precomp nor the standard library; an empty str
   if there is none; NULL with an exception set on failure. */
PyObject *core_gate_where(void);

/* Installs the audit hook, once per process. Returns 0, or -1 with an exception. */
int core_gate_watch_spawn(void);

/* Records a CompileViolation in each active gate that forbids *kind*; arguments as for
   core_gate_trip. Returns 1 with *violation a new reference, 0 if no gate forbids it, -1
   with an exception set. Runs no Python code. */
int core_gate_record(core_state *state, const char *kind, PyObject *what, PyObject *why,
                     PyObject *where, PyObject *hint, PyObject **violation);

/* Puts the hooks in libtorch_cuda, or takes them out. Needs no GIL. */
void core_gate_hook_nvrtc(int wanted);

/* Hooks what has become known meanwhile, if a gate is active. Needs no GIL. */
void core_gate_update(void);

/* The function _core.gate_watch_nvrtc. */
PyObject *core_gate_watch_nvrtc(PyObject *module, PyObject *ignored);
extern const char core_gate_watch_nvrtc_doc[];

/* Adds the type gate_exempt to *module*. Returns 0 or -1. */
int core_add_gate_exempt(PyObject *module);

/* Adds the type Door to *module*. Returns 0 or -1. */
int core_add_door(PyObject *module);

#endif
