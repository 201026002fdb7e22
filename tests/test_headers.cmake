# GoogleTest's headers and what comes with them are more than a third of a test file's compile time: they are compiled
# once for all files, and each includes what it uses all the same. Not where ccache is: it keeps whole files instead,
# which is quicker still, and shows an include that is missing.
set(_default OFF)
if(NOT WARPMETER_CCACHE AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  set(_default ON)
endif()
option(WARPMETER_TEST_HEADERS "Precompile the headers that tests share" ${_default})
if(WARPMETER_TEST_HEADERS)
  file(WRITE ${PROJECT_BINARY_DIR}/test_headers.cpp.in "// Holds the precompiled headers.\n")
  configure_file(${PROJECT_BINARY_DIR}/test_headers.cpp.in ${PROJECT_BINARY_DIR}/test_headers.cpp COPYONLY)
  # Compiled as tests that link the runtime are, for a program and with OpenMP: the compiler refuses other flags.
  add_library(warpmeter_test_headers OBJECT ${PROJECT_BINARY_DIR}/test_headers.cpp)
  set_target_properties(warpmeter_test_headers PROPERTIES POSITION_INDEPENDENT_CODE OFF)
  target_link_libraries(warpmeter_test_headers PRIVATE warpmeter_options warpmeter_runtime GTest::gtest)
  target_compile_options(warpmeter_test_headers PRIVATE ${WARPMETER_QUICK_TO_COMPILE} ${CMAKE_CXX_COMPILE_OPTIONS_PIE})
  target_precompile_headers(warpmeter_test_headers PRIVATE <gtest/gtest.h> <algorithm> <array> <atomic> <chrono> <cmath>
    <cstdint> <filesystem> <fstream> <functional> <map> <memory> <optional> <set> <span> <sstream> <stdexcept> <string>
    <string_view> <thread> <utility> <variant> <vector>)
endif()

# For a test program that links warpmeter_runtime, itself or through others.
function(warpmeter_use_test_headers name)
  if(NOT WARPMETER_TEST_HEADERS)
    return()
  endif()
  # Tests of what needs no runtime are compiled without OpenMP.
  get_target_property(links ${name} LINK_LIBRARIES)
  if("${links}" MATCHES "warpmeter_(reports|snapshot)_sample")
    return()
  endif()
  target_precompile_headers(${name} REUSE_FROM warpmeter_test_headers)
  # GCC no longer knows that the standard library's code is a system header's and finds faults in it that are none; other
  # builds have these warnings.
  target_compile_options(${name} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-Wno-array-bounds -Wno-restrict -Wno-stringop-overflow
    -Wno-stringop-overread -Wno-maybe-uninitialized>)
endfunction()
