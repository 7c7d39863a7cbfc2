/* Looks at loaded shared libraries through the loader's own tables. */
#include "pc_image.h"

#include <dlfcn.h>
#include <string.h>

typedef struct {
    const char *file_name;
    pc_image *image;
    const char *path; /* the loader's */
} search;

static int
count_loads(struct dl_phdr_info *info, size_t size, void *loads)
{
    (void)size;
    *(unsigned long long *)loads = info->dlpi_adds;
    return 1;
}

unsigned long long
pc_image_loads(void)
{
    unsigned long long loads = 0;
    (void)dl_iterate_phdr(count_loads, &loads);
    return loads;
}

/* A pointer of the dynamic section: glibc relocates it in place, other loaders do not. */
static const void *
relocated(const pc_image *image, ElfW(Addr) value)
{
    uintptr_t address = value < image->base ? image->base + value : value;
    return (const void *)address;
}

static void
read_dynamic(pc_image *image, const ElfW(Dyn) * entry)
{
    for (; entry->d_tag != DT_NULL; entry++) {
        switch (entry->d_tag) {
            case DT_RELA:
                image->relocations = relocated(image, entry->d_un.d_ptr);
                break;
            case DT_RELASZ:
                image->relocation_count = entry->d_un.d_val / sizeof(ElfW(Rela));
                break;
            case DT_JMPREL:
                image->jumps = relocated(image, entry->d_un.d_ptr);
                break;
            case DT_PLTRELSZ:
                image->jump_count = entry->d_un.d_val / sizeof(ElfW(Rela));
                break;
            case DT_SYMTAB:
                image->symbols = relocated(image, entry->d_un.d_ptr);
                break;
            case DT_STRTAB:
                image->names = relocated(image, entry->d_un.d_ptr);
                break;
            default:
                break;
        }
    }
}

static int
match(struct dl_phdr_info *info, size_t size, void *argument)
{
    search *wanted = argument;
    (void)size;
    const char *slash = strrchr(info->dlpi_name, '/');
    const char *name = slash == NULL ? info->dlpi_name : slash + 1;
    if (strcmp(name, wanted->file_name) != 0) {
        return 0;
    }
    pc_image *image = wanted->image;
    memset(image, 0, sizeof(*image));
    image->base = info->dlpi_addr;
    image->segments = info->dlpi_phdr;
    image->segment_count = info->dlpi_phnum;
    for (size_t i = 0; i < image->segment_count; i++) {
        if (image->segments[i].p_type == PT_DYNAMIC) {
            read_dynamic(image,
                         (const void *)(image->base + image->segments[i].p_vaddr));
        }
    }
    wanted->path = info->dlpi_name;
    return 1;
}

bool
pc_image_find(const char *file_name, pc_image *image)
{
    search wanted = {file_name, image, NULL};
    if (dl_iterate_phdr(match, &wanted) == 0) {
        return false;
    }
    /* The handle is never closed: pointers into the library are kept. */
    return dlopen(wanted.path, RTLD_LAZY | RTLD_NOLOAD) != NULL;
}

bool
pc_image_holds(const pc_image *image, uintptr_t address, size_t size, ElfW(Word) flags)
{
    bool found = false;
    uintptr_t at = address - image->base;
    if (address < image->base) {
        return false;
    }
    for (size_t i = 0; i < image->segment_count; i++) {
        const ElfW(Phdr) *segment = &image->segments[i];
        uintptr_t start = segment->p_vaddr;
        if (segment->p_type == PT_LOAD && (segment->p_flags & flags) == flags) {
            found |= at >= start && size <= segment->p_filesz &&
                     at - start <= segment->p_filesz - size;
        }
        else if (segment->p_type == PT_GNU_RELRO && (flags & PF_W) && at >= start &&
                 at - start < segment->p_memsz) {
            return false;
        }
    }
    return found;
}
