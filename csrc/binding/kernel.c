/* Kernels: shared objects that are loaded from memory.
 *
 * Inductor's C++ kernels are extension modules: PyInit_<name> makes a module
 * with one function <name>. They are loaded from an anonymous file, so that no
 * path, cache directory or file name takes part in a prepared process. A loaded
 * library stays for the life of the process (its code may be on any stack); only
 * the Python module that it made is owned by the function that is returned.
 *
 * The part above load_one() runs without the GIL and does not touch Python.
 */
#include "state.h"

#include "pc_pool.h"

#include <dlfcn.h>
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#ifndef MFD_EXEC
#define MFD_EXEC 0x0010U
#endif

/* Kernels find torch's accessor of tensor data by this variable, at PyInit. */
#define DATA_PTR_VARIABLE "_TORCHINDUCTOR_PYOBJECT_TENSOR_DATA_PTR"
#define DATA_PTR_NAME "tensor_data_ptr"

#if defined(__x86_64__)
#define NATIVE_MACHINE EM_X86_64
#elif defined(__aarch64__)
#define NATIVE_MACHINE EM_AARCH64
#elif defined(__powerpc64__)
#define NATIVE_MACHINE EM_PPC64
#elif defined(__s390x__)
#define NATIVE_MACHINE EM_S390
#elif defined(__riscv)
#define NATIVE_MACHINE EM_RISCV
#else
#error "precomp: unknown machine"
#endif

#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
#define NATIVE_DATA ELFDATA2LSB
#else
#define NATIVE_DATA ELFDATA2MSB
#endif

typedef struct {
    const unsigned char *data; /* borrowed */
    size_t size;               /* bytes */
    void *handle;              /* of dlopen, or NULL */
    char error[1024];          /* why handle is NULL */
} image;

/* glibc knows a loaded library by the name that it was opened with, and file
   descriptor numbers are used again. So every load needs a name of its own. */
static atomic_ullong load_counter;

/* ---- checks of the ELF file ---- */

static bool
image_fail(image *self, const char *reason)
{
    (void)snprintf(self->error, sizeof(self->error), "%s", reason);
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

/* The file offset of *length* bytes at the virtual *address*, all of them from
   the file, or -1. */
static int64_t
file_offset(const image *self, const Elf64_Ehdr *header, uint64_t address,
            uint64_t length)
{
    for (size_t i = 0; i < header->e_phnum; i++) {
        Elf64_Phdr segment = segment_at(self, header, i);
        if (segment.p_type == PT_LOAD && address >= segment.p_vaddr &&
            address - segment.p_vaddr <= segment.p_filesz &&
            length <= segment.p_filesz - (address - segment.p_vaddr)) {
            return (int64_t)(segment.p_offset + (address - segment.p_vaddr));
        }
    }
    return -1;
}

/* [address, address + length) is memory of one segment. */
static bool
mapped(const image *self, const Elf64_Ehdr *header, uint64_t address, uint64_t length)
{
    for (size_t i = 0; i < header->e_phnum; i++) {
        Elf64_Phdr segment = segment_at(self, header, i);
        if (segment.p_type == PT_LOAD && address >= segment.p_vaddr &&
            address - segment.p_vaddr <= segment.p_memsz &&
            length <= segment.p_memsz - (address - segment.p_vaddr)) {
            return true;
        }
    }
    return false;
}

typedef struct {
    uint64_t strtab, strsz, symtab, rela, relasz, jmprel, pltrelsz;
    uint64_t init_array, init_arraysz, gnu_hash, hash;
    bool has_rel;
} dynamic_table;

/* Every relocation writes inside a segment. */
static bool
check_relocations(image *self, const Elf64_Ehdr *header, uint64_t address, uint64_t size)
{
    if (size == 0) {
        return true;
    }
    int64_t offset = file_offset(self, header, address, size);
    if (offset < 0 || size % sizeof(Elf64_Rela) != 0) {
        return image_fail(self, "its relocation table is not inside the file");
    }
    for (uint64_t i = 0; i < size; i += sizeof(Elf64_Rela)) {
        Elf64_Rela entry;
        memcpy(&entry, self->data + offset + i, sizeof(entry));
        if (!mapped(self, header, entry.r_offset, 1)) {
            return image_fail(self, "a relocation is outside of its segments");
        }
    }
    return true;
}

static bool
check_dynamic(image *self, const Elf64_Ehdr *header, const Elf64_Phdr *segment)
{
    dynamic_table table = {0};
    bool ended = false;
    for (uint64_t i = 0; i + sizeof(Elf64_Dyn) <= segment->p_filesz;
         i += sizeof(Elf64_Dyn)) {
        Elf64_Dyn entry;
        memcpy(&entry, self->data + segment->p_offset + i, sizeof(entry));
        if (entry.d_tag == DT_NULL) {
            ended = true;
            break;
        }
        switch (entry.d_tag) {
            case DT_STRTAB: table.strtab = entry.d_un.d_ptr; break;
            case DT_STRSZ: table.strsz = entry.d_un.d_val; break;
            case DT_SYMTAB: table.symtab = entry.d_un.d_ptr; break;
            case DT_RELA: table.rela = entry.d_un.d_ptr; break;
            case DT_RELASZ: table.relasz = entry.d_un.d_val; break;
            case DT_JMPREL: table.jmprel = entry.d_un.d_ptr; break;
            case DT_PLTRELSZ: table.pltrelsz = entry.d_un.d_val; break;
            case DT_INIT_ARRAY: table.init_array = entry.d_un.d_ptr; break;
            case DT_INIT_ARRAYSZ: table.init_arraysz = entry.d_un.d_val; break;
            case DT_GNU_HASH: table.gnu_hash = entry.d_un.d_ptr; break;
            case DT_HASH: table.hash = entry.d_un.d_ptr; break;
            case DT_REL: table.has_rel = true; break;
            default: break;
        }
    }
    if (!ended) {
        return image_fail(self, "its dynamic section has no end");
    }
    if (table.has_rel) {
        return image_fail(self, "it has relocations without addends");
    }
    int64_t strings = file_offset(self, header, table.strtab, table.strsz);
    if (table.strsz == 0 || strings < 0 ||
        self->data[(uint64_t)strings + table.strsz - 1] != '\0') {
        return image_fail(self, "its string table is not inside the file");
    }
    if (file_offset(self, header, table.symtab, sizeof(Elf64_Sym)) < 0) {
        return image_fail(self, "its symbol table is not inside the file");
    }
    if (table.gnu_hash == 0 && table.hash == 0) {
        return image_fail(self, "it has no symbol hash table");
    }
    if ((table.gnu_hash != 0 && file_offset(self, header, table.gnu_hash, 16) < 0) ||
        (table.hash != 0 && file_offset(self, header, table.hash, 8) < 0)) {
        return image_fail(self, "its symbol hash table is not inside the file");
    }
    if (table.init_arraysz != 0 &&
        file_offset(self, header, table.init_array, table.init_arraysz) < 0) {
        return image_fail(self, "its init array is not inside the file");
    }
    return check_relocations(self, header, table.rela, table.relasz) &&
           check_relocations(self, header, table.jmprel, table.pltrelsz);
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
        header.e_ident[EI_DATA] != NATIVE_DATA ||
        header.e_ident[EI_VERSION] != EV_CURRENT || header.e_machine != NATIVE_MACHINE) {
        (void)snprintf(self->error, sizeof(self->error),
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
        return image_fail(self, "its section headers are not inside the file (truncated?)");
    }
    uint64_t end = 0;
    for (size_t i = 0; i < header.e_phnum; i++) {
        Elf64_Phdr segment = segment_at(self, &header, i);
        if (segment.p_type != PT_LOAD) {
            continue;
        }
        if (!inside(self, segment.p_offset, segment.p_filesz) ||
            segment.p_filesz > segment.p_memsz || segment.p_vaddr < end ||
            segment.p_memsz > UINT32_MAX || segment.p_vaddr > UINT32_MAX ||
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
        if (has_dynamic || file_offset(self, &header, segment.p_vaddr,
                                       segment.p_filesz) != (int64_t)segment.p_offset) {
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

/* ---- opening without the GIL ---- */

/* Returns 0, or the errno of write(2). */
static int
write_all(int fd, const unsigned char *data, size_t size)
{
    while (size > 0) {
        ssize_t count = write(fd, data, size);
        if (count < 0) {
            if (errno == EINTR) {
                continue;
            }
            return errno;
        }
        data += count;
        size -= (size_t)count;
    }
    return 0;
}

/* Writes a spelling of /proc/self/fd/<fd> that no other load uses: the counter,
   as a row of "/." (1) and "/" (0). */
static void
unique_fd_path(int fd, char *path, size_t size)
{
    unsigned long long counter = atomic_fetch_add(&load_counter, 1);
    char row[2 * 64 + 1];
    size_t length = 0;
    for (; counter != 0; counter >>= 1) {
        row[length++] = '/';
        if (counter & 1) {
            row[length++] = '.';
        }
    }
    row[length] = '\0';
    (void)snprintf(path, size, "/proc/self%s/fd/%d", row, fd);
}

/* Opens *path* as a library; on failure keeps the text of the linker. */
static bool
image_dlopen(image *self, const char *path)
{
    self->handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (self->handle == NULL) {
        const char *reason = dlerror();
        (void)snprintf(self->error, sizeof(self->error), "%s",
                       reason == NULL ? "dlopen failed" : reason);
        return false;
    }
    return true;
}

/* Returns true when the library was opened from an anonymous file. False with
   *retry* set says that this way is closed on this machine. */
static bool
open_anonymous(image *self, bool *retry)
{
    char path[256];
    int fd = memfd_create("precomp", MFD_CLOEXEC | MFD_EXEC);
    if (fd < 0 && errno == EINVAL) { /* kernels before 6.3 */
        fd = memfd_create("precomp", MFD_CLOEXEC);
    }
    if (fd < 0) {
        *retry = true;
        (void)snprintf(self->error, sizeof(self->error), "memfd_create: %s",
                       strerror(errno));
        return false;
    }
    bool done = false;
    int status = write_all(fd, self->data, self->size);
    if (status != 0) {
        *retry = true;
        (void)snprintf(self->error, sizeof(self->error), "memfd: write: %s",
                       strerror(status));
        goto done;
    }
    unique_fd_path(fd, path, sizeof(path));
    if (access(path, R_OK) != 0) {
        *retry = true;
        (void)snprintf(self->error, sizeof(self->error), "%s: %s", path,
                       strerror(errno));
        goto done;
    }
    done = image_dlopen(self, path);
    /* A mount or a security module may forbid executable anonymous files. */
    *retry = !done && strstr(self->error, "failed to map segment") != NULL;
done:
    (void)close(fd);
    return done;
}

/* The second way: a file in $TMPDIR that is gone before this returns. */
static bool
open_temporary(image *self)
{
    char why[512];
    char path[4096];
    int fd = -1;
    bool opened = false;
    (void)snprintf(why, sizeof(why), "%.500s", self->error);
    const char *directory = getenv("TMPDIR");
    if (directory == NULL || directory[0] == '\0') {
        directory = "/tmp";
    }
    int length = snprintf(path, sizeof(path), "%s/precomp-%ld-%llu-XXXXXX", directory,
                          (long)getpid(), atomic_fetch_add(&load_counter, 1));
    if (length < 0 || (size_t)length >= sizeof(path)) {
        return image_fail(self, "the path in TMPDIR is too long");
    }
    fd = mkostemp(path, O_CLOEXEC);
    if (fd < 0) {
        (void)snprintf(self->error, sizeof(self->error),
                       "neither an anonymous file (%.300s) nor a file in %.300s (%s) can "
                       "be made: set TMPDIR to a writable directory",
                       why, directory, strerror(errno));
        return false;
    }
    int status = write_all(fd, self->data, self->size);
    if (status != 0) {
        (void)snprintf(self->error, sizeof(self->error),
                       "%.700s: write: %s: set TMPDIR to a directory with space", path,
                       strerror(status));
    }
    else if (!image_dlopen(self, path)) {
        char text[400];
        (void)snprintf(text, sizeof(text), "%.390s", self->error);
        (void)snprintf(self->error, sizeof(self->error),
                       "%s (anonymous files are not available: %.300s; set TMPDIR to a "
                       "directory whose files may be executed)",
                       text, why);
    }
    else {
        opened = true;
    }
    (void)unlink(path);
    (void)close(fd);
    return opened;
}

static void
image_open(image *self)
{
    bool retry = false;
    if (!image_check(self)) {
        return;
    }
    if (!open_anonymous(self, &retry) && retry) {
        (void)open_temporary(self);
    }
}

static pc_status
open_task(void *context, size_t worker, size_t index, pc_error *error)
{
    (void)worker;
    (void)error; /* an image keeps its own */
    image_open((image *)context + index);
    return PC_OK;
}

/* ---- the Python side ---- */

/* Raises PrecompError(message) with the pending exception as its cause. */
static void
raise_with_cause(core_state *state, const char *label, const char *what)
{
#if PY_VERSION_HEX >= 0x030C0000
    PyObject *cause = PyErr_GetRaisedException();
#else
    PyObject *type = NULL;
    PyObject *cause = NULL;
    PyObject *traceback = NULL;
    PyErr_Fetch(&type, &cause, &traceback);
    PyErr_NormalizeException(&type, &cause, &traceback);
    Py_XDECREF(type);
    Py_XDECREF(traceback);
#endif
    (void)core_raise_named(state, "PrecompError", "kernel %s: %s: %S", label, what,
                           cause);
#if PY_VERSION_HEX >= 0x030C0000
    PyObject *error = PyErr_GetRaisedException();
    PyException_SetCause(error, cause); /* steals *cause* */
    PyErr_SetRaisedException(error);
#else
    PyObject *error = NULL;
    PyErr_Fetch(&type, &error, &traceback);
    PyErr_NormalizeException(&type, &error, &traceback);
    PyException_SetCause(error, cause); /* steals *cause* */
    PyErr_Restore(type, error, traceback);
#endif
}

/* Tells kernels where torch's accessor of tensor data is. The variable is set in
   the C environment only, and not again while it holds the right value. Returns
   0, or -1 with an exception set. */
static int
export_data_ptr(core_state *state)
{
    int result = -1;
    PyObject *text = NULL; /* owned */
    PyObject *value = core_torch(state, DATA_PTR_NAME); /* borrowed */
    if (value == NULL) {
        goto done;
    }
    text = PyObject_Str(value);
    const char *address = text == NULL ? NULL : PyUnicode_AsUTF8(text);
    if (address == NULL) {
        goto done;
    }
    const char *current = getenv(DATA_PTR_VARIABLE);
    if ((current == NULL || strcmp(current, address) != 0) &&
        setenv(DATA_PTR_VARIABLE, address, 1) != 0) {
        PyErr_SetFromErrno(PyExc_OSError);
        goto done;
    }
    result = 0;
done:
    Py_XDECREF(text);
    return result;
}

/* Runs a two-phase initialisation: *definition* is what PyInit returned.
   Returns a new reference. */
static PyObject *
module_from_definition(PyObject *definition, const char *name)
{
    PyObject *module = NULL;
    PyObject *spec = NULL; /* owned */
    PyObject *machinery = PyImport_ImportModule("importlib.machinery");
    if (machinery != NULL) {
        spec = PyObject_CallMethod(machinery, "ModuleSpec", "sO", name, Py_None);
    }
    if (spec != NULL) {
        module = PyModule_FromDefAndSpec((PyModuleDef *)definition, spec);
    }
    if (module != NULL && PyModule_ExecDef(module, (PyModuleDef *)definition) < 0) {
        Py_CLEAR(module);
    }
    Py_XDECREF(machinery);
    Py_XDECREF(spec);
    return module;
}

/* Runs PyInit_<name> of an opened library and returns its function <name>, a new
   reference that owns the module. *label* names the kernel in errors. */
static PyObject *
image_function(core_state *state, image *self, const char *name, const char *label)
{
    char symbol[256];
    PyObject *(*init)(void) = NULL;
    PyObject *made = NULL;     /* owned: module or definition */
    PyObject *module = NULL;   /* owned */
    PyObject *function = NULL; /* owned */
    PyObject *result = NULL;
    if (self->handle == NULL) {
        return core_raise_named(state, "PrecompError", "kernel %s: cannot be loaded: %s",
                                label, self->error);
    }
    int length = snprintf(symbol, sizeof(symbol), "PyInit_%s", name);
    if (length < 0 || (size_t)length >= sizeof(symbol)) {
        PyErr_Format(PyExc_ValueError, "load_kernel: the name is too long: %.100s...",
                     name);
        return NULL;
    }
    void *address = dlsym(self->handle, symbol);
    if (address == NULL) {
        return core_raise_named(state, "PrecompError", "kernel %s: it has no symbol %s",
                                label, symbol);
    }
    memcpy(&init, &address, sizeof(init)); /* ISO C has no cast for this */
    made = init();
    if (made == NULL) {
        if (!PyErr_Occurred()) {
            PyErr_SetString(PyExc_SystemError, "no exception was set");
        }
        raise_with_cause(state, label, "its initialisation failed");
        goto done;
    }
    if (PyErr_Occurred()) {
        raise_with_cause(state, label, "its initialisation left an exception");
        goto done;
    }
    if (PyObject_TypeCheck(made, &PyModuleDef_Type)) {
        module = module_from_definition(made, name); /* *made* is borrowed here */
        made = NULL;
        if (module == NULL) {
            raise_with_cause(state, label, "its initialisation failed");
            goto done;
        }
    }
    else {
        module = made;
        made = NULL;
    }
    function = PyObject_GetAttrString(module, name);
    if (function == NULL) {
        raise_with_cause(state, label, "its module is not a kernel");
        goto done;
    }
    if (!PyCFunction_Check(function) || PyCFunction_GET_SELF(function) != module) {
        (void)core_raise_named(state, "PrecompError",
                               "kernel %s: its attribute '%s' is a %.100s, expected a "
                               "function of the module",
                               label, name, Py_TYPE(function)->tp_name);
        goto done;
    }
    result = function;
    function = NULL;
done:
    Py_XDECREF(made);
    Py_XDECREF(module);
    Py_XDECREF(function);
    return result;
}

PyDoc_STRVAR(core_load_kernel_doc,
             "load_kernel(data, name='kernel', label=None, /)\n--\n\n"
             "Load a shared object from memory and return its function.\n\n"
             "*data* (bytes-like) is an extension module whose PyInit_<name> makes a\n"
             "module with a function <name>, as Inductor's C++ kernels are. *label*\n"
             "(str, default *name*) stands for the kernel in errors, normally its\n"
             "digest. Nothing is left in the file system, no file descriptor stays\n"
             "open, and the library stays loaded for the life of the process. Each\n"
             "call loads a fresh copy. The GIL is released while the linker works.\n\n"
             "Raises PrecompError when the bytes are not a whole shared object for\n"
             "this machine, with the linker's text when it refuses them, when the\n"
             "entry is missing or when its initialisation fails.");

static PyObject *
core_load_kernel(PyObject *module, PyObject *args)
{
    core_state *state = core_state_get(module);
    Py_buffer buffer = {0};
    const char *name = "kernel";
    const char *label = NULL;
    PyObject *result = NULL;
    image self = {0};
    if (!PyArg_ParseTuple(args, "y*|sz:load_kernel", &buffer, &name, &label)) {
        return NULL;
    }
    if (export_data_ptr(state) < 0) {
        goto done;
    }
    self.data = buffer.buf;
    self.size = (size_t)buffer.len;
    Py_BEGIN_ALLOW_THREADS
    image_open(&self);
    Py_END_ALLOW_THREADS
    result = image_function(state, &self, name, label == NULL ? name : label);
done:
    PyBuffer_Release(&buffer);
    return result;
}

PyDoc_STRVAR(core_load_kernels_doc,
             "load_kernels(kernels, threads=0, /)\n--\n\n"
             "Load many kernels at once: the GIL is released a single time.\n\n"
             "*kernels* is a sequence of (label, bytes); returns the list of their\n"
             "functions, in order. *threads* (int) is the number of threads; 0 chooses\n"
             "one, since the dynamic linker opens one library at a time and writing\n"
             "the images is a small part of the work. Raises as load_kernel does, for\n"
             "the first kernel that fails; the others stay loaded in the process.");

static PyObject *
core_load_kernels(PyObject *module, PyObject *args)
{
    core_state *state = core_state_get(module);
    int threads = 0;
    pc_error error;
    size_t workers = 0;
    PyObject *kernels = NULL; /* borrowed */
    PyObject *result = NULL;
    PyObject *functions = NULL; /* owned */
    PyObject *sequence = NULL;  /* owned, keeps all data alive */
    image *images = NULL;       /* owned */
    Py_ssize_t count = 0;
    if (!PyArg_ParseTuple(args, "O|i:load_kernels", &kernels, &threads)) {
        return NULL;
    }
    if (threads < 0) {
        PyErr_Format(PyExc_ValueError, "load_kernels: threads: expected >= 0, got %d",
                     threads);
        return NULL;
    }
    sequence = PySequence_Tuple(kernels);
    if (sequence == NULL || export_data_ptr(state) < 0) {
        goto done;
    }
    count = PyTuple_GET_SIZE(sequence);
    functions = PyList_New(count);
    images = PyMem_Calloc(count == 0 ? 1 : (size_t)count, sizeof(*images));
    if (functions == NULL || images == NULL) {
        PyErr_NoMemory();
        goto done;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *item = PyTuple_GET_ITEM(sequence, i); /* borrowed */
        if (!PyTuple_Check(item) || PyTuple_GET_SIZE(item) != 2 ||
            !PyUnicode_Check(PyTuple_GET_ITEM(item, 0)) ||
            !PyBytes_Check(PyTuple_GET_ITEM(item, 1))) {
            PyErr_Format(PyExc_TypeError,
                         "load_kernels: item %zd: expected (str, bytes), got %.100s", i,
                         Py_TYPE(item)->tp_name);
            goto done;
        }
        images[i].data =
            (const unsigned char *)PyBytes_AS_STRING(PyTuple_GET_ITEM(item, 1));
        images[i].size = (size_t)PyBytes_GET_SIZE(PyTuple_GET_ITEM(item, 1));
    }
    workers = threads == 0
                  ? 1
                  : pc_pool_workers((size_t)threads, (size_t)count, (size_t)count, 1);
    Py_BEGIN_ALLOW_THREADS
    (void)pc_pool_run(workers, (size_t)count, open_task, images, &error);
    Py_END_ALLOW_THREADS
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *label = PyTuple_GET_ITEM(PyTuple_GET_ITEM(sequence, i), 0);
        const char *text = PyUnicode_AsUTF8(label);
        PyObject *function =
            text == NULL ? NULL : image_function(state, &images[i], "kernel", text);
        if (function == NULL) {
            goto done;
        }
        PyList_SET_ITEM(functions, i, function); /* steals *function* */
    }
    result = functions;
    functions = NULL;
done:
    PyMem_Free(images);
    Py_XDECREF(functions);
    Py_XDECREF(sequence);
    return result;
}

static PyMethodDef kernel_functions[] = {
    {"load_kernel", core_load_kernel, METH_VARARGS, core_load_kernel_doc},
    {"load_kernels", core_load_kernels, METH_VARARGS, core_load_kernels_doc},
    {NULL, NULL, 0, NULL},
};

int
core_add_kernel(PyObject *module)
{
    return PyModule_AddFunctions(module, kernel_functions);
}
