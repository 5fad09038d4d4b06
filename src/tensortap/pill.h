/* The layout of a health pill and what is bad about one, for C and C++.
 *
 * `tensortap/pill.py` says the same in Python and explains it; tests/test_pill.py compares the two.
 */
#ifndef TENSORTAP_PILL_H
#define TENSORTAP_PILL_H

/* Where each number stands; the sizes of the dimensions follow from PILL_SIZE on. */
enum PillColumn {
    PILL_INITIALIZED,
    PILL_ELEMENTS,
    PILL_NAN,
    PILL_NEG_INF,
    PILL_NEGATIVE,
    PILL_ZERO,
    PILL_POSITIVE,
    PILL_POS_INF,
    PILL_MIN,
    PILL_MAX,
    PILL_MEAN,
    PILL_VARIANCE,
    PILL_DTYPE,
    PILL_RANK,
    PILL_SIZE
};

/* Kinds of bad values, as bits. */
enum PillKind { KIND_NAN = 1, KIND_NEG_INF = 2, KIND_POS_INF = 4 };

static inline int pill_kinds(const double *pill) {
    return (pill[PILL_NAN] != 0 ? KIND_NAN : 0) | (pill[PILL_NEG_INF] != 0 ? KIND_NEG_INF : 0) |
           (pill[PILL_POS_INF] != 0 ? KIND_POS_INF : 0);
}

/* Was looked at, and nothing bad was found. */
static inline int pill_is_healthy(const double *pill) {
    return pill[PILL_INITIALIZED] != 0 && pill_kinds(pill) == 0;
}

#endif
