/* Strides: put the dimensions of a tensor in memory order, and walk what is not contiguous. */
#include <string.h>

#include "summary.h"

/* Most tensors lie in one piece, in the order of their dimensions; there is nothing to put in order then. */
static int is_in_one_piece(Layout *l) {
    int64_t count = 1;
    for (int i = l->rank - 1; i >= 0; i--) {
        if (l->size[i] != 1 && l->stride[i] != count * l->itemsize) return 0;
        count *= l->size[i];
    }
    if (count == 0) return 0;
    l->rank = 1;
    l->size[0] = l->count = count;
    l->stride[0] = l->itemsize;
    l->repeat = 1.0;
    l->contiguous = 1;
    return 1;
}

/* Statistics do not depend on the order of elements, so a transposed tensor is read in memory order. */
void layout_normalise(Layout *l) {
    int rank = 0;
    if (is_in_one_piece(l)) return;
    l->count = 1;
    l->repeat = 1.0;
    for (int i = 0; i < l->rank; i++) { /* first of all: the other sizes of an empty tensor can be anything */
        if (l->size[i] == 0) {
            l->count = 0;
            l->rank = 0;
            l->contiguous = 1;
            return;
        }
    }
    for (int i = 0; i < l->rank; i++) {
        int64_t size = l->size[i], stride = l->stride[i];
        if (size == 1) continue;
        if (stride == 0) {
            l->repeat *= (double)size;
            continue;
        }
        l->count *= size;
        if (stride < 0) {
            l->data += stride * (size - 1);
            stride = -stride;
        }
        int at = rank++;
        while (at > 0 && l->stride[at - 1] < stride) {
            l->size[at] = l->size[at - 1];
            l->stride[at] = l->stride[at - 1];
            at--;
        }
        l->size[at] = size;
        l->stride[at] = stride;
    }
    int merged = 0;
    for (int i = 0; i < rank; i++) {
        if (merged > 0 && l->stride[merged - 1] == l->stride[i] * l->size[i]) {
            l->size[merged - 1] *= l->size[i];
            l->stride[merged - 1] = l->stride[i];
        } else {
            l->size[merged] = l->size[i];
            l->stride[merged] = l->stride[i];
            merged++;
        }
    }
    l->rank = merged;
    l->contiguous = merged == 0 || (merged == 1 && l->stride[0] == l->itemsize);
}

void walk_begin(Walk *walk, const Layout *l) {
    for (int i = 0; i < l->rank; i++) walk->index[i] = 0;
    walk->at = l->data;
}

/* memcpy of a constant size is one load and one store, at any alignment. */
#define COPY_RUN(bytes)                                                  \
    for (int64_t i = 0; i < run; i++) memcpy(to + i * (bytes), at + i * stride, (bytes))

static void copy_run(char *to, const char *at, int64_t run, int64_t stride, int64_t itemsize) {
    if (stride == itemsize) {
        memcpy(to, at, (size_t)(run * itemsize));
        return;
    }
    switch (itemsize) {
    case 1: COPY_RUN(1); break;
    case 2: COPY_RUN(2); break;
    case 4: COPY_RUN(4); break;
    case 8: COPY_RUN(8); break;
    default: COPY_RUN(16); break;
    }
}

void walk_take(Walk *walk, const Layout *l, int64_t n, void *to) {
    char *out = to;
    int last = l->rank - 1;
    while (n > 0) {
        int64_t run = l->size[last] - walk->index[last];
        if (run > n) run = n;
        copy_run(out, walk->at, run, l->stride[last], l->itemsize);
        out += run * l->itemsize;
        n -= run;
        walk->at += run * l->stride[last];
        walk->index[last] += run;
        for (int d = last; d > 0 && walk->index[d] == l->size[d]; d--) {
            walk->at += l->stride[d - 1] - l->size[d] * l->stride[d];
            walk->index[d] = 0;
            walk->index[d - 1]++;
        }
    }
}
