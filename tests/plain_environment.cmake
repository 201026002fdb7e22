# Read by ctest before the tests run: they say themselves which launcher their ranks have and how kernels are launched,
# also where a launcher or a debugging session has started ctest. Which GPUs and how many threads are there to be used
# stays as it is.
foreach(_variable
    OMPI_COMM_WORLD_RANK OMPI_COMM_WORLD_SIZE PMI_RANK PMI_SIZE PMIX_RANK SLURM_PROCID SLURM_STEP_NUM_TASKS
    RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT
    CUDA_LAUNCH_BLOCKING)
  unset(ENV{${_variable}})
endforeach()

# Tests run beside each other on cores that all of them want. A thread that has no work gives its core away: one that
# spins takes most of the others' time.
if(NOT DEFINED ENV{OMP_WAIT_POLICY})
  set(ENV{OMP_WAIT_POLICY} PASSIVE)
endif()
