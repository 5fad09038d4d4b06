/* The Python module `tensortap.ops._kernel`; its functions are described in _kernel.pyi.
 *
 * Tensors arrive as an address with dtype code, shape and strides: no type of any framework is known here.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <math.h>
#include <string.h>

#include "pill.h"
#include "summary.h"

#ifdef HAVE_AVX2
#include <cpuid.h>
#endif

static const Isa *active = &isa_portable;
static double numbers[MAX_DTYPES]; /* of the DataType enum, by dtype code */

#define MAX_ISAS 3

#ifdef HAVE_AVX2
static int cpu_has_avx2(void) {
    unsigned a, b, c = 0, d;
    const unsigned f16c = 1u << 29;
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __get_cpuid(1, &a, &b, &c, &d) &&
           (c & f16c);
}
#endif

/* Those that this processor has, the best one last; how many there are. */
static int find_isas(const Isa **found) {
    int count = 0;
    found[count++] = &isa_portable;
#ifdef HAVE_AVX2
    if (!cpu_has_avx2()) return count;
    found[count++] = &isa_avx2;
#endif
#ifdef HAVE_AVX512
    static Isa wide;
    /* VBMI2 came with the processors whose clock does not suffer. */
    if (!__builtin_cpu_supports("avx512dq") || !__builtin_cpu_supports("avx512vl") ||
        !__builtin_cpu_supports("avx512vbmi2") || !__builtin_cpu_supports("popcnt")) {
        return count;
    }
    wide = isa_avx512();
    found[count++] = &wide;
#endif
    return count;
}

/* ---- arguments ---- */

static int read_int64(PyObject *value, int64_t *out) {
    *out = PyLong_AsLongLong(value);
    return *out == -1 && PyErr_Occurred() ? -1 : 0;
}

/* Address, dtype code, shape and strides in elements, which every function takes first. */
static int read_tensor(PyObject *const *args, Layout *l, int *dtype) {
    void *address = PyLong_AsVoidPtr(args[0]);
    if (address == NULL && PyErr_Occurred()) return -1;
    int64_t code;
    if (read_int64(args[1], &code) < 0) return -1;
    int itemsize = code < 0 || code >= MAX_DTYPES ? 0 : dtype_size((int)code);
    if (itemsize == 0) {
        PyErr_Format(PyExc_ValueError, "%lld is not the code of a dtype", (long long)code);
        return -1;
    }
    if (!PyTuple_Check(args[2]) || !PyTuple_Check(args[3])) {
        PyErr_SetString(PyExc_TypeError, "shape and strides must be tuples of integers");
        return -1;
    }
    Py_ssize_t rank = PyTuple_Size(args[2]);
    if (rank != PyTuple_Size(args[3]) || rank > MAX_RANK) {
        PyErr_Format(PyExc_ValueError, "shape has %zd entries and strides %zd; at most %d, and as many",
                     rank, PyTuple_Size(args[3]), MAX_RANK);
        return -1;
    }
    l->data = address;
    l->itemsize = itemsize;
    l->rank = (int)rank;
    *dtype = (int)code;
    for (Py_ssize_t i = 0; i < rank; i++) {
        int64_t stride;
        if (read_int64(PyTuple_GetItem(args[2], i), &l->size[i]) < 0) return -1;
        if (read_int64(PyTuple_GetItem(args[3], i), &stride) < 0) return -1;
        if (l->size[i] < 0) {
            PyErr_Format(PyExc_ValueError, "dimension %zd has the size %lld", i, (long long)l->size[i]);
            return -1;
        }
        l->stride[i] = (int64_t)((uint64_t)stride * (uint64_t)itemsize); /* an empty tensor may have any strides */
    }
    return 0;
}

static double product(const Layout *l) {
    double count = 1;
    for (int i = 0; i < l->rank; i++) count *= (double)l->size[i];
    return count;
}

/* A tensor that should have elements but has no memory. */
static int is_uninitialised(const Layout *l) { return l->data == NULL && product(l) > 0; }

/* ---- functions ---- */

/* Give the row to `out`: None makes bytes, an integer is an address, anything else is a writable buffer. */
static PyObject *deliver(const double *row, int slots, PyObject *out) {
    Py_ssize_t size = slots * (Py_ssize_t)sizeof(double);
    if (out == Py_None) return PyBytes_FromStringAndSize((const char *)row, size);
    if (PyLong_Check(out)) {
        void *address = PyLong_AsVoidPtr(out);
        if (address == NULL) {
            if (!PyErr_Occurred()) PyErr_SetString(PyExc_ValueError, "out is the null address");
            return NULL;
        }
        memcpy(address, row, (size_t)size);
    } else {
        Py_buffer buffer;
        if (PyObject_GetBuffer(out, &buffer, PyBUF_WRITABLE) < 0) return NULL;
        if (buffer.len < size) {
            PyErr_Format(PyExc_ValueError, "out holds %zd bytes, the summary needs %zd", buffer.len, size);
            PyBuffer_Release(&buffer);
            return NULL;
        }
        memcpy(buffer.buf, row, (size_t)size);
        PyBuffer_Release(&buffer);
    }
    Py_RETURN_NONE;
}

static int fill_row(Layout *l, int dtype, double lower, double upper, double *row) {
    Summary s = {.min = INFINITY, .max = -INFINITY, .mean = NAN, .variance = NAN};
    int rank = l->rank, initialised = !is_uninitialised(l);
    for (int i = 0; i < rank; i++) row[PILL_SIZE + i] = (double)l->size[i]; /* summarising joins dimensions */
    if (initialised) summarise(active, dtype, l, lower, upper, &s);
    row[PILL_INITIALIZED] = initialised;
    row[PILL_ELEMENTS] = s.elements;
    row[PILL_NAN] = s.nan;
    row[PILL_NEG_INF] = s.low;
    row[PILL_NEGATIVE] = s.negative;
    row[PILL_ZERO] = s.zero;
    row[PILL_POSITIVE] = s.positive;
    row[PILL_POS_INF] = s.high;
    row[PILL_MIN] = s.min;
    row[PILL_MAX] = s.max;
    row[PILL_MEAN] = s.mean;
    row[PILL_VARIANCE] = s.variance;
    row[PILL_DTYPE] = numbers[dtype];
    row[PILL_RANK] = rank;
    return PILL_SIZE + rank;
}

/* For callers that are not Python: the same with plain C arguments. They have checked dtype and rank. */
static void summary_row(const void *data, int dtype, int rank, const int64_t *sizes, const int64_t *strides,
                        double lower, double upper, double *row) {
    Layout l;
    l.data = data;
    l.itemsize = dtype_size(dtype);
    l.rank = rank;
    for (int i = 0; i < rank; i++) {
        l.size[i] = sizes[i];
        l.stride[i] = strides[i] * l.itemsize;
    }
    fill_row(&l, dtype, lower, upper, row);
}

static PyObject *py_summary_address(PyObject *module, PyObject *none) {
    (void)module, (void)none;
    return PyLong_FromVoidPtr((void *)(uintptr_t)summary_row);
}

static PyObject *py_summary(PyObject *module, PyObject *const *args, Py_ssize_t nargs) {
    (void)module;
    Layout layout;
    double row[PILL_SIZE + MAX_RANK];
    int dtype;
    if (nargs != 7) {
        PyErr_Format(PyExc_TypeError, "summary takes 7 arguments, got %zd", nargs);
        return NULL;
    }
    if (read_tensor(args, &layout, &dtype) < 0) return NULL;
    double lower = PyFloat_AsDouble(args[4]), upper = PyFloat_AsDouble(args[5]);
    if ((lower == -1.0 || upper == -1.0) && PyErr_Occurred()) return NULL;

    int release = product(&layout) >= BIG;
    PyThreadState *released = release ? PyEval_SaveThread() : NULL;
    int slots = fill_row(&layout, dtype, lower, upper, row);
    if (release) PyEval_RestoreThread(released);
    return deliver(row, slots, args[6]);
}

static PyObject *py_nan_count(PyObject *module, PyObject *const *args, Py_ssize_t nargs) {
    (void)module;
    Layout layout;
    int dtype;
    double count = 0;
    if (nargs != 4) {
        PyErr_Format(PyExc_TypeError, "nan_count takes 4 arguments, got %zd", nargs);
        return NULL;
    }
    if (read_tensor(args, &layout, &dtype) < 0) return NULL;
    if (!is_uninitialised(&layout)) {
        if (product(&layout) >= BIG) {
            Py_BEGIN_ALLOW_THREADS
            count = count_nans(active, dtype, &layout);
            Py_END_ALLOW_THREADS
        } else {
            count = count_nans(active, dtype, &layout);
        }
    }
    return PyLong_FromDouble(count);
}

static PyObject *py_configure(PyObject *module, PyObject *args) {
    (void)module;
    int dtype, number;
    PyObject *table;
    if (!PyArg_ParseTuple(args, "iiO:configure", &dtype, &number, &table)) return NULL;
    if (dtype < 0 || dtype >= MAX_DTYPES || (dtype < TABLE) != (table == Py_None)) {
        PyErr_Format(PyExc_ValueError, "codes below %d have no table, codes from there to %d have one; got %d",
                     (int)TABLE, (int)MAX_DTYPES - 1, dtype);
        return NULL;
    }
    if (table != Py_None) {
        char *data;
        Py_ssize_t size;
        float values[256];
        if (PyBytes_AsStringAndSize(table, &data, &size) < 0) return NULL;
        if (size != (Py_ssize_t)sizeof values) {
            PyErr_Format(PyExc_ValueError, "a table has 256 float32, not %zd bytes", size);
            return NULL;
        }
        memcpy(values, data, sizeof values);
        dtype_set_table(dtype, values);
    }
    numbers[dtype] = number;
    Py_RETURN_NONE;
}

static PyObject *py_isa(PyObject *module, PyObject *none) {
    (void)module, (void)none;
    return PyUnicode_FromString(active->name);
}

static PyObject *py_isas(PyObject *module, PyObject *none) {
    (void)module, (void)none;
    const Isa *found[MAX_ISAS];
    const int count = find_isas(found);
    PyObject *names = PyTuple_New(count);
    for (int i = 0; names != NULL && i < count; i++) {
        PyObject *name = PyUnicode_FromString(found[i]->name);
        if (name == NULL || PyTuple_SetItem(names, i, name) < 0) Py_CLEAR(names);
    }
    return names;
}

static PyObject *py_use_isa(PyObject *module, PyObject *name) {
    (void)module;
    const Isa *found[MAX_ISAS];
    for (int i = 0, count = find_isas(found); PyUnicode_Check(name) && i < count; i++) {
        if (PyUnicode_CompareWithASCIIString(name, found[i]->name) != 0) continue;
        active = found[i];
        Py_RETURN_NONE;
    }
    return PyErr_Format(PyExc_ValueError, "this processor and build have no instruction set %R", name);
}

static PyMethodDef methods[] = {
    {"summary", (PyCFunction)(void (*)(void))py_summary, METH_FASTCALL,
     "summary(address, code, shape, strides, lower, upper, out)\n--\n\nThe numeric summary of a tensor."},
    {"summary_address", py_summary_address, METH_NOARGS,
     "summary_address()\n--\n\nThe address of `summary` for callers in C."},
    {"nan_count", (PyCFunction)(void (*)(void))py_nan_count, METH_FASTCALL,
     "nan_count(address, code, shape, strides)\n--\n\nThe number of NaN elements."},
    {"configure", py_configure, METH_VARARGS,
     "configure(code, number, table)\n--\n\nMake a dtype known: its number in slot 12, its values."},
    {"isa", py_isa, METH_NOARGS, "isa()\n--\n\nName of the instruction set in use."},
    {"isas", py_isas, METH_NOARGS, "isas()\n--\n\nNames of those that this processor and build have, the best one last."},
    {"use_isa", py_use_isa, METH_O, "use_isa(name)\n--\n\nUse another instruction set, for tests."},
    {NULL, NULL, 0, NULL},
};

static int module_exec(PyObject *module) {
    const Isa *found[MAX_ISAS];
    active = found[find_isas(found) - 1];
    return PyModule_AddIntConstant(module, "TABLE", TABLE);
}

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, (void *)module_exec},
#ifdef Py_GIL_DISABLED
    {Py_mod_gil, Py_MOD_GIL_NOT_USED},
#endif
    {0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_kernel", "One-pass numeric summaries of tensors in memory.", 0, methods, slots,
    NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__kernel(void) { return PyModuleDef_Init(&definition); }
