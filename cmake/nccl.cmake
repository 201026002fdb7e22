# NCCL, where its header is found. Nothing is linked: the library is opened at run time, so programs start where it is
# absent. Sets WARPMETER_NCCL_ENABLED, the target warpmeter_nccl with the header, and WARPMETER_NCCL_SAYS (one line for
# the summary).
#
# Looked for in the CUDA toolkit's folders, the system's (libnccl-dev), and in the Python wheels nvidia-nccl-cu*.
# Elsewhere: -DNCCL_INCLUDE_DIR=...

set(WARPMETER_NCCL_ENABLED OFF)
set(_nccl_says "off, as CUDA is")
if(WARPMETER_CUDA_ENABLED)
  set(_nccl_wheels "")
  find_program(WARPMETER_PYTHON3 python3)
  if(WARPMETER_PYTHON3)
    execute_process(
      COMMAND ${WARPMETER_PYTHON3} -c "import site, sysconfig; print(';'.join({sysconfig.get_path('purelib'), sysconfig.get_path('platlib'), site.getusersitepackages()}))"
      OUTPUT_VARIABLE _nccl_wheels ERROR_QUIET OUTPUT_STRIP_TRAILING_WHITESPACE)
  endif()
  list(TRANSFORM _nccl_wheels APPEND "/nvidia/nccl")
  find_path(NCCL_INCLUDE_DIR nccl.h HINTS ${CUDAToolkit_INCLUDE_DIRS} $ENV{NCCL_ROOT} ${_nccl_wheels} PATH_SUFFIXES include)
  # Where the running program may find the library, should the loader's own path not have it.
  find_file(NCCL_LIBRARY_FILE libnccl.so.2 HINTS ${CUDAToolkit_LIBRARY_DIR} $ENV{NCCL_ROOT} ${_nccl_wheels}
    PATH_SUFFIXES lib lib64)
  set(_nccl_version "")
  if(NCCL_INCLUDE_DIR AND EXISTS ${NCCL_INCLUDE_DIR}/nccl.h)
    file(STRINGS ${NCCL_INCLUDE_DIR}/nccl.h _nccl_lines REGEX "#define NCCL_(MAJOR|MINOR|PATCH) [0-9]+")
    string(REGEX REPLACE "[^0-9]*([0-9]+)[^0-9]+([0-9]+)[^0-9]+([0-9]+)" "\\1.\\2.\\3" _nccl_version "${_nccl_lines}")
  endif()
  if(NOT NCCL_INCLUDE_DIR)
    set(_nccl_says "left out: nccl.h was not found (libnccl-dev or pip's nvidia-nccl-cu13 has it, or set NCCL_INCLUDE_DIR)")
  elseif(_nccl_version VERSION_LESS 2.19)
    set(_nccl_says "left out: NCCL ${_nccl_version} is older than 2.19")
  else()
    set(WARPMETER_NCCL_ENABLED ON)
    set(_nccl_says "header ${_nccl_version} found, the library is opened at run time")
    add_library(warpmeter_nccl INTERFACE)
    target_include_directories(warpmeter_nccl SYSTEM INTERFACE ${NCCL_INCLUDE_DIR} ${CUDAToolkit_INCLUDE_DIRS})
    set(_nccl_library "")
    if(NCCL_LIBRARY_FILE)
      set(_nccl_library ${NCCL_LIBRARY_FILE})
    endif()
    target_compile_definitions(warpmeter_nccl INTERFACE WM_NCCL_LIBRARY="${_nccl_library}")
  endif()
endif()
set(WARPMETER_NCCL_SAYS "${_nccl_says}" CACHE INTERNAL "What was decided about NCCL")
