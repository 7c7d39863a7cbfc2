/* The writer of manifests: JSON with sorted keys, no white space and no floats.
 *
 * Written out by hand because cJSON prints large integers as rounded floats.
 */
#include <stdio.h>
#include <string.h>

#include "pc_manifest.h"
#include "pc_mem.h"

/* A growing text. After the first failed allocation nothing is added any more. */
typedef struct {
    char *text; /* owned */
    size_t length;
    size_t room;
    bool failed;
} printer;

static void
put(printer *out, const char *text, size_t length)
{
    if (out->failed) {
        return;
    }
    if (length > out->room - out->length) {
        size_t room = 2 * out->room + length + 256;
        char *grown = pc_realloc_array(out->text, room, 1);
        if (grown == NULL) {
            out->failed = true;
            return;
        }
        out->text = grown;
        out->room = room;
    }
    memcpy(out->text + out->length, text, length);
    out->length += length;
}

static void
put_text(printer *out, const char *text)
{
    put(out, text, strlen(text));
}

static void
put_integer(printer *out, uint64_t value)
{
    char digits[24];
    (void)snprintf(digits, sizeof(digits), "%llu", (unsigned long long)value);
    put_text(out, digits);
}

static void
put_digest(printer *out, const uint8_t digest[PC_DIGEST_SIZE])
{
    char text[PC_HEX_SIZE];
    pc_hex(digest, text);
    put(out, "\"", 1);
    put_text(out, text);
    put(out, "\"", 1);
}

/* One JSON string. Only what JSON demands is escaped. */
static void
put_string(printer *out, const char *text)
{
    put(out, "\"", 1);
    for (; *text != '\0'; text++) {
        unsigned char byte = (unsigned char)*text;
        char escape[8];
        if (byte == '"' || byte == '\\') {
            put(out, "\\", 1);
            put(out, text, 1);
        }
        else if (byte < 0x20) {
            (void)snprintf(escape, sizeof(escape), "\\u%04x", byte);
            put_text(out, escape);
        }
        else {
            put(out, text, 1);
        }
    }
    put(out, "\"", 1);
}

static void
put_blob(printer *out, const pc_blob_info *blob)
{
    put_text(out, "{\"codec\":");
    put_string(out, pc_codec_name(blob->codec));
    put_text(out, ",\"offset\":");
    put_integer(out, blob->offset);
    put_text(out, ",\"raw_sha256\":");
    put_digest(out, blob->raw_sha256);
    put_text(out, ",\"raw_size\":");
    put_integer(out, blob->raw_size);
    put_text(out, ",\"stored_sha256\":");
    put_digest(out, blob->stored_sha256);
    put_text(out, ",\"stored_size\":");
    put_integer(out, blob->stored_size);
    put_text(out, "}");
}

static void
put_entry(printer *out, const pc_entry *entry)
{
    put_text(out, "{\"blob\":");
    put_integer(out, entry->blob);
    put_text(out, ",\"digest\":");
    put_digest(out, entry->digest);
    put_text(out, ",\"kind\":");
    put_string(out, entry->kind);
    put_text(out, ",\"name\":");
    put_string(out, entry->name);
    put_text(out, "}");
}

pc_status
pc_manifest_print(const pc_manifest *manifest, char **text, size_t *length,
                  pc_error *error)
{
    printer out = {NULL, 0, 0, false};
    put_text(&out, "{\"blobs\":[");
    for (size_t i = 0; i < manifest->blob_count; i++) {
        put(&out, ",", i > 0);
        put_blob(&out, &manifest->blobs[i]);
    }
    put_text(&out, "],\"entries\":[");
    for (size_t i = 0; i < manifest->entry_count; i++) {
        put(&out, ",", i > 0);
        put_entry(&out, &manifest->entries[i]);
    }
    put_text(&out, "],\"environment\":{");
    for (size_t i = 0; i < manifest->environment_count; i++) {
        put(&out, ",", i > 0);
        put_string(&out, manifest->environment[i].key);
        put(&out, ":", 1);
        put_string(&out, manifest->environment[i].value);
    }
    put_text(&out, "},\"fingerprint\":");
    put_string(&out, manifest->fingerprint);
    put_text(&out, ",\"required_features\":[]}");
    if (out.failed) {
        pc_free(out.text);
        return pc_fail(error, PC_NO_MEMORY, "no memory for a manifest");
    }
    if (out.length > PC_MAX_MANIFEST) {
        pc_free(out.text);
        return pc_fail(error, PC_BAD_ARGUMENT,
                       "write_artifact: the manifest would take %zu bytes, more than "
                       "16 MiB",
                       out.length);
    }
    *text = out.text;
    *length = out.length;
    return PC_OK;
}
