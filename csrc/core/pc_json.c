/* The strict JSON that a manifest may use, checked before a parser sees it. */
#include "pc_json.h"

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "pc_bytes.h"

typedef struct {
    const char *text; /* borrowed */
    size_t length;
    size_t at;
    pc_error *error; /* borrowed */
} scanner;

static pc_status scan_value(scanner *scan, int depth);

static pc_status
refuse(scanner *scan, const char *expected)
{
    return pc_fail(scan->error, PC_CORRUPT, "byte %zu: expected %s", scan->at,
                   expected);
}

/* The next character, or -1 at the end. */
static int
peek(const scanner *scan)
{
    return scan->at < scan->length ? (unsigned char)scan->text[scan->at] : -1;
}

static int
skip_space(scanner *scan)
{
    while (peek(scan) == ' ' || peek(scan) == '\t' || peek(scan) == '\n' ||
           peek(scan) == '\r') {
        scan->at++;
    }
    return peek(scan);
}

/* The value of 4 hex digits at the scanner, which moves past them, or -1. */
static int
scan_hex4(scanner *scan)
{
    int value = 0;
    for (int i = 0; i < 4; i++) {
        int digit = peek(scan);
        value *= 16;
        if (digit >= '0' && digit <= '9') {
            value += digit - '0';
        }
        else if ((digit | 0x20) >= 'a' && (digit | 0x20) <= 'f') {
            value += (digit | 0x20) - 'a' + 10;
        }
        else {
            return -1;
        }
        scan->at++;
    }
    return value;
}

/* At the character after a backslash. */
static pc_status
scan_escape(scanner *scan)
{
    int kind = peek(scan);
    if (kind > 0 && strchr("\"\\/bfnrt", kind) != NULL) {
        scan->at++;
        return PC_OK;
    }
    if (kind != 'u') {
        return refuse(scan, "an escape of JSON");
    }
    scan->at++;
    int unit = scan_hex4(scan);
    if (unit < 0) {
        return refuse(scan, "4 hexadecimal digits");
    }
    if (unit == 0) {
        return refuse(scan, "no NUL in a string");
    }
    if (unit >= 0xDC00 && unit <= 0xDFFF) {
        return refuse(scan, "no lone surrogate");
    }
    if (unit >= 0xD800 && unit <= 0xDBFF) {
        if (peek(scan) != '\\') {
            return refuse(scan, "the second half of a surrogate pair");
        }
        scan->at++;
        if (peek(scan) != 'u') {
            return refuse(scan, "the second half of a surrogate pair");
        }
        scan->at++;
        int second = scan_hex4(scan);
        if (second < 0xDC00 || second > 0xDFFF) {
            return refuse(scan, "the second half of a surrogate pair");
        }
    }
    return PC_OK;
}

static pc_status
scan_string(scanner *scan)
{
    if (peek(scan) != '"') {
        return refuse(scan, "a string");
    }
    scan->at++;
    for (;;) {
        int next = peek(scan);
        if (next == '"') {
            scan->at++;
            return PC_OK;
        }
        if (next < 0x20) {
            return refuse(scan, "a character of a string");
        }
        scan->at++;
        if (next == '\\') {
            pc_status status = scan_escape(scan);
            if (status != PC_OK) {
                return status;
            }
        }
    }
}

static pc_status
scan_number(scanner *scan)
{
    uint64_t value = 0;
    size_t start = scan->at;
    while (peek(scan) >= '0' && peek(scan) <= '9') {
        if (scan->at - start >= 16 || (scan->at > start && value == 0)) {
            return refuse(scan, "an integer in 0..2^53 without leading zeros");
        }
        value = value * 10 + (uint64_t)(peek(scan) - '0');
        scan->at++;
    }
    int next = peek(scan);
    if (scan->at == start || value > (uint64_t)1 << 53 || next == '.' || next == 'e' ||
        next == 'E') {
        return refuse(scan, "an integer in 0..2^53");
    }
    return PC_OK;
}

static pc_status
scan_word(scanner *scan, const char *word)
{
    size_t length = strlen(word);
    if (scan->length - scan->at < length ||
        memcmp(scan->text + scan->at, word, length) != 0) {
        return refuse(scan, "a value");
    }
    scan->at += length;
    return PC_OK;
}

/* At an opening bracket or brace. */
static pc_status
scan_container(scanner *scan, int depth)
{
    bool object = peek(scan) == '{';
    int close = object ? '}' : ']';
    pc_status status;
    if (depth >= PC_JSON_MAX_DEPTH) {
        return refuse(scan, "at most 8 levels of nesting");
    }
    scan->at++;
    if (skip_space(scan) == close) {
        scan->at++;
        return PC_OK;
    }
    for (;;) {
        skip_space(scan);
        if (object) {
            status = scan_string(scan);
            if (status != PC_OK) {
                return status;
            }
            if (skip_space(scan) != ':') {
                return refuse(scan, "':'");
            }
            scan->at++;
            skip_space(scan);
        }
        status = scan_value(scan, depth + 1);
        if (status != PC_OK) {
            return status;
        }
        int next = skip_space(scan);
        if (next == close) {
            scan->at++;
            return PC_OK;
        }
        if (next != ',') {
            return refuse(scan, object ? "',' or '}'" : "',' or ']'");
        }
        scan->at++;
    }
}

static pc_status
scan_value(scanner *scan, int depth)
{
    switch (peek(scan)) {
        case '{':
        case '[':
            return scan_container(scan, depth);
        case '"':
            return scan_string(scan);
        case 't':
            return scan_word(scan, "true");
        case 'f':
            return scan_word(scan, "false");
        case 'n':
            return scan_word(scan, "null");
        default:
            return scan_number(scan);
    }
}

pc_status
pc_json_check(const char *text, size_t length, pc_error *error)
{
    scanner scan = {.text = text, .length = length, .error = error};
    if (!pc_utf8_valid((const uint8_t *)text, length)) {
        return pc_fail(error, PC_CORRUPT, "not well-formed UTF-8");
    }
    if (peek(&scan) != '{') {
        return refuse(&scan, "'{'");
    }
    pc_status status = scan_container(&scan, 0);
    if (status != PC_OK) {
        return status;
    }
    if (skip_space(&scan) != -1) {
        return refuse(&scan, "nothing after the object");
    }
    return PC_OK;
}
