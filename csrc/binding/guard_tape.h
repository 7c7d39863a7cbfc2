/* Shared by guard_tape.c (the type and its record) and guard_replay.c. */
#ifndef PRECOMP_BINDING_GUARD_TAPE_H
#define PRECOMP_BINDING_GUARD_TAPE_H

#include "codec.h"

typedef enum {
    OP_MANAGER,
    OP_LEAF,
    OP_RELATION,
} op_kind;

/* How a method takes its arguments.
   Managers: "" no key, "k" encoded key, "g" the live globals, "f" a function.
   Leaves, in order: k encoded value, w verbose parts, u no user stack, i id of an
   encoded object, f function, t example tensor, m function modes.
   Relations: n list of nodes, o one node, s list of str, w, u. */
typedef struct {
    const char *name;
    op_kind kind;
    const char *spec;
} method_info;

/* The methods a tape may call, guard_tape.c; the array ends with a NULL name. */
extern const method_info guard_methods[];

enum { GUARD_METHODS = 60, GUARD_MAX_ARGUMENTS = 10 };

/* One call. Everything is borrowed from the record, which the tape owns. */
typedef struct {
    const method_info *method;
    Py_ssize_t parent;   /* manager: the node it is called on; leaf: its node */
    Py_ssize_t node;     /* manager: the node it makes */
    PyObject *key;       /* manager */
    PyObject *source;    /* manager: str */
    PyObject *category;  /* manager: str or ("D", encoded type, length) */
    PyObject *arguments; /* leaf, relation: tuple */
} tape_op;

typedef struct {
    PyObject_HEAD
    PyObject *ops_record; /* owned: tuple of tuples */
    PyObject *tls;        /* owned: None or (include, exclude) */
    PyObject *device;     /* owned: encoded CURRENT_DEVICE */
    tape_op *ops;         /* owned */
    Py_ssize_t count;
    Py_ssize_t nodes;
    int binds;
} GuardTapeObject;

#define GUARDTAPE_CAST(op) ((GuardTapeObject *)(op))

/* Builds the tree of *self* anew (guard_replay.c). Borrows all; *twins* and *live*
   (a tuple: what ("live", number) stands for) may be NULL. Returns a new tuple
   (root, keep), or NULL with an error set. */
PyObject *guard_tape_replay(core_state *state, GuardTapeObject *self,
                            PyObject *f_globals, PyObject *enum_type, PyObject *twins,
                            PyObject *decode_function, PyObject *live);

#endif
