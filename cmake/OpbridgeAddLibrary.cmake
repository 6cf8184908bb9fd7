# opbridge_add_library(<target> DOMAIN <domain> VERSION <n> OPS <folder>... [CUDA_SEPARABLE_COMPILATION])
#
# Builds lib<target>.so, which every ONNX Runtime from 1.16 on loads as a custom-op library and opbridge.load() as torch
# operators. Each word of OPS names a folder below the current one:
#   <folder>/<folder>_cpu.cpp    OPBRIDGE_OPERATORS(<folder>) {...} and the CPU kernels
#   <folder>/<folder>_cuda.cu    the CUDA kernels, if any; compiled as OPBRIDGE_CUDA (AUTO, ON, OFF) says
# Further sources (shared helpers) can be added with target_sources().

# A macro around the function, since finding CUDA, done when the first .cu file is met, enables a language, which CMake
# allows in the caller's directory only.
macro(opbridge_add_library)
  if(NOT DEFINED OPBRIDGE_CUDA_ENABLED)
    _opbridge_has_cuda_sources(_opbridge_needs_cuda ${ARGV})
    if(_opbridge_needs_cuda)
      opbridge_find_cuda()
    endif()
  endif()
  _opbridge_add_library(${ARGV})
endmacro()

function(_opbridge_has_cuda_sources result target)
  cmake_parse_arguments(PARSE_ARGV 2 arg "" "" "OPS")
  set(${result} OFF PARENT_SCOPE)
  foreach(op IN LISTS arg_OPS)
    if(EXISTS ${CMAKE_CURRENT_SOURCE_DIR}/${op}/${op}_cuda.cu)
      set(${result} ON PARENT_SCOPE)
    endif()
  endforeach()
endfunction()

function(_opbridge_add_library target)
  set(cmake_dir ${CMAKE_CURRENT_FUNCTION_LIST_DIR})
  cmake_parse_arguments(PARSE_ARGV 1 arg "CUDA_SEPARABLE_COMPILATION" "DOMAIN;VERSION" "OPS")
  foreach(required DOMAIN VERSION OPS)
    if("${arg_${required}}" STREQUAL "")
      message(FATAL_ERROR "opbridge_add_library(${target} ...) needs ${required}, as in\n"
                          "  opbridge_add_library(my_ops DOMAIN my_namespace VERSION 1 OPS my_clip)")
    endif()
  endforeach()
  if(arg_UNPARSED_ARGUMENTS)
    message(FATAL_ERROR "opbridge_add_library(${target} ...): what is '${arg_UNPARSED_ARGUMENTS}'?")
  endif()
  if(NOT arg_VERSION MATCHES "^[1-9][0-9]*$" OR arg_VERSION GREATER 1000)
    message(FATAL_ERROR "opbridge_add_library(${target} ...): VERSION is an integer from 1 to 1000 "
                        "(ONNX Runtime allows no other), got '${arg_VERSION}'")
  endif()
  if(NOT arg_DOMAIN MATCHES "^[A-Za-z][A-Za-z0-9_]*(\\.[A-Za-z][A-Za-z0-9_]*)*$")
    message(FATAL_ERROR "opbridge_add_library(${target} ...): DOMAIN is words of letters, digits and '_' joined by dots, "
                        "as in my_namespace or pvn3d.custom_ops; got '${arg_DOMAIN}'")
  endif()
  if(arg_DOMAIN MATCHES "^(ai\\.onnx|com\\.microsoft|com\\.ms)(\\.|$)|^(onnx|aten|prim|prims)$")
    message(FATAL_ERROR "opbridge_add_library(${target} ...): the domain '${arg_DOMAIN}' belongs to ONNX, ONNX Runtime or "
                        "PyTorch; take one of your own")
  endif()

  set(sources "")
  set(cuda OFF)
  set(declarations "")
  set(folders "")
  foreach(op IN LISTS arg_OPS)
    set(dir ${CMAKE_CURRENT_SOURCE_DIR}/${op})
    if(NOT EXISTS ${dir}/${op}_cpu.cpp)
      message(FATAL_ERROR "opbridge_add_library(${target} ...): OPS names '${op}', but there is no "
                          "${dir}/${op}_cpu.cpp; each word of OPS is a folder with that file")
    endif()
    list(APPEND sources ${dir}/${op}_cpu.cpp)
    if(OPBRIDGE_CUDA_ENABLED AND EXISTS ${dir}/${op}_cuda.cu)
      list(APPEND sources ${dir}/${op}_cuda.cu)
      set(cuda ON)
    endif()
    string(APPEND declarations "OPBRIDGE_OPERATORS(${op});\n")
    string(APPEND folders "\n           {\"${op}\", opbridge_operators_${op}()},")
  endforeach()

  set(cuda_toolkit "")
  set(cuda_architectures "")
  if(cuda)
    set(cuda_toolkit ${OPBRIDGE_CUDA_TOOLKIT})
    set(cuda_architectures "${CMAKE_CUDA_ARCHITECTURES}")
  endif()
  set(generated ${CMAKE_CURRENT_BINARY_DIR}/${target}_library.cpp)
  configure_file(${cmake_dir}/library.cpp.in ${generated} @ONLY)

  add_library(${target} SHARED ${sources} ${generated})
  target_link_libraries(${target} PRIVATE opbridge::core opbridge::onnxruntime_adapter)
  set_target_properties(${target} PROPERTIES
    CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON POSITION_INDEPENDENT_CODE ON
    LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/lib
    LINK_DEPENDS ${cmake_dir}/exports.map)
  # No contraction into fused multiply-add: CPU and CUDA must decide alike (kernels that may fuse say fma themselves).
  # No GNU-unique symbols: one would keep the library from ever being unloaded.
  target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-ffp-contract=off -fno-gnu-unique>
                         $<$<CONFIG:>:-O2>)  # without a build type CMake would not optimise
  target_link_options(${target} PRIVATE LINKER:--version-script=${cmake_dir}/exports.map LINKER:--gc-sections)
  if(NOT CMAKE_CXX_FLAGS MATCHES "-fsanitize" AND NOT OPBRIDGE_SANITIZE)
    target_link_options(${target} PRIVATE LINKER:-z,defs)  # an undefined symbol fails here, not at the user's
  endif()
  if(cuda)
    target_compile_definitions(${target} PRIVATE OPBRIDGE_WITH_CUDA)
    opbridge_use_cuda(${target})
    if(arg_CUDA_SEPARABLE_COMPILATION)
      set_target_properties(${target} PROPERTIES CUDA_SEPARABLE_COMPILATION ON CUDA_RESOLVE_DEVICE_SYMBOLS ON)
    endif()
  endif()
  set_target_properties(${target} PROPERTIES OPBRIDGE_DOMAIN ${arg_DOMAIN} OPBRIDGE_VERSION ${arg_VERSION} OPBRIDGE_OPS "${arg_OPS}")
  # A wrong signature fails the build.
  if(NOT CMAKE_CROSSCOMPILING AND NOT OPBRIDGE_SANITIZE)
    add_custom_command(TARGET ${target} POST_BUILD COMMAND opbridge::validate $<TARGET_FILE:${target}> VERBATIM)
  endif()
endfunction()
