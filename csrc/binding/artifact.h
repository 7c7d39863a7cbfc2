/* What artifact.c and artifact_writer.c share. */
#ifndef PRECOMP_BINDING_ARTIFACT_H
#define PRECOMP_BINDING_ARTIFACT_H

#include "state.h"

#include "pc_bytes.h"

/* Returns a new str of 64 hexadecimal digits. */
PyObject *core_digest_text(const uint8_t digest[PC_DIGEST_SIZE]);

/* Adds write_artifact, strip_shared_object and sha256 to the module. */
int core_add_writer(PyObject *module);

#endif
