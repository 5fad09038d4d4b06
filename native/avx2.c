/* The loops for x86 processors with AVX2, FMA and F16C (2013 and later). */
#include <math.h>
#include <string.h>

#include "summary.h"

#ifdef HAVE_AVX2
#include <immintrin.h>

#define ISA __attribute__((target("avx2,fma,f16c")))
#define INLINE static inline __attribute__((always_inline, target("avx2,fma,f16c")))

ISA static void half_to_float(const uint16_t *from, int64_t n, float *to) {
    int64_t i = 0;
    for (; i + 8 <= n; i += 8)
        _mm256_storeu_ps(to + i, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(from + i))));
    if (i < n) {
        uint16_t rest[8] = {0};
        float wide[8];
        memcpy(rest, from + i, (size_t)(n - i) * sizeof *from);
        _mm256_storeu_ps(wide, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)rest)));
        memcpy(to + i, wide, (size_t)(n - i) * sizeof *to);
    }
}

#include "convert.inc"

INLINE double sum_pd(__m256d v) {
    __m128d pair = _mm_add_pd(_mm256_castpd256_pd128(v), _mm256_extractf128_pd(v, 1));
    return _mm_cvtsd_f64(_mm_add_sd(pair, _mm_unpackhi_pd(pair, pair)));
}

INLINE double min_pd(__m256d v) {
    __m128d pair = _mm_min_pd(_mm256_castpd256_pd128(v), _mm256_extractf128_pd(v, 1));
    return _mm_cvtsd_f64(_mm_min_sd(pair, _mm_unpackhi_pd(pair, pair)));
}

INLINE double max_pd(__m256d v) {
    __m128d pair = _mm_max_pd(_mm256_castpd256_pd128(v), _mm256_extractf128_pd(v, 1));
    return _mm_cvtsd_f64(_mm_max_sd(pair, _mm_unpackhi_pd(pair, pair)));
}

INLINE __m256d low_pd(__m256 v) { return _mm256_cvtps_pd(_mm256_castps256_ps128(v)); }
INLINE __m256d high_pd(__m256 v) { return _mm256_cvtps_pd(_mm256_extractf128_ps(v, 1)); }
INLINE double min_ps(__m256 v) { return min_pd(_mm256_min_pd(low_pd(v), high_pd(v))); }
INLINE double max_ps(__m256 v) { return max_pd(_mm256_max_pd(low_pd(v), high_pd(v))); }

/* Counters hold minus the count, as a true comparison is the integer -1. */
INLINE int64_t counted_epi64(__m256i v) {
    __m128i pair = _mm_add_epi64(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    return -(_mm_cvtsi128_si64(pair) + _mm_extract_epi64(pair, 1));
}

INLINE int64_t counted_epi32(__m256i v) {
    return counted_epi64(_mm256_add_epi64(_mm256_cvtepi32_epi64(_mm256_castsi256_si128(v)),
                                          _mm256_cvtepi32_epi64(_mm256_extracti128_si256(v, 1))));
}

#define TRUE_PS(a, b, relation) _mm256_castps_si256(_mm256_cmp_ps(a, b, relation))
#define TRUE_PD(a, b, relation) _mm256_castpd_si256(_mm256_cmp_pd(a, b, relation))
#define COUNT_PS(counter, a, b, relation) counter = _mm256_add_epi32(counter, TRUE_PS(a, b, relation))
#define COUNT_PD(counter, a, b, relation) counter = _mm256_add_epi64(counter, TRUE_PD(a, b, relation))

/* Half a page ahead: out of cache this takes a third off the time. Not where a tensor is small: what follows it there is
 * something else. */
#define PREFETCH(x) _mm_prefetch((const char *)(x) + 2048, _MM_HINT_T0)

/* ---- float ---- */

typedef struct {
    __m256d sum[2], squares[2];
    __m256 min, max;
    __m256i positive, zero;
} CleanF32;

/* Eight at a time: sixteen need more registers than there are, and took half as long again. Signs are compared
 * as integers, which leaves the units for floats to the sums. */
INLINE void clean_step_f32(CleanF32 *s, const float *x, __m256d shift) {
    const __m256i nought = _mm256_setzero_si256();
    __m256 v = _mm256_loadu_ps(x);
    __m256i bits = _mm256_castps_si256(v);
    __m256d d0 = _mm256_sub_pd(_mm256_cvtps_pd(_mm_loadu_ps(x)), shift);
    __m256d d1 = _mm256_sub_pd(_mm256_cvtps_pd(_mm_loadu_ps(x + 4)), shift);
    s->sum[0] = _mm256_add_pd(s->sum[0], d0);
    s->sum[1] = _mm256_add_pd(s->sum[1], d1);
    s->squares[0] = _mm256_fmadd_pd(d0, d0, s->squares[0]);
    s->squares[1] = _mm256_fmadd_pd(d1, d1, s->squares[1]);
    s->min = _mm256_min_ps(v, s->min);
    s->max = _mm256_max_ps(v, s->max);
    s->positive = _mm256_add_epi32(s->positive, _mm256_cmpgt_epi32(bits, nought));
    /* Twice the bits drops the sign: -0.0 is a zero too. */
    s->zero = _mm256_add_epi32(s->zero, _mm256_cmpeq_epi32(_mm256_add_epi32(bits, bits), nought));
}

/* The rest of a block is filled up with the shift, which adds nothing to the sums; the counts are corrected. */
ISA static void clean_f32(const float *x, int64_t n, float shift, Block *out) {
    const __m256 first = _mm256_set1_ps(shift);
    const __m256d wide_shift = _mm256_set1_pd(shift);
    CleanF32 s;
    for (int j = 0; j < 2; j++) s.sum[j] = s.squares[j] = _mm256_setzero_pd();
    s.min = s.max = first;
    s.positive = s.zero = _mm256_setzero_si256();
    int64_t i = 0, padding = 0;
    for (; i + 8 <= n; i += 8) {
        if (n > SMALL) PREFETCH(x + i);
        clean_step_f32(&s, x + i, wide_shift);
    }
    if (i < n) {
        float rest[8];
        padding = 8 - (n - i);
        _mm256_storeu_ps(rest, first);
        memcpy(rest, x + i, (size_t)(n - i) * sizeof *x);
        clean_step_f32(&s, rest, wide_shift);
    }
    int64_t zero = counted_epi32(s.zero) - (shift == 0 ? padding : 0);
    int64_t positive = counted_epi32(s.positive) - (shift > 0 ? padding : 0);
    *out = (Block){
        .negative = n - zero - positive,
        .zero = zero,
        .sum = sum_pd(_mm256_add_pd(s.sum[0], s.sum[1])),
        .squares = sum_pd(_mm256_add_pd(s.squares[0], s.squares[1])),
        .min = min_ps(s.min),
        .max = max_ps(s.max),
    };
}

typedef struct {
    __m256d sum[2], squares[2];
    __m256 min, max;
    __m256i finite, nan, low, negative, zero, high;
} AnyF32;

INLINE void any_step_f32(AnyF32 *s, __m256 v, __m256 shift, __m256d wide_shift, __m256 lower, __m256 upper) {
    const __m256 nought = _mm256_setzero_ps();
    __m256 finite = _mm256_cmp_ps(_mm256_sub_ps(v, v), nought, _CMP_EQ_OQ);
    __m256i low = TRUE_PS(v, lower, _CMP_LE_OQ);
    __m256i high = _mm256_andnot_si256(low, TRUE_PS(v, upper, _CMP_GE_OQ));
    __m256i outside = _mm256_or_si256(low, high);
    s->finite = _mm256_add_epi32(s->finite, _mm256_castps_si256(finite));
    COUNT_PS(s->nan, v, v, _CMP_UNORD_Q);
    s->low = _mm256_add_epi32(s->low, low);
    s->high = _mm256_add_epi32(s->high, high);
    s->negative = _mm256_add_epi32(s->negative, _mm256_andnot_si256(outside, TRUE_PS(v, nought, _CMP_LT_OQ)));
    s->zero = _mm256_add_epi32(s->zero, _mm256_andnot_si256(outside, TRUE_PS(v, nought, _CMP_EQ_OQ)));
    v = _mm256_blendv_ps(shift, v, finite);
    s->min = _mm256_min_ps(v, s->min);
    s->max = _mm256_max_ps(v, s->max);
    __m256d d0 = _mm256_sub_pd(low_pd(v), wide_shift), d1 = _mm256_sub_pd(high_pd(v), wide_shift);
    s->sum[0] = _mm256_add_pd(s->sum[0], d0);
    s->sum[1] = _mm256_add_pd(s->sum[1], d1);
    s->squares[0] = _mm256_fmadd_pd(d0, d0, s->squares[0]);
    s->squares[1] = _mm256_fmadd_pd(d1, d1, s->squares[1]);
}

/* The rest of a block is filled up with NaN, which enters one count only. */
ISA static void any_f32(const float *x, int64_t n, float shift, float lower, float upper, Block *out) {
    const __m256 narrow = _mm256_set1_ps(shift), low = _mm256_set1_ps(lower), high = _mm256_set1_ps(upper);
    const __m256d wide = _mm256_set1_pd(shift);
    AnyF32 s;
    for (int j = 0; j < 2; j++) s.sum[j] = s.squares[j] = _mm256_setzero_pd();
    s.min = s.max = narrow;
    s.finite = s.nan = s.low = s.negative = s.zero = s.high = _mm256_setzero_si256();
    int64_t i = 0, padding = 0;
    for (; i + 8 <= n; i += 8) {
        if (n > SMALL) PREFETCH(x + i);
        any_step_f32(&s, _mm256_loadu_ps(x + i), narrow, wide, low, high);
    }
    if (i < n) {
        float rest[8];
        padding = 8 - (n - i);
        _mm256_storeu_ps(rest, _mm256_set1_ps(NAN));
        memcpy(rest, x + i, (size_t)(n - i) * sizeof *x);
        any_step_f32(&s, _mm256_loadu_ps(rest), narrow, wide, low, high);
    }
    *out = (Block){
        counted_epi32(s.finite), counted_epi32(s.nan) - padding, counted_epi32(s.low),
        counted_epi32(s.negative), counted_epi32(s.zero), counted_epi32(s.high),
        sum_pd(_mm256_add_pd(s.sum[0], s.sum[1])), sum_pd(_mm256_add_pd(s.squares[0], s.squares[1])),
        min_ps(s.min), max_ps(s.max),
    };
}

ISA static int64_t first_finite_f32(const float *x, int64_t n) {
    int64_t i = 0;
    for (; i + 8 <= n; i += 8) {
        if (n > SMALL) PREFETCH(x + i);
        __m256 v = _mm256_loadu_ps(x + i);
        int found = _mm256_movemask_ps(_mm256_cmp_ps(_mm256_sub_ps(v, v), _mm256_setzero_ps(), _CMP_EQ_OQ));
        if (found) return i + __builtin_ctz((unsigned)found);
    }
    while (i < n && x[i] - x[i] != 0) i++;
    return i;
}

/* ---- double ---- */

typedef struct {
    __m256d sum[2], squares[2], min, max;
    __m256i negative, zero;
} CleanF64;

INLINE void clean_step_f64(CleanF64 *s, __m256d a, __m256d b, __m256d shift) {
    const __m256d nought = _mm256_setzero_pd();
    __m256d d0 = _mm256_sub_pd(a, shift), d1 = _mm256_sub_pd(b, shift);
    s->sum[0] = _mm256_add_pd(s->sum[0], d0);
    s->sum[1] = _mm256_add_pd(s->sum[1], d1);
    s->squares[0] = _mm256_fmadd_pd(d0, d0, s->squares[0]);
    s->squares[1] = _mm256_fmadd_pd(d1, d1, s->squares[1]);
    s->min = _mm256_min_pd(_mm256_min_pd(a, b), s->min);
    s->max = _mm256_max_pd(_mm256_max_pd(a, b), s->max);
    COUNT_PD(s->negative, a, nought, _CMP_LT_OQ);
    COUNT_PD(s->negative, b, nought, _CMP_LT_OQ);
    COUNT_PD(s->zero, a, nought, _CMP_EQ_OQ);
    COUNT_PD(s->zero, b, nought, _CMP_EQ_OQ);
}

ISA static void clean_f64(const double *x, int64_t n, double shift, Block *out) {
    const __m256d first = _mm256_set1_pd(shift);
    CleanF64 s;
    for (int j = 0; j < 2; j++) s.sum[j] = s.squares[j] = _mm256_setzero_pd();
    s.min = s.max = first;
    s.negative = s.zero = _mm256_setzero_si256();
    int64_t i = 0, padding = 0;
    for (; i + 8 <= n; i += 8) {
        if (n > SMALL) PREFETCH(x + i);
        clean_step_f64(&s, _mm256_loadu_pd(x + i), _mm256_loadu_pd(x + i + 4), first);
    }
    if (i < n) {
        double rest[8];
        padding = 8 - (n - i);
        _mm256_storeu_pd(rest, first);
        _mm256_storeu_pd(rest + 4, first);
        memcpy(rest, x + i, (size_t)(n - i) * sizeof *x);
        clean_step_f64(&s, _mm256_loadu_pd(rest), _mm256_loadu_pd(rest + 4), first);
    }
    *out = (Block){
        .negative = counted_epi64(s.negative) - (shift < 0 ? padding : 0),
        .zero = counted_epi64(s.zero) - (shift == 0 ? padding : 0),
        .sum = sum_pd(_mm256_add_pd(s.sum[0], s.sum[1])),
        .squares = sum_pd(_mm256_add_pd(s.squares[0], s.squares[1])),
        .min = min_pd(s.min),
        .max = max_pd(s.max),
    };
}

typedef struct {
    __m256d sum, squares, min, max;
    __m256i finite, nan, low, negative, zero, high;
} AnyF64;

INLINE void any_step_f64(AnyF64 *s, __m256d v, __m256d shift, __m256d lower, __m256d upper) {
    const __m256d nought = _mm256_setzero_pd();
    __m256d finite = _mm256_cmp_pd(_mm256_sub_pd(v, v), nought, _CMP_EQ_OQ);
    __m256i low = TRUE_PD(v, lower, _CMP_LE_OQ);
    __m256i high = _mm256_andnot_si256(low, TRUE_PD(v, upper, _CMP_GE_OQ));
    __m256i outside = _mm256_or_si256(low, high);
    s->finite = _mm256_add_epi64(s->finite, _mm256_castpd_si256(finite));
    COUNT_PD(s->nan, v, v, _CMP_UNORD_Q);
    s->low = _mm256_add_epi64(s->low, low);
    s->high = _mm256_add_epi64(s->high, high);
    s->negative = _mm256_add_epi64(s->negative, _mm256_andnot_si256(outside, TRUE_PD(v, nought, _CMP_LT_OQ)));
    s->zero = _mm256_add_epi64(s->zero, _mm256_andnot_si256(outside, TRUE_PD(v, nought, _CMP_EQ_OQ)));
    v = _mm256_blendv_pd(shift, v, finite);
    s->min = _mm256_min_pd(v, s->min);
    s->max = _mm256_max_pd(v, s->max);
    __m256d d = _mm256_sub_pd(v, shift);
    s->sum = _mm256_add_pd(s->sum, d);
    s->squares = _mm256_fmadd_pd(d, d, s->squares);
}

ISA static void any_f64(const double *x, int64_t n, double shift, double lower, double upper, Block *out) {
    const __m256d first = _mm256_set1_pd(shift), low = _mm256_set1_pd(lower), high = _mm256_set1_pd(upper);
    AnyF64 s;
    s.sum = s.squares = _mm256_setzero_pd();
    s.min = s.max = first;
    s.finite = s.nan = s.low = s.negative = s.zero = s.high = _mm256_setzero_si256();
    int64_t i = 0, padding = 0;
    for (; i + 4 <= n; i += 4) {
        if (n > SMALL) PREFETCH(x + i);
        any_step_f64(&s, _mm256_loadu_pd(x + i), first, low, high);
    }
    if (i < n) {
        double rest[4];
        padding = 4 - (n - i);
        _mm256_storeu_pd(rest, _mm256_set1_pd(NAN));
        memcpy(rest, x + i, (size_t)(n - i) * sizeof *x);
        any_step_f64(&s, _mm256_loadu_pd(rest), first, low, high);
    }
    *out = (Block){
        counted_epi64(s.finite), counted_epi64(s.nan) - padding, counted_epi64(s.low),
        counted_epi64(s.negative), counted_epi64(s.zero), counted_epi64(s.high),
        sum_pd(s.sum), sum_pd(s.squares), min_pd(s.min), max_pd(s.max),
    };
}

ISA static int64_t first_finite_f64(const double *x, int64_t n) {
    int64_t i = 0;
    for (; i + 4 <= n; i += 4) {
        __m256d v = _mm256_loadu_pd(x + i);
        int found = _mm256_movemask_pd(_mm256_cmp_pd(_mm256_sub_pd(v, v), _mm256_setzero_pd(), _CMP_EQ_OQ));
        if (found) return i + __builtin_ctz((unsigned)found);
    }
    while (i < n && x[i] - x[i] != 0) i++;
    return i;
}

const Isa isa_avx2 = {
    "avx2", clean_f32, clean_f64, any_f32, any_f64, first_finite_f32, first_finite_f64,
    nans_f32, nans_f64, to_f32, to_f64,
};
#endif
