/* Vetoes compiler processes while a gate forbids "spawn".
 *
 * An audit hook cannot be removed, so there is one per process, installed when the
 * first gate is entered, and its first act is one atomic load. It tells compilers by
 * the name of the program, looks through shells and wrappers such as ccache, and lets
 * questions pass ("gcc --version", "ldconfig -p"). Not seen: processes started from
 * C++, and multiprocessing's own fork_exec.
 */
#include "gate.h"

#include <ctype.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum { WORD_MAX = 256, NAME_MAX_LENGTH = 64 };

static const char *const compilers[] = {
    "gcc",       "g++",      "cc",         "c++",      "clang",
    "clang++",   "cc1",      "cc1plus",    "collect2", "ld",
    "ld.lld",    "ld.gold",  "ld.bfd",     "lld",      "mold",
    "as",        "nvcc",     "cicc",       "ptxas",    "ptxas-blackwell",
    "fatbinary", "cudafe++", "nvlink",     "ninja",    "hipcc",
    "hipcc.bin", "amdclang", "amdclang++", "icx",      "icpx",
    "icc",       "icpc",     "dpcpp",      "tcc",      "cl",
    "nvc",       "nvc++",
};

/* Those that may have a target in front: "x86_64-linux-gnu-g++". */
static const char *const cross_compilers[] = {"gcc",     "g++", "clang",
                                              "clang++", "cc",  "c++"};

/* Programs that run the program named by a later word. */
static const char *const wrappers[] = {
    "ccache",  "sccache", "distcc",  "icecc",   "env",    "nice",   "time",
    "nohup",   "setsid",  "exec",    "taskset", "ionice", "stdbuf", "timeout",
    "numactl", "command", "builtin", "sudo",    "xargs",
};

static const char *const shells[] = {
    "sh", "bash", "dash", "zsh", "ksh", "busybox",
};

/* Flags of a compiler that only ask. */
static const char *const questions[] = {
    "--version",
    "-dumpmachine",
    "-dumpversion",
    "-dumpfullversion",
    "-dumpspecs",
    "--help",
    "-V",
    "-qversion",
    "-v",
    "-###",
    "--target-help",
};

static int
is_one_of(const char *word, const char *const *names, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (strcmp(word, names[i]) == 0) {
            return 1;
        }
    }
    return 0;
}

#define IS_ONE_OF(word, names) is_one_of(word, names, sizeof(names) / sizeof(*(names)))

static const char *
base_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash == NULL ? path : slash + 1;
}

/* Whether *path* is the program that the environment variable *variable* names: the
   first word of "CXX=/opt/toolchain/mycxx -m64". */
static int
is_named_by(const char *variable, const char *path)
{
    const char *value = getenv(variable);
    if (value == NULL) {
        return 0;
    }
    value += strspn(value, " \t");
    size_t length = strcspn(value, " \t");
    char word[WORD_MAX];
    if (length == 0 || length >= sizeof(word)) {
        return 0;
    }
    memcpy(word, value, length);
    word[length] = '\0';
    const char *name = base_name(word);
    return !IS_ONE_OF(name, wrappers) && strcmp(name, base_name(path)) == 0;
}

/* Whether the program *path* is a compiler: by its name without version
   ("clang++-18") and without target ("x86_64-linux-gnu-g++-12"). */
static int
is_compiler(const char *path)
{
    char name[NAME_MAX_LENGTH];
    const char *base = base_name(path);
    size_t length = strlen(base);
    if (is_named_by("CC", path) || is_named_by("CXX", path)) {
        return 1;
    }
    if (length == 0 || length >= sizeof(name)) {
        return 0;
    }
    memcpy(name, base, length + 1);
    if (IS_ONE_OF(name, compilers)) {
        return 1;
    }
    while (length > 0 &&
           (isdigit((unsigned char)name[length - 1]) || name[length - 1] == '.')) {
        length--;
    }
    if (length > 1 && name[length] != '\0' && name[length - 1] == '-') {
        name[length - 1] = '\0';
    }
    if (IS_ONE_OF(name, compilers)) {
        return 1;
    }
    const char *target_end = strrchr(name, '-');
    return target_end != NULL && IS_ONE_OF(target_end + 1, cross_compilers);
}

/* The words of one command, of a list (argv) or of a line for a shell. */
typedef struct {
    char **words; /* owned, as is each word */
    size_t count;
    size_t room;
} command;

static void
command_free(command *self)
{
    for (size_t i = 0; i < self->count; i++) {
        PyMem_Free(self->words[i]);
    }
    PyMem_Free(self->words);
    memset(self, 0, sizeof(*self));
}

/* Appends a copy of *length* bytes. Returns 0, or -1 with MemoryError. */
static int
command_add(command *self, const char *text, size_t length)
{
    if (self->count == self->room) {
        size_t room = self->room == 0 ? 16 : self->room * 2;
        char **words = PyMem_Realloc(self->words, room * sizeof(*words));
        if (words == NULL) {
            PyErr_NoMemory();
            return -1;
        }
        self->words = words;
        self->room = room;
    }
    char *copy = PyMem_Malloc(length + 1);
    if (copy == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    memcpy(copy, text, length);
    copy[length] = '\0';
    self->words[self->count++] = copy;
    return 0;
}

/* Whether "program words[1..]" only asks the compiler something: about itself, or, as
   ctypes.util.find_library does, where a library is. */
static int
is_question(const char *program, char *const *words, size_t count)
{
    int asks = 0;
    int works = 0;
    const char *name = base_name(program);
    int is_ninja = strcmp(name, "ninja") == 0;
    int is_linker = strcmp(name, "ld") == 0 || strncmp(name, "ld.", 3) == 0;
    for (size_t i = 1; i < count; i++) {
        const char *word = words[i];
        const char *redirection = word + strspn(word, "0123456789");
        if (redirection[0] == '<' || redirection[0] == '>') {
            size_t length = strspn(redirection, "<>&|");
            i += redirection[length] == '\0'; /* its file is the next word */
            continue;
        }
        if (strcmp(word, "-Wl,-t") == 0 || (is_linker && strcmp(word, "-t") == 0)) {
            return 1;
        }
        if (word[0] != '-' || word[1] == '\0' || strcmp(word, "-c") == 0 ||
            strcmp(word, "-E") == 0 || strcmp(word, "-S") == 0 ||
            strncmp(word, "-o", 2) == 0 || strncmp(word, "-x", 2) == 0) {
            works = 1;
        }
        if (is_ninja && strcmp(word, "-v") == 0) {
            continue; /* "ninja -v" builds, and talks while it does */
        }
        if (IS_ONE_OF(word, questions) || strncmp(word, "-print-", 7) == 0 ||
            strncmp(word, "--print-", 8) == 0 || strncmp(word, "--help=", 7) == 0) {
            asks = 1;
        }
    }
    return asks && !works;
}

static int compiles_line(const char *line);

/* Whether the command compiles: 1, 0, or -1 with MemoryError. *program* overrides the
   first word unless NULL. */
static int
compiles_words(const char *program, char *const *words, size_t count)
{
    size_t i = 0;
    while (i < count) {
        const char *word = i == 0 && program != NULL ? program : words[i];
        const char *name = base_name(word);
        if (IS_ONE_OF(name, shells)) {
            for (size_t j = i + 1; j + 1 < count; j++) {
                const char *flag = words[j];
                size_t length = strlen(flag);
                if (length > 1 && flag[0] == '-' && flag[1] != '-' &&
                    flag[length - 1] == 'c') {
                    return compiles_line(words[j + 1]);
                }
            }
            return 0;
        }
        if (is_compiler(word)) {
            return !is_question(word, words + i, count - i);
        }
        if (!IS_ONE_OF(name, wrappers)) {
            return 0;
        }
        if (strcmp(name, "command") == 0 && i + 1 < count && words[i + 1][0] == '-' &&
            strpbrk(words[i + 1], "vV") != NULL) {
            return 0; /* "command -v gcc" asks where it is */
        }
        /* Skip the wrapper's own options, numbers and assignments. */
        i++;
        while (i < count && (words[i][0] == '-' || strchr(words[i], '=') != NULL ||
                             isdigit((unsigned char)words[i][0]))) {
            i++;
        }
    }
    return 0;
}

/* Whether one of the commands in a shell line compiles: 1, 0, or -1 with MemoryError.
   Quoting is read, expansion is not: a name in a variable is not seen here. */
static int
compiles_line(const char *line)
{
    command part = {0};
    char word[WORD_MAX];
    size_t length = 0;
    int in_word = 0;
    int result = 0;
    char quote = '\0';

    for (const char *at = line;; at++) {
        char c = *at;
        if (c != '\0' && quote != '\0') {
            if (c == quote) {
                quote = '\0';
            }
            else if (length < sizeof(word)) {
                word[length++] = c;
            }
            continue;
        }
        if (c == '\'' || c == '"') {
            quote = c;
            in_word = 1;
            continue;
        }
        if (c == '\\' && at[1] != '\0') {
            at++;
            in_word = 1;
            if (length < sizeof(word)) {
                word[length++] = *at;
            }
            continue;
        }
        if (c != '\0' && strchr(" \t\r\n;|&(){}`", c) == NULL) {
            in_word = 1;
            if (length < sizeof(word)) {
                word[length++] = c;
            }
            continue;
        }
        if (in_word) {
            /* Assignments before the command are no words of it. */
            int assigns = part.count == 0 && memchr(word, '=', length) != NULL;
            if (!assigns && command_add(&part, word, length) < 0) {
                result = -1;
                goto done;
            }
            length = 0;
            in_word = 0;
        }
        if (c == '\0' || strchr(" \t", c) == NULL) {
            if (part.count > 0) {
                result = compiles_words(NULL, part.words, part.count);
                command_free(&part);
                if (result != 0) {
                    goto done;
                }
            }
        }
        if (c == '\0') {
            break;
        }
    }
done:
    command_free(&part);
    return result;
}

/* Appends *item* (str, bytes or os.PathLike) to *self*. Returns 1 if it was added, 0 if
   it has no text (the call will fail by itself), -1 with MemoryError. */
static int
command_add_object(command *self, PyObject *item)
{
    PyObject *bytes = NULL;
    int result = -1;
    if (!PyUnicode_FSConverter(item, &bytes)) {
        if (PyErr_ExceptionMatches(PyExc_MemoryError)) {
            return -1;
        }
        PyErr_Clear();
        return 0;
    }
    result =
        command_add(self, PyBytes_AS_STRING(bytes), (size_t)PyBytes_GET_SIZE(bytes));
    Py_DECREF(bytes);
    return result < 0 ? -1 : 1;
}

/* Returns a new str: the words with a blank between them, cut at 200 characters. */
static PyObject *
command_text(const command *self, const char *program)
{
    PyObject *text = PyUnicode_DecodeFSDefault(program);
    for (size_t i = 1; text != NULL && i < self->count; i++) {
        PyObject *word = PyUnicode_DecodeFSDefault(self->words[i]);
        if (word == NULL) {
            Py_CLEAR(text);
            break;
        }
        if (PyUnicode_GET_LENGTH(text) > 200) {
            Py_SETREF(text, PyUnicode_FromFormat("%U ...", text));
            Py_DECREF(word);
            break;
        }
        Py_SETREF(text, PyUnicode_FromFormat("%U %U", text, word));
        Py_DECREF(word);
    }
    return text;
}

/* Trips the gate for the command text *what*, steals the reference (NULL allowed, with
   an exception set). Returns 0 if the process may start, else -1. */
static int
trip_spawn(PyObject *what)
{
    PyObject *why = NULL;
    PyObject *hint = NULL;
    int result = -1;
    core_state *state = core_gate_state();
    if (what == NULL) {
        goto done;
    }
    if (state == NULL) {
        result = 0;
        goto done;
    }
    why = PyUnicode_FromString("a compiler process is about to start");
    hint =
        PyUnicode_FromString("build it before the gate is entered, or allow 'spawn'");
    if (why != NULL && hint != NULL) {
        result = core_gate_trip(state, "spawn", what, why, NULL, hint);
    }
done:
    Py_XDECREF(what);
    Py_XDECREF(why);
    Py_XDECREF(hint);
    return result;
}

/* A process from a list of words. *program* and *list* are borrowed. */
static int
check_argv(PyObject *program, PyObject *list)
{
    command argv = {0};
    command first = {0};
    PyObject *items = NULL;
    int result = -1;

    if (program != NULL && program != Py_None &&
        command_add_object(&first, program) < 0) {
        goto done;
    }
    if (PyUnicode_Check(list) || PyBytes_Check(list)) {
        if (command_add_object(&argv, list) < 0) {
            goto done;
        }
    }
    else {
        items = PySequence_Fast(list, "argv");
        if (items == NULL) {
            PyErr_Clear();
            result = 0;
            goto done;
        }
        for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(items); i++) {
            if (command_add_object(&argv, PySequence_Fast_GET_ITEM(items, i)) < 0) {
                goto done;
            }
        }
    }
    if (argv.count == 0) {
        result = 0;
        goto done;
    }
    const char *name = first.count > 0 ? first.words[0] : argv.words[0];
    result = compiles_words(name, argv.words, argv.count);
    if (result > 0) {
        result = trip_spawn(command_text(&argv, name));
    }
done:
    command_free(&argv);
    command_free(&first);
    Py_XDECREF(items);
    return result;
}

/* A process from a line for the shell. */
static int
check_line(PyObject *line)
{
    command text = {0};
    int result = command_add_object(&text, line);
    if (result > 0) {
        result = compiles_line(text.words[0]);
        if (result > 0) {
            result = trip_spawn(command_text(&text, text.words[0]));
        }
    }
    command_free(&text);
    return result;
}

static int
on_audit_event(const char *event, PyObject *args, void *data)
{
    (void)data;
    if (!(core_gate_forbidden() & GATE_SPAWN)) {
        return 0;
    }
    if (event[0] == 'o' && strncmp(event, "os.", 3) == 0) {
        Py_ssize_t count = PyTuple_GET_SIZE(args);
        if (strcmp(event, "os.system") == 0 && count >= 1) {
            return check_line(PyTuple_GET_ITEM(args, 0));
        }
        if ((strcmp(event, "os.posix_spawn") == 0 || strcmp(event, "os.exec") == 0) &&
            count >= 2) {
            return check_argv(PyTuple_GET_ITEM(args, 0), PyTuple_GET_ITEM(args, 1));
        }
    }
    else if (event[0] == 's' && strcmp(event, "subprocess.Popen") == 0 &&
             PyTuple_GET_SIZE(args) >= 2) {
        return check_argv(PyTuple_GET_ITEM(args, 0), PyTuple_GET_ITEM(args, 1));
    }
    return 0;
}

int
core_gate_watch_spawn(void)
{
    /* Guarded by the GIL; the hook itself lives as long as the process. */
    static atomic_int installed;
    int expected = 0;
    if (!atomic_compare_exchange_strong(&installed, &expected, 1)) {
        return 0;
    }
    if (PySys_AddAuditHook(on_audit_event, NULL) < 0) {
        atomic_store(&installed, 0);
        return -1;
    }
    if (PyErr_Occurred()) {
        return -1;
    }
    return 0;
}
