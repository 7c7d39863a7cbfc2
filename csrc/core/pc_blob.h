/* Compressed blobs. The only file that knows zstd. */
#ifndef PRECOMP_PC_BLOB_H
#define PRECOMP_PC_BLOB_H

#include <stddef.h>
#include <stdint.h>

#include "pc_error.h"

typedef enum {
    PC_CODEC_NONE, /* "none": the stored bytes are the raw bytes */
    PC_CODEC_ZSTD, /* "zstd": one frame with content size and checksum */
} pc_codec;

#define PC_MAX_RAW ((uint64_t)1 << 32) /* bytes of one raw blob: 4 GiB */

/* zstd spends at least 4 bytes on a block of at most 128 KiB. A blob that claims to
   expand further than this lies, and is refused before memory is asked for. */
#define PC_MAX_RATIO 32768

/* Name of a codec in the manifest. */
const char *pc_codec_name(pc_codec codec);

/* Scratch state of one thread; made when first used. Start with all zero bytes. */
typedef struct {
    void *compressor;
    void *decompressor;
} pc_blob_tools;

void pc_blob_tools_clear(pc_blob_tools *tools);

/* Compresses *raw* at *level* (1..pc_blob_max_level()) and sets *stored* (the caller
   owns it), *stored_size* and *codec*. Level 0, and bytes that do not shrink, give
   PC_CODEC_NONE with *stored* NULL: the raw bytes are to be stored themselves. */
pc_status pc_blob_pack(pc_blob_tools *tools, int level, const uint8_t *raw,
                       size_t raw_size, uint8_t **stored, size_t *stored_size,
                       pc_codec *codec, pc_error *error);

/* Decompresses one frame into *raw*, which holds exactly *raw_size* bytes. Refuses
   frames without content size or checksum, with another size, skippable frames, and
   anything after the frame. */
pc_status pc_blob_unpack(pc_blob_tools *tools, const uint8_t *stored,
                         size_t stored_size, uint8_t *raw, size_t raw_size,
                         pc_error *error);

int pc_blob_max_level(void);

#endif
