/* Offsets of the fields of Elf64_Ehdr, Elf64_Shdr, Elf64_Phdr and Elf64_Sym, and their sizes: images are
 * read byte by byte, since nothing says that they are aligned. */
#ifndef PC_ELF_LAYOUT_H
#define PC_ELF_LAYOUT_H

enum {
    E_TYPE = 16,
    E_MACHINE = 18,
    E_VERSION = 20,
    E_PHOFF = 32,
    E_SHOFF = 40,
    E_FLAGS = 48,
    E_EHSIZE = 52,
    E_PHENTSIZE = 54,
    E_PHNUM = 56,
    E_SHENTSIZE = 58,
    E_SHNUM = 60,
    E_SHSTRNDX = 62,
    EHDR_SIZE = 64,
    SH_NAME = 0,
    SH_TYPE = 4,
    SH_OFFSET = 24,
    SH_SIZE = 32,
    SH_LINK = 40,
    SH_ALIGN = 48,
    SHDR_SIZE = 64,
    P_TYPE = 0,
    P_OFFSET = 8,
    P_FILESZ = 32,
    P_MEMSZ = 40,
    P_ALIGN = 48,
    PHDR_SIZE = 56,
    ST_NAME = 0,
    ST_INFO = 4,
    ST_OTHER = 5,
    SYM_SIZE = 24,
};

#endif
