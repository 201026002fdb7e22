# cuDNN's attention, where its headers and its header-only frontend are found. Nothing is linked: the library is opened
# at run time, so programs start where it is absent. Sets WARPMETER_CUDNN_ENABLED, the target warpmeter_cudnn with the
# headers, and WARPMETER_CUDNN_SAYS (one line for the summary).
#
# Looked for in the CUDA toolkit's folders, the system's, and in the Python wheels nvidia-cudnn-frontend and
# nvidia-cudnn-cu*. Elsewhere: -DCUDNN_INCLUDE_DIR=... -DCUDNN_FRONTEND_INCLUDE_DIR=...

set(WARPMETER_CUDNN_ENABLED OFF)
set(_cudnn_says "off, as CUDA is")
if(WARPMETER_CUDA_ENABLED)
  set(_cudnn_wheels "")
  find_program(WARPMETER_PYTHON3 python3)
  if(WARPMETER_PYTHON3)
    execute_process(
      COMMAND ${WARPMETER_PYTHON3} -c "import site, sysconfig; print(';'.join({sysconfig.get_path('purelib'), sysconfig.get_path('platlib'), site.getusersitepackages()}))"
      OUTPUT_VARIABLE _cudnn_wheels ERROR_QUIET OUTPUT_STRIP_TRAILING_WHITESPACE)
  endif()
  set(_cudnn_roots ${_cudnn_wheels})
  list(TRANSFORM _cudnn_roots APPEND "/nvidia/cudnn")
  find_path(CUDNN_INCLUDE_DIR cudnn.h HINTS ${CUDAToolkit_INCLUDE_DIRS} ${_cudnn_roots} PATH_SUFFIXES include)
  find_path(CUDNN_FRONTEND_INCLUDE_DIR cudnn_frontend.h
    HINTS ${CUDAToolkit_INCLUDE_DIRS} ${_cudnn_wheels} $ENV{CUDNN_FRONTEND_ROOT} PATH_SUFFIXES include)
  # Where the running program may find the libraries, should the loader's own path not have them.
  find_file(CUDNN_LIBRARY_FILE libcudnn.so.9 HINTS ${CUDAToolkit_LIBRARY_DIR} ${_cudnn_roots} PATH_SUFFIXES lib lib64)
  set(_cudnn_version "")
  if(CUDNN_FRONTEND_INCLUDE_DIR AND EXISTS ${CUDNN_FRONTEND_INCLUDE_DIR}/cudnn_frontend_version.h)
    file(STRINGS ${CUDNN_FRONTEND_INCLUDE_DIR}/cudnn_frontend_version.h _cudnn_lines
      REGEX "#define CUDNN_FRONTEND_(MAJOR|MINOR)_VERSION [0-9]+")
    string(REGEX REPLACE "[^0-9]*([0-9]+)[^0-9]+([0-9]+)" "\\1.\\2" _cudnn_version "${_cudnn_lines}")
  endif()
  if(NOT CUDNN_FRONTEND_INCLUDE_DIR)
    set(_cudnn_says "left out: cudnn_frontend.h was not found (pip's nvidia-cudnn-frontend has it, or set CUDNN_FRONTEND_INCLUDE_DIR)")
  elseif(NOT CUDNN_INCLUDE_DIR)
    set(_cudnn_says "left out: cudnn.h was not found (set CUDNN_INCLUDE_DIR)")
  elseif(_cudnn_version VERSION_LESS 1.11)
    set(_cudnn_says "left out: its frontend ${_cudnn_version} is older than 1.11")
  else()
    set(WARPMETER_CUDNN_ENABLED ON)
    set(_cudnn_says "frontend ${_cudnn_version} found, the library is opened at run time")
    add_library(warpmeter_cudnn INTERFACE)
    target_include_directories(warpmeter_cudnn SYSTEM INTERFACE ${CUDNN_FRONTEND_INCLUDE_DIR} ${CUDNN_INCLUDE_DIR}
      ${CUDAToolkit_INCLUDE_DIRS})
    set(_cudnn_library "")
    if(CUDNN_LIBRARY_FILE)
      set(_cudnn_library ${CUDNN_LIBRARY_FILE})
    endif()
    target_compile_definitions(warpmeter_cudnn INTERFACE
      NV_CUDNN_FRONTEND_USE_DYNAMIC_LOADING CUDNN_FRONTEND_SKIP_JSON_LIB
      WM_CUDNN_LIBRARY="${_cudnn_library}"
      WM_CUDART_LIBRARY="${CUDAToolkit_LIBRARY_DIR}/libcudart.so.${CUDAToolkit_VERSION_MAJOR}")
  endif()
endif()
set(WARPMETER_CUDNN_SAYS "${_cudnn_says}" CACHE INTERNAL "What was decided about cuDNN")
