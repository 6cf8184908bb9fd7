# Finds nvcc as OPBRIDGE_CUDA (AUTO, ON, OFF) says. Sets OPBRIDGE_CUDA_ENABLED and OPBRIDGE_CUDA_TOOLKIT ("13.0").
# A macro, since enable_language() must run in the caller's directory.

macro(opbridge_find_cuda)
  set(OPBRIDGE_CUDA_ENABLED OFF)
  if(NOT "${OPBRIDGE_CUDA}" STREQUAL "OFF")
    find_program(OPBRIDGE_NVCC nvcc HINTS ${CUDAToolkit_ROOT} $ENV{CUDA_HOME} $ENV{CUDA_PATH} /usr/local/cuda PATH_SUFFIXES bin)
    if(OPBRIDGE_NVCC)
      execute_process(COMMAND ${OPBRIDGE_NVCC} --version OUTPUT_VARIABLE _opbridge_nvcc_text)
      string(REGEX MATCH "release ([0-9]+\\.[0-9]+)" _ "${_opbridge_nvcc_text}")
      set(OPBRIDGE_CUDA_TOOLKIT ${CMAKE_MATCH_1})
      if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
        # Set before enable_language(): CMake's own default is one that CUDA 13 no longer knows. One architecture's code
        # and its PTX, which the driver compiles for newer GPUs; a release lists them all.
        set(CMAKE_CUDA_ARCHITECTURES 80 CACHE STRING "GPU architectures")
      endif()
      if(NOT CMAKE_CUDA_COMPILER)
        set(CMAKE_CUDA_COMPILER ${OPBRIDGE_NVCC})
      endif()
      enable_language(CUDA)
      find_package(CUDAToolkit REQUIRED)
      set(CMAKE_CUDA_STANDARD 17)
      set(CMAKE_CUDA_STANDARD_REQUIRED ON)
      set(OPBRIDGE_CUDA_ENABLED ON)
    elseif("${OPBRIDGE_CUDA}" STREQUAL "ON")
      message(FATAL_ERROR "OPBRIDGE_CUDA=ON, but no nvcc was found on PATH, in CUDA_HOME or in /usr/local/cuda. "
                          "Install the CUDA toolkit, set CUDAToolkit_ROOT, or build for the CPU with -DOPBRIDGE_CUDA=OFF.")
    endif()
  endif()
  if(OPBRIDGE_CUDA_ENABLED)
    message(STATUS "opbridge: CUDA kernels with nvcc ${OPBRIDGE_CUDA_TOOLKIT} for ${CMAKE_CUDA_ARCHITECTURES}")
  else()
    message(STATUS "opbridge: CPU kernels only (OPBRIDGE_CUDA=${OPBRIDGE_CUDA})")
  endif()
endmacro()

# Compiles a target's .cu files as opbridge needs them.
function(opbridge_use_cuda target)
  # -fmad=false: see -ffp-contract=off in OpbridgeAddLibrary.cmake. Static cudart: the library loads without a driver.
  target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:-fmad=false -Xcompiler=-fno-gnu-unique
                         -Xcompiler=-ffp-contract=off -Xcompiler=-Wall -Xcompiler=-Wextra>)
  set_target_properties(${target} PROPERTIES CUDA_RUNTIME_LIBRARY Static CUDA_VISIBILITY_PRESET hidden)
  target_link_libraries(${target} PRIVATE CUDA::cudart_static)
endfunction()

opbridge_find_cuda()
