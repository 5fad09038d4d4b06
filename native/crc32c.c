/* The Python module `tensortap.store._crc32c`: CRC-32C of values on their way to the disk and back.
 *
 * The crc32 instruction of SSE4.2 has a latency of three cycles and a throughput of one, so three stretches are
 * taken at once and joined afterwards. Elsewhere eight tables take eight bytes at a time.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdint.h>
#include <string.h>

#if defined(__x86_64__) && defined(__GNUC__)
#define HAVE_SSE42
#include <nmmintrin.h>
#endif

#define POLYNOMIAL 0x82f63b78u /* Castagnoli, reflected */
#define LONG 8192              /* bytes of each of three stretches, in large values */
#define SHORT 256              /* and in what is left of them */
#define RELEASED (64 << 10)    /* from so many bytes on, other threads may run meanwhile */

typedef uint32_t (*Update)(uint32_t crc, const unsigned char *data, size_t size);
typedef uint32_t Shift[4][256];

static uint32_t table[8][256];
#ifdef HAVE_SSE42
static Shift over_long, over_short;
#endif

/* ---- tables ---- */

static void make_table(void) {
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t crc = byte;
        for (int bit = 0; bit < 8; bit++) crc = crc & 1 ? (crc >> 1) ^ POLYNOMIAL : crc >> 1;
        table[0][byte] = crc;
    }
    for (int k = 1; k < 8; k++)
        for (int byte = 0; byte < 256; byte++)
            table[k][byte] = (table[k - 1][byte] >> 8) ^ table[0][table[k - 1][byte] & 0xff];
}

#ifdef HAVE_SSE42
/* What a CRC becomes when `zeros` zero bytes follow: linear, so one entry for each byte of it is enough. */
static void make_shift(Shift shift, size_t zeros) {
    for (int place = 0; place < 4; place++) {
        for (int bit = 0; bit < 8; bit++) {
            uint32_t crc = (uint32_t)1 << (8 * place + bit);
            for (size_t i = 0; i < zeros; i++) crc = (crc >> 8) ^ table[0][crc & 0xff];
            shift[place][1 << bit] = crc;
        }
        shift[place][0] = 0;
        for (int byte = 1; byte < 256; byte++) {
            int lowest = byte & -byte;
            shift[place][byte] = shift[place][byte ^ lowest] ^ shift[place][lowest];
        }
    }
}

static inline uint32_t shifted(Shift shift, uint32_t crc) {
    return shift[0][crc & 0xff] ^ shift[1][(crc >> 8) & 0xff] ^ shift[2][(crc >> 16) & 0xff] ^ shift[3][crc >> 24];
}
#endif

/* ---- the two ways ---- */

static uint32_t update_portable(uint32_t crc, const unsigned char *data, size_t size) {
    for (; size >= 8; data += 8, size -= 8) {
        /* Byte by byte, which compilers turn into one load where that is the same. */
        uint32_t low = crc ^ ((uint32_t)data[0] | (uint32_t)data[1] << 8 | (uint32_t)data[2] << 16 |
                              (uint32_t)data[3] << 24);
        crc = table[7][low & 0xff] ^ table[6][(low >> 8) & 0xff] ^ table[5][(low >> 16) & 0xff] ^
              table[4][low >> 24] ^ table[3][data[4]] ^ table[2][data[5]] ^ table[1][data[6]] ^ table[0][data[7]];
    }
    while (size--) crc = (crc >> 8) ^ table[0][(crc ^ *data++) & 0xff];
    return crc;
}

#ifdef HAVE_SSE42
static inline uint64_t word(const unsigned char *data) {
    uint64_t value;
    memcpy(&value, data, sizeof value);
    return value;
}

/* As many triples of stretches as there are; `data` and `size` move on. */
__attribute__((target("sse4.2"))) static inline uint32_t triples(uint32_t crc, const unsigned char **data,
                                                                 size_t *size, size_t stretch, Shift shift) {
    const unsigned char *at = *data;
    for (; *size >= 3 * stretch; *size -= 3 * stretch, at += 2 * stretch) {
        uint64_t a = crc, b = 0, c = 0;
        for (const unsigned char *end = at + stretch; at < end; at += 8) {
            a = _mm_crc32_u64(a, word(at));
            b = _mm_crc32_u64(b, word(at + stretch));
            c = _mm_crc32_u64(c, word(at + 2 * stretch));
        }
        crc = shifted(shift, shifted(shift, (uint32_t)a) ^ (uint32_t)b) ^ (uint32_t)c;
    }
    *data = at;
    return crc;
}

__attribute__((target("sse4.2"))) static uint32_t update_sse42(uint32_t crc, const unsigned char *data, size_t size) {
    crc = triples(crc, &data, &size, LONG, over_long);
    crc = triples(crc, &data, &size, SHORT, over_short);
    uint64_t wide = crc;
    for (; size >= 8; data += 8, size -= 8) wide = _mm_crc32_u64(wide, word(data));
    crc = (uint32_t)wide;
    while (size--) crc = _mm_crc32_u8(crc, *data++);
    return crc;
}
#endif

static Update update = update_portable;

static uint32_t crc32c(const unsigned char *data, size_t size) { return ~update(0xffffffffu, data, size); }

/* ---- Python ---- */

static PyObject *py_crc32c(PyObject *module, PyObject *value) {
    (void)module;
    Py_buffer buffer;
    if (PyObject_GetBuffer(value, &buffer, PyBUF_SIMPLE) < 0) return NULL;
    PyThreadState *released = buffer.len >= RELEASED ? PyEval_SaveThread() : NULL;
    uint32_t crc = crc32c(buffer.buf, (size_t)buffer.len);
    if (released) PyEval_RestoreThread(released);
    PyBuffer_Release(&buffer);
    return PyLong_FromUnsignedLong(crc);
}

/* Whether every stretch lies inside the memory. */
static int inside(const int64_t *offsets, const int64_t *sizes, Py_ssize_t count, Py_ssize_t memory) {
    for (Py_ssize_t i = 0; i < count; i++)
        if (offsets[i] < 0 || sizes[i] < 0 || offsets[i] > memory || sizes[i] > memory - offsets[i]) return 0;
    return 1;
}

static PyObject *py_each(PyObject *module, PyObject *args) {
    (void)module;
    Py_buffer memory, offsets, sizes, out;
    if (!PyArg_ParseTuple(args, "y*y*y*w*:each", &memory, &offsets, &sizes, &out)) return NULL;
    Py_ssize_t count = offsets.len / (Py_ssize_t)sizeof(int64_t);
    PyObject *result = NULL;
    if (sizes.len != offsets.len || out.len != count * (Py_ssize_t)sizeof(uint32_t)) {
        PyErr_SetString(PyExc_ValueError, "offsets and sizes are int64, out is uint32, all of the same length");
    } else if (!inside(offsets.buf, sizes.buf, count, memory.len)) {
        PyErr_SetString(PyExc_ValueError, "a stretch lies outside the memory");
    } else {
        const int64_t *from = offsets.buf, *long_ = sizes.buf;
        uint32_t *crc = out.buf;
        Py_BEGIN_ALLOW_THREADS
        for (Py_ssize_t i = 0; i < count; i++)
            crc[i] = crc32c((const unsigned char *)memory.buf + from[i], (size_t)long_[i]);
        Py_END_ALLOW_THREADS
        result = Py_NewRef(Py_None);
    }
    PyBuffer_Release(&memory);
    PyBuffer_Release(&offsets);
    PyBuffer_Release(&sizes);
    PyBuffer_Release(&out);
    return result;
}

static PyObject *py_isa(PyObject *module, PyObject *none) {
    (void)module, (void)none;
    return PyUnicode_FromString(update == update_portable ? "portable" : "sse4.2");
}

static PyObject *py_use_isa(PyObject *module, PyObject *name) {
    (void)module;
    if (PyUnicode_Check(name) && PyUnicode_CompareWithASCIIString(name, "portable") == 0) {
        update = update_portable;
        Py_RETURN_NONE;
    }
#ifdef HAVE_SSE42
    if (__builtin_cpu_supports("sse4.2") && PyUnicode_Check(name) &&
        PyUnicode_CompareWithASCIIString(name, "sse4.2") == 0) {
        update = update_sse42;
        Py_RETURN_NONE;
    }
#endif
    return PyErr_Format(PyExc_ValueError, "this processor and build have no instruction set %R", name);
}

static PyMethodDef methods[] = {
    {"crc32c", py_crc32c, METH_O, "crc32c(buffer)\n--\n\nThe CRC-32C of a buffer."},
    {"each", py_each, METH_VARARGS,
     "each(memory, offsets, sizes, out)\n--\n\nThe CRC-32C of every stretch of a buffer."},
    {"isa", py_isa, METH_NOARGS, "isa()\n--\n\nName of the instruction set in use."},
    {"use_isa", py_use_isa, METH_O, "use_isa(name)\n--\n\nUse another instruction set, for tests."},
    {NULL, NULL, 0, NULL},
};

static int module_exec(PyObject *module) {
    (void)module;
    make_table();
#ifdef HAVE_SSE42
    make_shift(over_long, LONG);
    make_shift(over_short, SHORT);
    if (__builtin_cpu_supports("sse4.2")) update = update_sse42;
#endif
    return 0;
}

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, (void *)module_exec},
#ifdef Py_GIL_DISABLED
    {Py_mod_gil, Py_MOD_GIL_NOT_USED},
#endif
    {0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_crc32c", "CRC-32C of memory.", 0, methods, slots, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__crc32c(void) { return PyModuleDef_Init(&definition); }
