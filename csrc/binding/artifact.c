/* _core.Artifact: reading of artifacts.
 *
 * An Artifact owns a pc_artifact. Methods that release the GIL count themselves in
 * *users* (changed with the GIL held only), so that close() from another thread frees
 * the pc_artifact only after the last of them is done.
 */
#include "state.h"

#include <structmember.h> // T_PYSSIZET, READONLY on CPython < 3.12

#include "artifact.h"
#include "pc_artifact.h"

typedef struct {
    PyObject_HEAD
    pc_artifact *artifact; /* owned; NULL once freed */
    Py_ssize_t users;      /* methods that run without the GIL */
    bool closed;
    PyObject *path;        /* owned: str */
    PyObject *environment; /* owned: dict str -> str */
    PyObject *entries;     /* owned: tuple of tuples */
    PyObject *fingerprint; /* owned: str */
    PyObject *digest;      /* owned: str, NULL until asked for */
    PyObject *weakrefs;
} ArtifactObject;

#define Artifact_CAST(op) ((ArtifactObject *)(op))

/* Frees the pc_artifact unless a method still uses it. */
static void
artifact_release(ArtifactObject *self)
{
    if (self->users == 0) {
        pc_artifact_close(self->artifact);
        self->artifact = NULL;
    }
}

/* Before the GIL is released. Returns the artifact, borrowed until artifact_end, or
   NULL with ValueError set when it is closed. */
static const pc_artifact *
artifact_begin(ArtifactObject *self, const char *method)
{
    if (self->closed) {
        PyErr_Format(PyExc_ValueError, "%s: the artifact %R is closed", method,
                     self->path);
        return NULL;
    }
    self->users++;
    return self->artifact;
}

static void
artifact_end(ArtifactObject *self)
{
    self->users--;
    if (self->closed) {
        artifact_release(self);
    }
}

/* Returns a new dict. */
static PyObject *
make_environment(const pc_manifest *manifest)
{
    PyObject *environment = PyDict_New(); /* owned */
    for (size_t i = 0; environment != NULL && i < manifest->environment_count; i++) {
        const pc_pair *pair = &manifest->environment[i];
        PyObject *key = PyUnicode_FromString(pair->key);     /* owned */
        PyObject *value = PyUnicode_FromString(pair->value); /* owned */
        if (key == NULL || value == NULL ||
            PyDict_SetItem(environment, key, value) < 0) {
            Py_CLEAR(environment);
        }
        Py_XDECREF(key);
        Py_XDECREF(value);
    }
    return environment;
}

/* Returns a new tuple of (kind, name, digest, raw_size, stored_size). */
static PyObject *
make_entries(const pc_manifest *manifest)
{
    PyObject *entries = PyTuple_New((Py_ssize_t)manifest->entry_count); /* owned */
    for (size_t i = 0; entries != NULL && i < manifest->entry_count; i++) {
        const pc_entry *entry = &manifest->entries[i];
        const pc_blob_info *blob = &manifest->blobs[entry->blob];
        char digest[PC_HEX_SIZE];
        pc_hex(entry->digest, digest);
        PyObject *item =
            Py_BuildValue("(sssKK)", entry->kind, entry->name, digest,
                          (unsigned long long)blob->raw_size,
                          (unsigned long long)blob->stored_size); /* owned */
        if (item == NULL) {
            Py_CLEAR(entries);
            break;
        }
        PyTuple_SET_ITEM(entries, (Py_ssize_t)i, item);
    }
    return entries;
}

PyDoc_STRVAR(artifact_doc,
             "Artifact(path)\n--\n\n"
             "A frozen artifact, open for reading.\n\n"
             "Opening checks header, manifest, layout and padding; read, load_all and\n"
             "verify check the blobs. Files below 64 MiB are held in memory, larger\n"
             "ones are kept open. Raises OSError when the file cannot be read,\n"
             "precomp.ArtifactCorruptError or precomp.ArtifactVersionError when its\n"
             "bytes are wrong. A context manager; close() is idempotent.");

static PyObject *
Artifact_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static const char *const names[] = {"path", NULL};
    core_state *state = core_state_by_type(type);
    ArtifactObject *self = NULL; /* owned */
    PyObject *argument = NULL;   /* borrowed */
    PyObject *path = NULL;       /* owned: bytes */
    PyObject *result = NULL;
    pc_error error;
    pc_status status;

    if (state == NULL ||
        !PyArg_ParseTupleAndKeywords(args, kwargs, "O:Artifact", (char **)names,
                                     &argument) ||
        !PyUnicode_FSConverter(argument, &path)) {
        goto done;
    }
    self = Artifact_CAST(type->tp_alloc(type, 0));
    if (self == NULL) {
        goto done;
    }
    const char *file = PyBytes_AS_STRING(path);
    Py_BEGIN_ALLOW_THREADS
    status = pc_artifact_open(file, &self->artifact, &error);
    Py_END_ALLOW_THREADS
    if (status != PC_OK) {
        core_raise(state, &error);
        goto done;
    }
    self->path = PyUnicode_DecodeFSDefaultAndSize(file, PyBytes_GET_SIZE(path));
    self->environment = make_environment(&self->artifact->manifest);
    self->entries = make_entries(&self->artifact->manifest);
    self->fingerprint = PyUnicode_FromString(self->artifact->manifest.fingerprint);
    if (self->path == NULL || self->environment == NULL || self->entries == NULL ||
        self->fingerprint == NULL) {
        goto done;
    }
    result = Py_NewRef((PyObject *)self);
done:
    Py_XDECREF(path);
    Py_XDECREF((PyObject *)self);
    return result;
}

static int
Artifact_traverse(PyObject *op, visitproc visit, void *arg)
{
    ArtifactObject *self = Artifact_CAST(op);
    Py_VISIT(Py_TYPE(op));
    Py_VISIT(self->path);
    Py_VISIT(self->environment);
    Py_VISIT(self->entries);
    Py_VISIT(self->fingerprint);
    Py_VISIT(self->digest);
    return 0;
}

/* All of these are str or hold only str, so clearing them cannot be observed; methods
   check for what they need. */
static int
Artifact_clear(PyObject *op)
{
    ArtifactObject *self = Artifact_CAST(op);
    Py_CLEAR(self->path);
    Py_CLEAR(self->environment);
    Py_CLEAR(self->entries);
    Py_CLEAR(self->fingerprint);
    Py_CLEAR(self->digest);
    return 0;
}

static void
Artifact_dealloc(PyObject *op)
{
    ArtifactObject *self = Artifact_CAST(op);
    PyTypeObject *type = Py_TYPE(op);
    PyObject_GC_UnTrack(op);
    if (self->weakrefs != NULL) {
        PyObject_ClearWeakRefs(op);
    }
    self->closed = true;
    artifact_release(self); /* no method runs: it would hold a reference */
    (void)Artifact_clear(op);
    type->tp_free(op);
    Py_DECREF(type);
}

static PyObject *
Artifact_repr(PyObject *op)
{
    ArtifactObject *self = Artifact_CAST(op);
    return PyUnicode_FromFormat("<precomp._core.Artifact %R, %zd entries%s>",
                                self->path, PyTuple_GET_SIZE(self->entries),
                                self->closed ? ", closed" : "");
}

static PyObject *
Artifact_get_path(PyObject *op, void *closure)
{
    (void)closure;
    return Py_NewRef(Artifact_CAST(op)->path);
}

static PyObject *
Artifact_get_environment(PyObject *op, void *closure)
{
    (void)closure;
    return PyDict_Copy(Artifact_CAST(op)->environment);
}

static PyObject *
Artifact_get_entries(PyObject *op, void *closure)
{
    (void)closure;
    return Py_NewRef(Artifact_CAST(op)->entries);
}

static PyObject *
Artifact_get_fingerprint(PyObject *op, void *closure)
{
    (void)closure;
    return Py_NewRef(Artifact_CAST(op)->fingerprint);
}

static PyObject *
Artifact_get_closed(PyObject *op, void *closure)
{
    (void)closure;
    return PyBool_FromLong(Artifact_CAST(op)->closed);
}

static PyObject *
Artifact_get_digest(PyObject *op, void *closure)
{
    ArtifactObject *self = Artifact_CAST(op);
    core_state *state = core_state_by_type(Py_TYPE(op));
    uint8_t digest[PC_DIGEST_SIZE];
    pc_error error;
    pc_status status;
    (void)closure;
    if (state == NULL) {
        return NULL;
    }
    if (self->digest != NULL) {
        return Py_NewRef(self->digest);
    }
    const pc_artifact *artifact = artifact_begin(self, "digest");
    if (artifact == NULL) {
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS
    status = pc_artifact_digest(artifact, digest, &error);
    Py_END_ALLOW_THREADS
    artifact_end(self);
    if (status != PC_OK) {
        return core_raise(state, &error);
    }
    PyObject *text = core_digest_text(digest); /* owned */
    if (text == NULL) {
        return NULL;
    }
    Py_XSETREF(self->digest, Py_NewRef(text));
    return text;
}

PyDoc_STRVAR(artifact_read_doc,
             "read($self, digest, /)\n--\n\n"
             "The raw bytes with this sha256 (64 hexadecimal digits).\n\n"
             "Checks the digest of the stored bytes and the checksum of the content.\n"
             "Raises KeyError when the artifact has no such blob and\n"
             "precomp.ArtifactCorruptError when its bytes are damaged.");

static PyObject *
Artifact_read(PyObject *op, PyObject *argument)
{
    ArtifactObject *self = Artifact_CAST(op);
    core_state *state = core_state_by_type(Py_TYPE(op));
    uint8_t digest[PC_DIGEST_SIZE];
    pc_blob_tools tools = {NULL, NULL};
    Py_ssize_t length = 0;
    PyObject *result = NULL;
    PyObject *bytes = NULL; /* owned */
    pc_error error;
    pc_status status;

    if (state == NULL) {
        return NULL;
    }
    const char *text = PyUnicode_AsUTF8AndSize(argument, &length); /* borrowed */
    if (text == NULL) {
        return NULL;
    }
    const pc_artifact *artifact = artifact_begin(self, "read");
    if (artifact == NULL) {
        return NULL;
    }
    size_t index = artifact->manifest.blob_count;
    if (pc_unhex(text, (size_t)length, digest)) {
        index = pc_artifact_find(artifact, digest);
    }
    if (index == artifact->manifest.blob_count) {
        PyErr_SetObject(PyExc_KeyError, argument);
        goto done;
    }
    bytes = PyBytes_FromStringAndSize(
        NULL, (Py_ssize_t)artifact->manifest.blobs[index].raw_size);
    if (bytes == NULL) {
        goto done;
    }
    uint8_t *raw = (uint8_t *)PyBytes_AS_STRING(bytes);
    Py_BEGIN_ALLOW_THREADS
    status = pc_artifact_read(artifact, index, &tools, raw, &error);
    pc_blob_tools_clear(&tools);
    Py_END_ALLOW_THREADS
    if (status != PC_OK) {
        core_raise(state, &error);
        goto done;
    }
    result = Py_NewRef(bytes);
done:
    artifact_end(self);
    Py_XDECREF(bytes);
    return result;
}

PyDoc_STRVAR(artifact_load_all_doc,
             "load_all($self, kinds=None, threads=0)\n--\n\n"
             "dict digest -> raw bytes of all blobs, decompressed in parallel.\n\n"
             "*kinds* is an iterable of kinds, or None for all. *threads* bounds the\n"
             "number of threads (0: one for each processor). Checks as read does.");

/* Marks in *wanted* (one byte for each blob) the blobs of entries whose kind is in the
   set *kinds*, or all when it is None. Returns the number of blobs or -1. */
static Py_ssize_t
select_blobs(const pc_manifest *manifest, PyObject *entries, PyObject *kinds,
             char *wanted)
{
    Py_ssize_t count = 0;
    for (size_t i = 0; i < manifest->entry_count; i++) {
        PyObject *entry = PyTuple_GET_ITEM(entries, (Py_ssize_t)i); /* borrowed */
        int take = 1;
        if (kinds != Py_None) {
            take = PySet_Contains(kinds, PyTuple_GET_ITEM(entry, 0));
        }
        if (take < 0) {
            return -1;
        }
        if (take && !wanted[manifest->entries[i].blob]) {
            wanted[manifest->entries[i].blob] = 1;
            count++;
        }
    }
    return count;
}

static PyObject *
Artifact_load_all(PyObject *op, PyObject *args, PyObject *kwargs)
{
    static const char *const names[] = {"kinds", "threads", NULL};
    ArtifactObject *self = Artifact_CAST(op);
    core_state *state = core_state_by_type(Py_TYPE(op));
    PyObject *kinds = Py_None; /* borrowed, or the owned set below */
    PyObject *kind_set = NULL; /* owned */
    PyObject *loaded = NULL;   /* owned: dict */
    PyObject *result = NULL;
    Py_ssize_t threads = 0;
    char *wanted = NULL;    /* owned */
    size_t *indices = NULL; /* owned */
    uint8_t **raws = NULL;  /* owned array of borrowed memory of bytes in *loaded* */
    pc_error error;
    pc_status status;

    if (state == NULL ||
        !PyArg_ParseTupleAndKeywords(args, kwargs, "|On:load_all", (char **)names,
                                     &kinds, &threads)) {
        return NULL;
    }
    if (threads < 0) {
        PyErr_Format(PyExc_ValueError, "load_all: threads: expected 0 or more, got %zd",
                     threads);
        return NULL;
    }
    if (PyUnicode_Check(kinds)) {
        PyErr_Format(PyExc_TypeError,
                     "load_all: kinds: expected an iterable of kinds, "
                     "got the str %R",
                     kinds);
        return NULL;
    }
    if (kinds != Py_None) {
        kinds = kind_set = PySet_New(kinds);
        if (kind_set == NULL) {
            return NULL;
        }
    }
    const pc_artifact *artifact = artifact_begin(self, "load_all");
    if (artifact == NULL) {
        Py_XDECREF(kind_set);
        return NULL;
    }
    const pc_manifest *manifest = &artifact->manifest;
    loaded = PyDict_New();
    wanted = PyMem_Calloc(manifest->blob_count + 1, sizeof(*wanted));
    indices = PyMem_Calloc(manifest->blob_count + 1, sizeof(*indices));
    raws = PyMem_Calloc(manifest->blob_count + 1, sizeof(*raws));
    if (loaded == NULL || wanted == NULL || indices == NULL || raws == NULL) {
        if (!PyErr_Occurred()) {
            PyErr_NoMemory();
        }
        goto done;
    }
    if (select_blobs(manifest, self->entries, kinds, wanted) < 0) {
        goto done;
    }
    size_t count = 0;
    for (size_t i = 0; i < manifest->blob_count; i++) {
        const pc_blob_info *blob = &manifest->blobs[i];
        if (!wanted[i]) {
            continue;
        }
        PyObject *key = core_digest_text(blob->raw_sha256); /* owned */
        PyObject *bytes =
            PyBytes_FromStringAndSize(NULL, (Py_ssize_t)blob->raw_size); /* owned */
        int stored = -1;
        if (key != NULL && bytes != NULL) {
            stored = PyDict_SetItem(loaded, key, bytes);
            indices[count] = i;
            raws[count++] = (uint8_t *)PyBytes_AS_STRING(bytes);
        }
        Py_XDECREF(key);
        Py_XDECREF(bytes);
        if (stored < 0) {
            goto done;
        }
    }
    Py_BEGIN_ALLOW_THREADS
    status =
        pc_artifact_read_many(artifact, indices, raws, count, (size_t)threads, &error);
    Py_END_ALLOW_THREADS
    if (status != PC_OK) {
        core_raise(state, &error);
        goto done;
    }
    result = Py_NewRef(loaded);
done:
    artifact_end(self);
    PyMem_Free(wanted);
    PyMem_Free(indices);
    PyMem_Free(raws);
    Py_XDECREF(loaded);
    Py_XDECREF(kind_set);
    return result;
}

PyDoc_STRVAR(artifact_verify_doc,
             "verify($self, threads=0)\n--\n\n"
             "Check every blob: the digests of its stored and of its raw bytes.\n\n"
             "Together with what opening checked, every bit of the file is covered.\n"
             "Raises precomp.ArtifactCorruptError that names the first damaged entry.");

static PyObject *
Artifact_verify(PyObject *op, PyObject *args, PyObject *kwargs)
{
    static const char *const names[] = {"threads", NULL};
    ArtifactObject *self = Artifact_CAST(op);
    core_state *state = core_state_by_type(Py_TYPE(op));
    Py_ssize_t threads = 0;
    pc_error error;
    pc_status status;
    if (state == NULL || !PyArg_ParseTupleAndKeywords(args, kwargs, "|n:verify",
                                                      (char **)names, &threads)) {
        return NULL;
    }
    if (threads < 0) {
        PyErr_Format(PyExc_ValueError, "verify: threads: expected 0 or more, got %zd",
                     threads);
        return NULL;
    }
    const pc_artifact *artifact = artifact_begin(self, "verify");
    if (artifact == NULL) {
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS
    status = pc_artifact_verify(artifact, (size_t)threads, &error);
    Py_END_ALLOW_THREADS
    artifact_end(self);
    if (status != PC_OK) {
        return core_raise(state, &error);
    }
    Py_RETURN_NONE;
}

PyDoc_STRVAR(artifact_close_doc,
             "close($self, /)\n--\n\n"
             "Release the file. Bytes that were read, entries and environment stay.");

static PyObject *
Artifact_close(PyObject *op, PyObject *unused)
{
    ArtifactObject *self = Artifact_CAST(op);
    (void)unused;
    self->closed = true;
    artifact_release(self);
    Py_RETURN_NONE;
}

static PyObject *
Artifact_enter(PyObject *op, PyObject *unused)
{
    ArtifactObject *self = Artifact_CAST(op);
    (void)unused;
    if (self->closed) {
        PyErr_Format(PyExc_ValueError, "__enter__: the artifact %R is closed",
                     self->path);
        return NULL;
    }
    return Py_NewRef(op);
}

static PyObject *
Artifact_exit(PyObject *op, PyObject *args)
{
    (void)args;
    return Artifact_close(op, NULL);
}

static PyMethodDef artifact_methods[] = {
    {"read", Artifact_read, METH_O, artifact_read_doc},
    {"load_all", PC_METHOD(Artifact_load_all), METH_VARARGS | METH_KEYWORDS,
     artifact_load_all_doc},
    {"verify", PC_METHOD(Artifact_verify), METH_VARARGS | METH_KEYWORDS,
     artifact_verify_doc},
    {"close", Artifact_close, METH_NOARGS, artifact_close_doc},
    {"__enter__", Artifact_enter, METH_NOARGS, NULL},
    {"__exit__", Artifact_exit, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef artifact_getset[] = {
    {"path", Artifact_get_path, NULL, "Path of the file, as given.", NULL},
    {"environment", Artifact_get_environment, NULL,
     "A new dict str -> str: what the captured process ran on.", NULL},
    {"entries", Artifact_get_entries, NULL,
     "Tuple of (kind, name, digest, raw_size, stored_size), sizes in bytes, sorted.",
     NULL},
    {"fingerprint", Artifact_get_fingerprint, NULL,
     "sha256 (hex) over the digests of the entries of kind 'frame'.", NULL},
    {"digest", Artifact_get_digest, NULL,
     "sha256 (hex) of the whole file, computed when first asked for.", NULL},
    {"closed", Artifact_get_closed, NULL, "Whether close() was called.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMemberDef artifact_members[] = {
    {"__weaklistoffset__", T_PYSSIZET, offsetof(ArtifactObject, weakrefs), READONLY,
     NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot artifact_slots[] = {
    {Py_tp_doc, (void *)artifact_doc},   {Py_tp_new, Artifact_new},
    {Py_tp_traverse, Artifact_traverse}, {Py_tp_clear, Artifact_clear},
    {Py_tp_dealloc, Artifact_dealloc},   {Py_tp_repr, Artifact_repr},
    {Py_tp_methods, artifact_methods},   {Py_tp_getset, artifact_getset},
    {Py_tp_members, artifact_members},   {0, NULL},
};

static PyType_Spec artifact_spec = {
    .name = "precomp._core.Artifact",
    .basicsize = sizeof(ArtifactObject),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = artifact_slots,
};

int
core_add_artifact(PyObject *module)
{
    core_state *state = core_state_get(module);
    state->artifact_type =
        (PyTypeObject *)PyType_FromModuleAndSpec(module, &artifact_spec, NULL);
    if (state->artifact_type == NULL ||
        PyModule_AddType(module, state->artifact_type) < 0) {
        return -1;
    }
    return core_add_writer(module);
}
