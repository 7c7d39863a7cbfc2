/* Grid dimensions as programs: postfix expressions over 64-bit integers. */
#ifndef PRECOMP_PC_GRID_H
#define PRECOMP_PC_GRID_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { PC_GRID_ITEMS = 256 }; /* of one program, at most */

typedef enum {
    PC_GRID_CONSTANT, /* pushes value */
    PC_GRID_ARGUMENT, /* pushes arguments[value] */
    PC_GRID_ADD,
    PC_GRID_SUBTRACT,
    PC_GRID_MULTIPLY,
    PC_GRID_FLOOR_DIVIDE, /* towards minus infinity, 0 for a divisor of 0 */
    PC_GRID_MODULO,       /* of the sign of the divisor, 0 for a divisor of 0 */
    PC_GRID_MAX,
    PC_GRID_MIN,
    PC_GRID_UNLESS0, /* d e -> 0 if d == 0 else e */
    PC_GRID_NEGATE,
} pc_grid_op;

typedef struct {
    pc_grid_op op;
    int64_t value;
} pc_grid_item;

/* The operation written as *name*, or PC_GRID_CONSTANT if there is none. */
pc_grid_op pc_grid_named(const char *name);

/* Whether the program leaves exactly one value and never takes one that is not there. */
bool pc_grid_valid(const pc_grid_item *items, size_t count);

/* Runs a valid program. Returns false when a value does not fit 64 bits. */
bool pc_grid_run(const pc_grid_item *items, size_t count, const int64_t *arguments,
                 int64_t *result);

#endif
