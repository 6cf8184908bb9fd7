# opbridge_find_cuda() finds nvcc as OPBRIDGE_CUDA (AUTO, ON, OFF) says, and sets OPBRIDGE_CUDA_ENABLED,
# OPBRIDGE_CUDA_TOOLKIT ("13.0") and CMAKE_CUDA_ARCHITECTURES. A macro, since enable_language() must run in the caller's
# directory.

set(OPBRIDGE_CUDA AUTO CACHE STRING "CUDA kernels: ON, OFF, or AUTO (ON where an nvcc is found)")
set_property(CACHE OPBRIDGE_CUDA PROPERTY STRINGS AUTO ON OFF)
set(OPBRIDGE_CUDA_ARCHITECTURES 80 CACHE STRING
    "GPU architectures, as in 75;80;90: code for each that nvcc knows, and PTX of the newest for those that come after")

macro(opbridge_find_cuda)
  set(OPBRIDGE_CUDA_ENABLED OFF)
  if(NOT "${OPBRIDGE_CUDA}" STREQUAL "OFF")
    find_program(OPBRIDGE_NVCC nvcc HINTS ${CUDAToolkit_ROOT} $ENV{CUDA_HOME} $ENV{CUDA_PATH} /usr/local/cuda PATH_SUFFIXES bin)
    if(OPBRIDGE_NVCC)
      execute_process(COMMAND ${OPBRIDGE_NVCC} --version OUTPUT_VARIABLE _opbridge_nvcc_text)
      string(REGEX MATCH "release ([0-9]+\\.[0-9]+)" _ "${_opbridge_nvcc_text}")
      set(OPBRIDGE_CUDA_TOOLKIT ${CMAKE_MATCH_1})
      # Set before enable_language(), whose own default is one that CUDA 13 no longer knows.
      if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
        _opbridge_choose_architectures(CMAKE_CUDA_ARCHITECTURES)
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

# "75-real;80-real;90" from OPBRIDGE_CUDA_ARCHITECTURES and what this nvcc knows.
function(_opbridge_choose_architectures result)
  execute_process(COMMAND ${OPBRIDGE_NVCC} --list-gpu-arch OUTPUT_VARIABLE text)
  string(REGEX MATCHALL "[0-9]+" known "${text}")
  set(chosen "")
  foreach(architecture IN LISTS OPBRIDGE_CUDA_ARCHITECTURES)
    if(architecture IN_LIST known)
      list(APPEND chosen ${architecture})
    else()
      message(STATUS "opbridge: nvcc ${OPBRIDGE_CUDA_TOOLKIT} does not know architecture ${architecture}; left out")
    endif()
  endforeach()
  if(NOT chosen)
    list(JOIN known ", " known)
    message(FATAL_ERROR "OPBRIDGE_CUDA_ARCHITECTURES=${OPBRIDGE_CUDA_ARCHITECTURES} names none that nvcc "
                        "${OPBRIDGE_CUDA_TOOLKIT} knows: ${known}")
  endif()
  list(SORT chosen COMPARE NATURAL)
  list(POP_BACK chosen newest)
  list(TRANSFORM chosen APPEND -real)
  set(${result} ${chosen} ${newest} PARENT_SCOPE)
endfunction()

# Compiles a target's .cu files as opbridge needs them.
function(opbridge_use_cuda target)
  set(cmake_dir ${CMAKE_CURRENT_FUNCTION_LIST_DIR})
  # -fmad=false: see -ffp-contract=off in OpbridgeAddLibrary.cmake. Static cudart: the library loads without a driver.
  target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:-fmad=false -Xptxas=-v -Xcompiler=-fno-gnu-unique
                         -Xcompiler=-ffp-contract=off -Xcompiler=-Wall -Xcompiler=-Wextra>
                         $<$<AND:$<BOOL:${OPBRIDGE_WERROR}>,$<COMPILE_LANGUAGE:CUDA>>:-Werror=all-warnings>)
  set_target_properties(${target} PROPERTIES CUDA_RUNTIME_LIBRARY Static CUDA_VISIBILITY_PRESET hidden)
  target_link_libraries(${target} PRIVATE CUDA::cudart_static)

  target_sources(${target} PRIVATE ${cmake_dir}/cuda_support.cpp)
  list(JOIN CMAKE_CUDA_ARCHITECTURES ", " architectures)
  string(REPLACE "-real" "" architectures "${architectures}")
  set_source_files_properties(${cmake_dir}/cuda_support.cpp TARGET_DIRECTORY ${target} PROPERTIES
                              COMPILE_DEFINITIONS "OPBRIDGE_CUDA_ARCHITECTURES=\"${architectures}\"")

  # ptxas' registers, spills and shared memory of each kernel as a table, checked against OPBRIDGE_PTXAS_BUDGET, a file.
  find_program(OPBRIDGE_PYTHON3 python3)
  mark_as_advanced(OPBRIDGE_PYTHON3)
  if(OPBRIDGE_PYTHON3)
    set(launcher ${OPBRIDGE_PYTHON3} ${cmake_dir}/ptxas_table.py)
    if(OPBRIDGE_PTXAS_BUDGET)
      list(APPEND launcher --budget ${OPBRIDGE_PTXAS_BUDGET} ${OPBRIDGE_CUDA_TOOLKIT})
    endif()
    list(APPEND launcher ${CMAKE_CUDA_COMPILER_LAUNCHER})
    set_target_properties(${target} PROPERTIES CUDA_COMPILER_LAUNCHER "${launcher}")
  endif()
endfunction()
