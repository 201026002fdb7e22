# warpmeter_library(NAME SOURCES... [CUDA sources...] [LINK targets...]): a static library of one room.
function(warpmeter_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;CUDA;LINK" ${ARGN})
  if(WARPMETER_CUDA_ENABLED)
    list(APPEND ARG_SOURCES ${ARG_CUDA})
  endif()
  add_library(${name} STATIC ${ARG_SOURCES})
  target_link_libraries(${name} PUBLIC warpmeter_options ${ARG_LINK})
  if(WARPMETER_CUDA_ENABLED)
    target_compile_definitions(${name} PRIVATE WARPMETER_CUDA=1)
  else()
    target_compile_definitions(${name} PRIVATE WARPMETER_CUDA=0)
  endif()
endfunction()

# warpmeter_cuda_unit(LIST NAME SOURCES...): adds to LIST one generated file that includes the SOURCES of the current
# folder. nvcc reads the standard library's and the toolkit's headers three times a file, two seconds of processor time:
# more than many kernels take.
function(warpmeter_cuda_unit list name)
  list(TRANSFORM ARGN PREPEND "#include \"${CMAKE_CURRENT_SOURCE_DIR}/")
  list(TRANSFORM ARGN APPEND "\"\n")
  string(CONCAT includes ${ARGN})
  set(unit ${CMAKE_CURRENT_BINARY_DIR}/units/${name}.cu)
  file(CONFIGURE OUTPUT ${unit} CONTENT "${includes}")
  set(${list} ${${list}} ${unit} PARENT_SCOPE)
endfunction()

# warpmeter_tool(NAME SOURCES... LINK...): a program in build/bin.
function(warpmeter_tool name)
  cmake_parse_arguments(ARG "" "" "SOURCES;LINK" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE warpmeter_options ${ARG_LINK})
endfunction()

# What parses, prints and decides needs no -O3, which takes a third of its compile time: what runs while something is
# timed does. For a target, or for files of the current folder.
set(_release $<AND:$<CONFIG:Release>,$<COMPILE_LANGUAGE:CXX>>)
# GCC takes what -Og does not follow for uninitialized; builds of other kinds have the warning.
set(WARPMETER_QUICK_TO_COMPILE $<${_release}:-Og>
  $<$<AND:${_release},$<CXX_COMPILER_ID:GNU>>:-Wno-maybe-uninitialized>)

# warpmeter_isa_variants(TARGET FILE): compiles FILE once for each x86-64 level, with WM_ISA naming it (avx512, avx2,
# generic); elsewhere once, as generic. The file puts everything in a namespace of that name; the caller picks at run
# time. These files alone may use wider instructions than the base level; a multiply-add that is to be fused says so.
function(warpmeter_isa_variants target file)
  get_filename_component(stem ${file} NAME_WE)
  set(variants generic)
  if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
    list(APPEND variants avx2 avx512)
  endif()
  set(flags_generic "")
  set(flags_avx2 -march=x86-64-v3)
  set(flags_avx512 -march=x86-64-v4 -mprefer-vector-width=512)
  foreach(isa IN LISTS variants)
    set(object ${target}_${stem}_${isa})
    add_library(${object} OBJECT ${file})
    target_link_libraries(${object} PRIVATE $<TARGET_PROPERTY:${target},LINK_LIBRARIES>)
    target_compile_definitions(${object} PRIVATE WM_ISA=${isa} WM_ISA_${isa}=1)
    target_compile_options(${object} PRIVATE ${flags_${isa}})
    target_sources(${target} PRIVATE $<TARGET_OBJECTS:${object}>)
  endforeach()
endfunction()
