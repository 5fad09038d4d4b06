/* What AVX-512 does faster than AVX2: elements without special values, which are nearly all there are. Its vectors are twice
 * as long, and comparisons count into registers of their own. Everything else is that of avx2.c.
 *
 * Used from Ice Lake and Zen 4 on: processors before them slow down everything that runs beside such instructions.
 */
#include "summary.h"

#ifdef HAVE_AVX512
#include <immintrin.h>

#define ISA __attribute__((target("avx512f,avx512dq,avx512vl,popcnt")))
#define INLINE static inline __attribute__((always_inline, target("avx512f,avx512dq,avx512vl,popcnt")))

/* As in avx2.c. */
#define PREFETCH(x) _mm_prefetch((const char *)(x) + 2048, _MM_HINT_T0)

typedef struct {
    __m512d sum[2], squares[2];
    int64_t positive, not_zero;
} Sums;

INLINE void add_doubles(Sums *s, __m512d a, __m512d b, __m512d shift) {
    __m512d d0 = _mm512_sub_pd(a, shift), d1 = _mm512_sub_pd(b, shift);
    s->sum[0] = _mm512_add_pd(s->sum[0], d0);
    s->sum[1] = _mm512_add_pd(s->sum[1], d1);
    s->squares[0] = _mm512_fmadd_pd(d0, d0, s->squares[0]);
    s->squares[1] = _mm512_fmadd_pd(d1, d1, s->squares[1]);
}

INLINE void begin_sums(Sums *s) {
    for (int j = 0; j < 2; j++) s->sum[j] = s->squares[j] = _mm512_setzero_pd();
    s->positive = s->not_zero = 0;
}

/* The rest of a block was filled up with the shift, which adds nothing to the sums; the counts are corrected. */
INLINE Block block_of(const Sums *s, int64_t n, int64_t padding, double shift, double min, double max) {
    int64_t positive = s->positive - (shift > 0 ? padding : 0), not_zero = s->not_zero - (shift != 0 ? padding : 0);
    return (Block){
        .negative = not_zero - positive,
        .zero = n - not_zero,
        .sum = _mm512_reduce_add_pd(_mm512_add_pd(s->sum[0], s->sum[1])),
        .squares = _mm512_reduce_add_pd(_mm512_add_pd(s->squares[0], s->squares[1])),
        .min = min,
        .max = max,
    };
}

/* Signs are compared as integers, which leaves the units for floats to the sums. */
INLINE void step_f32(Sums *s, __m512 *min, __m512 *max, __m512 v, __m512d shift) {
    const __m512i bits = _mm512_castps_si512(v);
    add_doubles(s, _mm512_cvtps_pd(_mm512_castps512_ps256(v)), _mm512_cvtps_pd(_mm512_extractf32x8_ps(v, 1)), shift);
    *min = _mm512_min_ps(v, *min);
    *max = _mm512_max_ps(v, *max);
    s->positive += _mm_popcnt_u32(_mm512_cmpgt_epi32_mask(bits, _mm512_setzero_si512()));
    s->not_zero += _mm_popcnt_u32(_mm512_test_epi32_mask(bits, _mm512_set1_epi32(0x7fffffff)));
}

ISA static void clean_f32(const float *x, int64_t n, float shift, Block *out) {
    const __m512 first = _mm512_set1_ps(shift);
    const __m512d wide_shift = _mm512_set1_pd(shift);
    __m512 min = first, max = first;
    Sums s;
    begin_sums(&s);
    int64_t i = 0, padding = 0;
    for (; i + 16 <= n; i += 16) {
        if (n > SMALL) PREFETCH(x + i);
        step_f32(&s, &min, &max, _mm512_loadu_ps(x + i), wide_shift);
    }
    if (i < n) {
        padding = 16 - (n - i);
        step_f32(&s, &min, &max, _mm512_mask_loadu_ps(first, (__mmask16)(0xffff >> padding), x + i), wide_shift);
    }
    *out = block_of(&s, n, padding, shift, _mm512_reduce_min_ps(min), _mm512_reduce_max_ps(max));
}

INLINE void step_f64(Sums *s, __m512d *min, __m512d *max, __m512d a, __m512d b, __m512d shift) {
    const __m512d nought = _mm512_setzero_pd();
    add_doubles(s, a, b, shift);
    *min = _mm512_min_pd(_mm512_min_pd(a, b), *min);
    *max = _mm512_max_pd(_mm512_max_pd(a, b), *max);
    s->positive += _mm_popcnt_u32(_mm512_cmp_pd_mask(a, nought, _CMP_GT_OQ));
    s->positive += _mm_popcnt_u32(_mm512_cmp_pd_mask(b, nought, _CMP_GT_OQ));
    s->not_zero += _mm_popcnt_u32(_mm512_cmp_pd_mask(a, nought, _CMP_NEQ_UQ));
    s->not_zero += _mm_popcnt_u32(_mm512_cmp_pd_mask(b, nought, _CMP_NEQ_UQ));
}

ISA static void clean_f64(const double *x, int64_t n, double shift, Block *out) {
    const __m512d first = _mm512_set1_pd(shift);
    __m512d min = first, max = first;
    Sums s;
    begin_sums(&s);
    int64_t i = 0, padding = 0;
    for (; i + 16 <= n; i += 16) {
        if (n > SMALL) PREFETCH(x + i);
        step_f64(&s, &min, &max, _mm512_loadu_pd(x + i), _mm512_loadu_pd(x + i + 8), first);
    }
    if (i < n) {
        padding = 16 - (n - i);
        const unsigned there = 0xffffu >> padding;
        step_f64(&s, &min, &max, _mm512_mask_loadu_pd(first, (__mmask8)there, x + i),
                 _mm512_mask_loadu_pd(first, (__mmask8)(there >> 8), x + i + 8), first);
    }
    *out = block_of(&s, n, padding, shift, _mm512_reduce_min_pd(min), _mm512_reduce_max_pd(max));
}

Isa isa_avx512(void) {
    Isa isa = isa_avx2;
    isa.name = "avx512";
    isa.clean_f32 = clean_f32;
    isa.clean_f64 = clean_f64;
    return isa;
}
#endif
