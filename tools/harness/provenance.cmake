# warpmeter_provenance(TARGET): compiles what a result says about its origin into TARGET.
function(warpmeter_provenance target)
  set(generated ${CMAKE_CURRENT_BINARY_DIR}/generated)
  set(header ${generated}/provenance_git.hpp)
  set(command ${CMAKE_COMMAND} -DSOURCE=${PROJECT_SOURCE_DIR} -DOUT=${header}
              -P ${CMAKE_CURRENT_SOURCE_DIR}/provenance_git.cmake)
  add_custom_target(${target}_git COMMAND ${command} BYPRODUCTS ${header} COMMENT "" VERBATIM)
  add_dependencies(${target} ${target}_git)
  set(cuda "")
  if(WARPMETER_CUDA_ENABLED)
    string(REPLACE ";" "," archs "${CMAKE_CUDA_ARCHITECTURES}")
    set(cuda "${CUDAToolkit_VERSION}, architectures ${archs}")
  endif()
  set_source_files_properties(provenance_build.cpp PROPERTIES
    INCLUDE_DIRECTORIES ${generated}
    COMPILE_DEFINITIONS "WM_PROJECT_VERSION=\"${PROJECT_VERSION}\";WM_BUILD_TYPE=\"${CMAKE_BUILD_TYPE}\";WM_COMPILER=\"${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION}\";WM_SANITIZERS=\"${WARPMETER_SANITIZE}\";WM_CUDA_TOOLKIT=\"${cuda}\"")
endfunction()
