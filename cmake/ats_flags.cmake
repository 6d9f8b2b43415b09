# How our own C is compiled. Linked by every target of ours and by nothing else.

add_library(ats_flags INTERFACE)
target_compile_definitions(ats_flags INTERFACE _GNU_SOURCE)
target_compile_options(ats_flags INTERFACE
    -Wall -Wextra -Werror -Wshadow -Wconversion -fno-omit-frame-pointer)
target_include_directories(ats_flags INTERFACE
    "${PROJECT_SOURCE_DIR}/src" "${PROJECT_SOURCE_DIR}/include")

set(ATS_SANITIZE "" CACHE STRING "sanitizers, as -fsanitize takes them")
if(ATS_SANITIZE)
    target_compile_options(ats_flags INTERFACE
        -fsanitize=${ATS_SANITIZE} -fno-sanitize-recover=all)
    target_link_options(ats_flags INTERFACE -fsanitize=${ATS_SANITIZE})
endif()
