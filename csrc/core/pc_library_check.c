/* Checks of a shared object before the dynamic linker, which trusts its tables, maps
 * it: everything that the linker follows must be where it is said to be.
 */
#include "pc_library.h"

#include <elf.h>
#include <link.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#if defined(__x86_64__)
#define NATIVE_MACHINE EM_X86_64
#define NATIVE_RELATIVE R_X86_64_RELATIVE
#elif defined(__aarch64__)
#define NATIVE_MACHINE EM_AARCH64
#define NATIVE_RELATIVE R_AARCH64_RELATIVE
#else
#error "precomp: unknown machine"
#endif

typedef struct {
    const unsigned char *data;
    size_t size; /* bytes */
    pc_error *error;
} image;

static bool
image_fail(image *self, const char *reason)
{
    (void)pc_fail(self->error, PC_CORRUPT, "%s", reason);
    return false;
}

/* [offset, offset + length) is inside the file. */
static bool
inside(const image *self, uint64_t offset, uint64_t length)
{
    return offset <= self->size && length <= self->size - offset;
}

static Elf64_Phdr
segment_at(const image *self, const Elf64_Ehdr *header, size_t index)
{
    Elf64_Phdr segment;
    memcpy(&segment, self->data + header->e_phoff + index * sizeof(segment),
           sizeof(segment));
    return segment;
}

/* A segment that holds [address, address + length) and has all *flags* (PF_*); with
   *from_file* the bytes must be in the file. Returns their file offset, or -1. */
static int64_t
locate(const image *self, const Elf64_Ehdr *header, uint64_t address, uint64_t length,
       uint32_t flags, bool from_file)
{
    for (size_t i = 0; i < header->e_phnum; i++) {
        Elf64_Phdr segment = segment_at(self, header, i);
        uint64_t size = from_file ? segment.p_filesz : segment.p_memsz;
        if (segment.p_type == PT_LOAD && (segment.p_flags & flags) == flags &&
            address >= segment.p_vaddr && address - segment.p_vaddr <= size &&
            length <= size - (address - segment.p_vaddr)) {
            return (int64_t)(segment.p_offset + (address - segment.p_vaddr));
        }
    }
    return -1;
}

/* The entries of a dynamic section that the linker follows, by tag. */
typedef struct {
    uint64_t value[DT_NUM]; /* of tags below DT_NUM */
    bool has[DT_NUM];
    uint64_t gnu_hash, versym, verneed, verneednum, relacount;
    uint64_t last_string; /* the largest offset into the string table */
} dynamic_table;

/* Every relocation writes to writable memory and names a symbol of the table, which
   lies before *symbols_end* (file offset). */
static bool
check_relocations(image *self, const Elf64_Ehdr *header, const dynamic_table *table,
                  int tag, int size_tag)
{
    uint64_t size = table->value[size_tag];
    if (!table->has[tag]) {
        return true;
    }
    int64_t offset = locate(self, header, table->value[tag], size, PF_R, true);
    if (offset < 0 || size % sizeof(Elf64_Rela) != 0 ||
        (tag == DT_RELA && table->relacount > size / sizeof(Elf64_Rela))) {
        return image_fail(self, "its relocation table is not inside the file");
    }
    for (uint64_t i = 0; i < size; i += sizeof(Elf64_Rela)) {
        Elf64_Rela entry;
        memcpy(&entry, self->data + offset + i, sizeof(entry));
        uint64_t symbol = ELF64_R_SYM(entry.r_info) * sizeof(Elf64_Sym);
        if (locate(self, header, entry.r_offset, sizeof(uint64_t), PF_R | PF_W, false) <
                0 ||
            locate(self, header, table->value[DT_SYMTAB] + symbol, sizeof(Elf64_Sym),
                   PF_R, true) < 0) {
            return image_fail(self, "a relocation is outside of its segments");
        }
        bool relative = ELF64_R_TYPE(entry.r_info) == NATIVE_RELATIVE;
        if (tag == DT_RELA && i / sizeof(Elf64_Rela) < table->relacount && !relative) {
            return image_fail(self, "its relocations are not in order");
        }
    }
    return true;
}

/* The table of needed versions is a list inside the file. */
static bool
check_versions(image *self, const Elf64_Ehdr *header, const dynamic_table *table)
{
    uint64_t address = table->verneed;
    if ((table->verneed == 0) != (table->versym == 0) ||
        (table->verneed == 0) != (table->verneednum == 0)) {
        return image_fail(self, "its version tables are not complete");
    }
    if (table->versym % 2 != 0 || table->verneed % 4 != 0) {
        return image_fail(self, "its version tables are not in order");
    }
    if (table->verneed != 0 && locate(self, header, table->versym, 2, PF_R, true) < 0) {
        return image_fail(self, "its version tables are not inside the file");
    }
    for (uint64_t i = 0; i < table->verneednum; i++) {
        Elf64_Verneed entry;
        int64_t offset = locate(self, header, address, sizeof(entry), PF_R, true);
        if (offset < 0) {
            return image_fail(self, "its version tables are not inside the file");
        }
        memcpy(&entry, self->data + offset, sizeof(entry));
        if (entry.vn_version != VER_NEED_CURRENT ||
            (entry.vn_next == 0) != (i + 1 == table->verneednum)) {
            return image_fail(self, "its version tables are not in order");
        }
        address += entry.vn_next;
    }
    return true;
}

/* The hash tables, that every look-up of a symbol walks, start inside the file. */
static bool
check_hash(image *self, const Elf64_Ehdr *header, const dynamic_table *table)
{
    uint32_t head[4]; /* GNU: buckets, first symbol, words of the filter, shift */
    if (table->gnu_hash == 0 && !table->has[DT_HASH]) {
        return image_fail(self, "it has no symbol hash table");
    }
    if (table->has[DT_HASH] &&
        locate(self, header, table->value[DT_HASH], 8, PF_R, true) < 0) {
        return image_fail(self, "its symbol hash table is not inside the file");
    }
    if (table->gnu_hash != 0) {
        int64_t offset =
            locate(self, header, table->gnu_hash, sizeof(head), PF_R, true);
        if (offset >= 0) {
            memcpy(head, self->data + offset, sizeof(head));
        }
        if (offset < 0 || head[0] == 0 || head[2] == 0 ||
            (head[2] & (head[2] - 1)) != 0 || head[3] > 63 ||
            locate(self, header, table->gnu_hash,
                   sizeof(head) + 8ULL * head[2] + 4ULL * head[0], PF_R, true) < 0) {
            return image_fail(self, "its symbol hash table is not inside the file");
        }
    }
    return true;
}

static bool
read_dynamic(image *self, const Elf64_Phdr *segment, dynamic_table *table)
{
    for (uint64_t i = 0; i + sizeof(Elf64_Dyn) <= segment->p_filesz;
         i += sizeof(Elf64_Dyn)) {
        Elf64_Dyn entry;
        memcpy(&entry, self->data + segment->p_offset + i, sizeof(entry));
        uint64_t value = entry.d_un.d_val;
        if (entry.d_tag == DT_NULL) {
            return true;
        }
        if ((entry.d_tag == DT_NEEDED || entry.d_tag == DT_SONAME ||
             entry.d_tag == DT_RPATH || entry.d_tag == DT_RUNPATH) &&
            value > table->last_string) {
            table->last_string = value;
        }
        if (entry.d_tag > 0 && entry.d_tag < DT_NUM) {
            table->value[entry.d_tag] = value;
            table->has[entry.d_tag] = true;
            continue;
        }
        switch (entry.d_tag) {
            case DT_GNU_HASH:
                table->gnu_hash = value;
                break;
            case DT_VERSYM:
                table->versym = value;
                break;
            case DT_VERNEED:
                table->verneed = value;
                break;
            case DT_VERNEEDNUM:
                table->verneednum = value;
                break;
            case DT_RELACOUNT:
                table->relacount = value;
                break;
            case DT_FLAGS_1:
                break;
            default:
                (void)pc_fail(self->error, PC_CORRUPT,
                              "its dynamic section has an entry of unknown type %#llx",
                              (unsigned long long)entry.d_tag);
                return false;
        }
    }
    return image_fail(self, "its dynamic section has no end");
}

static bool
check_dynamic(image *self, const Elf64_Ehdr *header, const Elf64_Phdr *segment)
{
    static const int code[] = {DT_INIT, DT_FINI};
    static const int unused[] = {DT_REL, DT_RELSZ, DT_RELENT, DT_TEXTREL, DT_RELR};
    static const int arrays[][2] = {{DT_INIT_ARRAY, DT_INIT_ARRAYSZ},
                                    {DT_FINI_ARRAY, DT_FINI_ARRAYSZ},
                                    {DT_PREINIT_ARRAY, DT_PREINIT_ARRAYSZ}};
    static const int pairs[][2] = {{DT_RELA, DT_RELASZ},     {DT_RELA, DT_RELAENT},
                                   {DT_JMPREL, DT_PLTRELSZ}, {DT_JMPREL, DT_PLTREL},
                                   {DT_STRTAB, DT_STRSZ},    {DT_SYMTAB, DT_SYMENT}};
    dynamic_table table = {0};
    if (!read_dynamic(self, segment, &table)) {
        return false;
    }
    for (size_t i = 0; i < sizeof(unused) / sizeof(*unused); i++) {
        if (table.has[unused[i]]) {
            return image_fail(self, "it has relocations of an unused kind");
        }
    }
    for (size_t i = 0; i < sizeof(pairs) / sizeof(*pairs); i++) {
        if (table.has[pairs[i][0]] != table.has[pairs[i][1]]) {
            return image_fail(self, "its dynamic section is not complete");
        }
    }
    if ((table.has[DT_RELA] && table.value[DT_RELAENT] != sizeof(Elf64_Rela)) ||
        (table.has[DT_JMPREL] && table.value[DT_PLTREL] != DT_RELA) ||
        (table.has[DT_SYMTAB] && table.value[DT_SYMENT] != sizeof(Elf64_Sym))) {
        return image_fail(self, "its tables have entries of another size");
    }
    int64_t strings =
        locate(self, header, table.value[DT_STRTAB], table.value[DT_STRSZ], PF_R, true);
    if (!table.has[DT_STRTAB] || table.value[DT_STRSZ] <= table.last_string ||
        strings < 0 ||
        self->data[(uint64_t)strings + table.value[DT_STRSZ] - 1] != '\0') {
        return image_fail(self, "its string table is not inside the file");
    }
    if (!table.has[DT_SYMTAB] || table.value[DT_SYMTAB] % 8 != 0 ||
        locate(self, header, table.value[DT_SYMTAB], sizeof(Elf64_Sym), PF_R, true) <
            0) {
        return image_fail(self, "its symbol table is not inside the file");
    }
    for (size_t i = 0; i < sizeof(code) / sizeof(*code); i++) {
        if (table.has[code[i]] &&
            locate(self, header, table.value[code[i]], 1, PF_R | PF_X, true) < 0) {
            return image_fail(self, "its initialisation is not inside the file");
        }
    }
    for (size_t i = 0; i < sizeof(arrays) / sizeof(*arrays); i++) {
        int array = arrays[i][0];
        uint64_t size = table.value[arrays[i][1]];
        if (table.has[array] != table.has[arrays[i][1]] || size % 8 != 0 ||
            (table.has[array] &&
             locate(self, header, table.value[array], size, PF_R | PF_W, true) < 0)) {
            return image_fail(self, "its initialisation is not inside the file");
        }
    }
    return check_hash(self, header, &table) && check_versions(self, header, &table) &&
           check_relocations(self, header, &table, DT_RELA, DT_RELASZ) &&
           check_relocations(self, header, &table, DT_JMPREL, DT_PLTRELSZ);
}

/* Refuses what is not a whole shared object for this machine. The bytes of an
   artifact were compared with their digest before; this is for everything else,
   because the dynamic linker trusts what it is given. */
static bool
image_check(image *self)
{
    Elf64_Ehdr header;
    bool has_dynamic = false;
    if (self->size < sizeof(header)) {
        return image_fail(self, "not a shared object: shorter than an ELF header");
    }
    memcpy(&header, self->data, sizeof(header));
    if (memcmp(header.e_ident, ELFMAG, SELFMAG) != 0) {
        return image_fail(self, "not a shared object: no ELF magic");
    }
    if (header.e_ident[EI_CLASS] != ELFCLASS64 ||
        header.e_ident[EI_DATA] != ELFDATA2LSB ||
        header.e_ident[EI_VERSION] != EV_CURRENT ||
        header.e_machine != NATIVE_MACHINE) {
        (void)pc_fail(self->error, PC_CORRUPT,
                      "built for another machine (ELF machine %u, this one is %u)",
                      (unsigned)header.e_machine, (unsigned)NATIVE_MACHINE);
        return false;
    }
    if (header.e_type != ET_DYN) {
        return image_fail(self, "not a shared object: another type of ELF file");
    }
    if (header.e_phentsize != sizeof(Elf64_Phdr) || header.e_phnum == 0 ||
        !inside(self, header.e_phoff, header.e_phnum * sizeof(Elf64_Phdr))) {
        return image_fail(self, "its program headers are not inside the file");
    }
    if (header.e_shoff != 0 &&
        !inside(self, header.e_shoff, (uint64_t)header.e_shnum * header.e_shentsize)) {
        return image_fail(self,
                          "its section headers are not inside the file (truncated?)");
    }
    uint64_t end = 0;
    for (size_t i = 0; i < header.e_phnum; i++) {
        Elf64_Phdr segment = segment_at(self, &header, i);
        if (segment.p_type != PT_LOAD) {
            uint32_t flags = segment.p_type == PT_GNU_RELRO ? PF_R | PF_W : PF_R;
            if (segment.p_memsz != 0 && segment.p_type != PT_GNU_STACK &&
                locate(self, &header, segment.p_vaddr, segment.p_memsz, flags, false) <
                    0) {
                return image_fail(self, "a part of it is outside of its segments");
            }
            continue;
        }
        if (!inside(self, segment.p_offset, segment.p_filesz) ||
            segment.p_filesz > segment.p_memsz || segment.p_vaddr < end ||
            (segment.p_flags & PF_R) == 0 || segment.p_memsz > UINT32_MAX ||
            segment.p_vaddr > UINT32_MAX ||
            (segment.p_align & (segment.p_align - 1)) != 0 ||
            (segment.p_align > 1 &&
             (segment.p_vaddr - segment.p_offset) % segment.p_align != 0)) {
            return image_fail(self, "a segment is not inside the file (truncated?)");
        }
        end = segment.p_vaddr + segment.p_memsz;
    }
    for (size_t i = 0; i < header.e_phnum; i++) {
        Elf64_Phdr segment = segment_at(self, &header, i);
        if (segment.p_type != PT_DYNAMIC) {
            continue;
        }
        if (has_dynamic || locate(self, &header, segment.p_vaddr, segment.p_filesz,
                                  PF_R | PF_W, true) != (int64_t)segment.p_offset) {
            return image_fail(self, "its dynamic section is not inside the file");
        }
        has_dynamic = true;
        if (!check_dynamic(self, &header, &segment)) {
            return false;
        }
    }
    if (!has_dynamic) {
        return image_fail(self, "not a shared object: no dynamic section");
    }
    return true;
}

pc_status
pc_library_check(const void *data, size_t size, pc_error *error)
{
    image self = {data, size, error};
    return image_check(&self) ? PC_OK : PC_CORRUPT;
}
