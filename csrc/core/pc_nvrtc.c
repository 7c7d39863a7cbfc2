/* Finds libtorch_cuda's table of NVRTC and driver functions, and hooks it. */
#include "pc_nvrtc.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "pc_image.h"

static const char library_name[] = "libtorch_cuda.so";

/* What the resolvers ask for. CUDA's headers rename some functions. */
static const struct {
    const char *name;
    const char *renamed; /* or NULL */
} calls[PC_NVRTC_CALLS] = {
    [PC_NVRTC_CREATE] = {"nvrtcCreateProgram", NULL},
    [PC_NVRTC_COMPILE] = {"nvrtcCompileProgram", NULL},
    [PC_NVRTC_ERROR_STRING] = {"nvrtcGetErrorString", NULL},
    [PC_CU_MODULE_LOAD] = {"cuModuleLoadData", NULL},
    [PC_CU_MODULE_LOAD_EX] = {"cuModuleLoadDataEx", NULL},
    [PC_CU_LINK_ADD] = {"cuLinkAddData", "cuLinkAddData_v2"},
    [PC_CU_ERROR_STRING] = {"cuGetErrorString", NULL},
};

enum {
    TABLE_FIELDS = 64,   /* more than the table has */
    RESOLVER_SIZE = 320, /* bytes of a resolver that are looked at */
    SITES = PC_NVRTC_CALLS + 2,
};

typedef struct {
    _Atomic(uintptr_t) *place; /* in libtorch_cuda; NULL: not there */
    uintptr_t ours;
    atomic_uintptr_t behind; /* what was in the place */
    pc_nvrtc_call call;
} site;

/* The sites of the table come first, in the order of pc_nvrtc_call. */
static struct {
    pthread_mutex_t lock;
    bool known; /* the search is over: *status* and *error* say how it ended */
    bool loaded;
    bool installed;
    unsigned long long loads; /* pc_image_loads() of the last search */
    pc_status status;
    pc_error error;
    site sites[SITES];
} table = {.lock = PTHREAD_MUTEX_INITIALIZER};

#if defined(__x86_64__)

/* The text at *address*, or NULL if it is not a terminated string of the library. */
static const char *
text_at(const pc_image *image, uintptr_t address)
{
    enum { LONGEST = 32 };
    size_t length = 0;
    while (length < LONGEST && pc_image_holds(image, address + length, 1, PF_R)) {
        if (*(const char *)(address + length) == '\0') {
            return (const char *)address;
        }
        length++;
    }
    return NULL;
}

/* Where the instruction of 7 bytes at *code* points to: a 32-bit distance from its end. */
static uintptr_t
target_of(const unsigned char *code)
{
    int32_t distance = 0;
    memcpy(&distance, code + 3, sizeof(distance));
    return (uintptr_t)code + 7 + (uintptr_t)(intptr_t)distance;
}

/* The name that the code at *address* asks for before it stores into *place*, or NULL if
   it does not. */
static const char *
resolved_name(const pc_image *image, uintptr_t address, uintptr_t place)
{
    static const unsigned char load_name[] = {0x48, 0x8d, 0x35}; /* lea d(%rip),%rsi */
    static const unsigned char store_field[] = {0x48, 0x89,
                                                0x05}; /* mov %rax,d(%rip) */
    const char *name = NULL;
    if (!pc_image_holds(image, address, RESOLVER_SIZE, PF_R | PF_X)) {
        return NULL;
    }
    for (size_t i = 0; i + 7 <= RESOLVER_SIZE; i++) {
        const unsigned char *code = (const unsigned char *)address + i;
        if (memcmp(code, load_name, sizeof(load_name)) == 0) {
            name = text_at(image, target_of(code));
        }
        else if (memcmp(code, store_field, sizeof(store_field)) == 0 &&
                 target_of(code) == place) {
            return name;
        }
    }
    return NULL;
}

/* Enters the field of the table that *relocation* fills, if it is one. */
static pc_status
look_at_field(const pc_image *image, const ElfW(Rela) * relocation, pc_error *error)
{
    uintptr_t place = image->base + relocation->r_offset;
    uintptr_t code = image->base + (uintptr_t)relocation->r_addend;
    if (ELF64_R_TYPE(relocation->r_info) != R_X86_64_RELATIVE ||
        !pc_image_holds(image, place, sizeof(place), PF_R | PF_W)) {
        return PC_OK;
    }
    const char *name = resolved_name(image, code, place);
    for (size_t i = 0; name != NULL && i < PC_NVRTC_CALLS; i++) {
        if (strcmp(name, calls[i].name) != 0 &&
            (calls[i].renamed == NULL || strcmp(name, calls[i].renamed) != 0)) {
            continue;
        }
        if (table.sites[i].place != NULL) {
            return pc_fail(error, PC_BAD_VERSION, "%s has two fields for %s",
                           library_name, calls[i].name);
        }
        table.sites[i].place = (_Atomic(uintptr_t) *)place;
        table.sites[i].call = (pc_nvrtc_call)i;
    }
    return PC_OK;
}

static pc_status
find_table(const pc_image *image, pc_error *error)
{
    for (size_t i = 0; i < image->relocation_count; i++) {
        pc_status status = look_at_field(image, &image->relocations[i], error);
        if (status != PC_OK) {
            return status;
        }
    }
    uintptr_t first = UINTPTR_MAX;
    uintptr_t last = 0;
    for (size_t i = 0; i < PC_NVRTC_CALLS; i++) {
        uintptr_t place = (uintptr_t)table.sites[i].place;
        if (place == 0) {
            return pc_fail(error, PC_BAD_VERSION,
                           "%s has no field for %s of the form that is known",
                           library_name, calls[i].name);
        }
        first = place < first ? place : first;
        last = place > last ? place : last;
    }
    if (last - first > TABLE_FIELDS * sizeof(uintptr_t)) {
        return pc_fail(error, PC_BAD_VERSION,
                       "%s has its fields for NVRTC and the driver apart: expected one "
                       "table of at most %d fields",
                       library_name, TABLE_FIELDS);
    }
    return PC_OK;
}

/* Enters the calls that the library makes to libnvrtc by its import table. */
static void
find_imports(const pc_image *image)
{
    site *next = &table.sites[PC_NVRTC_CALLS];
    for (size_t i = 0; i < image->jump_count; i++) {
        const ElfW(Rela) *jump = &image->jumps[i];
        uintptr_t place = image->base + jump->r_offset;
        const char *name =
            image->names + image->symbols[ELF64_R_SYM(jump->r_info)].st_name;
        for (int call = PC_NVRTC_CREATE; call <= PC_NVRTC_COMPILE; call++) {
            if (ELF64_R_TYPE(jump->r_info) == R_X86_64_JUMP_SLOT &&
                strcmp(name, calls[call].name) == 0 &&
                pc_image_holds(image, place, sizeof(place), PF_R | PF_W) &&
                next < &table.sites[SITES]) {
                next->place = (_Atomic(uintptr_t) *)place;
                next->call = (pc_nvrtc_call)call;
                next++;
            }
        }
    }
}

static pc_status
find_lock_held(const pc_image *image, pc_error *error)
{
    pc_status status = find_table(image, error);
    if (status == PC_OK) {
        find_imports(image);
    }
    return status;
}

#else

static pc_status
find_lock_held(const pc_image *image, pc_error *error)
{
    (void)image;
    return pc_fail(error, PC_BAD_VERSION, "%s is not for x86-64", library_name);
}

#endif

pc_status
pc_nvrtc_find(bool *found, pc_error *error)
{
    pthread_mutex_lock(&table.lock);
    unsigned long long loads = table.known ? table.loads : pc_image_loads();
    if (loads != table.loads) {
        pc_image image;
        table.loads = loads;
        if (pc_image_find(library_name, &image)) {
            table.status = find_lock_held(&image, &table.error);
            table.loaded = true;
            table.known = true;
            if (table.status != PC_OK) {
                memset(table.sites, 0, sizeof(table.sites));
            }
        }
    }
    *found = table.loaded;
    pc_status status = table.status;
    if (status != PC_OK) {
        *error = table.error;
    }
    pthread_mutex_unlock(&table.lock);
    return status;
}

/* Puts our function into *at*, and remembers what stood there. */
static void
take_lock_held(site *at)
{
    uintptr_t there = atomic_load(at->place);
    while (there != at->ours) {
        atomic_store(&at->behind, there);
        if (atomic_compare_exchange_weak(at->place, &there, at->ours)) {
            return;
        }
    }
}

void
pc_nvrtc_install(const pc_function *ours)
{
    pthread_mutex_lock(&table.lock);
    table.installed = true;
    for (size_t i = 0; i < SITES; i++) {
        site *at = &table.sites[i];
        if (at->place != NULL) {
            at->ours = (uintptr_t)ours[at->call];
            take_lock_held(at);
        }
    }
    pthread_mutex_unlock(&table.lock);
}

void
pc_nvrtc_remove(void)
{
    pthread_mutex_lock(&table.lock);
    table.installed = false;
    for (size_t i = 0; i < SITES; i++) {
        site *at = &table.sites[i];
        if (at->place != NULL && at->ours != 0) {
            uintptr_t expected = at->ours;
            (void)atomic_compare_exchange_strong(at->place, &expected,
                                                 atomic_load(&at->behind));
        }
    }
    pthread_mutex_unlock(&table.lock);
}

pc_function
pc_nvrtc_real(pc_nvrtc_call call)
{
    return (pc_function)atomic_load(&table.sites[call].behind);
}

void
pc_nvrtc_refresh(void)
{
    pthread_mutex_lock(&table.lock);
    for (size_t i = 0; table.installed && i < SITES; i++) {
        if (table.sites[i].place != NULL) {
            take_lock_held(&table.sites[i]);
        }
    }
    pthread_mutex_unlock(&table.lock);
}
