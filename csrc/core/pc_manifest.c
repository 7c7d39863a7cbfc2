/* The manifest of an artifact: JSON <-> tables. The only file that knows cJSON.
 *
 * pc_json has already refused what cJSON is lax about (NUL, invalid UTF-8, floats,
 * depth, trailing text), so here remain names, types, ranges and duplicates.
 */
#include "pc_manifest.h"

#include <cJSON.h> // cJSON_*()
#include <stdlib.h>
#include <string.h>

#include "pc_json.h"
#include "pc_mem.h"
#include "pc_sha256.h"

/* Features of the format that this reader knows beyond those of version 1: none. */
static const char *const known_features[] = {NULL};

static int
compare_texts(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* Refuses duplicate keys in *node* and everything below it. */
static pc_status
check_keys(const cJSON *node, pc_error *error)
{
    const char **keys = NULL; /* owned array of borrowed keys */
    const cJSON *child = NULL;
    size_t count = 0;
    pc_status status = PC_OK;

    cJSON_ArrayForEach(child, node) {
        count++;
        status = check_keys(child, error);
        if (status != PC_OK) {
            goto done;
        }
    }
    if (!cJSON_IsObject(node) || count < 2) {
        goto done;
    }
    keys = pc_calloc(count, sizeof(*keys));
    if (keys == NULL) {
        status = pc_fail(error, PC_NO_MEMORY, "no memory for %zu keys", count);
        goto done;
    }
    count = 0;
    cJSON_ArrayForEach(child, node) {
        keys[count++] = child->string;
    }
    qsort(keys, count, sizeof(*keys), compare_texts);
    for (size_t i = 1; i < count; i++) {
        if (strcmp(keys[i - 1], keys[i]) == 0) {
            status = pc_fail(error, PC_CORRUPT, "duplicate key \"%.100s\"", keys[i]);
            goto done;
        }
    }
done:
    pc_free(keys);
    return status;
}

/* Where a value is, for messages: $.section[index].key; *section* may be NULL. */
typedef struct {
    const char *section;
    size_t index;
} place;

static pc_status
refuse(const place *where, const char *key, const char *expected, pc_error *error)
{
    if (where->section == NULL) {
        return pc_fail(error, PC_CORRUPT, "$.%s: expected %s", key, expected);
    }
    return pc_fail(error, PC_CORRUPT, "$.%s[%zu].%s: expected %s", where->section,
                   where->index, key, expected);
}

static pc_status
get_text(const cJSON *object, const place *where, const char *key, const char **text,
         pc_error *error)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, key);
    if (!cJSON_IsString(item) || item->valuestring == NULL) {
        return refuse(where, key, "a string", error);
    }
    *text = item->valuestring;
    return PC_OK;
}

static pc_status
get_integer(const cJSON *object, const place *where, const char *key, uint64_t *value,
            pc_error *error)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, key);
    if (!cJSON_IsNumber(item) || !(item->valuedouble >= 0) ||
        item->valuedouble > PC_JSON_MAX_INTEGER ||
        (double)(uint64_t)item->valuedouble != item->valuedouble) {
        return refuse(where, key, "an integer in 0..2^53", error);
    }
    *value = (uint64_t)item->valuedouble;
    return PC_OK;
}

static pc_status
get_digest(const cJSON *object, const place *where, const char *key,
           uint8_t digest[PC_DIGEST_SIZE], pc_error *error)
{
    const char *text = "";
    pc_status status = get_text(object, where, key, &text, error);
    if (status == PC_OK && !pc_unhex(text, strlen(text), digest)) {
        status = refuse(where, key, "64 lower-case hexadecimal digits", error);
    }
    return status;
}

/* The array or object *key* of the manifest and its number of items. */
static pc_status
get_section(const cJSON *root, const char *key, bool object, const cJSON **section,
            size_t *count, pc_error *error)
{
    static const place top = {NULL, 0};
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(root, key);
    if (object ? !cJSON_IsObject(item) : !cJSON_IsArray(item)) {
        return refuse(&top, key, object ? "an object" : "an array", error);
    }
    *section = item;
    *count = 0;
    for (const cJSON *child = item->child; child != NULL; child = child->next) {
        ++*count;
    }
    return PC_OK;
}

static pc_status
check_features(const cJSON *root, pc_error *error)
{
    static const place top = {NULL, 0};
    const cJSON *section = NULL;
    const cJSON *item = NULL;
    size_t count = 0;
    pc_status status =
        get_section(root, "required_features", false, &section, &count, error);
    if (status != PC_OK) {
        return status;
    }
    cJSON_ArrayForEach(item, section) {
        bool known = false;
        if (!cJSON_IsString(item)) {
            return refuse(&top, "required_features", "strings", error);
        }
        for (size_t i = 0; known_features[i] != NULL; i++) {
            known = known || strcmp(known_features[i], item->valuestring) == 0;
        }
        if (!known) {
            return pc_fail(error, PC_BAD_VERSION,
                           "needs the feature \"%.100s\", which this precomp does not "
                           "know; use a newer precomp",
                           item->valuestring);
        }
    }
    return PC_OK;
}

/* Copies *text* to *cursor, moves the cursor and returns the copy. The arena is as
   long as the JSON text, and decoded strings are shorter than their JSON form. */
static const char *
keep_text(char **cursor, const char *text)
{
    size_t size = strlen(text) + 1;
    char *copy = *cursor;
    memcpy(copy, text, size);
    *cursor += size;
    return copy;
}

static int
compare_pairs(const void *a, const void *b)
{
    return strcmp(((const pc_pair *)a)->key, ((const pc_pair *)b)->key);
}

static pc_status
read_environment(const cJSON *section, size_t count, pc_manifest *manifest,
                 char **cursor, pc_error *error)
{
    static const place top = {NULL, 0};
    const cJSON *item = NULL;
    size_t i = 0;
    manifest->environment = pc_calloc(count, sizeof(*manifest->environment));
    if (manifest->environment == NULL) {
        return pc_fail(error, PC_NO_MEMORY, "no memory for the environment");
    }
    cJSON_ArrayForEach(item, section) {
        if (!cJSON_IsString(item)) {
            return refuse(&top, "environment", "strings as values", error);
        }
        manifest->environment[i].key = keep_text(cursor, item->string);
        manifest->environment[i].value = keep_text(cursor, item->valuestring);
        i++;
    }
    manifest->environment_count = count;
    qsort(manifest->environment, count, sizeof(*manifest->environment), compare_pairs);
    return PC_OK;
}

static int
compare_raw_digests(const void *a, const void *b)
{
    const pc_blob_info *const *left = a;
    const pc_blob_info *const *right = b;
    return memcmp((*left)->raw_sha256, (*right)->raw_sha256, PC_DIGEST_SIZE);
}

/* Equal raw bytes are stored once. */
static pc_status
check_blobs_differ(const pc_manifest *manifest, pc_error *error)
{
    size_t count = manifest->blob_count;
    pc_status status = PC_OK;
    const pc_blob_info **sorted = pc_calloc(count, sizeof(*sorted)); /* owned */
    if (sorted == NULL) {
        return pc_fail(error, PC_NO_MEMORY, "no memory for %zu blobs", count);
    }
    for (size_t i = 0; i < count; i++) {
        sorted[i] = &manifest->blobs[i];
    }
    qsort(sorted, count, sizeof(*sorted), compare_raw_digests);
    for (size_t i = 1; i < count; i++) {
        if (compare_raw_digests(&sorted[i - 1], &sorted[i]) == 0) {
            place where = {"blobs", (size_t)(sorted[i] - manifest->blobs)};
            status = refuse(&where, "raw_sha256", "no two equal blobs", error);
            break;
        }
    }
    pc_free(sorted);
    return status;
}

static pc_status
read_blob(const cJSON *item, const place *where, pc_blob_info *blob, pc_error *error)
{
    const char *codec = "";
    pc_status status;
    if (!cJSON_IsObject(item)) {
        return pc_fail(error, PC_CORRUPT, "$.blobs[%zu]: expected an object",
                       where->index);
    }
    if ((status = get_text(item, where, "codec", &codec, error)) != PC_OK ||
        (status = get_integer(item, where, "offset", &blob->offset, error)) != PC_OK ||
        (status = get_digest(item, where, "raw_sha256", blob->raw_sha256, error)) !=
            PC_OK ||
        (status = get_integer(item, where, "raw_size", &blob->raw_size, error)) !=
            PC_OK ||
        (status = get_digest(item, where, "stored_sha256", blob->stored_sha256,
                             error)) != PC_OK ||
        (status = get_integer(item, where, "stored_size", &blob->stored_size, error)) !=
            PC_OK) {
        return status;
    }
    if (strcmp(codec, "zstd") == 0) {
        blob->codec = PC_CODEC_ZSTD;
        if (blob->raw_size / PC_MAX_RATIO > blob->stored_size) {
            return refuse(where, "raw_size", "a size that zstd can reach", error);
        }
    }
    else if (strcmp(codec, "none") == 0) {
        blob->codec = PC_CODEC_NONE;
        if (blob->raw_size != blob->stored_size ||
            memcmp(blob->raw_sha256, blob->stored_sha256, PC_DIGEST_SIZE) != 0) {
            return refuse(where, "codec",
                          "equal sizes and digests of raw and stored bytes with codec "
                          "\"none\"",
                          error);
        }
    }
    else {
        return refuse(where, "codec", "\"none\" or \"zstd\"", error);
    }
    if (blob->raw_size > PC_MAX_RAW) {
        return refuse(where, "raw_size", "at most 4 GiB", error);
    }
    return PC_OK;
}

static pc_status
read_blobs(const cJSON *section, size_t count, pc_manifest *manifest, pc_error *error)
{
    const cJSON *item = NULL;
    manifest->blobs = pc_calloc(count, sizeof(*manifest->blobs));
    if (manifest->blobs == NULL) {
        return pc_fail(error, PC_NO_MEMORY, "no memory for %zu blobs", count);
    }
    cJSON_ArrayForEach(item, section) {
        place where = {"blobs", manifest->blob_count};
        pc_blob_info *blob = &manifest->blobs[manifest->blob_count];
        pc_status status = read_blob(item, &where, blob, error);
        if (status != PC_OK) {
            return status;
        }
        manifest->blob_count++;
    }
    return check_blobs_differ(manifest, error);
}

bool
pc_kind_valid(const char *kind, size_t length)
{
    if (length == 0 || length > PC_MAX_KIND || kind[0] < 'a' || kind[0] > 'z') {
        return false;
    }
    for (size_t i = 1; i < length; i++) {
        bool letter = kind[i] >= 'a' && kind[i] <= 'z';
        bool digit = kind[i] >= '0' && kind[i] <= '9';
        if (!letter && !digit && kind[i] != '_') {
            return false;
        }
    }
    return true;
}

int
pc_entry_compare(const pc_entry *a, const pc_entry *b)
{
    int order = strcmp(a->kind, b->kind);
    if (order == 0) {
        order = strcmp(a->name, b->name);
    }
    if (order == 0) {
        order = memcmp(a->digest, b->digest, PC_DIGEST_SIZE);
    }
    return order;
}

static pc_status
read_entries(const cJSON *section, size_t count, pc_manifest *manifest, char **cursor,
             pc_error *error)
{
    const cJSON *item = NULL;
    manifest->entries = pc_calloc(count, sizeof(*manifest->entries));
    if (manifest->entries == NULL) {
        return pc_fail(error, PC_NO_MEMORY, "no memory for %zu entries", count);
    }
    cJSON_ArrayForEach(item, section) {
        place where = {"entries", manifest->entry_count};
        pc_entry *entry = &manifest->entries[manifest->entry_count];
        const char *kind = NULL;
        const char *name = NULL;
        uint64_t blob = 0;
        pc_status status;
        if (!cJSON_IsObject(item)) {
            return pc_fail(error, PC_CORRUPT, "$.entries[%zu]: expected an object",
                           where.index);
        }
        if ((status = get_integer(item, &where, "blob", &blob, error)) != PC_OK ||
            (status = get_digest(item, &where, "digest", entry->digest, error)) !=
                PC_OK ||
            (status = get_text(item, &where, "kind", &kind, error)) != PC_OK ||
            (status = get_text(item, &where, "name", &name, error)) != PC_OK) {
            return status;
        }
        if (blob >= manifest->blob_count) {
            return refuse(&where, "blob", "the index of a blob", error);
        }
        if (memcmp(entry->digest, manifest->blobs[blob].raw_sha256, PC_DIGEST_SIZE) !=
            0) {
            return refuse(&where, "digest", "the raw digest of its blob", error);
        }
        if (!pc_kind_valid(kind, strlen(kind))) {
            return refuse(&where, "kind", "a lower-case word of at most 32 bytes",
                          error);
        }
        if (strlen(name) > PC_MAX_NAME) {
            return refuse(&where, "name", "at most 512 bytes", error);
        }
        entry->blob = (size_t)blob;
        entry->kind = keep_text(cursor, kind);
        entry->name = keep_text(cursor, name);
        if (manifest->entry_count > 0 && pc_entry_compare(entry - 1, entry) >= 0) {
            return refuse(&where, "name", "entries sorted by kind, name and digest",
                          error);
        }
        manifest->entry_count++;
    }
    return PC_OK;
}

/* Refuses a blob that no entry names. */
static pc_status
check_blobs_used(const pc_manifest *manifest, pc_error *error)
{
    pc_status status = PC_OK;
    bool *used = pc_calloc(manifest->blob_count, sizeof(*used)); /* owned */
    if (used == NULL) {
        return pc_fail(error, PC_NO_MEMORY, "no memory for %zu blobs",
                       manifest->blob_count);
    }
    for (size_t i = 0; i < manifest->entry_count; i++) {
        used[manifest->entries[i].blob] = true;
    }
    for (size_t i = 0; i < manifest->blob_count; i++) {
        if (!used[i]) {
            status = pc_fail(error, PC_CORRUPT, "$.blobs[%zu]: no entry names it", i);
            break;
        }
    }
    pc_free(used);
    return status;
}

static int
compare_digests(const void *a, const void *b)
{
    return memcmp(a, b, PC_DIGEST_SIZE);
}

bool
pc_kind_is_root(const char *kind)
{
    static const char *const roots[] = {"frame", "triton", "tuned"};
    for (size_t i = 0; i < sizeof(roots) / sizeof(*roots); i++) {
        if (strcmp(kind, roots[i]) == 0) {
            return true;
        }
    }
    return false;
}

pc_status
pc_manifest_fingerprint(const pc_entry *entries, size_t count,
                        char fingerprint[PC_HEX_SIZE], pc_error *error)
{
    uint8_t (*digests)[PC_DIGEST_SIZE] = pc_calloc(count, PC_DIGEST_SIZE); /* owned */
    uint8_t result[PC_DIGEST_SIZE];
    char text[PC_HEX_SIZE];
    size_t frames = 0;
    pc_sha256 hash;
    if (digests == NULL) {
        return pc_fail(error, PC_NO_MEMORY, "no memory for the fingerprint");
    }
    for (size_t i = 0; i < count; i++) {
        if (pc_kind_is_root(entries[i].kind)) {
            memcpy(digests[frames++], entries[i].digest, PC_DIGEST_SIZE);
        }
    }
    /* The order of the bytes is the order of their hexadecimal digits. */
    qsort(digests, frames, PC_DIGEST_SIZE, compare_digests);
    pc_sha256_init(&hash);
    for (size_t i = 0; i < frames; i++) {
        pc_hex(digests[i], text);
        pc_sha256_update(&hash, "\n", i > 0);
        pc_sha256_update(&hash, text, PC_HEX_SIZE - 1);
    }
    pc_sha256_final(&hash, result);
    pc_hex(result, fingerprint);
    pc_free(digests);
    return PC_OK;
}

static pc_status
read_fingerprint(const cJSON *root, pc_manifest *manifest, pc_error *error)
{
    static const place top = {NULL, 0};
    const char *text = "";
    pc_status status = pc_manifest_fingerprint(manifest->entries, manifest->entry_count,
                                               manifest->fingerprint, error);
    if (status == PC_OK) {
        status = get_text(root, &top, "fingerprint", &text, error);
    }
    if (status == PC_OK && strcmp(text, manifest->fingerprint) != 0) {
        status = refuse(&top, "fingerprint", "the sha256 of the frame digests", error);
    }
    return status;
}

pc_status
pc_manifest_parse(const char *text, size_t length, pc_manifest *manifest,
                  pc_error *error)
{
    cJSON *root = NULL; /* owned */
    const cJSON *environment = NULL;
    const cJSON *entries = NULL;
    const cJSON *blobs = NULL;
    size_t environment_count = 0;
    size_t entry_count = 0;
    size_t blob_count = 0;
    char *cursor = NULL;
    pc_status status;

    memset(manifest, 0, sizeof(*manifest));
    if (length > PC_MAX_MANIFEST) {
        return pc_fail(error, PC_CORRUPT, "%zu bytes, more than 16 MiB", length);
    }
    status = pc_json_check(text, length, error);
    if (status != PC_OK) {
        return status;
    }
    root = cJSON_ParseWithLength(text, length);
    if (root == NULL) {
        /* The text is good JSON, so only memory can be missing. */
        return pc_fail(error, PC_NO_MEMORY, "no memory to parse %zu bytes", length);
    }
    manifest->strings = pc_malloc(length);
    if (manifest->strings == NULL) {
        status = pc_fail(error, PC_NO_MEMORY, "no memory for %zu bytes", length);
        goto done;
    }
    cursor = manifest->strings;
    if ((status = check_keys(root, error)) != PC_OK ||
        (status = check_features(root, error)) != PC_OK ||
        (status = get_section(root, "environment", true, &environment,
                              &environment_count, error)) != PC_OK ||
        (status = get_section(root, "blobs", false, &blobs, &blob_count, error)) !=
            PC_OK ||
        (status = get_section(root, "entries", false, &entries, &entry_count, error)) !=
            PC_OK ||
        (status = read_environment(environment, environment_count, manifest, &cursor,
                                   error)) != PC_OK ||
        (status = read_blobs(blobs, blob_count, manifest, error)) != PC_OK ||
        (status = read_entries(entries, entry_count, manifest, &cursor, error)) !=
            PC_OK ||
        (status = check_blobs_used(manifest, error)) != PC_OK ||
        (status = read_fingerprint(root, manifest, error)) != PC_OK) {
        goto done;
    }
done:
    cJSON_Delete(root);
    if (status != PC_OK) {
        pc_manifest_clear(manifest);
    }
    return status;
}

void
pc_manifest_clear(pc_manifest *manifest)
{
    pc_free(manifest->environment);
    pc_free(manifest->entries);
    pc_free(manifest->blobs);
    pc_free(manifest->strings);
    memset(manifest, 0, sizeof(*manifest));
}
