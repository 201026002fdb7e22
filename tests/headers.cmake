# Every public header compiles on its own: one generated file each, never linked.
file(GLOB_RECURSE _headers RELATIVE ${PROJECT_SOURCE_DIR} CONFIGURE_DEPENDS
  ${PROJECT_SOURCE_DIR}/kernels/*.hpp ${PROJECT_SOURCE_DIR}/reports/*.hpp ${PROJECT_SOURCE_DIR}/tools/*.hpp)
# Room-private headers (detail/), and those that only nvcc or one instruction set takes, are compiled by their users.
list(FILTER _headers EXCLUDE REGEX "/(detail|dev|cuda)/|_cuda\\.hpp$|cuda_check\\.hpp$")
foreach(_header IN LISTS _headers)
  string(MAKE_C_IDENTIFIER ${_header} _stem)
  set(_file ${PROJECT_BINARY_DIR}/header_check/${_stem}.cpp)
  if(NOT EXISTS ${_file})
    file(WRITE ${_file} "#include \"${_header}\"\n")
  endif()
  list(APPEND _files ${_file})
endforeach()
add_library(warpmeter_header_check OBJECT ${_files})
target_link_libraries(warpmeter_header_check PRIVATE warpmeter_options)
target_compile_options(warpmeter_header_check PRIVATE -O0 -g0)
