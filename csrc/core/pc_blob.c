/* Compressed blobs. The only file that knows zstd. */
#include "pc_blob.h"

#include <zstd.h> // ZSTD_*()

#include "pc_bytes.h"
#include "pc_mem.h"

const char *
pc_codec_name(pc_codec codec)
{
    return codec == PC_CODEC_ZSTD ? "zstd" : "none";
}

void
pc_blob_tools_clear(pc_blob_tools *tools)
{
    ZSTD_freeCCtx(tools->compressor);
    ZSTD_freeDCtx(tools->decompressor);
    tools->compressor = NULL;
    tools->decompressor = NULL;
}

int
pc_blob_max_level(void)
{
    return ZSTD_maxCLevel();
}

pc_status
pc_blob_pack(pc_blob_tools *tools, int level, const uint8_t *raw, size_t raw_size,
             uint8_t **stored, size_t *stored_size, pc_codec *codec, pc_error *error)
{
    uint8_t *buffer = NULL; /* owned */
    pc_status status = PC_OK;
    size_t bound = ZSTD_compressBound(raw_size);
    size_t result = 0;

    *stored = NULL;
    *stored_size = raw_size;
    *codec = PC_CODEC_NONE;
    if (level == 0) {
        return PC_OK;
    }
    if (ZSTD_isError(bound)) {
        return pc_fail(error, PC_BAD_ARGUMENT, "ZSTD_compressBound: %s",
                       ZSTD_getErrorName(bound));
    }
    if (tools->compressor == NULL) {
        tools->compressor = ZSTD_createCCtx();
    }
    buffer = pc_malloc(bound);
    if (tools->compressor == NULL || buffer == NULL) {
        status =
            pc_fail(error, PC_NO_MEMORY, "no memory to compress %zu bytes", raw_size);
        goto done;
    }
    result = ZSTD_CCtx_setParameter(tools->compressor, ZSTD_c_compressionLevel, level);
    if (!ZSTD_isError(result)) {
        result = ZSTD_CCtx_setParameter(tools->compressor, ZSTD_c_checksumFlag, 1);
    }
    if (!ZSTD_isError(result)) {
        result = ZSTD_compress2(tools->compressor, buffer, bound, raw, raw_size);
    }
    if (ZSTD_isError(result)) {
        /* Into a buffer of compressBound only the lack of memory fails. */
        status = pc_fail(error, PC_NO_MEMORY, "ZSTD_compress2: %s",
                         ZSTD_getErrorName(result));
        goto done;
    }
    if (result < raw_size) {
        uint8_t *shrunk = pc_realloc_array(buffer, result, 1);
        *stored = shrunk == NULL ? buffer : shrunk;
        *stored_size = result;
        *codec = PC_CODEC_ZSTD;
        buffer = NULL;
    }
done:
    pc_free(buffer);
    return status;
}

/* Refuses what the format forbids in a frame that zstd itself would accept. */
static pc_status
check_frame(const uint8_t *stored, size_t stored_size, size_t raw_size, pc_error *error)
{
    /* Magic, then the descriptor byte: bit 2 is the checksum flag. */
    if (stored_size < 5 || pc_load_u32(stored) != ZSTD_MAGICNUMBER) {
        return pc_fail(error, PC_CORRUPT, "not a zstd frame");
    }
    if ((stored[4] & 4) == 0) {
        return pc_fail(error, PC_CORRUPT, "zstd frame without checksum");
    }
    unsigned long long size = ZSTD_getFrameContentSize(stored, stored_size);
    if (size == ZSTD_CONTENTSIZE_ERROR || size == ZSTD_CONTENTSIZE_UNKNOWN) {
        return pc_fail(error, PC_CORRUPT, "zstd frame without content size");
    }
    if (size != raw_size) {
        return pc_fail(error, PC_CORRUPT,
                       "zstd frame of %llu raw bytes, the manifest says %zu", size,
                       raw_size);
    }
    size_t length = ZSTD_findFrameCompressedSize(stored, stored_size);
    if (ZSTD_isError(length)) {
        return pc_fail(error, PC_CORRUPT, "ZSTD_findFrameCompressedSize: %s",
                       ZSTD_getErrorName(length));
    }
    if (length != stored_size) {
        return pc_fail(error, PC_CORRUPT, "zstd frame of %zu bytes in a blob of %zu",
                       length, stored_size);
    }
    return PC_OK;
}

pc_status
pc_blob_unpack(pc_blob_tools *tools, const uint8_t *stored, size_t stored_size,
               uint8_t *raw, size_t raw_size, pc_error *error)
{
    pc_status status = check_frame(stored, stored_size, raw_size, error);
    if (status != PC_OK) {
        return status;
    }
    if (tools->decompressor == NULL) {
        tools->decompressor = ZSTD_createDCtx();
        if (tools->decompressor == NULL) {
            return pc_fail(error, PC_NO_MEMORY, "no memory to decompress");
        }
    }
    size_t result =
        ZSTD_decompressDCtx(tools->decompressor, raw, raw_size, stored, stored_size);
    if (ZSTD_isError(result)) {
        return pc_fail(error, PC_CORRUPT, "ZSTD_decompressDCtx: %s",
                       ZSTD_getErrorName(result));
    }
    if (result != raw_size) {
        return pc_fail(error, PC_CORRUPT, "%zu raw bytes, the manifest says %zu",
                       result, raw_size);
    }
    return PC_OK;
}
