# shellcheck shell=bash
# How llama.cpp is built. The text of the recipe is hashed into the name of the build folder:
# a changed recipe builds anew, an unchanged one is found again.

# The programs and tests that `make run` and `make test` start.
llama_targets=(
    llama-cli llama-bench llama-server llama-completion llama-quantize llama-tokenize
    llama-fit-params
    test-backend-ops test-llama-archs test-save-load-state test-state-restore-fragmented
    test-recurrent-state-rollback test-thread-safety test-model-load-cancel
    test-backend-sampler
)

# Instruction sets. A build for this very CPU (GGML_NATIVE) would break a cache shared between
# machines, and none at all is several times slower: AVX2 where the CPU has it.
cpu_flags=()
if [ "$(uname -m)" = x86_64 ] && grep -qw avx2 /proc/cpuinfo && grep -qw fma /proc/cpuinfo &&
    grep -qw f16c /proc/cpuinfo && grep -qw bmi2 /proc/cpuinfo; then
    cpu_flags=(-DGGML_AVX=ON -DGGML_AVX2=ON -DGGML_FMA=ON -DGGML_F16C=ON -DGGML_BMI2=ON
        -DGGML_SSE42=ON)
fi

# GGML_BACKEND_DL loads backends at run time, ours among them. Run paths are relative to the
# file, so that the cache may be moved. The page of llama-server is built from llama.cpp's
# sources, not downloaded ready-made.
llama_flags=(
    -G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_BUILD_RPATH_USE_ORIGIN=ON
    -DBUILD_SHARED_LIBS=ON -DGGML_BACKEND_DL=ON -DGGML_NATIVE=OFF "${cpu_flags[@]}"
    -DLLAMA_BUILD_UI=ON -DLLAMA_USE_PREBUILT_UI=OFF -DLLAMA_OPENSSL=OFF
)

# ggml alone, instrumented. OpenMP is off: its runtime is not instrumented, so the thread
# sanitizer would report races that are none.
ggml_flags=(
    -G Ninja -DCMAKE_BUILD_TYPE=RelWithDebInfo -DCMAKE_BUILD_RPATH_USE_ORIGIN=ON
    -DBUILD_SHARED_LIBS=ON -DGGML_BACKEND_DL=ON -DGGML_NATIVE=OFF "${cpu_flags[@]}"
    -DGGML_OPENMP=OFF -DLLAMA_BUILD_COMMON=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_TOOLS=OFF
    -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_SERVER=OFF -DLLAMA_BUILD_APP=OFF
)

# sanitizer_flags asan|tsan
sanitizer_flags() {
    case $1 in
        asan) echo -DGGML_SANITIZE_ADDRESS=ON -DGGML_SANITIZE_UNDEFINED=ON ;;
        tsan) echo -DGGML_SANITIZE_THREAD=ON ;;
        *) die "unknown sanitizer '$1'" "use asan (address and undefined) or tsan (thread)" ;;
    esac
}

recipe_key() { printf '%s\n' "$(uname -m)" "$@" | text_key; }
