# Language level, optimization, warnings and sanitizers: what every target of the project shares.

if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Debug, Release or RelWithDebInfo" FORCE)
endif()
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/bin)
set(CMAKE_CXX_FLAGS_RELEASE "-O3 -g1")
set(CMAKE_CUDA_FLAGS_RELEASE "-O3 -lineinfo")

# WM_CHECK stays on in every build; nothing in the project may depend on NDEBUG.
find_program(WARPMETER_CCACHE ccache)
if(WARPMETER_CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${WARPMETER_CCACHE})
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${WARPMETER_CCACHE})
endif()

add_library(warpmeter_options INTERFACE)
target_include_directories(warpmeter_options INTERFACE ${PROJECT_SOURCE_DIR})
# No contraction behind the source's back: random fill must give the same bits on both devices, and references are
# compared with it off. Kernels that want fused multiply-adds say so (std::fma, or a per-file -ffp-contract=fast).
target_compile_options(warpmeter_options INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wshadow -Wnon-virtual-dtor -Wno-psabi -Werror -ffp-contract=off>
  $<$<COMPILE_LANGUAGE:CUDA>:-Werror=all-warnings -Xcompiler=-Wall,-Wextra,-Werror,-Wno-psabi>)

if(WARPMETER_SANITIZE)
  target_compile_options(warpmeter_options INTERFACE
    $<$<COMPILE_LANGUAGE:CXX>:-fsanitize=${WARPMETER_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all>)
  target_link_options(warpmeter_options INTERFACE -fsanitize=${WARPMETER_SANITIZE})
  if(WARPMETER_SANITIZE MATCHES thread)
    target_compile_definitions(warpmeter_options INTERFACE WARPMETER_TSAN=1)
  endif()
endif()
