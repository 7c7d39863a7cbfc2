/* What the files about kernels that a program launches itself share: triton_key.c (how
 * Triton specialises arguments), triton_dispatch.c (frozen specialisations).
 */
#ifndef PRECOMP_BINDING_TRITON_H
#define PRECOMP_BINDING_TRITON_H

#include "state.h"

#include <stdbool.h>

#include "cuda.h"

/* Text that grows; short ones stay in *own*. Set up with core_triton_text_init. */
typedef struct {
    char *at;
    size_t length;
    size_t room;
    char own[1024];
} core_triton_text;

void core_triton_text_init(core_triton_text *text);
void core_triton_text_free(core_triton_text *text);

/* Appends *length* bytes. Returns 0, or -1 with MemoryError set. */
int core_triton_put(core_triton_text *text, const char *bytes, size_t length);

/* A parameter of a kernel, as its declaration has it. */
typedef struct {
    PyObject *name;     /* owned, interned */
    PyObject *fallback; /* owned: its default, or NULL */
    PyObject *type;     /* owned: the type that it is declared with, or NULL */
    bool constant;      /* tl.constexpr */
    bool specialize;
    bool align; /* whether divisibility by 16 counts */
    bool read_only;
} core_triton_parameter;

/* What finding the words of arguments needs. */
typedef struct {
    core_cuda_torch torch; /* owned */
    PyObject *elements;    /* owned: dict dtype -> Triton's name of it */
    PyObject *element;     /* owned: callable dtype -> that name, for *elements* */
    PyObject *constant; /* owned: callable (value, declared constexpr) -> str | None */
    PyObject *dtype;    /* owned: interned "dtype" */
    PyObject *data_ptr; /* owned: interned "data_ptr" */
    PyObject *descriptors; /* owned: name of the module of tensor descriptors */
} core_triton_words;

/* Appends how Triton specialises *argument* (borrowed) for *parameter*: equal texts, equal
   specialisations (docs/internals.md, section 4.8). Returns 1, 0 if it has no frozen form,
   or -1 with an exception set. */
int core_triton_word(const core_triton_words *words,
                     const core_triton_parameter *parameter, PyObject *argument,
                     core_triton_text *text);

/* The same of an option (num_warps, ...) or of another constant. */
int core_triton_constant(const core_triton_words *words, PyObject *value, bool declared,
                         core_triton_text *text);

#endif
