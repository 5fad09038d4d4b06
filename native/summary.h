/* Shared declarations of the kernel: what a block is, what an instruction set provides, what a call asks.
 *
 * Every tensor is cut into blocks. A block becomes contiguous floats (types of up to 24 significant bits) or
 * doubles (the others); complex numbers become their magnitudes. An instruction set supplies the loops over one
 * such block (struct Isa); the driver in summary.c chooses the blocks, repeats one when it holds special values,
 * and merges the results.
 */
#ifndef TENSORTAP_SUMMARY_H
#define TENSORTAP_SUMMARY_H

#include <stddef.h>
#include <stdint.h>

#define MAX_RANK 64
/* Elements in a block: large enough to hide the merge, small enough that a converted block stays in L1. */
#define BLOCK 2048
/* Those that are read where they lie, without conversion, can be longer: there is less to merge. */
#define LONG_BLOCK 8192
/* The first block is short: its shift is a single element, which may be an outlier. Around an element the sum of squares is
 * at most n + 1 times as large as around the mean, so up to SMALL elements the whole tensor is one block: that takes no
 * more than the last ten of 53 bits. */
#define FIRST_BLOCK 64
#define SMALL 1024
/* Elements from which the caller lets other Python threads run; below it the switch costs more than it frees. */
#define BIG 16384

/* The numbers are those of tensortap/ops/dtypes.py; the module refuses to load with another list. */
enum Dtype {
    BOOL, INT8, UINT8, INT16, UINT16, INT32, UINT32, INT64, UINT64, FLOAT16, BFLOAT16, FLOAT32, FLOAT64,
    COMPLEX32, BCOMPLEX32, COMPLEX64, COMPLEX128,
    TABLE, /* the first of the one-byte types that are looked up in a table */
    MAX_DTYPES = 48
};

/* What one pass over one block found. `sum` and `squares` are of (x - shift) over the finite elements. */
typedef struct {
    int64_t finite, nan, low, negative, zero, high;
    double sum, squares, min, max;
} Block;

typedef struct {
    const char *name;
    /* All elements finite and inside the bounds, or else the result is discarded: a special value shows in
     * `sum`, `squares`, `min` or `max`. Only sum, squares, min, max, negative and zero are set. */
    void (*clean_f32)(const float *x, int64_t n, float shift, Block *out);
    void (*clean_f64)(const double *x, int64_t n, double shift, Block *out);
    /* Any elements. `shift` must lie between the smallest and the largest finite element of the tensor, as it
     * takes the place of elements that are not finite. */
    void (*any_f32)(const float *x, int64_t n, float shift, float lower, float upper, Block *out);
    void (*any_f64)(const double *x, int64_t n, double shift, double lower, double upper, Block *out);
    /* Index of the first finite element, or n. */
    int64_t (*first_finite_f32)(const float *x, int64_t n);
    int64_t (*first_finite_f64)(const double *x, int64_t n);
    int64_t (*nans_f32)(const float *x, int64_t n);
    int64_t (*nans_f64)(const double *x, int64_t n);
    /* Widening conversions of n elements. */
    void (*to_f32)(enum Dtype dtype, const void *from, int64_t n, float *to);
    void (*to_f64)(enum Dtype dtype, const void *from, int64_t n, double *to);
} Isa;

extern const Isa isa_portable;
#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
#define HAVE_AVX2 1
extern const Isa isa_avx2;
#if defined(__clang__) || __GNUC__ >= 8 /* which can ask for a processor that is good at it */
#define HAVE_AVX512 1
Isa isa_avx512(void);
#endif
#endif

/* One tensor, and the walk over it. After `layout_normalise` dimensions are ordered from the largest stride to
 * the smallest, neighbours that form one run are merged, and broadcast dimensions became `repeat`. */
typedef struct {
    const char *data;
    int64_t itemsize;
    int rank;
    int64_t size[MAX_RANK];
    int64_t stride[MAX_RANK]; /* bytes */
    int64_t count;            /* elements to visit */
    double repeat;            /* how many times each of them occurs */
    int contiguous;
} Layout;

typedef struct {
    int64_t index[MAX_RANK];
    const char *at;
} Walk;

void layout_normalise(Layout *layout);
void walk_begin(Walk *walk, const Layout *layout);
/* Copy the next n elements to `to`. */
void walk_take(Walk *walk, const Layout *layout, int64_t n, void *to);

typedef struct {
    double elements, nan, low, negative, zero, positive, high, min, max, mean, variance;
} Summary;

int dtype_size(int dtype);       /* bytes of an element; 0 for a code that is not configured */
int dtype_is_integral(int dtype);
void dtype_set_table(int dtype, const float table[256]);
void summarise(const Isa *isa, int dtype, Layout *layout, double lower, double upper, Summary *out);
double count_nans(const Isa *isa, int dtype, Layout *layout);

#endif
