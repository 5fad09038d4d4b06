/* Taps in programs that XLA compiled: foreign functions that write down what passes by, and put fed values in place.
 *
 *   tensortap_tap   an operand, summarised, or copied as well, appended under its number; or only if it is bad, or
 *                   beyond bounds
 *   tensortap_feed  fills its result with bytes that were stored under its number
 *   tensortap_bad   for each operand one byte: the kinds of bad values in it (1 NaN, 2 -inf, 4 +inf)
 *   tensortap_look  the same of memory, beside XLA
 *
 * Records are appended under a lock, from whichever threads XLA runs operations in, and taken away together. What a
 * program does in several iterations is appended in their order. When there is no room, records are counted only.
 */
#include <float.h>
#include <math.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "pill.h"
#include "xla/ffi/api/c_api.h"

#define EXPORT __attribute__((visibility("default")))
#define MAX_DIMS 8

enum Kind { PILL, VALUE, CHECK }; /* as in kinds.py */

typedef void (*Summary)(const void *, int, int, const int64_t *, const int64_t *, double, double, double *);

typedef struct {
    int64_t number;
    int64_t rank;
    double row[PILL_SIZE + MAX_DIMS];
    void *value; /* a copy of the elements, or NULL */
    int64_t nbytes;
} Record;

typedef struct {
    Record *records;
    int64_t count, room, dropped, bytes;
} Records;

typedef struct {
    const void *data;
    int64_t nbytes;
} Fed;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static Records records;
static Summary summary;
static int codes[64];    /* of the kernel, by XLA's number of a dtype; -1 for what it cannot read */
static int sizes[64];    /* bytes of an element; 0 for what cannot be copied */
static int64_t most_records, most_bytes;
static Fed *feeds;
static int64_t feeds_room;

EXPORT void tensortap_configure(Summary kernel, const int *dtype_codes, const int *dtype_sizes, int64_t most, int64_t bytes) {
    summary = kernel;
    memcpy(codes, dtype_codes, sizeof codes);
    memcpy(sizes, dtype_sizes, sizeof sizes);
    most_records = most;
    most_bytes = bytes;
}

/* Take all records away; whoever takes them frees them. */
EXPORT void tensortap_take(Records *taken) {
    pthread_mutex_lock(&lock);
    *taken = records;
    memset(&records, 0, sizeof records);
    pthread_mutex_unlock(&lock);
}

EXPORT void tensortap_free(Records *taken) {
    for (int64_t i = 0; i < taken->count; i++) free(taken->records[i].value);
    free(taken->records);
    memset(taken, 0, sizeof *taken);
}

/* The bytes stay the caller's, and must be there while programs run that have been given the number. */
EXPORT int tensortap_store(int64_t number, const void *data, int64_t nbytes) {
    int stored = 0;
    pthread_mutex_lock(&lock);
    if (number >= feeds_room) {
        int64_t room = 2 * number + 16;
        Fed *grown = realloc(feeds, (size_t)room * sizeof *grown);
        if (grown) {
            memset(grown + feeds_room, 0, (size_t)(room - feeds_room) * sizeof *grown);
            feeds = grown;
            feeds_room = room;
        }
    }
    if (number < feeds_room) {
        feeds[number] = (Fed){data, nbytes};
        stored = 1;
    }
    pthread_mutex_unlock(&lock);
    return stored;
}

EXPORT int64_t tensortap_record_bytes(void) { return (int64_t)sizeof(Record); }

/* XLA asks a handler for its version before it uses it. */
static int is_question(XLA_FFI_CallFrame *frame) {
    XLA_FFI_Extension_Base *extension = frame->extension_start;
    if (extension == NULL || extension->type != XLA_FFI_Extension_Metadata) return 0;
    XLA_FFI_Metadata *metadata = ((XLA_FFI_Metadata_Extension *)extension)->metadata;
    metadata->api_version.major_version = XLA_FFI_API_MAJOR;
    metadata->api_version.minor_version = XLA_FFI_API_MINOR;
    return 1;
}

static XLA_FFI_Error *failure(XLA_FFI_CallFrame *frame, const char *message) {
    XLA_FFI_Error_Create_Args args = {
        .struct_size = sizeof args, .message = message, .errc = XLA_FFI_Error_Code_INTERNAL};
    return frame->api->XLA_FFI_Error_Create(&args);
}

static const void *attribute_at(XLA_FFI_CallFrame *frame, const char *name) {
    for (int64_t i = 0; i < frame->attrs.size; i++) {
        XLA_FFI_ByteSpan *span = frame->attrs.names[i];
        if (span->len == strlen(name) && memcmp(span->ptr, name, span->len) == 0)
            return ((XLA_FFI_Scalar *)frame->attrs.attrs[i])->value;
    }
    return NULL;
}

static int64_t attribute(XLA_FFI_CallFrame *frame, const char *name) {
    const int64_t *at = attribute_at(frame, name);
    return at ? *at : -1;
}

static double bound(XLA_FFI_CallFrame *frame, const char *name, double otherwise) {
    const double *at = attribute_at(frame, name);
    return at ? *at : otherwise;
}

static int64_t elements_of(const XLA_FFI_Buffer *buffer) {
    int64_t count = 1;
    for (int64_t i = 0; i < buffer->rank; i++) count *= buffer->dims[i];
    return count;
}

static int code_of(const XLA_FFI_Buffer *buffer) { return buffer->dtype < 64 ? codes[buffer->dtype] : -1; }

/* Dimensions beyond those a row has room for are merged: the numbers are the same. */
static void summarise(const XLA_FFI_Buffer *buffer, int64_t *rank, double *row) {
    int64_t dims[MAX_DIMS], strides[MAX_DIMS], count = elements_of(buffer);
    if (buffer->rank <= MAX_DIMS) {
        *rank = buffer->rank;
        for (int64_t i = 0; i < buffer->rank; i++) dims[i] = buffer->dims[i];
    } else {
        *rank = 1;
        dims[0] = count;
    }
    for (int64_t i = *rank, stride = 1; i-- > 0; stride *= dims[i]) strides[i] = stride;
    memset(row, 0, (PILL_SIZE + MAX_DIMS) * sizeof *row);
    int code = code_of(buffer);
    if (code < 0) return; /* not looked at */
    summary(buffer->data, code, (int)*rank, dims, strides, -INFINITY, INFINITY, row);
}

static void append(Record *record) {
    pthread_mutex_lock(&lock);
    int has_room = records.count < most_records && records.bytes + record->nbytes <= most_bytes;
    if (has_room && records.count == records.room) {
        int64_t room = records.room ? 2 * records.room : 1024;
        Record *grown = realloc(records.records, (size_t)room * sizeof *grown);
        if (grown) {
            records.records = grown;
            records.room = room;
        } else {
            has_room = 0;
        }
    }
    if (has_room) {
        records.bytes += record->nbytes;
        records.records[records.count++] = *record;
    } else {
        records.dropped++;
    }
    pthread_mutex_unlock(&lock);
    if (!has_room) free(record->value);
}

/* Whether all magnitudes are at most one, compared as integers: in one pass, at the speed of memory. Those of infinities
 * and NaN are larger than that of any number. Signed, because that is what processors compare many of at once. */
#define DEFINE_ALL_WITHIN(T, name, mask)                                                                       \
    static int name(const T *x, int64_t n, T most) {                                                           \
        int64_t i = 0;                                                                                         \
        for (; i + 1024 <= n; i += 1024) {                                                                     \
            T beyond = 0;                                                                                      \
            for (int64_t j = 0; j < 1024; j++) beyond |= (T)((T)(x[i + j] & (mask)) > most);                   \
            if (beyond) return 0;                                                                              \
        }                                                                                                      \
        T beyond = 0;                                                                                          \
        for (; i < n; i++) beyond |= (T)((T)(x[i] & (mask)) > most);                                           \
        return !beyond;                                                                                        \
    }
DEFINE_ALL_WITHIN(int16_t, all_within_16, 0x7fff)
DEFINE_ALL_WITHIN(int32_t, all_within_32, 0x7fffffff)
DEFINE_ALL_WITHIN(int64_t, all_within_64, 0x7fffffffffffffff)

static const int16_t most_f16 = 0x7bff, most_bf16 = 0x7f7f;
static const int32_t most_f32 = 0x7f7fffff;
static const int64_t most_f64 = 0x7fefffffffffffff;

static int is_surely_finite(const XLA_FFI_Buffer *buffer) {
    int64_t n = elements_of(buffer);
    switch (buffer->dtype) {
    case XLA_FFI_DataType_F16: return all_within_16(buffer->data, n, most_f16);
    case XLA_FFI_DataType_BF16: return all_within_16(buffer->data, n, most_bf16);
    case XLA_FFI_DataType_F32: return all_within_32(buffer->data, n, most_f32);
    case XLA_FFI_DataType_F64: return all_within_64(buffer->data, n, most_f64);
    case XLA_FFI_DataType_C64: return all_within_32(buffer->data, 2 * n, most_f32);
    case XLA_FFI_DataType_C128: return all_within_64(buffer->data, 2 * n, most_f64);
    default: return 0;
    }
}

/* Whether all magnitudes lie within bounds, which are given of few and large, or of small tensors (bounds.py). */
static int is_within(const XLA_FFI_Buffer *buffer, double least, double most) {
    int64_t n = elements_of(buffer);
    if (buffer->dtype == XLA_FFI_DataType_F32) {
        const float *x = buffer->data;
        float bounded = most < (double)FLT_MAX ? (float)most : FLT_MAX;
        int32_t bits;
        memcpy(&bits, &bounded, sizeof bits);
        if (least > 0)
            for (int64_t i = 0; i < n; i++)
                if (!(fabs((double)x[i]) >= least)) return 0;
        return all_within_32(buffer->data, n, bits);
    }
    if (buffer->dtype == XLA_FFI_DataType_F64) {
        const double *x = buffer->data;
        double bounded = most < DBL_MAX ? most : DBL_MAX;
        int64_t bits;
        memcpy(&bits, &bounded, sizeof bits);
        if (least > 0)
            for (int64_t i = 0; i < n; i++)
                if (!(fabs(x[i]) >= least)) return 0;
        return all_within_64(buffer->data, n, bits);
    }
    return 0;
}

EXPORT XLA_FFI_Error *tensortap_tap(XLA_FFI_CallFrame *frame) {
    if (is_question(frame)) return NULL;
    const XLA_FFI_Buffer *buffer = frame->args.args[0];
    int64_t kind = attribute(frame, "kind");
    if (kind == CHECK) {
        double least = bound(frame, "least", 0), most = bound(frame, "most", INFINITY);
        int is_bounded = least > 0 || most < INFINITY;
        if (is_bounded ? is_within(buffer, least, most) : is_surely_finite(buffer)) return NULL;
    }
    Record record = {.number = attribute(frame, "number")};
    summarise(buffer, &record.rank, record.row);
    if (kind == VALUE && buffer->dtype < 64 && sizes[buffer->dtype] > 0) {
        record.nbytes = elements_of(buffer) * sizes[buffer->dtype];
        record.value = malloc(record.nbytes > 0 ? (size_t)record.nbytes : 1);
        if (record.value) memcpy(record.value, buffer->data, (size_t)record.nbytes);
    }
    append(&record);
    return NULL;
}

EXPORT XLA_FFI_Error *tensortap_feed(XLA_FFI_CallFrame *frame) {
    if (is_question(frame)) return NULL;
    int64_t number = attribute(frame, "number");
    XLA_FFI_Buffer *result = frame->rets.rets[0];
    int64_t nbytes = elements_of(result) * (result->dtype < 64 ? sizes[result->dtype] : 0);
    pthread_mutex_lock(&lock);
    Fed fed = number >= 0 && number < feeds_room ? feeds[number] : (Fed){NULL, 0};
    pthread_mutex_unlock(&lock);
    if (fed.nbytes != nbytes || (fed.data == NULL && nbytes > 0)) return failure(frame, "no value was fed here");
    memcpy(result->data, fed.data, (size_t)nbytes);
    return NULL;
}

static uint8_t kinds_in(const XLA_FFI_Buffer *buffer) {
    int64_t rank;
    double row[PILL_SIZE + MAX_DIMS];
    if (is_surely_finite(buffer)) return 0;
    summarise(buffer, &rank, row);
    return (uint8_t)pill_kinds(row);
}

EXPORT XLA_FFI_Error *tensortap_bad(XLA_FFI_CallFrame *frame) {
    if (is_question(frame)) return NULL;
    uint8_t *kinds = ((XLA_FFI_Buffer *)frame->rets.rets[0])->data;
    for (int64_t i = 0; i < frame->args.size; i++) kinds[i] = kinds_in(frame->args.args[i]);
    return NULL;
}

/* `dtypes` are XLA's; returns whether anything is bad. */
EXPORT int tensortap_look(
    int64_t n, void *const *data, const int *dtypes, int64_t *counts, uint8_t *kinds) {
    int any = 0;
    for (int64_t i = 0; i < n; i++) {
        XLA_FFI_Buffer buffer = {
            .dtype = (XLA_FFI_DataType)dtypes[i], .data = data[i], .rank = 1, .dims = &counts[i]};
        any |= kinds[i] = kinds_in(&buffer);
    }
    return any;
}
