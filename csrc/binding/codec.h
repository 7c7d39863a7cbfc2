/* The codec: shared by codec*.c, code_digest.c and guard_*.c. */
#ifndef PRECOMP_BINDING_CODEC_H
#define PRECOMP_BINDING_CODEC_H

#include "state.h"

/* What one decoding needs; all borrowed. */
typedef struct {
    core_state *state;
    PyObject *twins; /* dict {(module, qualname): object} or NULL */
    PyObject *memo;  /* dict or NULL: identities found once are kept there; it must
                        not outlive the building of one guard tree, since module
                        attributes may change between two */
} decoder;

/* Functions below that return PyObject * give a new reference, or NULL with
   Stale, ValueError or the error of an import set; they borrow their arguments. */

/* The value of one encoded value (codec.c). */
PyObject *codec_decode_value(decoder *self, PyObject *encoded);

/* The same, without a decoder at hand. *twins* and *memo* may be NULL. */
PyObject *codec_decode(core_state *state, PyObject *encoded, PyObject *twins,
                       PyObject *memo);

/* The sha256 (hex str) of *code* (code_digest.c). */
PyObject *codec_code_digest(PyObject *code);

/* ---- codec_lookup.c ---- */

/* Raises _core.Stale(message). Always returns NULL. */
PyObject *codec_stale(core_state *state, const char *format, ...);

/* Turns the AttributeError, KeyError or ImportError that is set into Stale with
   that message about *a* and *b*; leaves any other error. Always returns NULL. */
PyObject *codec_stale_from_error(core_state *state, const char *format, PyObject *a,
                                 PyObject *b);

/* Raises ValueError that shows *encoded*. Always returns NULL. */
PyObject *codec_bad_encoding(PyObject *encoded);

/* 1 when *encoded* is a tuple whose first item is the string *tag*, else 0. */
int codec_has_tag(PyObject *encoded, const char *tag);

/* 1 when the tuple *encoded* has the items that *types* names after its tag: 's'
   str, 'i' int, 'y' bytes, 't' tuple, 'e' anything. Else 0 with ValueError set. */
int codec_has_shape(PyObject *encoded, const char *types);

/* Type and own name of *object* as a str: what tag P compares. */
PyObject *codec_kind_of(PyObject *object);

/* The code object at *steps* of the module of that name. */
PyObject *codec_unwrapped(PyObject *object);
PyObject *codec_follow(decoder *self, PyObject *module, PyObject *steps);
PyObject *codec_find_code(decoder *self, PyObject *module, PyObject *steps);

/* The module of that name: twin, loaded, or imported. */
PyObject *codec_find_module(decoder *self, PyObject *name);

/* The values of the tags P, C and PF. */
PyObject *codec_decode_path(decoder *self, PyObject *encoded);
PyObject *codec_decode_code_path(decoder *self, PyObject *encoded);
PyObject *codec_decode_function(decoder *self, PyObject *encoded);

/* ---- codec_torch.c ---- */

/* torch[.<head>].<item 1>. ... .<item count> of *encoded*. */
PyObject *codec_decode_torch_path(decoder *self, PyObject *encoded, const char *head,
                                  int count);

/* torch.<name>(argument). */
PyObject *codec_call_torch(const char *name, PyObject *argument);

/* The values of the tags gs, np, FS, en, A, dk and irm. */
PyObject *codec_decode_state_guard(decoder *self, PyObject *encoded);
PyObject *codec_decode_numpy(PyObject *encoded);
PyObject *codec_decode_sharded_class(decoder *self, PyObject *encoded);
PyObject *codec_decode_enum(decoder *self, PyObject *encoded);
PyObject *codec_decode_anonymous(decoder *self, PyObject *encoded);
PyObject *codec_decode_key_set(decoder *self, PyObject *encoded);
PyObject *codec_decode_inverse_mode(decoder *self, PyObject *encoded);

#endif
