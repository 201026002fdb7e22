# Libraries that others keep: the system's package first, a pinned download second.
include(FetchContent)
set(FETCHCONTENT_QUIET ON)

find_package(Threads REQUIRED)
find_package(OpenMP REQUIRED COMPONENTS CXX)

find_package(PkgConfig QUIET)
find_path(OPENBLAS_INCLUDE_DIR cblas.h PATH_SUFFIXES openblas x86_64-linux-gnu aarch64-linux-gnu x86_64-linux-gnu/openblas-pthread)
find_library(OPENBLAS_LIBRARY NAMES openblas)
if(NOT OPENBLAS_INCLUDE_DIR OR NOT OPENBLAS_LIBRARY)
  message(FATAL_ERROR "OpenBLAS was not found: install libopenblas-dev (scripts/run and scripts/test do that)")
endif()
add_library(warpmeter_openblas INTERFACE)
target_include_directories(warpmeter_openblas SYSTEM INTERFACE ${OPENBLAS_INCLUDE_DIR})
target_link_libraries(warpmeter_openblas INTERFACE ${OPENBLAS_LIBRARY})

# fmt is compiled into the programs, so that they run where libfmt is not installed: warpmeter_fmt, below.
find_package(fmt QUIET)
if(NOT fmt_FOUND)
  FetchContent_Declare(fmt URL https://github.com/fmtlib/fmt/archive/refs/tags/10.2.1.tar.gz
    URL_HASH SHA256=1250e4cc58bf06ee631567523f48848dc4596133e163f02615c97f78bab6c811)
  FetchContent_MakeAvailable(fmt)
endif()
add_library(warpmeter_fmt STATIC ${PROJECT_SOURCE_DIR}/cmake/fmt_core.cpp)
target_include_directories(warpmeter_fmt SYSTEM PUBLIC
  $<TARGET_PROPERTY:fmt::fmt-header-only,INTERFACE_INCLUDE_DIRECTORIES>)
target_compile_options(warpmeter_fmt PRIVATE $<$<CONFIG:Release>:-Og>)
find_package(nlohmann_json QUIET)
if(NOT nlohmann_json_FOUND)
  FetchContent_Declare(json URL https://github.com/nlohmann/json/releases/download/v3.11.3/json.tar.xz
    URL_HASH SHA256=d6c65aca6b1ed68e7a182f4757257b107ae403032760ed6ef121c9d55e81757d)
  FetchContent_MakeAvailable(json)
endif()
find_package(CLI11 QUIET)
if(NOT CLI11_FOUND)
  FetchContent_Declare(cli11 URL https://github.com/CLIUtils/CLI11/archive/refs/tags/v2.4.2.tar.gz
    URL_HASH SHA256=f2d893a65c3b1324c50d4e682c0cdc021dd0477ae2c048544f39eed6654b699a)
  FetchContent_MakeAvailable(cli11)
endif()
if(WARPMETER_TESTS)
  find_package(GTest QUIET)
  if(NOT GTest_FOUND)
    FetchContent_Declare(googletest URL https://github.com/google/googletest/archive/refs/tags/v1.14.0.tar.gz
      URL_HASH SHA256=8ad598c73ad796e0d8280b082cebd82a630d73e73cd3c70057938a6501bba5d7)
    set(INSTALL_GTEST OFF CACHE BOOL "" FORCE)
    FetchContent_MakeAvailable(googletest)
  endif()
  find_package(Python3 3.9 COMPONENTS Interpreter)
endif()

# NVTX 3 is header-only: ranges cost nothing until a profiler injects itself. Without the headers they are no-ops.
find_path(NVTX3_INCLUDE_DIR nvtx3/nvToolsExt.h
  HINTS ${CUDAToolkit_INCLUDE_DIRS} /usr/local/cuda/include $ENV{CUDA_HOME}/include)
