# Libraries that collectives may use besides our own: found or left out, each with a line in the summary.
set(WARPMETER_GLOO_ENABLED FALSE)
set(WARPMETER_MPI_ENABLED FALSE)

find_package(Gloo QUIET)
if(Gloo_FOUND AND TARGET gloo)
  set(WARPMETER_GLOO_ENABLED TRUE)
  set(WARPMETER_GLOO_SAYS "${Gloo_DIR}")
else()
  set(WARPMETER_GLOO_SAYS "not found: install libgloo-dev for --backend gloo")
endif()

# Its C interface alone; the language that the project has is C++.
set(MPI_CXX_SKIP_MPICXX ON)
find_package(MPI QUIET COMPONENTS CXX)
if(MPI_CXX_FOUND)
  set(WARPMETER_MPI_ENABLED TRUE)
  set(WARPMETER_MPI_SAYS "${MPI_CXX_LIBRARIES}")
else()
  set(WARPMETER_MPI_SAYS "not found: install libopenmpi-dev and openmpi-bin for --backend mpi")
endif()

# For scripts/run, which configures anew once they are installed.
set(_found "")
foreach(_library Gloo MPI)
  string(TOUPPER ${_library} _upper)
  if(WARPMETER_${_upper}_ENABLED)
    string(APPEND _found " ${_library}")
  endif()
endforeach()
string(STRIP "${_found}" _found)
set(WARPMETER_COLLECTIVES_FOUND "${_found}" CACHE INTERNAL "Libraries of collectives that were found")

include(nccl)
