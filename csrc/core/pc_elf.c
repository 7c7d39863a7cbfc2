/* Reduces an ELF shared object to what the dynamic loader needs. */
#include "pc_elf.h"

#include <elf.h>
#include <stdbool.h>
#include <string.h>

#include "pc_bytes.h"
#include "pc_elf_layout.h"

static pc_status
refuse(pc_error *error, const char *what)
{
    return pc_fail(error, PC_CORRUPT, "strip_shared_object: %s", what);
}

/* Checks the ELF header and that the program headers lie within the image. */
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
    if (pc_load_u16(image + E_TYPE) != ET_DYN) {
        return refuse(error, "not a shared object");
    }
    uint64_t offset = pc_load_u64(image + E_PHOFF);
    uint64_t bytes = (uint64_t)pc_load_u16(image + E_PHNUM) * PHDR_SIZE;
    if (pc_load_u16(image + E_PHENTSIZE) != PHDR_SIZE || bytes == 0 ||
        pc_load_u16(image + E_PHNUM) == PN_XNUM) {
        return refuse(error, "program headers of unknown size or number");
    }
    if (offset < EHDR_SIZE || offset > size || bytes > size - offset) {
        return refuse(error, "program headers outside the file");
    }
    return PC_OK;
}

/* The program header *index* of a checked image. */
static const uint8_t *
program_header(const uint8_t *image, size_t index)
{
    return image + pc_load_u64(image + E_PHOFF) + index * PHDR_SIZE;
}

pc_status
pc_elf_measure(const uint8_t *image, size_t size, size_t *kept, pc_error *error)
{
    bool loads = false;
    pc_status status = check_header(image, size, error);
    if (status != PC_OK) {
        return status;
    }
    size_t count = pc_load_u16(image + E_PHNUM);
    uint64_t end = pc_load_u64(image + E_PHOFF) + count * PHDR_SIZE;
    for (size_t i = 0; i < count; i++) {
        const uint8_t *header = program_header(image, i);
        uint32_t type = pc_load_u32(header + P_TYPE);
        uint64_t offset = pc_load_u64(header + P_OFFSET);
        uint64_t length = pc_load_u64(header + P_FILESZ);
        if (type == PT_NULL || length == 0) {
            continue;
        }
        if (offset > size || length > size - offset) {
            return refuse(error, "a segment outside the file");
        }
        if (type == PT_LOAD) {
            loads = true;
            if (length > pc_load_u64(header + P_MEMSZ)) {
                return refuse(error, "a segment larger in the file than in memory");
            }
        }
        end = offset + length > end ? offset + length : end;
    }
    if (!loads) {
        return refuse(error, "no loadable segment");
    }
    *kept = (size_t)end;
    return PC_OK;
}

/* Zeroes the build ids among the notes of one segment. */
static pc_status
strip_notes(uint8_t *notes, uint64_t length, uint64_t align, pc_error *error)
{
    uint64_t step = align == 8 ? 8 : 4;
    uint64_t at = 0;
    while (length - at >= 12) {
        uint64_t name_size = pc_load_u32(notes + at);
        uint64_t data_size = pc_load_u32(notes + at + 4);
        uint32_t type = pc_load_u32(notes + at + 8);
        uint64_t name = at + 12;
        uint64_t data = (name + name_size + step - 1) & ~(step - 1);
        if (data > length || data_size > length - data) {
            return refuse(error, "a note outside its segment");
        }
        if (type == NT_GNU_BUILD_ID && name_size == 4 &&
            memcmp(notes + name, ELF_NOTE_GNU, 4) == 0) {
            memset(notes + data, 0, (size_t)data_size);
        }
        at = (data + data_size + step - 1) & ~(step - 1);
        if (at > length) {
            break; /* the last note needs no padding */
        }
    }
    return PC_OK;
}

pc_status
pc_elf_strip(uint8_t *image, size_t kept, pc_error *error)
{
    size_t measured = 0;
    pc_status status = pc_elf_measure(image, kept, &measured, error);
    if (status != PC_OK) {
        return status;
    }
    size_t count = pc_load_u16(image + E_PHNUM);
    for (size_t i = 0; i < count; i++) {
        const uint8_t *header = program_header(image, i);
        if (pc_load_u32(header + P_TYPE) != PT_NOTE) {
            continue;
        }
        uint64_t length = pc_load_u64(header + P_FILESZ);
        uint64_t offset = pc_load_u64(header + P_OFFSET);
        if (length == 0) {
            continue;
        }
        /* A note that covers the headers would change them while they are read. */
        if (offset < pc_load_u64(image + E_PHOFF) + count * PHDR_SIZE) {
            return refuse(error, "notes over the program headers");
        }
        status =
            strip_notes(image + offset, length, pc_load_u64(header + P_ALIGN), error);
        if (status != PC_OK) {
            return status;
        }
    }
    pc_store_u64(image + E_SHOFF, 0);
    pc_store_u16(image + E_SHNUM, 0);
    pc_store_u16(image + E_SHSTRNDX, SHN_UNDEF);
    return PC_OK;
}
