/* The loops in portable C. Eight independent lanes leave the compiler free to use what the target has
 * (SSE2, NEON) without changing the order of additions. */
#include <math.h>
#include <string.h>

#include "summary.h"

#define ISA
#define LANES 8

/* Shifting the bits into place leaves the exponent 112 too small, also for denormals: one product repairs
 * both. Infinity and NaN are put right afterwards. */
static void half_to_float(const uint16_t *from, int64_t n, float *to) {
    for (int64_t i = 0; i < n; i++) {
        uint32_t magnitude = from[i] & 0x7fffu, sign = (uint32_t)(from[i] & 0x8000u) << 16;
        uint32_t bits = magnitude << 13;
        float value;
        memcpy(&value, &bits, sizeof bits);
        value *= 0x1p112f;
        memcpy(&bits, &value, sizeof bits);
        bits = (magnitude >= 0x7c00u ? 0x7f800000u | (magnitude & 0x3ffu) << 13 : bits) | sign;
        memcpy(to + i, &bits, sizeof bits);
    }
}

#include "convert.inc"

/* The loops for one element type T. `bits` counts in integers as wide as T. */
#define DEFINE_LOOPS(T, suffix, bits)                                                                          \
    static void clean_##suffix(const T *x, int64_t n, T shift, Block *out) {                                   \
        double sum[LANES] = {0}, squares[LANES] = {0};                                                         \
        T low[LANES], high[LANES];                                                                             \
        bits negative[LANES] = {0}, zero[LANES] = {0};                                                         \
        for (int j = 0; j < LANES; j++) low[j] = high[j] = shift;                                              \
        int64_t i = 0;                                                                                         \
        for (; i + LANES <= n; i += LANES) {                                                                   \
            for (int j = 0; j < LANES; j++) {                                                                  \
                double d = (double)x[i + j] - (double)shift;                                                   \
                sum[j] += d;                                                                                   \
                squares[j] += d * d;                                                                           \
            }                                                                                                  \
            for (int j = 0; j < LANES; j++) low[j] = x[i + j] < low[j] ? x[i + j] : low[j];                    \
            for (int j = 0; j < LANES; j++) high[j] = x[i + j] > high[j] ? x[i + j] : high[j];                 \
            for (int j = 0; j < LANES; j++) negative[j] += x[i + j] < 0;                                       \
            for (int j = 0; j < LANES; j++) zero[j] += x[i + j] == 0;                                          \
        }                                                                                                      \
        for (int j = 0; i < n; i++, j++) {                                                                     \
            double d = (double)x[i] - (double)shift;                                                           \
            sum[j] += d;                                                                                       \
            squares[j] += d * d;                                                                               \
            low[j] = x[i] < low[j] ? x[i] : low[j];                                                            \
            high[j] = x[i] > high[j] ? x[i] : high[j];                                                         \
            negative[j] += x[i] < 0;                                                                           \
            zero[j] += x[i] == 0;                                                                              \
        }                                                                                                      \
        *out = (Block){.min = low[0], .max = high[0]};                                                         \
        for (int j = 0; j < LANES; j++) {                                                                      \
            out->sum += sum[j];                                                                                \
            out->squares += squares[j];                                                                        \
            out->min = low[j] < out->min ? low[j] : out->min;                                                  \
            out->max = high[j] > out->max ? high[j] : out->max;                                                \
            out->negative += negative[j];                                                                      \
            out->zero += zero[j];                                                                              \
        }                                                                                                      \
    }                                                                                                          \
                                                                                                               \
    static void any_##suffix(const T *x, int64_t n, T shift, T lower, T upper, Block *out) {                   \
        double sum = 0, squares = 0;                                                                           \
        T min = shift, max = shift;                                                                            \
        bits finite = 0, nan = 0, low = 0, negative = 0, zero = 0, high = 0;                                   \
        for (int64_t i = 0; i < n; i++) {                                                                      \
            T v = x[i];                                                                                        \
            int is_finite = v - v == 0, is_low = v <= lower, is_high = !is_low & (v >= upper);                 \
            int inside = !(is_low | is_high);                                                                  \
            finite += is_finite;                                                                               \
            nan += v != v;                                                                                     \
            low += is_low;                                                                                     \
            high += is_high;                                                                                   \
            negative += inside & (v < 0);                                                                      \
            zero += inside & (v == 0);                                                                         \
            v = is_finite ? v : shift;                                                                         \
            min = v < min ? v : min;                                                                           \
            max = v > max ? v : max;                                                                           \
            double d = (double)v - (double)shift;                                                              \
            sum += d;                                                                                          \
            squares += d * d;                                                                                  \
        }                                                                                                      \
        *out = (Block){finite, nan, low, negative, zero, high, sum, squares, (double)min, (double)max};        \
    }                                                                                                          \
                                                                                                               \
    static int64_t first_finite_##suffix(const T *x, int64_t n) {                                              \
        int64_t i = 0;                                                                                         \
        while (i < n && x[i] - x[i] != 0) i++;                                                                 \
        return i;                                                                                              \
    }

DEFINE_LOOPS(float, f32, int32_t)
DEFINE_LOOPS(double, f64, int64_t)

const Isa isa_portable = {
    "portable", clean_f32, clean_f64, any_f32, any_f64, first_finite_f32, first_finite_f64,
    nans_f32, nans_f64, to_f32, to_f64,
};
