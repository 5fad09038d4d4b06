#!/usr/bin/env bash
# Runs the native code under the compiler's sanitizers and says what they found.
#
#   bash tools/sanitize.sh                  everything, about a quarter of an hour
#   bash tools/sanitize.sh kernel hostile   some of it
#
#   warnings   compiles the kernel (native/*.c) and the observer (engines/torch/observer) with all warnings
#   kernel     the kernel under ASan and UBSan: exact-sized memory of every dtype and layout, then tests/ops
#   threads    the kernel under TSan: many threads summarise the same memory
#   observer   the observer under ASan and UBSan: every program of the zoo, then the contract tests
#   hostile    the observer under ASan and UBSan: programs that are out to break it, each in a process of its own
#
# Needs gcc and g++ (CC, CXX) with their sanitizer libraries, and the development environment (`make test`
# makes it; PYTHON names another interpreter). Sanitized copies are built in a temporary directory: neither the
# libraries of this tree nor the user's cache are touched. The directory is kept if something was found.
#
# PyTorch and Python are not instrumented, so a report is about our code or about memory that it handed over:
#   detect_leaks=0          both keep memory until the process ends
#   detect_odr_violation=0  libraries of PyTorch define the same symbols
#   alloc_dealloc_mismatch=0  they also free across their own allocators
#   allocator_may_return_null=1  there are tests of memory that cannot be had
#   PYTHONMALLOC=malloc     every object in memory of its own, so that a use after its end is seen
# libstdc++ is loaded first, as the sanitizer looks for its exceptions before PyTorch has brought it.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
python=${PYTHON:-$root/.venv/bin/python}
cc=${CC:-gcc} cxx=${CXX:-g++}
steps=("$@")
if [ ${#steps[@]} -eq 0 ]; then steps=(warnings kernel threads observer hostile); fi
for step in "${steps[@]}"; do
    case $step in
    warnings | kernel | threads | observer | hostile) ;;
    *) sed -n '2,/^set /{/^set /!s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"; exit 2 ;;
    esac
done
for tool in "$cc" "$cxx" "$python"; do
    command -v "$tool" >/dev/null || { echo "$tool was not found; see the head of $0."; exit 2; }
done
for library in libasan.so libubsan.so; do
    [ -e "$("$cc" -print-file-name=$library)" ] || { echo "$cc has no $library: install its sanitizers."; exit 2; }
done

work=$(mktemp -d "${TMPDIR:-/tmp}/tensortap-sanitize.XXXXXX")
mkdir "$work/logs"
include=$("$python" -c 'import sysconfig; print(sysconfig.get_paths()["include"])')
sanitize=(-O1 -g -fno-omit-frame-pointer -fsanitize=address,undefined)
kernel_flags=(-std=c11 -fno-math-errno -ffp-contract=off -fvisibility=hidden -fPIC -DPy_LIMITED_API=0x030B0000
    -I"$root/src/tensortap") # for pill.h
failures=()

has() { [[ " ${steps[*]} " == *" $1 "* ]]; }

# check NAME COMMAND... : runs it, keeps what it says, and looks for reports in that.
check() {
    local name=$1 log="$work/logs/$1.log" code=0 reports
    shift
    printf '  %-50s' "$name"
    { timeout --foreground -k 10 "${LIMIT:-1800}" "$@" </dev/null >"$log" 2>&1 || code=$?; } 2>/dev/null
    # Of each report what it is, and the first frame in our code.
    reports=$(grep -E 'ERROR: AddressSanitizer:|WARNING: ThreadSanitizer|runtime error:|Assertion .* failed' "$log" | sort | uniq -c | head -20 || true)
    if [ $code -eq 0 ] && [ -z "$reports" ]; then
        echo "clean"
        return
    fi
    failures+=("$name")
    if [ $code -eq 124 ]; then echo "HANGS"; elif [ -n "$reports" ]; then echo "REPORTS"; else echo "FAILED (exit code $code)"; fi
    if [ -n "$reports" ]; then
        sed 's/^/      /' <<<"$reports" | cut -c1-200
        grep -E '^ +#[0-9]+ .*([ /]native/[a-z0-9]+\.(c|inc|cpp|h)|'"$work"')' "$log" | head -4 | cut -c1-200 | sed 's/^/    /' || true
    else
        { grep -E '(error|Error|FAILED)[: ]' "$log" || tail -5 "$log"; } | sort -u | head -8 | cut -c1-200 | sed 's/^/      /' || true
    fi
}

# In front of a command: the sanitized libraries in place of the real ones.
sanitized=(
    env LD_PRELOAD="$("$cc" -print-file-name=libasan.so) $("$cc" -print-file-name=libubsan.so) $("$cxx" -print-file-name=libstdc++.so.6)"
    ASAN_OPTIONS=detect_leaks=0:detect_odr_violation=0:alloc_dealloc_mismatch=0:allocator_may_return_null=1
    UBSAN_OPTIONS=print_stacktrace=1 PYTHONMALLOC=malloc PYTHONPATH="$work/tree/src:$work/tree"
    OMP_NUM_THREADS=1 TENSORTAP_CACHE_DIR="$work/cache" TENSORTAP_INTERCEPTOR=native
)

echo "Sanitized copies are built in $work."
mkdir "$work/tree" "$work/cache"
cp -r "$root/src" "$root/tests" "$root/pyproject.toml" "$work/tree"
cp "$root/tools/sanitize.py" "$work/tree"
rm -f "$work"/tree/src/tensortap/ops/_kernel*.so
(cd "$root" && "$cc" "${kernel_flags[@]}" "${sanitize[@]}" -shared -I"$include" native/*.c -lm \
    -o "$work/tree/src/tensortap/ops/_kernel.abi3.so")
cd "$work/tree"

if has warnings; then
    echo "Warnings of the compiler (-Wall -Wextra -Wconversion -Wshadow, as errors):"
    strict=(-O2 -Wall -Wextra -Wconversion -Wshadow -Werror -fsyntax-only)
    for source in "$root"/native/*.c; do
        check "warnings-$(basename "$source")" "$cc" "${kernel_flags[@]}" "${strict[@]}" -isystem "$include" "$source"
    done
    # The headers of torch are not ours to correct.
    mapfile -t command < <(PYTHONPATH="$work/tree/src" "$python" -c '
from tensortap.engines.torch.observer.build import RECIPE, SOURCE
print("\n".join(part.replace("-I", "-isystem", 1) if part.startswith("-I") else part for part in RECIPE.command(SOURCE)))')
    [ ${#command[@]} -gt 0 ] || { echo "There is no command to compile the observer with."; exit 2; }
    check "warnings-observer" "${command[@]}" "${strict[@]}"
fi

if has kernel; then
    echo "The kernel, with ASan and UBSan:"
    check kernel-exact-memory "${sanitized[@]}" "$python" sanitize.py kernel
    check kernel-tests "${sanitized[@]}" "$python" -m pytest -p no:cacheprovider --capture=sys -o timeout=0 tests/ops \
        --ignore tests/ops/test_tensorflow.py --deselect tests/ops/test_kernel.py::test_a_large_summary_is_fast
fi

if has threads; then
    echo "The kernel, with TSan:"
    cat >"$work/threads.c" <<'C'
#include <math.h>
#include <pthread.h>
#include <stdio.h>

#include "summary.h"

static float data[100000];

static void *work(void *isa) {
    for (int i = 0; i < 50; i++) {
        Layout l = {.data = (const char *)data, .itemsize = 4, .rank = 2, .size = {300, 300}, .stride = {4, 1204}};
        Summary s;
        summarise(isa, FLOAT32, &l, -1, 1, &s);
        Layout again = {.data = (const char *)data, .itemsize = 4, .rank = 1, .size = {100000}, .stride = {4}};
        if (s.elements != 90000 || count_nans(isa, FLOAT32, &again) != 1) printf("wrong\n");
    }
    return NULL;
}

int main(void) {
    pthread_t threads[8];
    data[77777] = NAN;
    for (int i = 0; i < 8; i++) {
        const Isa *isa = &isa_portable;
#ifdef HAVE_AVX2
        if (i % 2 && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) isa = &isa_avx2;
#endif
        pthread_create(&threads[i], NULL, work, (void *)isa);
    }
    for (int i = 0; i < 8; i++) pthread_join(threads[i], NULL);
    return 0;
}
C
    "$cc" -std=gnu11 -O1 -g -fsanitize=thread -I"$root/native" "$work/threads.c" \
        "$root"/native/{avx2,layout,portable,summary}.c -lm -lpthread -o "$work/threads"
    # Addresses as they are without randomisation: some kernels place memory where this sanitizer does not expect it.
    fixed=(); if setarch -R true 2>/dev/null; then fixed=(setarch -R); fi
    check kernel-threads "${fixed[@]}" "$work/threads"
fi

if has observer || has hostile; then
    echo "Building the observer with ASan and UBSan (about a minute) ..."
    # Appended, so that they win over the flags of the build. The assertions find a bad index into a vector that
    # has room to spare, where ASan sees nothing.
    printf '#!/bin/sh\nexec %q "$@" -D_GLIBCXX_ASSERTIONS %s\n' "$(command -v "$cxx")" "${sanitize[*]}" >"$work/c++"
    chmod +x "$work/c++"
    CXX="$work/c++" TENSORTAP_CACHE_DIR="$work/cache" PYTHONPATH="$work/tree/src" "$python" -c '
from tensortap.engines.torch.observer.build import ensure_built
ensure_built()' 2>"$work/logs/build.log" || { cat "$work/logs/build.log"; exit 2; }
fi

if has observer; then
    echo "The observer, with ASan and UBSan:"
    check observer-zoo "${sanitized[@]}" "$python" sanitize.py zoo
    check observer-tests "${sanitized[@]}" "$python" -m pytest -p no:cacheprovider --capture=sys -o timeout=0 -k native \
        tests/torch_engine/test_capture.py tests/torch_engine/test_faults.py tests/torch_engine/test_watching.py
    check guarded-calls "${sanitized[@]}" "$python" -m pytest -p no:cacheprovider --capture=sys -o timeout=0 tests/torch_engine/test_guarded_calls.py
fi

if has hostile; then
    echo "The observer, with ASan and UBSan, and programs that are out to break it:"
    for name in $("$python" sanitize.py list); do
        LIMIT=180 check "hostile-$name" "${sanitized[@]}" "$python" sanitize.py "$name"
    done
fi

echo
if [ ${#failures[@]} -eq 0 ]; then
    rm -rf "$work"
    echo "CLEAN: no sanitizer reported anything (${steps[*]})."
else
    echo "FOUND: ${#failures[@]} did not pass: ${failures[*]}"
    echo "Their whole output is in $work/logs; remove $work when you have read it."
    exit 1
fi
