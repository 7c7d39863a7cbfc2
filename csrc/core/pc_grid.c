/* Validates and runs grid programs. */
#include "pc_grid.h"

#include <string.h>

pc_grid_op
pc_grid_named(const char *name)
{
    static const struct {
        const char *name;
        pc_grid_op op;
    } ops[] = {
        {"+", PC_GRID_ADD},           {"-", PC_GRID_SUBTRACT},
        {"*", PC_GRID_MULTIPLY},      {"//", PC_GRID_FLOOR_DIVIDE},
        {"%", PC_GRID_MODULO},        {"max", PC_GRID_MAX},
        {"min", PC_GRID_MIN},         {"neg", PC_GRID_NEGATE},
        {"unless0", PC_GRID_UNLESS0},
    };
    for (size_t i = 0; i < sizeof(ops) / sizeof(*ops); i++) {
        if (strcmp(ops[i].name, name) == 0) {
            return ops[i].op;
        }
    }
    return PC_GRID_CONSTANT;
}

bool
pc_grid_valid(const pc_grid_item *items, size_t count)
{
    size_t depth = 0;
    if (count > PC_GRID_ITEMS) {
        return false;
    }
    for (size_t i = 0; i < count; i++) {
        size_t taken = items[i].op <= PC_GRID_ARGUMENT ? 0
                       : items[i].op == PC_GRID_NEGATE ? 1
                                                       : 2;
        if (depth < taken) {
            return false;
        }
        depth = depth - taken + 1;
    }
    return depth == 1;
}

/* a // b as Python has it. */
static bool
floor_divide(int64_t a, int64_t b, int64_t *result)
{
    if (b == 0) {
        *result = 0;
        return true;
    }
    if (a == INT64_MIN && b == -1) {
        return false;
    }
    int64_t quotient = a / b;
    *result = quotient - (a % b != 0 && (a < 0) != (b < 0));
    return true;
}

/* a % b as Python has it. */
static int64_t
modulo(int64_t a, int64_t b)
{
    if (b == 0 || b == -1) {
        return 0;
    }
    int64_t rest = a % b;
    return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
}

static bool
apply(pc_grid_op op, int64_t a, int64_t b, int64_t *result)
{
    switch (op) {
        case PC_GRID_ADD:
            return !__builtin_add_overflow(a, b, result);
        case PC_GRID_SUBTRACT:
            return !__builtin_sub_overflow(a, b, result);
        case PC_GRID_MULTIPLY:
            return !__builtin_mul_overflow(a, b, result);
        case PC_GRID_FLOOR_DIVIDE:
            return floor_divide(a, b, result);
        case PC_GRID_MODULO:
            *result = modulo(a, b);
            return true;
        case PC_GRID_MAX:
            *result = a > b ? a : b;
            return true;
        case PC_GRID_MIN:
            *result = a < b ? a : b;
            return true;
        case PC_GRID_UNLESS0:
            *result = a == 0 ? 0 : b;
            return true;
        case PC_GRID_CONSTANT:
        case PC_GRID_ARGUMENT:
        case PC_GRID_NEGATE:
        default:
            return false;
    }
}

bool
pc_grid_run(const pc_grid_item *items, size_t count, const int64_t *arguments,
            int64_t *result)
{
    int64_t stack[PC_GRID_ITEMS];
    size_t depth = 0;
    for (size_t i = 0; i < count; i++) {
        const pc_grid_item *item = &items[i];
        if (item->op == PC_GRID_CONSTANT) {
            stack[depth++] = item->value;
        }
        else if (item->op == PC_GRID_ARGUMENT) {
            stack[depth++] = arguments[item->value];
        }
        else if (item->op == PC_GRID_NEGATE) {
            if (__builtin_sub_overflow((int64_t)0, stack[depth - 1],
                                       &stack[depth - 1])) {
                return false;
            }
        }
        else {
            depth--;
            if (!apply(item->op, stack[depth - 1], stack[depth], &stack[depth - 1])) {
                return false;
            }
        }
    }
    *result = stack[0];
    return true;
}
