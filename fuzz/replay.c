/* A driver for machines without libFuzzer: gives each file named on the command line to
 * the target, and then *n* damaged copies of it (-n, default 0, same ones every time). */
#include "fuzz.h"

#include <string.h>

static uint64_t state = 0x9e3779b97f4a7c15u;

/* xorshift64: the same numbers on every machine. */
static uint64_t
next_random(void)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
}

static uint8_t *
read_file(const char *path, size_t *size)
{
    FILE *file = fopen(path, "rb");
    if (file == NULL || fseek(file, 0, SEEK_END) != 0) {
        perror(path);
        exit(2);
    }
    *size = (size_t)ftell(file);
    rewind(file);
    uint8_t *data = malloc(*size > 0 ? *size : 1);
    if (data == NULL || fread(data, 1, *size, file) != *size) {
        perror(path);
        exit(2);
    }
    fclose(file);
    return data;
}

static void
run_damaged(const uint8_t *data, size_t size)
{
    size_t kept = next_random() % 8 == 0 ? next_random() % (size + 1) : size;
    uint8_t *copy = malloc(kept > 0 ? kept : 1);
    if (copy == NULL) {
        exit(2);
    }
    memcpy(copy, data, kept);
    for (uint64_t changes = 1 + next_random() % 4; kept > 0 && changes > 0; changes--) {
        size_t at = next_random() % (next_random() % 2 && kept > 512 ? 512 : kept);
        copy[at] = next_random() % 2 ? (uint8_t)next_random()
                                     : (uint8_t)(copy[at] ^ 1 << next_random() % 8);
    }
    LLVMFuzzerTestOneInput(copy, kept);
    free(copy);
}

int
main(int argc, char **argv)
{
    long damaged = 0;
    long files = 0;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "-n") == 0 && i + 1 < argc) {
            damaged = atol(argv[++i]);
            continue;
        }
        size_t size = 0;
        uint8_t *data = read_file(argv[i], &size);
        LLVMFuzzerTestOneInput(data, size);
        for (long n = 0; n < damaged; n++) {
            run_damaged(data, size);
        }
        free(data);
        files++;
    }
    printf("%ld files, %ld damaged copies of each\n", files, damaged);
    return 0;
}
