# Whether nvcc compiles the kernels, as a test that says so where there is no nvcc.
if(NOT NVCC)
  message("skipped: nvcc is not installed here, so the CUDA kernels were not compiled for GPUs")
  return()
endif()
execute_process(COMMAND ${CMAKE} --build ${BUILD} --target tessera_cuda_kernels RESULT_VARIABLE failed)
if(failed)
  message(FATAL_ERROR "the CUDA kernels do not compile")
endif()
