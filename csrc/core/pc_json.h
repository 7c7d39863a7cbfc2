/* The strict JSON that a manifest may use, checked before a parser sees it. */
#ifndef PRECOMP_PC_JSON_H
#define PRECOMP_PC_JSON_H

#include <stddef.h>

#include "pc_error.h"

#define PC_JSON_MAX_DEPTH 8
#define PC_JSON_MAX_INTEGER 9007199254740992.0 /* 2^53 */

/* Checks that *text* is one JSON object (RFC 8259) and white space, in well-formed
   UTF-8, nested at most PC_JSON_MAX_DEPTH deep, whose numbers are integers in 0..2^53
   written in digits alone, and whose strings hold neither NUL nor lone surrogates.
   Duplicate keys are not looked for. */
pc_status pc_json_check(const char *text, size_t length, pc_error *error);

#endif
