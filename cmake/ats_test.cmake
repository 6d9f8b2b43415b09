# ats_add_unit_test(NAME SOURCE...): a cmocka program that sees everything of ours from the
# inside, registered with ctest under the label "unit". ggml is that of ATS_LLAMA_BIN, whose
# backends it finds by GGML_BACKEND_DIR-free loading: it runs in that folder.

find_package(PkgConfig REQUIRED)
pkg_check_modules(CMOCKA REQUIRED IMPORTED_TARGET cmocka)

function(ats_add_unit_test name)
    add_executable(${name} ${ARGN})
    target_link_libraries(${name} PRIVATE
        ats_flags ats_base ats_plan ats_cost ats_profile ats_record ats_trace ats_model ats_gguf
        ats_sim ats_live ats_top ats_backend_objs
        ggml ggml-base PkgConfig::JANSSON PkgConfig::CMOCKA Threads::Threads ${CMAKE_DL_LIBS} m)
    # The sources under test may be compiled against the tests' private helpers too.
    target_include_directories(${name} PRIVATE "${CMAKE_CURRENT_SOURCE_DIR}")
    set_target_properties(${name} PROPERTIES BUILD_RPATH "${ATS_LLAMA_BIN}")
    add_test(NAME ${name} COMMAND ${name})
    set_tests_properties(${name} PROPERTIES
        LABELS unit TIMEOUT 120
        ENVIRONMENT "ATS_LLAMA_BIN=${ATS_LLAMA_BIN};ATS_LIBRARY=$<TARGET_FILE:ggml-ats>")
endfunction()
