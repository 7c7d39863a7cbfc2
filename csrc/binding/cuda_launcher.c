/* CudaLauncher: a kernel with everything that its launch record fixes. A call computes the
 * grid, packs the arguments on the C stack and launches; it keeps nothing, so that any
 * thread may call it at any time.
 */
#include "cuda.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <structmember.h>

#include "pc_grid.h"

enum {
    PARAMETERS = 512, /* of a kernel, at most */
    SCRATCH = 4,      /* pointers after the parameters, at most */
    MAPS = 32,        /* tensor descriptors of a kernel, at most */
    WARP = 32,        /* threads */
};

typedef struct {
    uint64_t bytes; /* a block; 0 for a null pointer */
    uint64_t align;
} scratch_space;

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    core_state *state;      /* borrowed from the module, which the type keeps */
    PyObject *library;      /* owned */
    PyObject *label;        /* owned: str for errors */
    PyObject *stream;       /* owned: interned "stream" */
    core_cuda_torch torch;  /* owned */
    pc_cuda_kernel *kernel; /* owned */
    Py_ssize_t arguments;   /* positional ones of a call */
    size_t count;           /* of codes */
    size_t parameters;      /* of the kernel, without scratch */
    char *codes;            /* owned: one for each argument that is passed */
    Py_ssize_t *select;     /* owned: where it is in a call */
    core_cuda_descriptor *descriptors; /* owned: one for each code T and D */
    size_t scratch_count;
    scratch_space scratch[SCRATCH];
    unsigned cluster;
    pc_grid_item *items;        /* owned: three programs, one after the other */
    size_t starts[4];           /* where each begins; starts[3] is their end */
    Py_ssize_t *grid_arguments; /* owned: arguments that the programs use */
    size_t grid_argument_count;
} LauncherObject;

#define LauncherObject_CAST(op) ((LauncherObject *)(op))

/* --- launching --- */

static const char *
label_of(LauncherObject *self)
{
    return PyUnicode_AsUTF8(self->label); /* made from UTF-8, cached */
}

static bool
is_descriptor(char code)
{
    return code == 'T' || code == 'D';
}

/* Computes the grid. Returns 1, 0 if it is empty, or -1 with an exception set. */
static int
compute_grid(LauncherObject *self, PyObject *const *args, int64_t grid[3])
{
    int64_t values[PC_GRID_ITEMS];
    for (size_t i = 0; i < self->grid_argument_count; i++) {
        values[i] = PyLong_AsLongLong(args[self->grid_arguments[i]]);
        if (values[i] == -1 && PyErr_Occurred()) {
            core_cuda_explain(label_of(self), self->grid_arguments[i]);
            return -1;
        }
    }
    int full = 1;
    for (int i = 0; i < 3; i++) {
        const pc_grid_item *program = self->items + self->starts[i];
        if (!pc_grid_run(program, self->starts[i + 1] - self->starts[i], values,
                         &grid[i])) {
            PyErr_Format(PyExc_OverflowError,
                         "%U: dimension %d of the grid does not fit 64 bits",
                         self->label, i);
            return -1;
        }
        full &= grid[i] > 0;
    }
    return full;
}

/* Gets the memory of scratch pointer *index* for *grid*. Returns a new reference to what
   owns it, None if there is none to own, or NULL with an exception set. */
static PyObject *
take_scratch(LauncherObject *self, size_t index, const int64_t grid[3],
             PyObject *stream, uint64_t *slot)
{
    const scratch_space *space = &self->scratch[index];
    uint64_t bytes = space->bytes;
    int device = -1;
    *slot = 0;
    if (bytes == 0) {
        return Py_NewRef(Py_None);
    }
    const uint64_t factors[] = {(uint64_t)grid[0], (uint64_t)grid[1], (uint64_t)grid[2],
                                self->cluster};
    for (size_t i = 0; i < 4; i++) {
        if (__builtin_mul_overflow(bytes, factors[i], &bytes)) {
            PyErr_Format(PyExc_OverflowError,
                         "%U: its scratch memory does not fit 64 bits", self->label);
            return NULL;
        }
    }
    PyObject *allocate = core_torch(self->state, "cuda_scratch"); /* borrowed */
    PyObject *owner =
        allocate == NULL
            ? NULL
            : PyObject_CallFunction(allocate, "KO", (unsigned long long)bytes, stream);
    if (owner == NULL) {
        return NULL;
    }
    if (core_cuda_pack(&self->torch, 'P', owner, slot, &device) < 0) {
        Py_CLEAR(owner);
    }
    else if (*slot % space->align != 0) {
        (void)core_raise_named(self->state, "CudaError",
                               "%U: its scratch memory is not aligned to %llu bytes",
                               self->label, (unsigned long long)space->align);
        Py_CLEAR(owner);
    }
    return owner;
}

static PyObject *
Launcher_vectorcall(PyObject *op, PyObject *const *args, size_t nargsf,
                    PyObject *kwnames)
{
    LauncherObject *self = LauncherObject_CAST(op);
    _Alignas(PC_CUDA_MAP_ALIGNMENT) unsigned char maps[MAPS][PC_CUDA_MAP_BYTES];
    uint64_t slots[PARAMETERS];
    void *pointers[PARAMETERS];
    PyObject *owners[SCRATCH] = {NULL}; /* owned */
    int64_t grid[3];
    int device = -1;
    pc_status status = PC_OK;
    pc_error error;
    PyObject *result = NULL;
    Py_ssize_t count = PyVectorcall_NARGS(nargsf);

    if (count != self->arguments || kwnames == NULL || PyTuple_GET_SIZE(kwnames) != 1 ||
        (PyTuple_GET_ITEM(kwnames, 0) != self->stream &&
         PyUnicode_CompareWithASCIIString(PyTuple_GET_ITEM(kwnames, 0), "stream") !=
             0)) {
        return PyErr_Format(
            PyExc_TypeError,
            "%U: expected %zd positional arguments and stream=, got %zd "
            "and %zd by name",
            self->label, self->arguments, count,
            kwnames == NULL ? 0 : PyTuple_GET_SIZE(kwnames));
    }
    uint64_t stream = PyLong_AsUnsignedLongLong(args[count]);
    if (stream == UINT64_MAX && PyErr_Occurred()) {
        core_cuda_explain(label_of(self), count);
        return NULL;
    }
    int full = compute_grid(self, args, grid);
    if (full <= 0) {
        return full == 0 ? Py_NewRef(Py_None) : NULL;
    }
    size_t last = 0;
    size_t described = 0;
    for (size_t i = 0; i < self->count; i++) {
        PyObject *argument = args[self->select[i]]; /* borrowed */
        int packed = 1;
        pointers[last] = &slots[last];
        if (is_descriptor(self->codes[i])) {
            packed = core_cuda_descriptor_pack(
                self->state, &self->torch, self->kernel, &self->descriptors[described],
                argument, maps[described], &slots[last], &pointers[last], &device);
            described++;
        }
        else if (core_cuda_pack(&self->torch, self->codes[i], argument, &slots[last],
                                &device) < 0) {
            packed = -1;
        }
        if (packed < 0) {
            core_cuda_explain(label_of(self), self->select[i]);
            return NULL;
        }
        last += (size_t)packed;
    }
    for (size_t i = 0; i < self->scratch_count; i++, last++) {
        pointers[last] = &slots[last];
        owners[i] = take_scratch(self, i, grid, args[count], &slots[last]);
        if (owners[i] == NULL) {
            goto done;
        }
    }
    Py_BEGIN_ALLOW_THREADS
    status = pc_cuda_launch(self->kernel, grid, stream, pointers, device, &error);
    Py_END_ALLOW_THREADS
    result = status == PC_OK ? Py_NewRef(Py_None) : core_raise(self->state, &error);
done:
    /* The allocator hands the memory out again in the order of the stream. */
    for (size_t i = 0; i < SCRATCH; i++) {
        Py_XDECREF(owners[i]);
    }
    return result;
}

/* --- the launch record --- */

/* Borrowed value of *name*, or NULL with ValueError set. */
static PyObject *
field(PyObject *record, const char *name)
{
    PyObject *value = PyDict_GetItemString(record, name);
    if (value == NULL && !PyErr_Occurred()) {
        PyErr_Format(PyExc_ValueError, "launch record: it has no '%s'", name);
    }
    return value;
}

/* The integer *name*, or -1 with an exception set if it is not within the limits. */
static long
number(PyObject *record, const char *name, long least, long most)
{
    PyObject *value = field(record, name); /* borrowed */
    long result = value == NULL ? -1 : PyLong_AsLong(value);
    if (result == -1 && PyErr_Occurred()) {
        return -1;
    }
    if (result < least || result > most) {
        PyErr_Format(PyExc_ValueError,
                     "launch record: '%s': expected %ld to %ld, found %ld", name, least,
                     most, result);
        return -1;
    }
    return result;
}

/* Borrowed tuple *name* of at most *most* items, or NULL with an exception set. */
static PyObject *
items_of(PyObject *record, const char *name, Py_ssize_t most)
{
    PyObject *value = field(record, name);
    if (value != NULL && (!PyTuple_Check(value) || PyTuple_GET_SIZE(value) > most)) {
        PyErr_Format(PyExc_ValueError,
                     "launch record: '%s': expected a tuple of at most %zd items", name,
                     most);
        return NULL;
    }
    return value;
}

/* Takes "args", "codes" and "select". */
static int
take_parameters(LauncherObject *self, PyObject *record)
{
    PyObject *codes = field(record, "codes"); /* borrowed, as the next */
    PyObject *select = NULL;
    Py_ssize_t length = 0;
    const char *text = NULL;

    self->arguments = number(record, "args", 0, 1 << 16);
    if (self->arguments < 0 || codes == NULL) {
        return -1;
    }
    text = PyUnicode_AsUTF8AndSize(codes, &length);
    select = text == NULL ? NULL : items_of(record, "select", PARAMETERS - SCRATCH);
    if (select == NULL) {
        return -1;
    }
    if (PyTuple_GET_SIZE(select) != length) {
        PyErr_Format(PyExc_ValueError,
                     "launch record: %zd codes, but %zd items in 'select'", length,
                     PyTuple_GET_SIZE(select));
        return -1;
    }
    self->count = (size_t)length;
    self->codes = PyMem_Malloc((size_t)length + 1);
    self->select = PyMem_Calloc((size_t)length + 1, sizeof(*self->select));
    if (self->codes == NULL || self->select == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    memcpy(self->codes, text, (size_t)length + 1);
    for (Py_ssize_t i = 0; i < length; i++) {
        self->select[i] = PyLong_AsSsize_t(PyTuple_GET_ITEM(select, i));
        if (self->select[i] == -1 && PyErr_Occurred()) {
            return -1;
        }
        if (self->select[i] < 0 || self->select[i] >= self->arguments) {
            PyErr_Format(PyExc_ValueError,
                         "launch record: 'select' has %zd, a call has %zd arguments",
                         self->select[i], self->arguments);
            return -1;
        }
        if (core_cuda_size(text[i]) == 0 && !is_descriptor(text[i])) {
            PyErr_Format(PyExc_ValueError, "launch record: unknown code '%c'", text[i]);
            return -1;
        }
    }
    return 0;
}

/* Takes "tensormaps". Writes the bytes of each parameter. */
static int
take_descriptors(LauncherObject *self, PyObject *record, uint8_t *sizes)
{
    PyObject *rows = items_of(record, "tensormaps", MAPS); /* borrowed */
    Py_ssize_t rows_left = rows == NULL ? 0 : PyTuple_GET_SIZE(rows);
    size_t described = 0;
    self->descriptors = PyMem_Calloc(MAPS, sizeof(*self->descriptors));
    if (self->descriptors == NULL) {
        PyErr_NoMemory();
    }
    if (rows == NULL || self->descriptors == NULL) {
        return -1;
    }
    for (size_t i = 0; i < self->count; i++) {
        char code = self->codes[i];
        size_t count = 1;
        sizes[self->parameters] = core_cuda_size(code);
        if (is_descriptor(code) && rows_left-- > 0) {
            PyObject *row = PyTuple_GET_ITEM(rows, (Py_ssize_t)described);
            core_cuda_descriptor *descriptor = &self->descriptors[described++];
            if (core_cuda_descriptor_take(code, row, descriptor) < 0) {
                return -1;
            }
            count = core_cuda_descriptor_sizes(descriptor, sizes + self->parameters);
        }
        self->parameters += count;
        if (self->parameters > PARAMETERS - SCRATCH) {
            PyErr_Format(PyExc_ValueError, "launch record: more than %d parameters",
                         PARAMETERS - SCRATCH);
            return -1;
        }
    }
    if (rows_left != 0) {
        PyErr_SetString(PyExc_ValueError,
                        "launch record: 'tensormaps': expected one item for each code "
                        "T and D");
        return -1;
    }
    return 0;
}

/* Takes "scratch". */
static int
take_scratch_spaces(LauncherObject *self, PyObject *record)
{
    PyObject *spaces = items_of(record, "scratch", SCRATCH); /* borrowed */
    if (spaces == NULL) {
        return -1;
    }
    self->scratch_count = (size_t)PyTuple_GET_SIZE(spaces);
    for (size_t i = 0; i < self->scratch_count; i++) {
        PyObject *space = PyTuple_GET_ITEM(spaces, (Py_ssize_t)i); /* borrowed */
        unsigned long long bytes = 0;
        unsigned long long align = 1;
        if (space != Py_None &&
            (!PyTuple_Check(space) ||
             !PyArg_ParseTuple(space, "KK:scratch", &bytes, &align))) {
            if (!PyErr_Occurred()) {
                PyErr_SetString(
                    PyExc_ValueError,
                    "launch record: 'scratch': expected (bytes, alignment)");
            }
            return -1;
        }
        self->scratch[i].bytes = bytes;
        self->scratch[i].align = align == 0 ? 1 : align;
    }
    return 0;
}

/* The number of argument *position* among those of the grid, a new one if need be.
   Returns -1 with an exception set if the call has no such argument. */
static int64_t
grid_argument(LauncherObject *self, Py_ssize_t position)
{
    if (position < 0 || position >= self->arguments) {
        PyErr_Format(PyExc_ValueError,
                     "launch record: 'grid' uses argument %zd, a call has %zd",
                     position, self->arguments);
        return -1;
    }
    for (size_t i = 0; i < self->grid_argument_count; i++) {
        if (self->grid_arguments[i] == position) {
            return (int64_t)i;
        }
    }
    if (self->grid_argument_count == PC_GRID_ITEMS) {
        PyErr_SetString(PyExc_ValueError,
                        "launch record: 'grid' uses too many arguments");
        return -1;
    }
    self->grid_arguments[self->grid_argument_count] = position;
    return (int64_t)self->grid_argument_count++;
}

/* Reads one item of a grid program: an int, ("a", i) or the name of an operation. */
static int
take_grid_item(LauncherObject *self, PyObject *item, pc_grid_item *out)
{
    const char *name = NULL;
    Py_ssize_t position = 0;
    if (PyLong_Check(item)) {
        out->op = PC_GRID_CONSTANT;
        out->value = PyLong_AsLongLong(item);
        return out->value == -1 && PyErr_Occurred() ? -1 : 0;
    }
    if (PyTuple_Check(item) && PyTuple_GET_SIZE(item) == 2) {
        if (!PyArg_ParseTuple(item, "sn:grid", &name, &position)) {
            return -1;
        }
        if (strcmp(name, "a") == 0) {
            out->op = PC_GRID_ARGUMENT;
            out->value = grid_argument(self, position);
            return out->value < 0 ? -1 : 0;
        }
    }
    if (PyUnicode_Check(item)) {
        name = PyUnicode_AsUTF8(item);
        if (name == NULL) {
            return -1;
        }
        out->op = pc_grid_named(name);
        out->value = 0;
        if (out->op != PC_GRID_CONSTANT) {
            return 0;
        }
    }
    PyErr_Format(PyExc_ValueError, "launch record: 'grid': unknown item %R", item);
    return -1;
}

/* Takes "grid". */
static int
take_grid(LauncherObject *self, PyObject *record)
{
    PyObject *programs = items_of(record, "grid", 3); /* borrowed */
    size_t total = 0;
    if (programs == NULL) {
        return -1;
    }
    self->items = PyMem_Calloc((size_t)3 * PC_GRID_ITEMS, sizeof(*self->items));
    self->grid_arguments = PyMem_Calloc(PC_GRID_ITEMS, sizeof(*self->grid_arguments));
    if (self->items == NULL || self->grid_arguments == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    for (Py_ssize_t i = 0; i < 3; i++) {
        PyObject *program =
            i < PyTuple_GET_SIZE(programs) ? PyTuple_GET_ITEM(programs, i) : NULL;
        if (program == NULL || !PyTuple_Check(program) ||
            PyTuple_GET_SIZE(program) > PC_GRID_ITEMS) {
            PyErr_Format(PyExc_ValueError,
                         "launch record: 'grid': expected three programs of at most %d "
                         "items",
                         PC_GRID_ITEMS);
            return -1;
        }
        self->starts[i] = total;
        for (Py_ssize_t k = 0; k < PyTuple_GET_SIZE(program); k++) {
            if (take_grid_item(self, PyTuple_GET_ITEM(program, k),
                               &self->items[total++]) < 0) {
                return -1;
            }
        }
        self->starts[i + 1] = total;
        if (!pc_grid_valid(self->items + self->starts[i], total - self->starts[i])) {
            PyErr_Format(PyExc_ValueError,
                         "launch record: 'grid': program %zd does not leave one value",
                         i);
            return -1;
        }
    }
    pc_grid_item *shrunk = PyMem_Realloc(self->items, total * sizeof(*self->items));
    self->items = shrunk == NULL ? self->items : shrunk;
    return 0;
}

/* Takes what shapes the blocks. */
static int
take_shape(PyObject *record, pc_cuda_shape *shape)
{
    long warps = number(record, "num_warps", 1, 32);
    long shared = warps < 0 ? -1 : number(record, "shared", 0, INT32_MAX);
    long cluster = shared < 0 ? -1 : number(record, "num_ctas", 1, 16);
    PyObject *pdl = cluster < 0 ? NULL : field(record, "pdl"); /* borrowed */
    PyObject *cooperative = pdl == NULL ? NULL : field(record, "cooperative");
    int programmatic = cooperative == NULL ? -1 : PyObject_IsTrue(pdl);
    int together = programmatic < 0 ? -1 : PyObject_IsTrue(cooperative);
    if (together < 0) {
        return -1;
    }
    shape->threads = (unsigned)warps * WARP;
    shape->shared = (unsigned)shared;
    shape->cluster = (unsigned)cluster;
    shape->programmatic_launch = programmatic != 0;
    shape->cooperative = together != 0;
    return 0;
}

/* Loads the kernel, with *symbol*, as the record says. */
static int
take_kernel(LauncherObject *self, PyObject *record, const char *symbol)
{
    uint8_t sizes[PARAMETERS + CORE_CUDA_DESCRIPTOR_PARAMETERS];
    pc_cuda_shape shape;
    long arch = number(record, "arch", 10, 999);
    const char *label = label_of(self);
    if (arch < 0 || label == NULL || take_shape(record, &shape) < 0 ||
        take_descriptors(self, record, sizes) < 0) {
        return -1;
    }
    shape.tensor_maps = strchr(self->codes, 'T') != NULL;
    memset(sizes + self->parameters, sizeof(void *), self->scratch_count);
    self->cluster = shape.cluster;
    self->kernel = core_cuda_library_kernel(
        self->state, self->library, (unsigned)arch, symbol, label, sizes,
        self->parameters + self->scratch_count, &shape);
    return self->kernel == NULL ? -1 : 0;
}

static PyObject *
Launcher_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {(char *)"library", (char *)"record", NULL};
    core_state *state = core_state_by_type(type);
    PyObject *library = NULL; /* borrowed, as the next two */
    PyObject *record = NULL;
    PyObject *symbol = NULL;
    const char *text = NULL;
    LauncherObject *self = NULL;
    PyObject *result = NULL;

    if (state == NULL ||
        !PyArg_ParseTupleAndKeywords(args, kwargs, "O!O!:CudaLauncher", names,
                                     state->cuda_library_type, &library, &PyDict_Type,
                                     &record)) {
        return NULL;
    }
    symbol = field(record, "symbol");
    text = symbol == NULL ? NULL : PyUnicode_AsUTF8(symbol);
    self = text == NULL ? NULL : LauncherObject_CAST(type->tp_alloc(type, 0));
    if (self == NULL) {
        return NULL;
    }
    self->vectorcall = Launcher_vectorcall;
    self->state = state;
    self->library = Py_NewRef(library);
    self->label = PyUnicode_FromFormat("kernel %.150s (%U)", text,
                                       core_cuda_library_label(library));
    self->stream = PyUnicode_InternFromString("stream");
    if (self->label == NULL || self->stream == NULL ||
        core_cuda_torch_init(&self->torch, state) < 0 ||
        take_parameters(self, record) < 0 || take_scratch_spaces(self, record) < 0 ||
        take_grid(self, record) < 0 || take_kernel(self, record, text) < 0) {
        goto done;
    }
    result = Py_NewRef((PyObject *)self);
done:
    Py_DECREF(self);
    return result;
}

static int
Launcher_traverse(PyObject *op, visitproc visit, void *arg)
{
    LauncherObject *self = LauncherObject_CAST(op);
    Py_VISIT(Py_TYPE(op));
    Py_VISIT(self->library);
    return core_cuda_torch_traverse(&self->torch, visit, arg);
}

static int
Launcher_clear(PyObject *op)
{
    LauncherObject *self = LauncherObject_CAST(op);
    Py_CLEAR(self->library);
    core_cuda_torch_clear(&self->torch);
    return 0;
}

static void
Launcher_dealloc(PyObject *op)
{
    LauncherObject *self = LauncherObject_CAST(op);
    PyTypeObject *type = Py_TYPE(op);
    PyObject_GC_UnTrack(op);
    (void)Launcher_clear(op);
    Py_CLEAR(self->label);
    Py_CLEAR(self->stream);
    pc_cuda_kernel_free(self->kernel);
    PyMem_Free(self->codes);
    PyMem_Free(self->select);
    PyMem_Free(self->descriptors);
    PyMem_Free(self->items);
    PyMem_Free(self->grid_arguments);
    type->tp_free(op);
    Py_DECREF(type);
}

/* Wrappers call kernel.run(...): it is the launcher itself. */
static PyObject *
Launcher_get_run(PyObject *op, void *Py_UNUSED(closure))
{
    return Py_NewRef(op);
}

static PyMemberDef Launcher_members[] = {
    {"library", T_OBJECT, offsetof(LauncherObject, library), READONLY,
     "The CudaLibrary with its code."},
    {"label", T_OBJECT, offsetof(LauncherObject, label), READONLY,
     "What stands for the kernel in errors."},
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(LauncherObject, vectorcall), READONLY,
     NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyGetSetDef Launcher_getset[] = {
    {"run", Launcher_get_run, NULL, "The launcher itself.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

PyDoc_STRVAR(
    Launcher_doc,
    "CudaLauncher(library, record)\n--\n\n"
    "Launches one kernel of a CudaLibrary.\n\n"
    "*record* (dict) is a launch record, docs/internals.md section 4.7. Making a\n"
    "launcher loads the code and compares its architecture and its parameters with\n"
    "the record. launcher(*args, stream=handle) computes the grid from *args*,\n"
    "packs them and launches; it returns None and launches nothing when a dimension\n"
    "of the grid is not positive. Raises CudaError when the driver refuses,\n"
    "OverflowError for a number that does not fit its parameter, ValueError for a\n"
    "tensor that is not on a GPU.");

static PyType_Slot Launcher_slots[] = {
    {Py_tp_doc, (void *)Launcher_doc},
    {Py_tp_new, Launcher_new},
    {Py_tp_call, PyVectorcall_Call},
    {Py_tp_traverse, Launcher_traverse},
    {Py_tp_clear, Launcher_clear},
    {Py_tp_dealloc, Launcher_dealloc},
    {Py_tp_members, Launcher_members},
    {Py_tp_getset, Launcher_getset},
    {0, NULL},
};

static PyType_Spec Launcher_spec = {
    .name = "precomp._core.CudaLauncher",
    .basicsize = sizeof(LauncherObject),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    .slots = Launcher_slots,
};

int
core_add_cuda_launcher(PyObject *module)
{
    core_state *state = core_state_get(module);
    state->cuda_launcher_type =
        (PyTypeObject *)PyType_FromModuleAndSpec(module, &Launcher_spec, NULL);
    return state->cuda_launcher_type == NULL
               ? -1
               : PyModule_AddType(module, state->cuda_launcher_type);
}
