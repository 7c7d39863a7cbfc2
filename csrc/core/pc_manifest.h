/* The manifest of an artifact: JSON <-> tables. The only file that knows cJSON. */
#ifndef PRECOMP_PC_MANIFEST_H
#define PRECOMP_PC_MANIFEST_H

#include "pc_blob.h"
#include "pc_bytes.h"
#include "pc_error.h"

#define PC_MAX_MANIFEST ((uint64_t)16 << 20) /* bytes */
#define PC_MAX_NAME 512                      /* bytes of an entry's name */
#define PC_MAX_KIND 32                       /* bytes of an entry's kind */

/* Tells whether entries of *kind* make the fingerprint: those that a program asks for by
   itself. The others are what they use. */
bool pc_kind_is_root(const char *kind);

typedef struct {
    const char *key;   /* UTF-8 without NUL */
    const char *value; /* UTF-8 without NUL */
} pc_pair;

typedef struct {
    const char *kind;               /* [a-z][a-z0-9_]*, at most PC_MAX_KIND bytes */
    const char *name;               /* UTF-8 without NUL, at most PC_MAX_NAME bytes */
    uint8_t digest[PC_DIGEST_SIZE]; /* of the raw bytes */
    size_t blob;                    /* index */
} pc_entry;

typedef struct {
    uint64_t offset; /* in the file, a multiple of 64 */
    uint64_t stored_size;
    uint64_t raw_size;
    uint8_t stored_sha256[PC_DIGEST_SIZE];
    uint8_t raw_sha256[PC_DIGEST_SIZE];
    pc_codec codec;
} pc_blob_info;

typedef struct {
    pc_pair *environment; /* sorted by key, keys differ */
    size_t environment_count;
    pc_entry *entries; /* sorted by kind, name, digest; no two equal */
    size_t entry_count;
    pc_blob_info *blobs; /* in the order of the file, raw digests differ */
    size_t blob_count;
    char fingerprint[PC_HEX_SIZE];
    char *strings; /* what environment and entries point into; NULL when borrowed */
} pc_manifest;

/* Reads and checks *text*. On success the caller owns the content of *manifest* and
   gives it to pc_manifest_clear; on failure it is all zero. Does not check offsets:
   those need the file. */
pc_status pc_manifest_parse(const char *text, size_t length, pc_manifest *manifest,
                            pc_error *error);

void pc_manifest_clear(pc_manifest *manifest);

/* Writes *manifest* as JSON with sorted keys and no white space. Equal manifests give
   equal bytes. On success the caller owns *text*. */
pc_status pc_manifest_print(const pc_manifest *manifest, char **text, size_t *length,
                            pc_error *error);

/* Tells whether *kind* may name a kind. */
bool pc_kind_valid(const char *kind, size_t length);

/* <0, 0, >0: the order of entries in a manifest. */
int pc_entry_compare(const pc_entry *a, const pc_entry *b);

/* sha256 (hex) of the digests (hex) of the entries whose kind is a root, sorted and joined
   by newlines. */
pc_status pc_manifest_fingerprint(const pc_entry *entries, size_t count,
                                  char fingerprint[PC_HEX_SIZE], pc_error *error);

#endif
