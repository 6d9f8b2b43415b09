# llama.cpp as something to compile against: its ggml's headers and libraries.
#
#   ATS_LLAMA_SRC  the checkout       (ggml's headers, internal ones included)
#   ATS_LLAMA_BIN  its build's bin/   (programs and shared libraries)
#
# Both come from -D or from the environment; scripts/setup/env.sh prints them.

foreach(name ATS_LLAMA_SRC ATS_LLAMA_BIN)
    set(${name} "$ENV{${name}}" CACHE PATH "llama.cpp, see cmake/ats_llama.cmake")
    if(NOT ${name})
        message(FATAL_ERROR
            "${name} is not set. Run scripts/setup/setup.sh once, then configure through "
            "`make build`, or after `eval \"$(scripts/setup/env.sh)\"`.")
    endif()
endforeach()

if(NOT EXISTS "${ATS_LLAMA_SRC}/ggml/src/ggml-backend-impl.h")
    message(FATAL_ERROR "ATS_LLAMA_SRC=${ATS_LLAMA_SRC} is not a llama.cpp checkout")
endif()

# The version of its ggml, whose struct layouts we are compiled with.
file(STRINGS "${ATS_LLAMA_SRC}/ggml/CMakeLists.txt" lines REGEX "^set\\(GGML_VERSION_(MAJOR|MINOR|PATCH) [0-9]+\\)")
string(REGEX REPLACE "set\\(GGML_VERSION_[A-Z]+ ([0-9]+)\\)" "\\1" lines "${lines}")
list(JOIN lines "." ATS_GGML_VERSION)
if(NOT ATS_GGML_VERSION MATCHES "^[0-9]+\\.[0-9]+\\.[0-9]+$")
    message(FATAL_ERROR "no ggml version in ${ATS_LLAMA_SRC}/ggml/CMakeLists.txt")
endif()

# Headers only. What runs inside another program must not link to a ggml of its own: it binds to
# the one that is already in the process.
add_library(ats_ggml_headers INTERFACE)
target_compile_definitions(ats_ggml_headers INTERFACE ATS_GGML_VERSION="${ATS_GGML_VERSION}")
target_include_directories(ats_ggml_headers SYSTEM INTERFACE
    "${ATS_LLAMA_SRC}/ggml/include" "${ATS_LLAMA_SRC}/ggml/src")

# Libraries, for our own programs and tests.
foreach(name ggml ggml-base)
    set(library "${ATS_LLAMA_BIN}/lib${name}.so")
    if(NOT EXISTS "${library}")
        message(FATAL_ERROR
            "${library} does not exist: ATS_LLAMA_BIN must hold a build with BUILD_SHARED_LIBS=ON")
    endif()
    add_library(${name} SHARED IMPORTED)
    set_target_properties(${name} PROPERTIES IMPORTED_LOCATION "${library}")
    target_link_libraries(${name} INTERFACE ats_ggml_headers)
endforeach()
target_link_libraries(ggml INTERFACE ggml-base)
