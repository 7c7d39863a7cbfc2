/* Shared by codec.c, code_digest.c and guard_tape.c. */
#ifndef PRECOMP_BINDING_CODEC_H
#define PRECOMP_BINDING_CODEC_H

#include "state.h"

/* Decodes one encoded value (docs/internals.md, section 2). Borrows all.
   *twins* is a dict {(module, qualname): object} or NULL. *memo* is a dict or
   NULL: identities found once are kept there; it must not outlive the building
   of one guard tree, since module attributes may change between two.
   Returns a new reference, or NULL with Stale, ValueError or the error of an
   import set. */
PyObject *codec_decode(core_state *state, PyObject *encoded, PyObject *twins,
                       PyObject *memo);

/* The sha256 (hex str) of *code*. Returns a new reference or NULL. */
PyObject *codec_code_digest(PyObject *code);

/* Type and own name of *object* as a str: what tag P compares. Returns a new
   reference or NULL. */
PyObject *codec_kind_of(PyObject *object);

/* Raises _core.Stale(message). Always returns NULL. */
PyObject *codec_stale(core_state *state, const char *format, ...);

/* 1 when *encoded* is a tuple whose first item is the string *tag*, else 0. */
int codec_has_tag(PyObject *encoded, const char *tag);

#endif
