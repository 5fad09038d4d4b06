/* The driver: cuts a tensor into blocks, summarises each, and merges the results.
 *
 * Mean and variance. Inside a block, sums of (x - shift) and its square are kept in double, with a shift taken
 * from the data (an element at first, the mean so far afterwards), so that a large common offset cancels before
 * it is squared. Blocks are merged by the parallel update of Chan, Golub and LeVeque.
 *
 * Special values. The fast loop assumes that there are none; that a block has some shows in its result, and the
 * block is done again by the loop that looks at each element. The block after it goes to that loop at once, so
 * bad data costs one pass too many only where it begins.
 */
#include <math.h>
#include <string.h>

#include "summary.h"

#if defined(__SSE2__)
#include <immintrin.h>
#endif

static float tables[MAX_DTYPES][256];
static unsigned char table_is_set[MAX_DTYPES];

static const unsigned char sizes[TABLE] = {
    [BOOL] = 1, [INT8] = 1, [UINT8] = 1, [INT16] = 2, [UINT16] = 2, [INT32] = 4, [UINT32] = 4, [INT64] = 8,
    [UINT64] = 8, [FLOAT16] = 2, [BFLOAT16] = 2, [FLOAT32] = 4, [FLOAT64] = 8, [COMPLEX32] = 4,
    [BCOMPLEX32] = 4, [COMPLEX64] = 8, [COMPLEX128] = 16,
};

int dtype_size(int dtype) {
    if (dtype < 0 || dtype >= MAX_DTYPES) return 0;
    return dtype < TABLE ? sizes[dtype] : table_is_set[dtype];
}

int dtype_is_integral(int dtype) { return dtype <= UINT64; }

void dtype_set_table(int dtype, const float table[256]) {
    memcpy(tables[dtype], table, sizeof tables[dtype]);
    table_is_set[dtype] = 1;
}

static int is_wide(int dtype) {
    return (dtype >= INT32 && dtype <= UINT64) || dtype == FLOAT64 || (dtype >= COMPLEX32 && dtype <= COMPLEX128);
}

/* What the elements must be aligned to, to be read in place. */
static int alignment_of(int dtype) {
    switch (dtype) {
    case COMPLEX32: case BCOMPLEX32: return 2;
    case COMPLEX64: return 4;
    case COMPLEX128: return 8;
    default: return dtype_size(dtype);
    }
}

typedef struct {
    const Isa *isa;
    double lower, upper;             /* infinite: no bound */
    float narrow_lower, narrow_upper; /* the same comparisons, for floats */
    int special;                     /* the previous block had special values */
    double finite, nan, low, negative, zero, high;
    double min, max;
    /* The mean is kept as its distance from an origin, the mean of the first block: under a large common
     * offset the distance keeps digits that the mean itself has no room for. */
    double origin, distance;
    double deviations; /* sum of squares around the mean */
} State;

/* The largest float that is not above v, so that x <= v says the same for it. */
static float float_below(double v) {
    float narrow = (float)v;
    return (double)narrow > v ? nextafterf(narrow, -INFINITY) : narrow;
}

/* A bound that is infinite or NaN is no bound: what remains at the limits are the infinities themselves. */
static void begin(State *s, const Isa *isa, double lower, double upper) {
    memset(s, 0, sizeof *s);
    s->isa = isa;
    s->lower = isfinite(lower) ? lower : -INFINITY;
    s->upper = isfinite(upper) ? upper : INFINITY;
    s->narrow_lower = float_below(s->lower);
    s->narrow_upper = -float_below(-s->upper);
    s->min = INFINITY;
    s->max = -INFINITY;
}

static void merge(State *s, const Block *b, double shift) {
    s->nan += (double)b->nan;
    s->low += (double)b->low;
    s->negative += (double)b->negative;
    s->zero += (double)b->zero;
    s->high += (double)b->high;
    if (b->finite == 0) return;
    double n = (double)b->finite, total = s->finite + n;
    if (s->finite == 0) s->origin = shift + b->sum / n;
    double deviations = b->squares - b->sum * (b->sum / n);
    double step = shift - s->origin + b->sum / n - s->distance;
    s->deviations += (deviations > 0 ? deviations : 0) + step * step * (s->finite * n / total);
    s->distance += step * (n / total);
    s->finite = total;
    s->min = b->min < s->min ? b->min : s->min;
    s->max = b->max > s->max ? b->max : s->max;
}

/* The mean so far, but surely between the extremes, whatever rounding or overflow did to it. */
static double shift_between(double mean, double min, double max) {
    if (!(mean > min)) return min;
    return mean < max ? mean : max;
}

#define DEFINE_ADD(T, suffix, lower_of, upper_of)                                                              \
    static void add_##suffix(State *s, const T *x, int64_t n) {                                                \
        Block b;                                                                                               \
        T shift = 0;                                                                                           \
        if (s->finite > 0) {                                                                                   \
            shift = (T)shift_between((double)(T)(s->origin + s->distance), s->min, s->max);                                      \
        } else {                                                                                               \
            int64_t first = s->isa->first_finite_##suffix(x, n);                                               \
            if (first == n && s->isa->nans_##suffix(x, n) == n) {                                              \
                s->nan += (double)n;                                                                           \
                return;                                                                                        \
            }                                                                                                  \
            if (first < n) shift = x[first];                                                                   \
            s->special |= first > 0;                                                                           \
        }                                                                                                      \
        if (!s->special) {                                                                                     \
            s->isa->clean_##suffix(x, n, shift, &b);                                                           \
            if (isfinite(b.sum) && isfinite(b.squares) && b.min > s->lower && b.max < s->upper) {              \
                b.finite = n;                                                                                  \
                merge(s, &b, (double)shift);                                                                   \
                return;                                                                                        \
            }                                                                                                  \
        }                                                                                                      \
        s->isa->any_##suffix(x, n, shift, s->lower_of, s->upper_of, &b);                                       \
        s->special = b.finite != n || b.low || b.high;                                                         \
        merge(s, &b, (double)shift);                                                                           \
    }

DEFINE_ADD(float, f32, narrow_lower, narrow_upper)
DEFINE_ADD(double, f64, lower, upper)

static const float *as_floats(const Isa *isa, int dtype, const void *from, int64_t n, float *buffer) {
    const uint8_t *bytes = from;
    if (dtype == FLOAT32) return from;
    if (dtype >= TABLE) {
        const float *table = tables[dtype];
        for (int64_t i = 0; i < n; i++) buffer[i] = table[bytes[i]];
    } else if (dtype == BOOL) {
        for (int64_t i = 0; i < n; i++) buffer[i] = bytes[i] != 0;
    } else {
        isa->to_f32((enum Dtype)dtype, from, n, buffer);
    }
    return buffer;
}

static const double *as_doubles(const Isa *isa, int dtype, const void *from, int64_t n, double *buffer) {
    if (dtype == FLOAT64) return from;
    isa->to_f64((enum Dtype)dtype, from, n, buffer);
    return buffer;
}

/* The block after this one, for types whose conversion has no prefetch of its own. */
static void prefetch(const char *at, int64_t bytes) {
#if defined(__GNUC__) || defined(__clang__)
    for (int64_t i = 0; i < bytes; i += 64) __builtin_prefetch(at + i);
#else
    (void)at, (void)bytes;
#endif
}

typedef void (*Visit)(void *state, int dtype, const void *elements, int64_t n);

/* Call `visit` with all elements, block by block. What is strided or misaligned is copied block by block. */
static void each_block(Layout *l, int dtype, Visit visit, void *state) {
    int64_t block = l->count <= SMALL ? SMALL : FIRST_BLOCK;
    if (l->contiguous && (uintptr_t)l->data % (unsigned)alignment_of(dtype) == 0) {
        const char *at = l->data, *end = at + l->count * l->itemsize;
        const int64_t full = dtype == FLOAT32 || dtype == FLOAT64 ? LONG_BLOCK : BLOCK;
        while (at < end) {
            int64_t left = (end - at) / l->itemsize, n = left < block ? left : block;
            if (l->itemsize < 4 && left > n) prefetch(at + n * l->itemsize, BLOCK * l->itemsize);
            visit(state, dtype, at, n);
            at += n * l->itemsize;
            block = full;
        }
        return;
    }
    _Alignas(32) char copy[BLOCK * 16];
    Walk walk;
    if (l->rank == 0) {
        l->rank = 1;
        l->size[0] = 1;
        l->stride[0] = l->itemsize;
    }
    walk_begin(&walk, l);
    for (int64_t left = l->count; left > 0; block = BLOCK) {
        int64_t n = left < block ? left : block;
        walk_take(&walk, l, n, copy);
        visit(state, dtype, copy, n);
        left -= n;
    }
}

static void visit_narrow(void *state, int dtype, const void *elements, int64_t n) {
    State *s = state;
    _Alignas(32) float buffer[BLOCK];
    add_f32(s, as_floats(s->isa, dtype, elements, n, buffer), n);
}

static void visit_wide(void *state, int dtype, const void *elements, int64_t n) {
    State *s = state;
    _Alignas(32) double buffer[BLOCK];
    add_f64(s, as_doubles(s->isa, dtype, elements, n, buffer), n);
}

/* Squares of values beyond this overflow: mean and variance are then taken of the values times 2^-600. */
#define HUGE_MAGNITUDE 0x1p500
#define SCALE_EXPONENT 600

static void visit_scaled(void *state, int dtype, const void *elements, int64_t n) {
    State *s = state;
    _Alignas(32) double buffer[BLOCK];
    /* A long block piece by piece: threads of the program may have small stacks. */
    for (const char *at = elements; n > 0; at += BLOCK * dtype_size(dtype), n -= BLOCK) {
        const int64_t count = n < BLOCK ? n : BLOCK;
        const double *values = as_doubles(s->isa, dtype, at, count, buffer);
        for (int64_t i = 0; i < count; i++) buffer[i] = values[i] * 0x1p-600;
        add_f64(s, buffer, count);
    }
}

/* The user's program may flush denormals, trap on NaN, or read the exception flags: none of that may reach
 * these loops, and nothing of theirs may reach the program. To write the register takes longer than to read it, and most
 * programs have it as it is at first, but for flags that they raised long ago. */
#if defined(__SSE2__)
#define FLOATS_AT_FIRST 0x1f80u
#define FLOAT_FLAGS 0x3fu
#define ENTER_FLOATS                       \
    unsigned saved_floats = _mm_getcsr(); \
    if ((saved_floats & ~FLOAT_FLAGS) != FLOATS_AT_FIRST) _mm_setcsr(FLOATS_AT_FIRST)
#define LEAVE_FLOATS \
    if (_mm_getcsr() != saved_floats) _mm_setcsr(saved_floats)
#else
#define ENTER_FLOATS
#define LEAVE_FLOATS
#endif

/* A small tensor in one piece without special values: nearly all that a program of many small ops has. The same as below,
 * without what it takes to go on after the first block; 0 if it has to be done so. */
static int summarise_small(const Isa *isa, int dtype, const Layout *l, double lower, double upper, Summary *out) {
    const int64_t n = l->count;
    if (!l->contiguous || n == 0 || n > SMALL || (uintptr_t)l->data % (unsigned)l->itemsize != 0) return 0;
    Block b;
    double shift;
    if (dtype == FLOAT32) {
        shift = *(const float *)l->data;
        isa->clean_f32((const float *)l->data, n, (float)shift, &b);
    } else if (dtype == FLOAT64) {
        shift = *(const double *)l->data;
        isa->clean_f64((const double *)l->data, n, shift, &b);
    } else {
        return 0;
    }
    /* Bounds that are infinite or NaN are none. Of a first element that is not finite, a sum tells. */
    if (!isfinite(b.sum) || !isfinite(b.squares)) return 0;
    if ((isfinite(lower) && b.min <= lower) || (isfinite(upper) && b.max >= upper)) return 0;
    if (b.max > HUGE_MAGNITUDE || b.min < -HUGE_MAGNITUDE) return 0;
    const double count = (double)n, distance = b.sum / count, deviations = b.squares - b.sum * distance;
    *out = (Summary){
        .elements = count * l->repeat,
        .negative = (double)b.negative * l->repeat,
        .zero = (double)b.zero * l->repeat,
        .positive = (double)(n - b.negative - b.zero) * l->repeat,
        .min = b.min + 0.0,
        .max = b.max + 0.0,
        .mean = shift + distance,
        .variance = (deviations > 0 ? deviations : 0) / count,
    };
    return 1;
}

void summarise(const Isa *isa, int dtype, Layout *layout, double lower, double upper, Summary *out) {
    State s;
    ENTER_FLOATS;
    layout_normalise(layout);
    if (summarise_small(isa, dtype, layout, lower, upper, out)) {
        LEAVE_FLOATS;
        return;
    }
    begin(&s, isa, lower, upper);
    each_block(layout, dtype, is_wide(dtype) ? visit_wide : visit_narrow, &s);
    double total = (double)layout->count, repeat = layout->repeat;
    double mean = s.origin + s.distance, variance = s.finite > 0 ? s.deviations / s.finite : NAN;
    if (s.finite > 0 && (s.max > HUGE_MAGNITUDE || s.min < -HUGE_MAGNITUDE)) {
        State scaled;
        begin(&scaled, isa, -INFINITY, INFINITY);
        each_block(layout, dtype, visit_scaled, &scaled);
        mean = ldexp(scaled.origin + scaled.distance, SCALE_EXPONENT);
        variance = ldexp(scaled.deviations / scaled.finite, 2 * SCALE_EXPONENT);
    }
    *out = (Summary){
        .elements = total * repeat,
        .nan = s.nan * repeat,
        .low = s.low * repeat,
        .negative = s.negative * repeat,
        .zero = s.zero * repeat,
        .positive = (total - s.nan - s.low - s.negative - s.zero - s.high) * repeat,
        .high = s.high * repeat,
        .min = s.min + 0.0, /* of -0.0 and 0.0, which are equal, always 0.0 */
        .max = s.max + 0.0,
        .mean = s.finite > 0 ? mean : NAN,
        .variance = variance,
    };
    LEAVE_FLOATS;
}

typedef struct {
    const Isa *isa;
    int64_t count;
} NanState;

static void visit_nans_narrow(void *state, int dtype, const void *elements, int64_t n) {
    NanState *s = state;
    _Alignas(32) float buffer[BLOCK];
    s->count += s->isa->nans_f32(as_floats(s->isa, dtype, elements, n, buffer), n);
}

static void visit_nans_wide(void *state, int dtype, const void *elements, int64_t n) {
    NanState *s = state;
    _Alignas(32) double buffer[BLOCK];
    s->count += s->isa->nans_f64(as_doubles(s->isa, dtype, elements, n, buffer), n);
}

double count_nans(const Isa *isa, int dtype, Layout *layout) {
    NanState s = {isa, 0};
    if (dtype_is_integral(dtype)) return 0;
    ENTER_FLOATS;
    layout_normalise(layout);
    each_block(layout, dtype, is_wide(dtype) ? visit_nans_wide : visit_nans_narrow, &s);
    double total = (double)s.count * layout->repeat;
    LEAVE_FLOATS;
    return total;
}
