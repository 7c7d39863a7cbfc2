/* Reads and strips cubins. */
#include "pc_cubin.h"

#include <elf.h>
#include <stdlib.h>
#include <string.h>

#include "pc_bytes.h"
#include "pc_elf_layout.h"
#include "pc_mem.h"

enum {
    CUDA_MACHINE = 190,   /* EM_CUDA */
    CUDA_ENTRY = 0x10,    /* st_other of a kernel */
    ARCH_SPECIFIC = 0x800 /* e_flags of ABI 7 */
};

static pc_status
refuse(pc_error *error, const char *what)
{
    return pc_fail(error, PC_CORRUPT, "cubin: %s", what);
}

static bool
inside(uint64_t offset, uint64_t length, size_t size)
{
    return offset <= size && length <= size - offset;
}

static size_t
section_count(const uint8_t *image)
{
    return pc_load_u16(image + E_SHNUM);
}

static const uint8_t *
section(const uint8_t *image, size_t index)
{
    return image + pc_load_u64(image + E_SHOFF) + index * SHDR_SIZE;
}

/* Whether the section has bytes in the file. */
static bool
has_bytes(const uint8_t *header)
{
    uint32_t type = pc_load_u32(header + SH_TYPE);
    return type != SHT_NULL && type != SHT_NOBITS;
}

/* Whether section *index* holds texts that all end inside it. */
static bool
is_string_table(const uint8_t *image, size_t index)
{
    if (index == 0 || index >= section_count(image)) {
        return false;
    }
    const uint8_t *header = section(image, index);
    uint64_t length = pc_load_u64(header + SH_SIZE);
    return pc_load_u32(header + SH_TYPE) == SHT_STRTAB && length > 0 &&
           image[pc_load_u64(header + SH_OFFSET) + length - 1] == '\0';
}

/* The text at *offset* of the string table *index*, or "" if it is outside. */
static const char *
text_of(const uint8_t *image, size_t index, uint32_t offset)
{
    const uint8_t *header = section(image, index);
    if (offset >= pc_load_u64(header + SH_SIZE)) {
        return "";
    }
    return (const char *)image + pc_load_u64(header + SH_OFFSET) + offset;
}

static pc_status
check_header(const uint8_t *image, size_t size, pc_error *error)
{
    if (size < EHDR_SIZE || memcmp(image, ELFMAG, SELFMAG) != 0) {
        return refuse(error, "not an ELF file");
    }
    if (image[EI_CLASS] != ELFCLASS64 || image[EI_DATA] != ELFDATA2LSB ||
        image[EI_VERSION] != EV_CURRENT) {
        return refuse(error, "expected 64-bit little-endian ELF");
    }
    if (pc_load_u16(image + E_MACHINE) != CUDA_MACHINE ||
        pc_load_u16(image + E_TYPE) != ET_EXEC) {
        return refuse(error, "not linked code for CUDA");
    }
    if (pc_load_u16(image + E_SHENTSIZE) != SHDR_SIZE ||
        (pc_load_u16(image + E_PHNUM) > 0 &&
         pc_load_u16(image + E_PHENTSIZE) != PHDR_SIZE)) {
        return refuse(error, "headers of unknown size");
    }
    uint64_t sections = (uint64_t)section_count(image) * SHDR_SIZE;
    uint64_t segments = (uint64_t)pc_load_u16(image + E_PHNUM) * PHDR_SIZE;
    if (sections == 0 || !inside(pc_load_u64(image + E_SHOFF), sections, size) ||
        !inside(pc_load_u64(image + E_PHOFF), segments, size)) {
        return refuse(error, "headers outside the image: it is truncated or damaged");
    }
    return PC_OK;
}

static pc_status
check_contents(const uint8_t *image, size_t size, pc_error *error)
{
    for (size_t i = 0; i < section_count(image); i++) {
        const uint8_t *header = section(image, i);
        if (has_bytes(header) && !inside(pc_load_u64(header + SH_OFFSET),
                                         pc_load_u64(header + SH_SIZE), size)) {
            return refuse(error,
                          "a section outside the image: it is truncated or damaged");
        }
    }
    const uint8_t *segment = image + pc_load_u64(image + E_PHOFF);
    for (size_t i = 0; i < pc_load_u16(image + E_PHNUM); i++, segment += PHDR_SIZE) {
        if (!inside(pc_load_u64(segment + P_OFFSET), pc_load_u64(segment + P_FILESZ),
                    size)) {
            return refuse(error,
                          "a segment outside the image: it is truncated or damaged");
        }
    }
    if (!is_string_table(image, pc_load_u16(image + E_SHSTRNDX))) {
        return refuse(error, "section names are missing or damaged");
    }
    for (size_t i = 0; i < section_count(image); i++) {
        const uint8_t *header = section(image, i);
        if (pc_load_u32(header + SH_TYPE) == SHT_SYMTAB &&
            !is_string_table(image, pc_load_u32(header + SH_LINK))) {
            return refuse(error, "symbol names are missing or damaged");
        }
    }
    return PC_OK;
}

/* The version in the note with what built the image: "... release 13.1, V13.1.80". */
static unsigned
noted_toolkit(const uint8_t *image)
{
    static const char word[] = "release ";
    for (size_t i = 0; i < section_count(image); i++) {
        const uint8_t *header = section(image, i);
        if (pc_load_u32(header + SH_TYPE) != SHT_NOTE) {
            continue;
        }
        const uint8_t *at = image + pc_load_u64(header + SH_OFFSET);
        const uint8_t *end = at + pc_load_u64(header + SH_SIZE);
        at = memmem(at, (size_t)(end - at), word, sizeof(word) - 1);
        unsigned parts[2] = {0, 0};
        int part = 0;
        for (at = at == NULL ? end : at + sizeof(word) - 1;
             at < end && ((*at >= '0' && *at <= '9') || (*at == '.' && part == 0));
             at++) {
            if (*at == '.') {
                part = 1;
            }
            else if (parts[part] < 100) {
                parts[part] = 10 * parts[part] + (*at - '0');
            }
        }
        if (part == 1 && parts[1] < 10) {
            return 10 * parts[0] + parts[1];
        }
    }
    return 0;
}

pc_status
pc_cubin_check(const uint8_t *image, size_t size, pc_cubin_info *info, pc_error *error)
{
    pc_status status = check_header(image, size, error);
    if (status == PC_OK) {
        status = check_contents(image, size, error);
    }
    if (status != PC_OK) {
        return status;
    }
    uint32_t flags = pc_load_u32(image + E_FLAGS);
    switch (image[EI_ABIVERSION]) {
        case 7:
            info->arch = flags & 0xff;
            info->exact = (flags & ARCH_SPECIFIC) != 0;
            info->toolkit = pc_load_u32(image + E_VERSION);
            return PC_OK;
        case 8: /* the flag of sm_100a and its like is not known: taken as set */
            info->arch = flags >> 8 & 0xff;
            info->exact = true;
            info->toolkit = noted_toolkit(image);
            return PC_OK;
        default:
            return pc_fail(error, PC_BAD_VERSION,
                           "cubin: unknown version %d of its ABI",
                           image[EI_ABIVERSION]);
    }
}

bool
pc_cubin_runs_on(const pc_cubin_info *info, int major, int minor)
{
    int wanted_major = (int)info->arch / 10;
    int wanted_minor = (int)info->arch % 10;
    return major == wanted_major &&
           (info->exact ? minor == wanted_minor : minor >= wanted_minor);
}

const char *
pc_cubin_kernel(const uint8_t *image, size_t *cursor)
{
    size_t at = 0;
    for (size_t i = 0; i < section_count(image); i++) {
        const uint8_t *header = section(image, i);
        if (pc_load_u32(header + SH_TYPE) != SHT_SYMTAB) {
            continue;
        }
        const uint8_t *symbol = image + pc_load_u64(header + SH_OFFSET);
        size_t count = (size_t)(pc_load_u64(header + SH_SIZE) / SYM_SIZE);
        for (size_t k = 0; k < count; k++, symbol += SYM_SIZE) {
            if (at++ < *cursor) {
                continue;
            }
            *cursor = at;
            if (ELF64_ST_TYPE(symbol[ST_INFO]) == STT_FUNC &&
                ELF64_ST_BIND(symbol[ST_INFO]) == STB_GLOBAL &&
                (symbol[ST_OTHER] & CUDA_ENTRY)) {
                return text_of(image, pc_load_u32(header + SH_LINK),
                               pc_load_u32(symbol + ST_NAME));
            }
        }
    }
    return NULL;
}

/* --- stripping --- */

/* Whether the section is of use to debuggers only. *name* is its name. From sm_100 on
   there is a second set of them, for the driver's own form of the code. */
static bool
is_debug(const uint8_t *header, const char *name)
{
    static const char second[] = ".nv.merc";
    static const char *const starts[] = {
        ".debug_",     ".nv_debug_",     ".rela.debug_",
        ".rel.debug_", ".rel.nv_debug_", ".rela.nv_debug_",
    };
    uint32_t type = pc_load_u32(header + SH_TYPE);
    if (type == SHT_NULL || type == SHT_NOBITS || type == SHT_STRTAB ||
        type == SHT_SYMTAB) {
        return false;
    }
    if (strncmp(name, second, strlen(second)) == 0) {
        name += strlen(second);
    }
    for (size_t i = 0; i < sizeof(starts) / sizeof(*starts); i++) {
        if (strncmp(name, starts[i], strlen(starts[i])) == 0) {
            return true;
        }
    }
    return false;
}

typedef struct {
    size_t index;    /* of the section */
    uint64_t offset; /* in the image */
    uint64_t size;   /* bytes in the file */
    uint64_t moved;  /* offset in the stripped image */
    bool dropped;
} part;

static int
by_offset(const void *left, const void *right)
{
    const part *a = left;
    const part *b = right;
    if (a->offset != b->offset) {
        return a->offset < b->offset ? -1 : 1;
    }
    return a->index < b->index ? -1 : a->index > b->index;
}

/* Gives every section its new offset. Kept sections stay in order, at the same distance
   from each other unless something was dropped between them, and at the same offset
   modulo the largest alignment. Returns where the last one ends. */
static uint64_t
place_parts(part *parts, size_t count, uint64_t align)
{
    uint64_t end = EHDR_SIZE;     /* of what is placed, in the stripped image */
    uint64_t old_end = EHDR_SIZE; /* the same in the image */
    for (size_t i = 0; i < count; i++) {
        part *at = &parts[i];
        uint64_t shift = old_end - end;
        if (at->dropped || at->size == 0) {
            /* No bytes: it only must not lie behind the end. */
            at->moved =
                at->offset <= old_end && at->offset >= shift ? at->offset - shift : end;
            continue;
        }
        if (at->offset < old_end + align && at->offset >= shift) {
            at->moved = at->offset - shift;
        }
        else {
            at->moved = end + (at->offset - end) % align;
        }
        if (at->moved + at->size > end) {
            end = at->moved + at->size;
            old_end = at->offset + at->size;
        }
    }
    return end;
}

/* Gives *segment* its new offset: where the section at its start went; the sections end
   at *end*, the program headers are at *headers*. Returns false when what it covers has
   not moved as one. */
static bool
move_segment(const uint8_t *image, const part *parts, size_t count, uint8_t *segment,
             uint64_t end, uint64_t headers)
{
    uint64_t offset = pc_load_u64(segment + P_OFFSET);
    uint64_t length = pc_load_u64(segment + P_FILESZ);
    const part *start = NULL;
    if (offset == pc_load_u64(image + E_PHOFF)) {
        pc_store_u64(segment + P_OFFSET, headers);
        return length <= (uint64_t)pc_load_u16(image + E_PHNUM) * PHDR_SIZE;
    }
    for (size_t i = 0; i < count; i++) {
        if (parts[i].offset == offset && !parts[i].dropped && parts[i].index != 0 &&
            (start == NULL || start->size == 0)) {
            start = &parts[i];
        }
    }
    if (start == NULL || !inside(start->moved, length, (size_t)end)) {
        return false;
    }
    for (size_t i = 0; i < count; i++) {
        const part *at = &parts[i];
        if (at->size > 0 && at->offset >= offset && at->offset < offset + length &&
            (at->dropped || at->moved - start->moved != at->offset - offset)) {
            return false;
        }
    }
    pc_store_u64(segment + P_OFFSET, start->moved);
    return true;
}

/* Fills *parts* and finds the largest alignment. */
static pc_status
list_parts(const uint8_t *image, part *parts, uint64_t *align, pc_error *error)
{
    size_t names = pc_load_u16(image + E_SHSTRNDX);
    *align = 1;
    for (size_t i = 0; i < section_count(image); i++) {
        const uint8_t *header = section(image, i);
        uint64_t wanted = pc_load_u64(header + SH_ALIGN);
        if (wanted > 4096 || (wanted & (wanted - 1)) != 0) {
            return refuse(error, "a section of unknown alignment");
        }
        parts[i].index = i;
        parts[i].offset = pc_load_u64(header + SH_OFFSET);
        parts[i].size = has_bytes(header) ? pc_load_u64(header + SH_SIZE) : 0;
        parts[i].dropped =
            is_debug(header, text_of(image, names, pc_load_u32(header + SH_NAME)));
        *align = wanted > *align ? wanted : *align;
        if (parts[i].size > 0 && parts[i].offset < EHDR_SIZE) {
            return refuse(error, "a section over the ELF header");
        }
    }
    return PC_OK;
}

pc_status
pc_cubin_strip(const uint8_t *image, size_t size, uint8_t **stripped,
               size_t *stripped_size, pc_error *error)
{
    pc_cubin_info info;
    part *parts = NULL;  /* owned */
    uint8_t *out = NULL; /* owned */
    uint64_t align = 1;
    pc_status status = pc_cubin_check(image, size, &info, error);
    if (status != PC_OK) {
        return status;
    }
    size_t count = section_count(image);
    size_t segments = pc_load_u16(image + E_PHNUM);
    size_t room = size + count * SHDR_SIZE + segments * PHDR_SIZE + 16;
    parts = pc_calloc(count, sizeof(*parts));
    out = pc_calloc(room, 1);
    if (parts == NULL || out == NULL) {
        status = pc_fail(error, PC_NO_MEMORY, "cubin: no memory to strip it");
        goto done;
    }
    status = list_parts(image, parts, &align, error);
    if (status != PC_OK) {
        goto done;
    }
    qsort(parts, count, sizeof(*parts), by_offset);
    uint64_t sections_at = (place_parts(parts, count, align) + 7) & ~(uint64_t)7;
    uint64_t segments_at = sections_at + count * SHDR_SIZE;

    memcpy(out, image, EHDR_SIZE);
    pc_store_u64(out + E_SHOFF, sections_at);
    pc_store_u64(out + E_PHOFF, segments == 0 ? 0 : segments_at);
    for (size_t i = 0; i < count; i++) {
        const part *at = &parts[i];
        uint8_t *header = out + sections_at + at->index * SHDR_SIZE;
        memcpy(header, section(image, at->index), SHDR_SIZE);
        pc_store_u64(header + SH_OFFSET, at->index == 0 ? 0 : at->moved);
        if (at->dropped) {
            pc_store_u64(header + SH_SIZE, 0);
        }
        else if (at->size > 0) {
            memcpy(out + at->moved, image + at->offset, (size_t)at->size);
        }
    }
    for (size_t i = 0; i < segments; i++) {
        uint8_t *segment = out + segments_at + i * PHDR_SIZE;
        memcpy(segment, image + pc_load_u64(image + E_PHOFF) + i * PHDR_SIZE,
               PHDR_SIZE);
        if (!move_segment(image, parts, count, segment, sections_at, segments_at)) {
            status = refuse(error, "a segment that does not follow its sections");
            goto done;
        }
    }
    *stripped = out;
    *stripped_size = (size_t)segments_at + segments * PHDR_SIZE;
    out = NULL;
done:
    pc_free(parts);
    pc_free(out);
    return status;
}
